"""Pads texts inside the graph to lengths that onnxruntime's int8 CUDA attention takes.

    codes = QuantizeLinear(x)          ->  QuantizeLinear(Pad(x, -seq mod 16))
    QOrderedAttention(..., mask)       ->  QOrderedAttention(..., Pad(mask, -seq mod 16))
    DequantizeLinear(codes of states)  ->  DequantizeLinear(Slice(codes of states, 0:seq))

The kernel stops at any sequence that is no multiple of 16. What is added is masked as [PAD] is, and
cut off behind the last layer, so callers pass and get any length. Fires after `qordered`, on the
first layer's input and wherever the states of a layer become float again. Pads in float32: not
every version of onnxruntime's CUDA Pad has a kernel for integers.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from qdqbert.errors import GraphError
from qdqbert.graph.edit import MICROSOFT, add_constant, producer_of, tidy
from qdqbert.graph.passes.attention import MASK

MULTIPLE = 16
"""What sequences are padded to a multiple of."""

_STATES, _MASK_INPUT = 0, 17


def pad_sequences(model: ir.Model) -> ir.Model:
    """The rewrite; changes and returns `model`.

    Raises:
        GraphError: The first layer's input is not quantized in the graph.
    """
    graph = model.graph
    attentions = [node for node in graph if node.op_type == "QOrderedAttention"]
    if not attentions:
        return model
    quantize = producer_of(attentions[0].inputs[_STATES], "QuantizeLinear")
    if quantize is None:
        raise GraphError("The first layer does not read a QuantizeLinear; there is nothing to pad.")
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
    """How long texts are and how much is missing, each `(1,)`, from the start of the graph on."""
    mask = next(value for value in graph.inputs if value.name == MASK)
    shape = ir.node("Shape", [mask], {"start": 1, "end": 2}, name="padding.sequence")
    negated = ir.node("Neg", [_named(shape)], name="padding.negated")
    multiple = add_constant(graph, "padding.multiple", np.array([MULTIPLE], np.int64))
    # Mod of integers has the sign of its second input.
    missing = ir.node("Mod", [_named(negated), multiple], name="padding.missing")
    graph.insert_before(graph[0], [shape, negated, missing])
    return shape.outputs[0], _named(missing)


def _padded_mask(graph: ir.Graph, attention: ir.Node, padding: ir.Value) -> ir.Value:
    """The mask with 0 behind it, int32."""
    cast = producer_of(attention.inputs[_MASK_INPUT], "Cast")
    if cast is None:
        raise GraphError(f"The mask of {attention.name!r} is no cast of `{MASK}`.")
    reals = ir.node("Cast", [cast.inputs[0]], {"to": ir.DataType.FLOAT}, name=f"{MASK}.float")
    new = ir.node("Cast", [_named(reals)], {"to": ir.DataType.INT32}, name=f"{MASK}.padded_int32")
    graph.insert_before(cast, [reals, new])
    _pad(graph, new, padding, rank=2)
    return _named(new)


def _pad(graph: ir.Graph, node: ir.Node, padding: ir.Value, *, rank: int) -> None:
    """Adds zeros at the end of axis 1 of what a node reads first."""
    before, after = (
        add_constant(graph, f"padding.none_{axes}", np.zeros(axes, np.int64))
        for axes in (rank + 1, rank - 2)
    )
    pads = ir.node("Concat", [before, padding, after], {"axis": 0}, name=f"{node.name}.pads")
    padded = ir.node("Pad", [node.inputs[0], _named(pads)], name=f"{node.name}.pad")
    graph.insert_before(node, [pads, padded])
    node.replace_input_with(0, _named(padded))


def _lengthen(codes: ir.Value) -> None:
    """What a layer makes, `(batch, seq, channels)`, is as long as its padded input."""
    if codes.shape is not None:
        codes.shape = ir.Shape([codes.shape[0], "padded_sequence", *codes.shape[2:]])


def _is_state(codes: ir.Value | None, first: ir.Node) -> bool:
    """Whether codes are what enters or leaves a layer."""
    return codes is not None and (
        codes is first.outputs[0]
        or producer_of(codes, "QOrderedLayerNormalization", MICROSOFT) is not None
    )


def _cut(graph: ir.Graph, reals: ir.Node, sequence: ir.Value) -> None:
    """Leaves the padding out of what a DequantizeLinear reads."""
    start, axis = (
        add_constant(graph, f"padding.{name}", np.array([value], np.int64))
        for name, value in (("start", 0), ("axis", 1))
    )
    cut = ir.node("Slice", [reals.inputs[0], start, sequence, axis], name=f"{reals.name}.cut")
    graph.insert_before(reals, cut)
    reals.replace_input_with(0, _named(cut))


def _named(node: ir.Node) -> ir.Value:
    """A new node's output, named after it."""
    node.outputs[0].name = f"{node.name}.value"
    return node.outputs[0]
