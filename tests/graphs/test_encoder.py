"""Float graphs are read as encoders, which compute what the graphs do."""

from __future__ import annotations

import dataclasses
import functools
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch
import transformers

from encoder_reference import check_read, random_inputs
from qdqbert.common.errors import GraphError
from qdqbert.encoders.checkpoint.load import load_checkpoint
from qdqbert.encoders.model import TAIL_STATES, Later
from qdqbert.encoders.sites import linear_layers_of, sites_of
from qdqbert.engines.onnxruntime import OnnxRuntimeRunner
from qdqbert.graphs.check import save_graph
from qdqbert.graphs.edit import add_constant, tidy
from qdqbert.graphs.encoder import read_encoder
from qdqbert.graphs.imported.canonical_form import to_canonical_form
from qdqbert.graphs.imported.onnx_file import read_graph
from qdqbert.graphs.imported.same_values import check_same_values
from qdqbert.graphs.of_checkpoint import encoder_of
from qdqbert.graphs.writer import make_graph
from task_files import HEADS

# CamemBERT and XLM-RoBERTa have the modules of RoBERTa.
FAMILIES = ("bert", "distilbert", "electra", "mpnet", "roberta")
TASKS = ("fill-mask", "multiple-choice", "question-answering", "text-generation")


def assert_equal(found: Any, expected: Any, path: str = "model") -> None:
    """Compare dataclasses and tuples field by field, apart from names of modules."""
    if dataclasses.is_dataclass(expected):
        for field in dataclasses.fields(expected):
            if field.name not in ("module", "first"):
                pair = (getattr(each, field.name) for each in (found, expected))
                assert_equal(*pair, path=f"{path}.{field.name}")
    elif isinstance(expected, tuple):
        assert len(found) == len(expected), path
        for index, pair in enumerate(zip(found, expected, strict=True)):
            assert_equal(*pair, path=f"{path}[{index}]")
    elif isinstance(expected, np.ndarray | Later):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6, err_msg=path)
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, rel=1e-5), path
    else:
        assert found == expected, path


@pytest.fixture
def bert(prepared):
    return prepared("bert")


@pytest.mark.parametrize("family", FAMILIES)
def test_a_float_graph_of_each_family_is_read(prepared, run_plainly, family) -> None:
    each = prepared(family)
    model, inputs = make_graph(each.encoder), random_inputs((5, 23))
    # A text that spells the padding token.
    inputs["input_ids"][:, 3] = 1
    read = check_read(model, run_plainly, inputs)
    assert len(read.layers) == len(each.layers)
    assert read.limit == 64
    assert read.input_names == each.checkpoint.input_names
    assert read.layers[0].attention.heads == 4
    assert (read.embeddings.projection is None) == (family != "electra")
    assert (read.embeddings.token_types is None) == (family in ("distilbert", "mpnet"))
    assert read.embeddings.padding_id == (1 if family in ("roberta", "mpnet") else None)
    assert (read.layers[0].attention.position_bias is None) == (family != "mpnet")


@pytest.mark.parametrize("family", [*FAMILIES, "modernbert"])
def test_a_graph_that_was_written_is_read_as_the_model(prepared, family) -> None:
    each = prepared(family)
    read = read_encoder(make_graph(each.encoder), [], longest=64).encoder
    assert_equal(read, dataclasses.replace(encoder_of(each.checkpoint), limit=64))


@pytest.mark.parametrize("task", TASKS)
def test_the_head_of_each_task_is_read(save_tiny, tmp_path, run_plainly, task) -> None:
    head = HEADS[task]
    auto_class = getattr(transformers, head.auto_class)
    save_tiny(tmp_path, "bert", auto_class, num_hidden_layers=1, **head.changes)
    checkpoint = load_checkpoint(str(tmp_path))
    model = to_canonical_form(make_graph(encoder_of(checkpoint)))
    shape = (2, 5, 9) if task == "multiple-choice" else (5, 9)
    read = check_read(model, run_plainly, random_inputs(shape))
    (found,) = read.heads
    assert read.has_choices == (task == "multiple-choice")
    assert read.layers[0].attention.causal == (task == "text-generation")
    names = [output.name for output in found.outputs]
    columns = [output.column for output in found.outputs]
    if task == "question-answering":
        assert (names, columns) == (["start_logits", "end_logits"], [0, 1])
    else:
        assert (names, columns) == (["logits"], [0 if read.has_choices else None])


