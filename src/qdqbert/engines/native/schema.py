"""The parts of a layer that are stored, as tables.

Packing, checking and binding to kernels follow these tables. A part has a name, the sizes of its
arrays, and the part of an encoder's layer that it is made of.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Literal

import numpy as np

from qdqbert.encoders.model import Layer, Linear, Norm, RoundTrip
from qdqbert.engines.native.kernels.dot import PANEL
from qdqbert.engines.native.memory import padded

Size = Literal["states", "hidden", "narrow", "heads", "width", "inner", "up", "one"]
"""A number of channels or columns; see `sizes`."""

Place = Literal["in order", "heads", "halves of heads", "gate"]
"""Where channels or columns go among those with padding."""


def sizes(*, hidden: int, inner: int, heads: int, gated: bool) -> dict[Size, int]:
    """Return the sizes of the parts of a layer.

    Args:
        hidden: Channels of a hidden state.
        inner: Channels of the feed-forward part.
        heads: Channels of all heads, with the padding of each.
        gated: Whether there is a gate.
    """
    return {
        "states": hidden,
        "hidden": padded(hidden),
        "narrow": padded(hidden, PANEL),
        "heads": heads,
        "width": padded(heads),
        "inner": padded(inner),
        "up": 2 * padded(inner) if gated else padded(inner, PANEL),
        "one": PANEL,
    }


@dataclasses.dataclass(frozen=True, kw_only=True)
class LinearPart:
    """A linear layer in int8.

    Attributes:
        source: Returns it.
        depth: Number of its input channels.
        columns: Number of its columns.
        channels_at: Where its input channels go.
        columns_at: Where its columns go.
    """

    source: Callable[[Layer], Linear]
    depth: Size
    columns: Size
    channels_at: Place = "in order"
    columns_at: Place = "in order"


@dataclasses.dataclass(frozen=True, kw_only=True)
class NormPart:
    """A LayerNorm or RMSNorm.

    Attributes:
        source: Returns it.
        width: Number of channels. Channels of heads are spread as the columns of queries.
        needs: Settings of models whose layers have it, with their values.
        is_optional: Whether some layers of such a model lack it.
    """

    source: Callable[[Layer], Norm | None]
    needs: Mapping[str, bool]
    width: Size = "states"
    is_optional: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class RoundingPart:
    """Fake quantization of a tensor that stays in float.

    Attributes:
        source: Returns it.
        channels: Number of channels.
        is_of_add: Whether it is of an input of a residual add, not of attention.
    """

    source: Callable[[Layer], RoundTrip | None]
    channels: Size
    is_of_add: bool = False


def _up(layer: Layer) -> Linear:
    """Return the first linear layer of the feed-forward part, with its gate after it."""
    if layer.gate is None:
        return layer.up
    both = (layer.up, layer.gate)
    scales = [each.weight_scale for each in both if each.weight_scale is not None]
    return dataclasses.replace(
        layer.up,
        weight=np.concatenate([each.weight for each in both]),
        weight_scale=np.concatenate(scales),
        bias=np.concatenate([each.bias for each in both]),
    )


LINEARS: Mapping[str, LinearPart] = {
    "query": LinearPart(
        source=lambda layer: layer.attention.query,
        depth="hidden",
        columns="width",
        columns_at="halves of heads",
    ),
    "key": LinearPart(
        source=lambda layer: layer.attention.key,
        depth="hidden",
        columns="width",
        columns_at="halves of heads",
    ),
    "value": LinearPart(
        source=lambda layer: layer.attention.value,
        depth="hidden",
        columns="width",
        columns_at="heads",
    ),
    "output": LinearPart(
        source=lambda layer: layer.attention.output,
        depth="width",
        columns="narrow",
        channels_at="heads",
    ),
    "up": LinearPart(source=_up, depth="hidden", columns="up", columns_at="gate"),
    "down": LinearPart(source=lambda layer: layer.down, depth="inner", columns="narrow"),
}
"""The linear layers in int8, in the order in which their weights are read."""

NORMS: Mapping[str, NormPart] = {
    # Before the projections; the first layer may read the normalized embeddings.
    "attention_input_norm": NormPart(
        source=lambda layer: layer.attention_norm, needs={"norms_first": True}, is_optional=True
    ),
    # After the residual add of attention.
    "attention_norm": NormPart(
        source=lambda layer: layer.attention_residual.norm, needs={"norms_first": False}
    ),
    # After the states are added a second time.
    "attention_again": NormPart(
        source=lambda layer: layer.attention_residual.again, needs={"adds_twice": True}
    ),
    # Before the feed-forward part.
    "up_input_norm": NormPart(source=lambda layer: layer.up_norm, needs={"norms_first": True}),
    # After the residual add of the feed-forward part.
    "norm": NormPart(source=lambda layer: layer.residual.norm, needs={"norms_first": False}),
    "query_norm": NormPart(
        source=lambda layer: layer.attention.query_norm,
        width="heads",
        needs={"normalizes_heads": True},
    ),
    "key_norm": NormPart(
        source=lambda layer: layer.attention.key_norm,
        width="heads",
        needs={"normalizes_heads": True},
    ),
}
"""The LayerNorms."""

ROUNDINGS: Mapping[str, RoundingPart] = {
    "query_rounding": RoundingPart(
        source=lambda layer: layer.attention.query_codes, channels="width"
    ),
    "key_rounding": RoundingPart(source=lambda layer: layer.attention.key_codes, channels="width"),
    "value_rounding": RoundingPart(
        source=lambda layer: layer.attention.value_codes, channels="width"
    ),
    "probability_rounding": RoundingPart(
        source=lambda layer: layer.attention.probability_codes, channels="one"
    ),
    "attention_local_rounding": RoundingPart(
        source=lambda layer: layer.attention_residual.local_codes, channels="hidden", is_of_add=True
    ),
    "attention_states_rounding": RoundingPart(
        source=lambda layer: layer.attention_residual.residual_codes,
        channels="hidden",
        is_of_add=True,
    ),
    "local_rounding": RoundingPart(
        source=lambda layer: layer.residual.local_codes, channels="hidden", is_of_add=True
    ),
    "states_rounding": RoundingPart(
        source=lambda layer: layer.residual.residual_codes, channels="hidden", is_of_add=True
    ),
}
"""Fake quantization of tensors."""
