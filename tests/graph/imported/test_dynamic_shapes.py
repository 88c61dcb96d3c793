from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from qdqbert.engines.onnxruntime import OnnxRuntimeRunner
from qdqbert.errors import UserInputError
from qdqbert.graph.check import save_graph
from qdqbert.graph.edit import tidy
from qdqbert.graph.imported.dynamic_shapes import check_equal, make_shapes_dynamic
from qdqbert.graph.imported.fixed_shapes import (
    FixedShapeRunner,
    FixedSizes,
    fixed_sizes,
    tolerance_of,
)
from qdqbert.graph.imported.graph_runner import open_graph_file
from qdqbert.graph.imported.imported_model import import_onnx

TASKS = {
    "bert": "text-classification",
    "roberta": "question-answering",
    "distilbert": "token-classification",
    "electra": "text-classification",
}
# TorchScript and dynamo write masks differently, and so do one text and several.
EXPORTS = [
    ("bert", "eager", 14, False, (1, 16)),
    ("bert", "sdpa", 18, True, (1, 12)),
    ("distilbert", "sdpa", 14, False, (3, 12)),
    ("roberta", "eager", 18, True, (1, 16)),
    ("electra", "eager", 17, False, (1, 16)),
]


def shorter(inputs: dict[str, np.ndarray], tokens: int) -> dict[str, np.ndarray]:
    return {name: array[:, :tokens] for name, array in inputs.items()}


@pytest.mark.parametrize("which", EXPORTS, ids=lambda each: "-".join(map(str, each)))
def test_exports_with_fixed_shapes_become_dynamic_and_give_the_same_numbers(
    exported, tmp_path, padded_inputs, which
) -> None:
    path, task = exported(*which), TASKS[which[0]]
    imported = import_onnx(path, task=task, input_names={}, scratch=tmp_path)
    longest = which[-1][1]
    assert imported.runner.max_length == longest
    assert any(f"up to {longest} tokens" in notice for notice in imported.notices)
    original = open_graph_file(path, task=task, engine="onnxruntime")
    assert original.max_length == longest
    for tokens in (3, 8):
        inputs = shorter(padded_inputs, tokens)
        inputs = {name: inputs[name] for name in imported.input_names}
        actual, expected = imported.runner.run(inputs), original.run(inputs)
        text = inputs["attention_mask"] == 1
        for name in imported.output_names:
            assert actual[name].shape == expected[name].shape
            if actual[name].shape[:2] == text.shape:
                np.testing.assert_allclose(actual[name][text], expected[name][text], atol=1e-5)
            else:
                np.testing.assert_allclose(actual[name], expected[name], atol=1e-5)


def graph_of(body: str, *, shape: str = "1, 8", constants: str = "") -> ir.Model:
    return ir.from_onnx_text(
        f'<ir_version: 10, opset_import: ["" : 21]> g (int64[{shape}] input_ids, '
        f"int64[{shape}] attention_mask) => (float[a, b] y) <{constants}> {{ {body} }}"
    )


def made_dynamic(model: ir.Model) -> ir.Model:
    typed = ir.passes.common.ShapeInferencePass()(model).model
    make_shapes_dynamic(typed, fixed_sizes(typed))
    return tidy(typed)


X = np.arange(30).reshape(5, 6) + 5
INPUTS = {"input_ids": X, "attention_mask": np.ones_like(X)}
POSITIONS = f"int64[1, 8] p = {{{', '.join(map(str, range(8)))}}}"


