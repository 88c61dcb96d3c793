"""Refuse models with parts that the kernels do not compute."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from qdqbert.common.choices import Precision
from qdqbert.common.errors import GraphError
from qdqbert.encoders.model import Codes, EncoderModel, Layer, Linear, RelativePositions
from qdqbert.quantization.hadamard import Hadamard


def check_parts(model: EncoderModel) -> None:
    """Refuse a model with parts that the kernels do not compute, in float or in INT8.

    Raises:
        GraphError: It has such a part. The message names the layer.
    """
    first = model.layers[0]
    for index, layer in enumerate(model.layers):
        check_layer(model, layer, index, first)


def check_layer(model: EncoderModel, layer: Layer, index: int, first: Layer) -> None:
    """Refuse a layer of a model with parts that the kernels do not compute; see `check_parts`.

    `first` is the model's first layer.
    """
    attention = layer.attention
    if model.embeddings.padding_id is not None and attention.rotary is not None:
        raise GraphError(
            "The native engine rotates queries and keys by the place of a token in its text, and "
            "this model does not count padding tokens."
        )
    if _common(layer) != _common(first):
        raise GraphError(f"The native engine needs equal layers; layer {index} differs from 0.")
    bias, wanted = attention.position_bias, (attention.heads, 2 * model.limit - 1)
    if bias is not None and bias.shape != wanted:
        raise GraphError(f"The position bias of layer {index} is {bias.shape}, not {wanted}.")
    if (rotary := attention.rotary) is not None and len(rotary.cos) != model.limit:
        raise GraphError(f"Layer {index} rotates {len(rotary.cos)} positions, not all.")
    _check_norms(layer, index)
    if layer.experts is not None and (
        layer.gate or layer.up_norm or layer.residual.local_norm or layer.residual.local_codes
    ):
        raise GraphError(
            "The native engine computes experts without gates, in layers that normalize last, and "
            f"does not round their sum; layer {index} differs."
        )
    norms = (attention.query_norm, attention.key_norm)
    width = len(attention.query.bias)
    if attention.norms_each_head:
        width //= attention.heads
    if norms != (None, None) and any(
        each is None or each.subtracts_mean or len(each.weight) != width for each in norms
    ):
        raise GraphError(
            "The native engine needs either no norms of queries and keys or two RMSNorms over "
            f"all of their channels, or those of each head; the norms of layer {index} differ."
        )
    _check_relative(attention.relative, model, index, first.attention.relative)


def check_codes(layer: Layer, index: int, first: Layer, precision: Precision) -> None:
    """Refuse a layer whose linear layers are in another precision, or have codes that differ.

    Raises:
        GraphError: It is such a layer. The message names it.
    """
    is_int8 = precision == "int8"
    attention = layer.attention
    if layer.gate is not None and not same_codes((layer.up, layer.gate)):
        raise GraphError(f"The gate of layer {index} and its factor have different codes.")
    linears = (attention.query, attention.key, attention.value, attention.output)
    if any((each.codes is None) == is_int8 for each in (*linears, layer.up, layer.down)):
        raise GraphError(
            f"The native engine needs all linear layers in {precision}; layer {index}."
        )
    if any(
        each.codes and first.up.codes and each.codes.dynamic != first.up.codes.dynamic
        for each in (*linears, layer.up, layer.down)
    ):
        raise GraphError(
            "The native engine needs either static or dynamic scales in all linear layers; "
            f"layer {index} has both."
        )
    if layer.experts is not None and layer.down.codes and not layer.down.codes.dynamic:
        raise GraphError(
            f"The native engine computes experts with dynamic scales only; layer {index}."
        )
    states = (attention.query, attention.key, attention.value, layer.up)
    parts = (*((each, first.up) for each in states), (layer.down, first.down))
    if any(_matrix(one) != _matrix(other) for one, other in parts) or _matrix(attention.output):
        raise GraphError(
            "The native engine needs the same Hadamard matrix for the states in all layers, "
            f"one for the inputs of all last linear layers, and none for contexts; layer "
            f"{index} has others."
        )


def _matrix(linear: Linear) -> Hadamard | None:
    return None if linear.codes is None else linear.codes.hadamard


def _check_relative(
    relative: RelativePositions | None,
    model: EncoderModel,
    index: int,
    first: RelativePositions | None,
) -> None:
    """Refuse tables of relative positions that differ in form from the first layer's."""
    if relative is None or first is None:
        return
    tables = [each for each in (relative.keys, relative.queries) if each is not None]
    has_all = (relative.keys is None, relative.queries is None) == (
        first.keys is None,
        first.queries is None,
    )
    steps = np.diff(relative.rows)
    is_ordered = bool((steps >= 0).all() or (steps <= 0).all())
    counts = {each.shape[1] for each in (*tables, first.keys, first.queries) if each is not None}
    if not (
        has_all
        and is_ordered
        and len(counts) == 1
        and relative.rows.shape == (2 * model.limit - 1,)
        and np.array_equal(relative.rows, first.rows)
        and relative.rows.min() >= 0
        and relative.rows.max() < max(counts)
    ):
        raise GraphError(
            "The native engine needs equal relative positions in all layers, in the order of the "
            f"distance; the positions of layer {index} differ."
        )


def _check_norms(layer: Layer, index: int) -> None:
    """Refuse layers whose LayerNorms are neither all after residual adds nor all before parts."""
    before = (layer.attention_norm, layer.up_norm)
    after = (layer.attention_residual.norm, layer.residual.norm)
    if layer.residual.again is not None or (layer.attention_residual.again and None in after):
        raise GraphError(
            "The native engine adds states a second time only after an attention that is followed "
            f"by a LayerNorm; layer {index} differs."
        )
    if (layer.attention_residual.local_norm is None) != (layer.residual.local_norm is None):
        raise GraphError(
            "The native engine normalizes either the outputs of both parts of a layer before they "
            f"are added, or none; layer {index} differs."
        )
    # The first attention may read the normalized embeddings.
    is_first = after == (None, None) and layer.up_norm is not None
    if not is_first and (before != (None, None) or None in after):
        raise GraphError(
            "The native engine needs a LayerNorm either before or after each part of a layer; "
            f"layer {index} has neither or both."
        )


def _common(layer: Layer) -> tuple[Any, ...]:
    """Return the properties that all layers of a model have to share."""
    attention = layer.attention
    return (
        attention.query_norm is None,
        attention.key_norm is None,
        attention.norms_each_head,
        layer.attention_residual.again is None,
        layer.residual.norm is None,
        layer.residual.local_norm is None,
        layer.gate is None,
        attention.rotary is None,
        attention.relative is None,
        len(layer.down.bias) // layer.parts,
        len(layer.up.bias) // layer.parts,
        attention.query.bias.shape,
        attention.heads,
        attention.scale,
        attention.causal,
        layer.activation,
    )


def same_codes(linears: tuple[Linear, ...]) -> bool:
    """Return whether the inputs of linear layers are quantized in the same way."""
    first = linears[0].codes
    return all(_equal(first, each.codes) for each in linears[1:])


def _equal(one: Codes | None, other: Codes | None) -> bool:
    if one is None or other is None:
        return one is other
    return (dataclasses.replace(one, multiplier=other.multiplier) == other) and np.array_equal(
        one.multiplier, other.multiplier
    )