def insert_after(
    model: ir.Model, kind: str, op_type: str, others: Sequence[ir.Value] = (), *, index: int = 0
) -> None:
    """Insert a node after a node of a kind, and let all readers of that one read it."""
    before = [node for node in model.graph if node.op_type == kind][index]
    value = before.outputs[0]
    made = ir.node(op_type, [value, *others], name="inserted")
    name, value.name = value.name, "before"
    made.outputs[0].name, made.outputs[0].type = name, value.type
    value.replace_all_uses_with(made.outputs[0], replace_graph_outputs=True)
    made.replace_input_with(0, value)
    model.graph.insert_after(before, made)


def put_inner_states_out(model: ir.Model) -> None:
    norms = [node for node in model.graph if node.op_type == "LayerNormalization"]
    model.graph.outputs.append(norms[2].outputs[0])


def rename_input(model: ir.Model) -> None:
    model.graph.inputs[1].name = "position_ids"


CHANGES = {
    "other-activation": (
        functools.partial(insert_after, kind="Gelu", op_type="Sin"),
        "node 'inserted' .Sin. is not one of the activation functions",
    ),
    "changed-states": (
        functools.partial(insert_after, kind="LayerNormalization", op_type="Neg"),
        "other values of output `last_hidden_state`",
    ),
    "changed-probabilities": (
        functools.partial(insert_after, kind="Softmax", op_type="Sqrt"),
        "other values of output `last_hidden_state`",
    ),
    "changed-mask": (
        functools.partial(insert_after, kind="Where", op_type="Neg"),
        "other values of output `last_hidden_state`",
    ),
    "output-of-an-inner-layer": (put_inner_states_out, "and is not the last layer"),
    "other-input": (rename_input, "`position_ids` is not an input"),
}


def read_and_compare(model: ir.Model, folder: Path) -> None:
    """Read a graph, and compare what was read with the graph on ONNX Runtime."""
    names = [str(value.name) for value in model.graph.outputs]
    read = read_encoder(model, names, longest=64)
    save_graph(model, folder / "model.onnx", temporary=True)
    runner = OnnxRuntimeRunner(folder / "model.onnx")
    check_same_values(read.encoder, runner, names, tolerance=1e-3)


@pytest.mark.parametrize("change", CHANGES)
def test_what_is_not_known_is_refused(bert, tmp_path, change) -> None:
    model = make_graph(bert.encoder)
    edit, message = CHANGES[change]
    edit(model)
    with pytest.raises(GraphError, match=f"{message}.*Quantize the checkpoint instead"):
        read_and_compare(model, tmp_path)


def test_a_deep_graph_without_declared_shapes_is_read(save_tiny, tmp_path) -> None:
    save_tiny(tmp_path, "bert", num_hidden_layers=24)
    checkpoint = load_checkpoint(str(tmp_path))
    model = make_graph(encoder_of(checkpoint))
    for node in model.graph:
        for value in node.outputs:
            value.shape = None
    assert len(read_encoder(model, [], longest=64).encoder.layers) == 24


def test_states_may_be_multiplied_by_the_mask(bert, run_plainly) -> None:
    model = make_graph(bert.encoder)
    mask = next(value for value in model.graph.inputs if value.name == "attention_mask")
    axes = add_constant(model.graph, "axes", np.array([2]))
    column = ir.node("Unsqueeze", [mask, axes])
    kept = ir.node("Cast", column.outputs, {"to": ir.DataType.FLOAT})
    model.graph.insert_before(model.graph[0], [column, kept])
    insert_after(model, "LayerNormalization", "Mul", kept.outputs, index=2)
    read = check_read(model, run_plainly, random_inputs((5, 9)))
    assert len(read.layers) == 2


