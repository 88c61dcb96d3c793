"""Where the rewrite pads and cuts. That outputs stay the same is tested in `test_qordered.py`."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from qdqbert.errors import GraphError
from qdqbert.graph.passes.sequence_padding import pad_sequences

CODES = "codes = QuantizeLinear (x, scale, zero)"
MASK = "mask = Cast <to = 6> (attention_mask)"
SCALARS = ", ".join(["scale"] * 16)


def layer(index: int, x: str) -> str:
    attention = f"a{index} = com.microsoft.QOrderedAttention ({x}, {SCALARS}, mask)"
    norm = f"n{index} = com.microsoft.QOrderedLayerNormalization"
    return f"{attention} {norm} (a{index}, scale, scale, scale, scale)"


def model_of(*body: str, inputs: str = "float[b, s, 32] x") -> ir.Model:
    return ir.from_onnx_text(
        '<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]> '
        f"g ({inputs}, int64[b, s] attention_mask) => (float[b, s, 32] y) "
        "<float[1] scale = {1.0}, int8[1] zero = {0}> "
        f"{{ {' '.join(body)} }}"
    )


def ops(model: ir.Model) -> list[str]:
    return [node.op_type for node in model.graph]


def only(model: ir.Model, op_type: str) -> ir.Node:
    (node,) = (node for node in model.graph if node.op_type == op_type)
    return node


def test_states_and_mask_are_padded_once_and_the_end_is_cut() -> None:
    model = model_of(
        CODES,
        MASK,
        layer(0, "codes"),
        layer(1, "n0"),
        "y = DequantizeLinear (n1, scale, zero)",
    )
    padded = pad_sequences(model)
    assert ops(padded).count("Pad") == 2
    assert ops(padded).count("Slice") == 1
    assert only(padded, "QuantizeLinear").inputs[0].producer().op_type == "Pad"
    masks = {node.inputs[17] for node in padded.graph if node.op_type == "QOrderedAttention"}
    assert len(masks) == 1
    assert masks.pop().producer().inputs[0].producer().op_type == "Pad"
    cut = only(padded, "DequantizeLinear").inputs[0].producer()
    assert cut.op_type == "Slice"
    assert cut.inputs[2].producer().op_type == "Shape"


def test_states_that_are_read_between_layers_are_cut_too() -> None:
    model = model_of(
        CODES,
        MASK,
        layer(0, "codes"),
        layer(1, "n0"),
        "u = DequantizeLinear (n0, scale, zero)",
        "v = DequantizeLinear (n1, scale, zero)",
        "y = Add (u, v)",
    )
    padded = pad_sequences(model)
    assert ops(padded).count("Slice") == 2
    second = [node for node in padded.graph if node.op_type == "QOrderedAttention"][1]
    assert second.inputs[0].producer().op_type == "QOrderedLayerNormalization"


def test_a_graph_without_int8_attention_is_unchanged() -> None:
    model = model_of(CODES, "y = DequantizeLinear (codes, scale, zero)")
    assert ops(pad_sequences(model)) == ["QuantizeLinear", "DequantizeLinear"]


@pytest.mark.parametrize(
    ("inputs", "body", "message"),
    [
        ("int8[b, s, 32] codes", [MASK], "does not read a QuantizeLinear"),
        ("float[b, s, 32] x, int32[b, s] mask", [CODES], "not a Cast of `attention_mask`"),
    ],
    ids=["codes", "mask"],
)
def test_what_cannot_be_padded_is_refused(inputs, body, message) -> None:
    model = model_of(
        *body, layer(0, "codes"), "y = DequantizeLinear (n0, scale, zero)", inputs=inputs
    )
    with pytest.raises(GraphError, match=message):
        pad_sequences(model)
