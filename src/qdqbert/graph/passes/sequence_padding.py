"""Pad texts inside the graph to lengths that ONNX Runtime's int8 CUDA attention accepts.

    codes = QuantizeLinear(x)          ->  QuantizeLinear(Pad(x, -seq mod 16))
    QOrderedAttention(..., mask)       ->  QOrderedAttention(..., Pad(mask, -seq mod 16))
    DequantizeLinear(codes of states)  ->  DequantizeLinear(Slice(codes of states, 0:seq))

The kernel fails for a sequence length that is not a multiple of 16. The added positions are masked
like [PAD] and cut off after the last layer, so callers can use any length. Applies after
`fuse_qordered`, to the input of the first layer and wherever the states of a layer become float
again. Pads in float32, because not every version of ONNX Runtime's CUDA Pad has a kernel for
integers.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from qdqbert.errors import GraphError
from qdqbert.graph.edit import MICROSOFT, add_constant, producer_of, tidy
from qdqbert.graph.passes.attention import MASK

# Sequence lengths are padded to a multiple of this.
MULTIPLE = 16

_STATES, _MASK_INPUT = 0, 17


def pad_sequences(model: ir.Model) -> ir.Model:
    """Apply the rewrite; change and return `model`.

    Raises:
        GraphError: The first layer's input is not quantized in the graph.
    """
    graph = model.graph
    attentions = [node for node in graph if node.op_type == "QOrderedAttention"]
    if not attentions:
        return model
    quantize = producer_of(attentions[0].inputs[_STATES], "QuantizeLinear")
    if quantize is None:
        raise GraphError(
            "The first layer does not read a QuantizeLinear, so nothing can be padded."
        )
    sequence, padding = _lengths(graph)
    _pad(graph, quantize, padding, rank=3)
    padded = _padded_mask(graph, attentions[0], padding)
    for attention in attentions:
        attention.replace_input_with(_MASK_INPUT, padded)
    for node in list(graph):
        if node.domain == MICROSOFT:
            _lengthen(node.outputs[0])
        if node.op_type == "DequantizeLinear" and _is_state(node.inputs[0], quantize):
            _cut(graph, node, sequence)
    return tidy(model)


def _lengths(graph: ir.Graph) -> tuple[ir.Value, ir.Value]:
    """Return the sequence length and the number of missing positions, each `(1,)`."""
    mask = next(value for value in graph.inputs if value.name == MASK)
    shape = ir.node("Shape", [mask], {"start": 1, "end": 2}, name="padding.sequence")
    negated = ir.node("Neg", [_named(shape)], name="padding.negated")
    multiple = add_constant(graph, "padding.multiple", np.array([MULTIPLE], np.int64))
    # Mod of integers has the sign of its second input.
    missing = ir.node("Mod", [_named(negated), multiple], name="padding.missing")
    graph.insert_before(graph[0], [shape, negated, missing])
    return shape.outputs[0], _named(missing)


def _padded_mask(graph: ir.Graph, attention: ir.Node, padding: ir.Value) -> ir.Value:
    """Return the mask with zeros at its end, int32."""
    cast = producer_of(attention.inputs[_MASK_INPUT], "Cast")
    if cast is None:
        raise GraphError(f"The mask of {attention.name!r} is not a Cast of `{MASK}`.")
    reals = ir.node("Cast", [cast.inputs[0]], {"to": ir.DataType.FLOAT}, name=f"{MASK}.float")
    new = ir.node("Cast", [_named(reals)], {"to": ir.DataType.INT32}, name=f"{MASK}.padded_int32")
    graph.insert_before(cast, [reals, new])
    _pad(graph, new, padding, rank=2)
    return _named(new)


def _pad(graph: ir.Graph, node: ir.Node, padding: ir.Value, *, rank: int) -> None:
    """Add zeros at the end of axis 1 of the first input of a node."""
    before, after = (
        add_constant(graph, f"padding.none_{axes}", np.zeros(axes, np.int64))
        for axes in (rank + 1, rank - 2)
    )
    pads = ir.node("Concat", [before, padding, after], {"axis": 0}, name=f"{node.name}.pads")
    padded = ir.node("Pad", [node.inputs[0], _named(pads)], name=f"{node.name}.pad")
    graph.insert_before(node, [pads, padded])
    node.replace_input_with(0, _named(padded))


def _lengthen(codes: ir.Value) -> None:
    """Give the codes that a layer makes, `(batch, seq, channels)`, the padded length."""
    if codes.shape is not None:
        codes.shape = ir.Shape([codes.shape[0], "padded_sequence", *codes.shape[2:]])


def _is_state(codes: ir.Value | None, first: ir.Node) -> bool:
    """Return whether codes enter or leave a layer."""
    return codes is not None and (
        codes is first.outputs[0]
        or producer_of(codes, "QOrderedLayerNormalization", MICROSOFT) is not None
    )


def _cut(graph: ir.Graph, reals: ir.Node, sequence: ir.Value) -> None:
    """Remove the padding from the input of a DequantizeLinear."""
    start, axis = (
        add_constant(graph, f"padding.{name}", np.array([value], np.int64))
        for name, value in (("start", 0), ("axis", 1))
    )
    cut = ir.node("Slice", [reals.inputs[0], start, sequence, axis], name=f"{reals.name}.cut")
    graph.insert_before(reals, cut)
    reals.replace_input_with(0, _named(cut))


def _named(node: ir.Node) -> ir.Value:
    """Name the output of a new node, and return it."""
    node.outputs[0].name = f"{node.name}.value"
    return node.outputs[0]
