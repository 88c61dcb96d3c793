from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from onnx_ir.passes import common

from qdqbert.graphs.edit import (
    add_constant,
    apply_passes,
    constant_array,
    only_consumer,
    producer_of,
    replace,
    tidy,
)

TEXT = """
<ir_version: 10, opset_import: ["" : 21]>
g (float[2] x, float[2] overridable) => (float[2] y, float[2] shown)
<float[2] constant = {1.0, 2.0}, float[2] overridable = {3.0, 4.0}, float[2] unused = {0.0, 0.0}>
{
    once = Abs (x)
    twice = Add (once, constant)
    squared = Mul (twice, twice)
    shown = Neg (squared)
    dead = Exp (x)
    y = Sub (shown, overridable)
}
"""


@pytest.fixture
def graph() -> ir.Graph:
    return ir.from_onnx_text(TEXT).graph


def value_named(graph: ir.Graph, name: str) -> ir.Value:
    values = [*graph.inputs, *graph.initializers.values()]
    values += [value for node in graph for value in node.outputs]
    return next(value for value in values if value.name == name)


@pytest.mark.parametrize(
    ("name", "expected"),
    [("constant", [1, 2]), ("overridable", None), ("x", None), ("once", None)],
    ids=["initializer", "initializer-and-input", "input", "computed"],
)
def test_a_value_is_constant_if_a_caller_cannot_change_it(graph, name, expected) -> None:
    array = constant_array(value_named(graph, name))
    assert (None if array is None else array.tolist()) == expected


def test_a_missing_input_has_neither_array_nor_producer() -> None:
    assert constant_array(None) is None
    assert producer_of(None, "Abs") is None


@pytest.mark.parametrize(
    ("name", "expected"),
    [("once", "Add"), ("twice", None), ("shown", None), ("y", None)],
    ids=["one-reader", "read-twice-by-one-node", "graph-output-with-reader", "graph-output"],
)
def test_only_consumer_returns_a_single_use_of_an_inner_value(graph, name, expected) -> None:
    node = only_consumer(value_named(graph, name))
    assert (None if node is None else node.op_type) == expected


def test_a_producer_is_returned_if_type_and_domain_match(graph) -> None:
    value = value_named(graph, "once")
    assert producer_of(value, "Abs") is value.producer()
    assert producer_of(value, "Neg") is None
    assert producer_of(value, "Abs", "com.microsoft") is None


def test_an_equal_constant_of_the_same_name_is_not_added_twice(graph) -> None:
    first = add_constant(graph, "new", np.ones(3, np.float32))
    again = add_constant(graph, "new", np.ones(3, np.float32))
    assert first is again
    assert graph.initializers["new"].const_value.numpy().tolist() == [1, 1, 1]


def test_a_replaced_output_keeps_its_name(run_plainly) -> None:
    model = ir.from_onnx_text(TEXT)
    old = value_named(model.graph, "shown")
    before = old.producer()
    new = ir.node("Neg", [before.inputs[0]], name="new")
    replace(model.graph, before, new, old=old)
    tidied = tidy(model)
    assert [value.name for value in tidied.graph.outputs] == ["y", "shown"]
    assert [node.op_type for node in tidied.graph] == ["Abs", "Add", "Mul", "Neg", "Sub"]
    inputs = {"x": np.array([1, -2], np.float32), "overridable": np.zeros(2, np.float32)}
    np.testing.assert_array_equal(run_plainly(tidied, inputs)["shown"], [-4, -16])


def test_tidy_removes_unused_nodes_and_constants() -> None:
    model = tidy(ir.from_onnx_text(TEXT))
    assert "Exp" not in {node.op_type for node in model.graph}
    assert "unused" not in model.graph.initializers


@pytest.mark.parametrize("shape", [(), (1,), (2, 3)])
def test_a_constant_keeps_its_shape(graph, shape) -> None:
    # The scale of a whole tensor has shape (). Of shape (1,) it would be a scale per channel.
    value = add_constant(graph, "made", np.ones(shape, np.float32))
    assert constant_array(value).shape == shape


def test_passes_leave_no_lines_in_the_log(caplog) -> None:
    text = TEXT.replace("once = Abs (x)", "same = Identity (x)\n    once = Abs (same)")
    with caplog.at_level("INFO"):
        changed = apply_passes(ir.from_onnx_text(text), common.IdentityEliminationPass())
    assert "Identity" not in {node.op_type for node in changed.graph}
    assert not caplog.records