@pytest.mark.parametrize(
    ("body", "constants", "expected"),
    [
        (
            "r = Reshape (input_ids, s) f = Reshape (r, t) y = Cast <to = 1> (f)",
            "int64[2] s = {8, 1}, int64[2] t = {1, 8}",
            X,
        ),
        (
            "r = Reshape <allowzero = 1> (input_ids, s) t = Squeeze (r, z) y = Cast <to = 1> (t)",
            "int64[3] s = {1, 8, 1}, int64[1] z = {2}",
            X,
        ),
        ("a = Add (input_ids, p) y = Cast <to = 1> (a)", POSITIONS, X + np.arange(6)),
        (
            "z = ConstantOfShape (s) c = Cast <to = 7> (z) a = Sub (input_ids, c) "
            "y = Cast <to = 1> (a)",
            "int64[2] s = {1, 8}",
            X,
        ),
        (
            "m = Unsqueeze (attention_mask, one) e = Expand (m, s) t = ReduceSum <keepdims = 0> "
            "(e, one) y = Cast <to = 1> (t)",
            "int64[1] one = {1}, int64[3] s = {1, 8, 8}",
            np.full((5, 6), 6),
        ),
        (
            "n = Unsqueeze (p, last) i = Concat <axis = -1> (o, n) g = GatherND (input_ids, i) "
            "y = Cast <to = 1> (g)",
            f"int64[1] last = {{-1}}, int64[1, 8, 1] o = {{{', '.join('0' * 8)}}}, {POSITIONS}",
            X,
        ),
    ],
    ids=["flatten", "allowzero", "constant", "constant-of-shape", "expand", "gather-all"],
)
def test_sizes_of_the_inputs_are_found_in_nodes(run_plainly, body, constants, expected) -> None:
    model = made_dynamic(graph_of(body, constants=constants))
    inputs = {value.name: INPUTS[value.name] for value in model.graph.inputs}
    np.testing.assert_array_equal(run_plainly(model, inputs)["y"], expected)


def test_a_batch_of_equal_constant_rows_is_one_row(run_plainly) -> None:
    rows = f"int64[2, 8] p = {{{', '.join(map(str, [*range(8), *range(8)]))}}}"
    model = graph_of("a = Add (input_ids, p) y = Cast <to = 1> (a)", shape="2, 8", constants=rows)
    result = run_plainly(made_dynamic(model), INPUTS)["y"]
    np.testing.assert_array_equal(result, X + np.arange(6))


def test_a_size_that_equals_the_sequence_by_chance_stays(run_plainly) -> None:
    body = "r = Reshape (input_ids, s) e = Expand (r, t) m = ReduceSum (e, ax) "
    body += "q = Squeeze (m, ax) y = Cast <to = 1> (q)"
    constants = "int64[3] s = {1, 8, 1}, int64[3] t = {1, 1, 3}, int64[1] ax = {2}"
    model = made_dynamic(graph_of(body, constants=constants))
    np.testing.assert_array_equal(run_plainly(model, INPUTS)["y"], X * 3)


@pytest.mark.parametrize(
    ("body", "constants", "message"),
    [
        ("n = NonZero (input_ids) y = Cast <to = 1> (n)", "", "NonZero"),
        (
            "c = Cast <to = 1> (input_ids) y = MatMul (c, w)",
            f"float[8, 2] w = {{{', '.join('1' * 16)}}}",
            "MatMul",
        ),
    ],
    ids=["depends-on-values", "weight-per-token"],
)
def test_a_node_that_depends_on_the_size_is_named(body, constants, message) -> None:
    with pytest.raises(UserInputError, match=rf"\(1, 8\).*\({message}\).*dynamic axes"):
        made_dynamic(graph_of(body, constants=constants))


@pytest.mark.parametrize("shape", ["1, 3", "1, 2, 8"])
def test_short_and_three_dimensional_inputs_are_refused(shape) -> None:
    model = graph_of("y = Cast <to = 1> (input_ids)", shape=shape)
    with pytest.raises(UserInputError):
        made_dynamic(model)


def test_outputs_of_float16_files_may_differ_by_its_rounding() -> None:
    single = graph_of("y = Cast <to = 1> (input_ids)", constants="float one = {1}")
    half = graph_of("y = Cast <to = 1> (input_ids)", constants="float16 one = {1}")
    assert (tolerance_of(single), tolerance_of(half)) == (1e-3, 2e-2)


def test_a_graph_whose_numbers_depend_on_its_length_is_refused(tmp_path) -> None:
    # The mean over all tokens counts [PAD], too.
    body = "c = Cast <to = 1> (input_ids) y = ReduceMean (c, last)"
    sizes = FixedSizes(batch=1, sequence=8)
    fixed = graph_of(body, constants="int64[1] last = {-1}")
    runners = []
    for name, model in (("fixed", fixed), ("dynamic", made_dynamic(fixed.clone()))):
        save_graph(model, tmp_path / f"{name}.onnx")
        runners.append(OnnxRuntimeRunner(tmp_path / f"{name}.onnx"))
    original = FixedShapeRunner(runners[0], sizes, "text-classification")
    with pytest.raises(UserInputError, match="'y' changes when 3 texts have 5 tokens"):
        check_equal(
            original, runners[1], sizes, "text-classification", vocabulary_size=None, tolerance=1e-3
        )
