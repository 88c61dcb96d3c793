from __future__ import annotations

import dataclasses

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper

from qdqbert.common.errors import UserInputError
from qdqbert.graphs.imported.fixed_shapes import FixedShapeRunner, FixedSizes, fixed_sizes
from qdqbert.graphs.imported.graph_runner import open_graph_file
from qdqbert.graphs.imported.imported_model import import_onnx
from qdqbert.graphs.imported.same_values import tolerance_of
from qdqbert.graphs.writer import make_graph

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


def inputs_of(*shapes: list[int | str]) -> ir.Model:
    values = [
        ir.val(f"x{index}", dtype=ir.DataType.INT64, shape=ir.Shape(shape))
        for index, shape in enumerate(shapes)
    ]
    graph = ir.Graph(inputs=values, outputs=[], nodes=[], opset_imports={"": 21})
    return ir.Model(graph, ir_version=10)


@pytest.mark.parametrize(
    ("shape", "batch", "sequence"),
    [(["n", "s"], None, None), ([1, "s"], 1, None), (["n", 8], None, 8), (["n", "c", 8], None, 8)],
)
def test_sizes_are_read_from_the_inputs(shape, batch, sequence) -> None:
    sizes = fixed_sizes(inputs_of(shape, shape))
    assert sizes == FixedSizes(batch=batch, sequence=sequence)
    assert sizes.are_dynamic == (batch is None and sequence is None)


def test_different_sizes_and_a_fixed_number_of_choices_are_refused() -> None:
    with pytest.raises(UserInputError, match="different fixed shapes"):
        fixed_sizes(inputs_of([1, 8], [1, 9]))
    with pytest.raises(UserInputError, match="number of choices"):
        fixed_sizes(inputs_of(["n", 4, 8]))


@dataclasses.dataclass
class Echo:
    """A runner of one shape that returns its input per token, and its sum per text."""

    shape: tuple[int, int]
    input_names = ("input_ids", "attention_mask")
    output_names = ("logits", "sentence_embedding")
    precision = "float32"

    def run(self, inputs, wanted=None):
        assert {array.shape for array in inputs.values()} == {self.shape}
        ids = np.where(inputs["attention_mask"] == 1, inputs["input_ids"], 0).astype(np.float32)
        return {"logits": ids[..., None], "sentence_embedding": ids.sum(-1, keepdims=True)}


@pytest.mark.parametrize("rows", [1, 2, 5])
def test_inputs_are_padded_and_outputs_cut(rows) -> None:
    runner = FixedShapeRunner(Echo((2, 8)), FixedSizes(batch=2, sequence=8), "token-classification")
    ids = np.arange(1, rows * 3 + 1).reshape(rows, 3)
    outputs = runner.run({"input_ids": ids, "attention_mask": np.ones_like(ids)})
    np.testing.assert_array_equal(outputs["logits"], ids[..., None])
    np.testing.assert_array_equal(outputs["sentence_embedding"], ids.sum(-1, keepdims=True))


def test_more_tokens_than_the_graph_takes_are_refused() -> None:
    runner = FixedShapeRunner(Echo((1, 8)), FixedSizes(batch=1, sequence=8), "fill-mask")
    ids = np.ones((1, 9), np.int64)
    with pytest.raises(UserInputError, match="takes 8 tokens, and a text has 9") as caught:
        runner.run({"input_ids": ids, "attention_mask": ids})
    assert caught.value.argument == "max_length"


@pytest.mark.parametrize("which", EXPORTS, ids=lambda each: "-".join(map(str, each)))
@pytest.mark.usual("*-False-*")
def test_graphs_of_exports_with_fixed_shapes_are_dynamic_and_give_the_same_numbers(
    exported, tmp_path, padded_inputs, run_plainly, which
) -> None:
    path, task = exported(*which), TASKS[which[0]]
    imported = import_onnx(path, task=task, input_names={}, scratch=tmp_path)
    longest = which[-1][1]
    assert imported.runner.copy.max_length == longest
    assert any(f"up to {longest} tokens" in notice for notice in imported.notices)
    original = open_graph_file(path, task=task, engine="onnxruntime")
    assert original.copy.max_length == longest
    # As for a tokenizer with a lower limit.
    encoder = imported.read(longest=longest - 2)
    assert encoder.limit == longest
    written = make_graph(encoder)
    for tokens in (3, 8):
        inputs = {name: padded_inputs[name][:, :tokens] for name in imported.input_names}
        expected = original.run(inputs)
        text = inputs["attention_mask"] == 1
        for made in (imported.runner.run(inputs), run_plainly(written, inputs)):
            for name in imported.output_names:
                pair = [each[name] for each in (made, expected)]
                if expected[name].shape[:2] == text.shape:
                    pair = [each[text] for each in pair]
                np.testing.assert_allclose(*pair, atol=1e-5)


def with_head(path, scratch, *nodes: onnx.NodeProto, shape: tuple[int, ...]):
    """Return the file of a graph with one more head behind its logits."""
    model = onnx.load(path)
    model.graph.node.extend(nodes)
    made = helper.make_tensor_value_info("made", onnx.TensorProto.FLOAT, shape)
    model.graph.output.append(made)
    onnx.save(model, scratch / "model.onnx")
    return scratch / "model.onnx"


def test_an_unknown_head_takes_any_number_of_texts(exported, tmp_path, padded_inputs) -> None:
    path = exported("bert", fixed=(1, 16))
    path = with_head(path, tmp_path, helper.make_node("Exp", ["logits"], ["made"]), shape=(1, 2))
    imported = import_onnx(path, task=TASKS["bert"], input_names={}, scratch=tmp_path)
    encoder = imported.read(longest=16)
    assert encoder.tail is not None
    assert encoder.tail.outputs == ("made",)


def test_an_unknown_head_that_contains_the_fixed_shape_is_refused(exported, tmp_path) -> None:
    shape = helper.make_node("Constant", [], ["s"], value_ints=[2, 1])
    turned = helper.make_node("Reshape", ["logits", "s"], ["made"])
    path = with_head(exported("bert", fixed=(1, 16)), tmp_path, shape, turned, shape=(2, 1))
    imported = import_onnx(path, task=TASKS["bert"], input_names={}, scratch=tmp_path)
    with pytest.raises(UserInputError, match=r"Reshape.* contains the fixed shape"):
        imported.read(longest=16)


def test_a_graph_whose_numbers_depend_on_its_length_is_refused(exported, tmp_path) -> None:
    path = exported("distilbert", fixed=(3, 12))
    # The mean over all tokens counts [PAD], too.
    mean = helper.make_node("ReduceMean", ["logits"], ["made"], axes=[1], keepdims=0)
    path = with_head(path, tmp_path, mean, shape=(3, 2))
    names = {"logits": "made"}
    imported = import_onnx(
        path, task="text-classification", input_names={}, output_names=names, scratch=tmp_path
    )
    with pytest.raises(UserInputError, match="other values of output `logits`"):
        imported.read(longest=12)


def test_outputs_of_float16_files_may_differ_by_its_rounding() -> None:
    single, half = (
        ir.from_onnx_text(
            '<ir_version: 10, opset_import: ["" : 21]> g (int64[n, 8] x) => (float[n, 8] y) '
            f"<{kind} one = {{1}}> {{ y = Cast <to = 1> (x) }}"
        )
        for kind in ("float", "float16")
    )
    assert (tolerance_of(single), tolerance_of(half)) == (1e-3, 2e-2)
