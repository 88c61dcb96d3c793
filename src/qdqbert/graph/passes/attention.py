"""Recognize the parts of self-attention that several rewrites replace."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx_ir as ir

from qdqbert.graph.edit import constant_array, only_consumer, producer_of

# Input of the graph that is 0 at [PAD] and 1 elsewhere, `(batch, seq)` or `(batch, choices, seq)`.
MASK = "attention_mask"

# Permutations of `(batch, seq, heads, head_dim)` for queries and values, and for keys.
HEADS_FIRST = (0, 2, 1, 3)
HEADS_FIRST_TRANSPOSED = (0, 2, 3, 1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SplitHeads:
    """A value that is split into heads.

    Attributes:
        source: The value before the split, `(batch, seq, heads * head_dim)`.
        heads: Number of heads.
        head_dim: Size of one head.
    """

    source: ir.Value | None
    heads: int
    head_dim: int


def split_heads(value: ir.Value | None, permutation: tuple[int, ...]) -> SplitHeads | None:
    """Return the split into heads that makes a value, or `None` if no such split does.

    Args:
        value: The heads.
        permutation: Of the axes `(batch, seq, heads, head_dim)`.
    """
    transpose = producer_of(value, "Transpose")
    reshape = producer_of(transpose.inputs[0], "Reshape") if transpose is not None else None
    if transpose is None or reshape is None:
        return None
    shape = reshape.outputs[0].shape
    if tuple(transpose.attributes["perm"].as_ints()) != permutation or shape is None:
        return None
    if len(shape) != 4 or not isinstance(shape[2], int) or not isinstance(shape[3], int):
        return None
    return SplitHeads(source=reshape.inputs[0], heads=shape[2], head_dim=shape[3])


def merged_heads(context: ir.Node) -> ir.Node | None:
    """Return the node that merges the heads of a context, or `None` if something else reads it.

    Args:
        context: Makes the context `(batch, heads, seq, head_dim)`.
    """
    transpose = only_consumer(context.outputs[0])
    if transpose is None or transpose.op_type != "Transpose":
        return None
    if tuple(transpose.attributes["perm"].as_ints()) != HEADS_FIRST:
        return None
    reshape = only_consumer(transpose.outputs[0])
    return reshape if reshape is not None and reshape.op_type == "Reshape" else None


def scales_by_head_dim(scaled: ir.Node, head_dim: int) -> bool:
    """Return whether a Mul multiplies scores by the constant `head_dim ** -0.5`."""
    factor = constant_array(scaled.inputs[1])
    return factor is not None and bool(np.isclose(float(factor.reshape(-1)[0]), head_dim**-0.5))


def padding_mask(value: ir.Value | None) -> ir.Value | None:
    """Return the mask of tokens, `(texts, seq)`, that an additive mask is made of.

    None unless the additive mask is `(texts, 1, 1, seq)`: equal for all queries.
    """
    chosen = producer_of(value, "Where")
    if chosen is None or value is None or value.shape is None or value.shape[2] != 1:
        return None
    unsqueezed = producer_of(chosen.inputs[0], "Unsqueeze")
    equal = producer_of(unsqueezed.inputs[0], "Equal") if unsqueezed else None
    return equal.inputs[0] if equal else None


def integer_mask(graph: ir.Graph, mask: ir.Value) -> ir.Value:
    """Return a mask of tokens, `(texts, seq)`, as int32. All callers share one Cast."""
    for node in mask.consumers():
        if node.op_type == "Cast" and node.attributes["to"].as_int() == ir.DataType.INT32:
            return node.outputs[0]
    cast = ir.node("Cast", [mask], {"to": ir.DataType.INT32}, name=f"{MASK}.int32")
    cast.outputs[0].name = f"{MASK}.codes"
    producer = mask.producer()
    if producer is None:
        graph.insert_before(graph[0], cast)
    else:
        graph.insert_after(producer, cast)
    return cast.outputs[0]