def test_one_linear_layer_may_compute_query_key_and_value(bert, run_plainly) -> None:
    model = make_graph(bert.encoder)
    graph = model.graph
    adds = [
        node
        for node in graph
        if node.op_type == "Add"
        and any("layer.0.attention.self" in str(x.name) for x in node.inputs)
    ]
    assert len(adds) == 3
    matmuls = [add.inputs[0].producer() for add in adds]
    # Query, key and value are three parts of each output row.
    weights = [matmul.inputs[1].const_value.numpy() for matmul in matmuls]
    biases = [add.inputs[1].const_value.numpy() for add in adds]
    weight, bias = (
        add_constant(graph, name, np.concatenate(arrays, axis=-1))
        for name, arrays in (("qkv.weight", weights), ("qkv.bias", biases))
    )
    product = ir.node("MatMul", [matmuls[0].inputs[0], weight], name="qkv")
    total = ir.node("Add", [product.outputs[0], bias])
    parts = ir.node("Split", total.outputs, {"axis": -1, "num_outputs": 3}, num_outputs=3)
    graph.insert_before(matmuls[0], [product, total, parts])
    for add, part in zip(adds, parts.outputs, strict=True):
        add.outputs[0].replace_all_uses_with(part)
    read = check_read(tidy(model), run_plainly, random_inputs((3, 9)))
    np.testing.assert_array_equal(read.layers[0].attention.key.weight, weights[1].T)


