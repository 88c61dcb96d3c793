from __future__ import annotations

import dataclasses

import numpy as np
import onnx_ir as ir
import pytest

from qdqbert.errors import UserInputError
from qdqbert.graph.imported.fixed_shapes import FixedShapeRunner, FixedSizes, fixed_sizes


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

    def run(self, inputs):
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
