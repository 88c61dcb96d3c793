"""The parts of a layer that are stored, as tables.

Packing, checking and binding to kernels follow these tables. A part has a name, the sizes of its
arrays, and the part of an encoder's layer that it is made of.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from qdqbert.encoders.model import Layer
from qdqbert.engines.native.kernels.dot import PANEL
from qdqbert.engines.native.memory import padded

Size = Literal["states", "hidden", "narrow", "normed", "width", "inner", "up", "down", "one"]
"""A number of channels or columns; see `sizes`."""

Place = Literal["in order", "heads", "halves of heads", "inner parts", "hidden parts"]
"""Where channels or columns go among those with padding."""


def sizes(
    *,
    hidden: int,
    inner: int,
    heads: int,
    head_size: int,
    norms_each_head: bool,
    gated: bool,
    experts: int | None = None,
) -> dict[Size, int]:
    """Return the sizes of the parts of a layer; `head_size` is with padding.

    With `experts`, "up" and "down" have the columns of this number of them.
    """
    every = heads * head_size
    if experts is not None:
        up, down = (experts * padded(each) for each in (inner, hidden))
    else:
        up = 2 * padded(inner) if gated else padded(inner, PANEL)
        down = padded(hidden, PANEL)
    return {
        "states": hidden,
        "hidden": padded(hidden),
        "narrow": padded(hidden, PANEL),
        "normed": head_size if norms_each_head else every,
        "width": padded(every),
        "inner": padded(inner),
        "up": up,
        "down": down,
        "one": PANEL,
    }


@dataclasses.dataclass(frozen=True)
class Part:
    """A part of a layer.

    Attributes:
        path: Where `encoders.model.Layer` has it.
    """

    path: str

    def of(self, layer: Layer) -> Any:
        """Return it; `None` if the layer lacks it."""
        return operator.attrgetter(self.path)(layer)


@dataclasses.dataclass(frozen=True)
class LinearPart(Part):
    """A linear layer in int8 or float.

    Attributes:
        depth: Number of its input channels.
        channels_at: Where its input channels go.
        columns_at: Where its columns go.
        of_experts: Whether each expert has columns of its own.
    """

    depth: Size
    columns: Size
    channels_at: Place = "in order"
    columns_at: Place = "in order"
    of_experts: bool = False


@dataclasses.dataclass(frozen=True)
class NormPart(Part):
    """A LayerNorm or RMSNorm.

    Attributes:
        needs: Settings of models whose layers have it, with their values.
        width: Number of channels. Channels of heads, "normed", are spread as the columns of
            queries.
        is_optional: Whether some layers of such a model lack it.
    """

    needs: Mapping[str, bool]
    width: Size = "states"
    is_optional: bool = False


@dataclasses.dataclass(frozen=True)
class RoundingPart(Part):
    """Fake quantization of a tensor that stays in float.

    Attributes:
        is_of_add: Whether it is of an input of a residual add, not of attention.
    """

    channels: Size
    is_of_add: bool = False


LINEARS: Mapping[str, LinearPart] = {
    "query": LinearPart("attention.query", "hidden", "width", columns_at="halves of heads"),
    "key": LinearPart("attention.key", "hidden", "width", columns_at="halves of heads"),
    "value": LinearPart("attention.value", "hidden", "width", columns_at="heads"),
    "output": LinearPart("attention.output", "width", "narrow", channels_at="heads"),
    # Its gate follows it; see `with_gate`.
    "up": LinearPart("up", "hidden", "up", columns_at="inner parts", of_experts=True),
    "down": LinearPart("down", "inner", "down", columns_at="hidden parts", of_experts=True),
}
"""The linear layers in int8 or float, in the order in which their weights are read."""

NORMS: Mapping[str, NormPart] = {
    # Before the projections; the first layer may read the normalized embeddings.
    "attention_input_norm": NormPart("attention_norm", {"norms_first": True}, is_optional=True),
    # Of the output of attention, before the residual add.
    "attention_local_norm": NormPart("attention_residual.local_norm", {"norms_parts": True}),
    # After the residual add of attention.
    "attention_norm": NormPart("attention_residual.norm", {"norms_first": False}),
    # After the states are added a second time.
    "attention_again": NormPart("attention_residual.again", {"adds_twice": True}),
    # Before the feed-forward part.
    "up_input_norm": NormPart("up_norm", {"norms_first": True}),
    # Of the output of the feed-forward part, before the residual add.
    "local_norm": NormPart("residual.local_norm", {"norms_parts": True}),
    # After the residual add of the feed-forward part.
    "norm": NormPart("residual.norm", {"norms_first": False}),
    "query_norm": NormPart("attention.query_norm", {"normalizes_heads": True}, "normed"),
    "key_norm": NormPart("attention.key_norm", {"normalizes_heads": True}, "normed"),
}
"""The LayerNorms."""

ROUNDINGS: Mapping[str, RoundingPart] = {
    "query_rounding": RoundingPart("attention.query_codes", "width"),
    "key_rounding": RoundingPart("attention.key_codes", "width"),
    "value_rounding": RoundingPart("attention.value_codes", "width"),
    "probability_rounding": RoundingPart("attention.probability_codes", "one"),
    "attention_local_rounding": RoundingPart("attention_residual.local_codes", "hidden", True),
    "attention_states_rounding": RoundingPart("attention_residual.residual_codes", "hidden", True),
    "local_rounding": RoundingPart("residual.local_codes", "hidden", True),
    "states_rounding": RoundingPart("residual.residual_codes", "hidden", True),
}
"""Fake quantization of tensors."""


def with_gate(layer: Layer) -> Layer:
    """Return a layer whose first linear layer of the feed-forward part has its gate after it."""
    if layer.gate is None:
        return layer
    both = (layer.up, layer.gate)
    scales = [each.weight_scale for each in both if each.weight_scale is not None]
    up = dataclasses.replace(
        layer.up,
        weight=np.concatenate([each.weight for each in both]),
        weight_scale=np.concatenate(scales) if scales else None,
        bias=np.concatenate([each.bias for each in both]),
    )
    return dataclasses.replace(layer, up=up)