class Block(torch.nn.Module):
    """An encoder layer of plain torch modules, which any exporter handles."""

    def __init__(
        self, *, pre_norm: bool = False, gated: bool = False, other_gate: bool = False
    ) -> None:
        super().__init__()
        self.pre_norm, self.gated, self.other_gate = pre_norm, gated, other_gate
        self.table = torch.nn.Embedding(130, 16)
        self.query, self.key, self.value, self.out = (torch.nn.Linear(16, 16) for _ in range(4))
        self.up, self.down = torch.nn.Linear(16, 32), torch.nn.Linear(32, 16)
        self.gate = torch.nn.Linear(16, 32)
        self.one, self.two, self.end = (torch.nn.LayerNorm(16) for _ in range(3))
        # Of vectors that are normalized already, a plain LayerNorm changes nothing.
        torch.nn.init.uniform_(self.two.weight, 0.5, 1.5)

    def attend(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        split = [
            part(x).view(x.shape[0], -1, 4, 4).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        ]
        scores = split[0] @ split[1].transpose(2, 3) / 2
        scores = scores + (1 - mask[:, None, None, :].float()) * -1e4
        context = torch.softmax(scores, -1) @ split[2]
        return self.out(context.transpose(1, 2).reshape(x.shape[0], -1, 16))

    def feed(self, x: torch.Tensor) -> torch.Tensor:
        inner = torch.nn.functional.gelu(self.up(x))
        if self.gated:
            inner = inner * self.gate(self.two(x) if self.other_gate else x)
        return self.down(inner)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x = self.table(ids)
        if self.pre_norm:
            x = x + self.attend(self.one(x), mask)
            return self.end(x + self.feed(self.two(x)))
        x = self.one(x + self.attend(x, mask))
        return self.two(x + self.feed(x))


class Half(Block):
    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x = self.table(ids)
        return self.one(x + self.attend(x, mask))


class Cross(Block):
    """A layer whose keys are those of other states than its queries."""

    def attend(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        project, self.key = self.key, torch.nn.Sequential(self.end, self.key)
        context = super().attend(x, mask)
        self.key = project
        return context


class Bag(Block):
    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.one(self.table(ids) * mask[..., None])


@pytest.fixture
def exported_block(tmp_path) -> Callable[[torch.nn.Module], ir.Model]:
    """Return a function that exports a module and brings it into canonical form."""

    def make(module: torch.nn.Module) -> ir.Model:
        torch.manual_seed(0)
        example = (torch.ones((2, 5), dtype=torch.int64), torch.ones((2, 5), dtype=torch.int64))
        names = ["input_ids", "attention_mask"]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.onnx.export(
                module.eval(),
                example,
                tmp_path / "model.onnx",
                input_names=names,
                dynamic_axes={name: {0: "batch", 1: "sequence"} for name in names},
                opset_version=14,
                dynamo=False,
            )
        return to_canonical_form(read_graph(tmp_path / "model.onnx"))

    return make


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("pre_norm", [False, True])
def test_layers_without_norms_of_embeddings_are_read(
    exported_block, run_plainly, pre_norm, gated
) -> None:
    graph = exported_block(Block(pre_norm=pre_norm, gated=gated))
    read = check_read(graph, run_plainly, random_inputs((5, 9)))
    (layer,) = read.layers
    assert read.embeddings.norm is None
    assert (read.final_norm is not None) == (layer.attention_norm is not None) == pre_norm
    assert (layer.gate is not None) == gated
    if gated:
        modules = [linear.module for linear, _ in linear_layers_of(layer)]
        assert "encoder.layer.0.intermediate.gate" in modules


@pytest.mark.parametrize(
    ("block", "message"),
    [
        (Bag, "has no residual add after an attention"),
        (Half, "is not computed from the first linear layer"),
        (Cross, "other values of output"),
        (functools.partial(Block, gated=True, other_gate=True), "other values of output"),
    ],
    ids=["no-attention", "no-feed-forward", "other-keys", "other-gate"],
)
def test_other_layers_are_refused(exported_block, tmp_path, block, message) -> None:
    graph = exported_block(block())
    with pytest.raises(GraphError, match=message):
        read_and_compare(graph, tmp_path)


def test_sites_are_named_as_those_of_the_checkpoint(prepared) -> None:
    each = prepared("bert")
    read = read_encoder(make_graph(each.encoder), [], longest=64).encoder
    assert sites_of(read) == sites_of(encoder_of(each.checkpoint))


def add_outputs(model: ir.Model) -> list[str]:
    """Add outputs that are computed from states, from an output, from both, and from ids."""
    (states,), graph = model.graph.outputs, model.graph
    ids = next(value for value in graph.inputs if value.name == "input_ids")
    axis = add_constant(graph, "last-axis", np.array([-1]))
    nodes = [
        ir.node("Sin", [states], name="waves"),
        ir.node("Cast", [ids], {"to": ir.DataType.FLOAT}, name="reals"),
    ]
    column = ir.node("Unsqueeze", [nodes[1].outputs[0], axis], name="column")
    product = ir.node("Mul", [nodes[0].outputs[0], column.outputs[0]], name="product")
    nodes += [column, product]
    graph.extend(nodes)
    for node in (nodes[0], product, nodes[1]):
        node.outputs[0].name = f"{node.name}_out"
        node.outputs[0].type = ir.TensorType(ir.DataType.FLOAT)
        graph.outputs.append(node.outputs[0])
    return ["waves_out", "product_out", "reals_out"]


def test_what_follows_the_last_states_and_is_not_known_is_a_tail(bert, run_plainly) -> None:
    model = make_graph(bert.encoder)
    names = add_outputs(model)
    read = read_encoder(model, names, longest=64)
    tail = read.encoder.tail
    assert tail is not None
    assert list(tail.outputs) == names
    assert read.dropped == ()
    assert set(tail.inputs) == {"input_ids", TAIL_STATES}
    inputs = random_inputs((5, 9))
    expected, found = (run_plainly(each, inputs) for each in (model, make_graph(read.encoder)))
    assert list(found) == ["last_hidden_state", *names]
    is_text = inputs["attention_mask"] == 1
    for name, array in expected.items():
        np.testing.assert_allclose(found[name][is_text], array[is_text], atol=3e-5)


def test_a_tail_alone_reads_the_states(bert, run_plainly) -> None:
    model = make_graph(bert.encoder)
    names = add_outputs(model)
    del model.graph.outputs[0]
    read = read_encoder(model, names, longest=64).encoder
    assert read.heads == ()
    assert set(read.tail.inputs) == {"input_ids", TAIL_STATES}
    inputs = random_inputs((5, 9))
    expected, found = (run_plainly(each, inputs) for each in (model, make_graph(read)))
    is_text = inputs["attention_mask"] == 1
    for name in names:
        np.testing.assert_allclose(found[name][is_text], expected[name][is_text], atol=3e-5)


def test_an_output_of_inner_states_is_left_out_unless_it_is_needed(bert) -> None:
    model = make_graph(bert.encoder)
    put_inner_states_out(model)
    inner = str(model.graph.outputs[1].name)
    assert read_encoder(model, ["last_hidden_state"], longest=64).dropped == (inner,)
    with pytest.raises(GraphError, match="is not the last layer"):
        read_encoder(model, [inner], longest=64)
