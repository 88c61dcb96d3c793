"""Read encoder layers by the paths of their parts."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from qdqbert.encoders.config import Config
from qdqbert.encoders.model import (
    Activation,
    Attention,
    Experts,
    Floats,
    Later,
    Layer,
    Linear,
    Residual,
)
from qdqbert.encoders.reader import Reader


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayerPaths:
    """Paths of the parts of a layer, relative to it.

    Attributes:
        query, key, value, output: Linear layers of the attention.
        up, down: Linear layers of the feed-forward part.
        attention_norm: LayerNorm after the attention's residual add, or before the attention.
        norm: LayerNorm after the last residual add, or before the feed-forward part.
        gate: Linear layer whose output the activated output of `up` is multiplied by; `None` if
            there is none.
    """

    query: str
    key: str
    value: str
    output: str
    up: str
    down: str
    attention_norm: str
    norm: str
    gate: str | None = None


BERT_LAYER = LayerPaths(
    query="attention.self.query",
    key="attention.self.key",
    value="attention.self.value",
    output="attention.output.dense",
    attention_norm="attention.output.LayerNorm",
    up="intermediate.dense",
    down="output.dense",
    norm="output.LayerNorm",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sizes:
    """Sizes of a layer.

    Attributes:
        hidden: Channels of the hidden states.
        inner: Channels of the feed-forward part.
        heads: Number of attention heads.
        head: Channels of a head.
        epsilon: Added to the variance in LayerNorms.
    """

    hidden: int
    inner: int
    heads: int
    head: int
    epsilon: float

    @classmethod
    def of(
        cls,
        reader: Reader,
        *,
        epsilon: str = "layer_norm_eps",
        head: str | None = None,
        size: int | None = None,
    ) -> Sizes:
        """Return the sizes that a config has under BERT's names.

        Args:
            reader: Reader of the model.
            epsilon: Name of the field of the epsilon.
            head: Name of a field that may have the channels of a head, if all heads together have
                to be as wide as the states.
            size: Channels of a head, whatever the width of the states is; `None` if all heads
                together are as wide.

        Raises:
            CheckpointError: A size is wrong, or all heads together are not as wide as the states.
        """
        config = reader.config
        hidden, heads = (
            config.integer(name, least=1) for name in ("hidden_size", "num_attention_heads")
        )
        if size is None and hidden % heads:
            raise config.refuse(
                "num_attention_heads", f"`hidden_size={hidden}` is not a multiple of it."
            )
        size = size or hidden // heads
        if head is not None and config.integer(head, null=size) not in (0, size):
            raise config.refuse(head, f"only {size}, `hidden_size` by the heads, is supported.")
        return cls(
            hidden=hidden,
            inner=config.integer("intermediate_size", least=1),
            heads=heads,
            head=size,
            epsilon=config.number(epsilon, least=0),
        )


FULL, SLIDING = "full_attention", "sliding_attention"
"""Kinds of layers in configs: a token attends to all others, or to near ones."""


def kinds_of_layers(config: Config, usual: Sequence[str]) -> list[str]:
    """Return the kind of each layer, by the field `layer_types` or, if it is null, as `usual`.

    Raises:
        CheckpointError: A kind is not known, or there are fewer or more kinds than layers.
    """
    kinds = config.values["layer_types"]
    if kinds is None:
        return [*usual]
    if (
        not isinstance(kinds, list)
        or len(kinds) != len(usual)
        or not all(each in (FULL, SLIDING) for each in kinds)
    ):
        raise config.refuse("layer_types", f"expected {FULL!r} or {SLIDING!r} for each layer.")
    return kinds


def changed(
    linear: Linear, change: Callable[[Floats], Floats], bias: Floats | None = None
) -> Linear:
    """Return a linear layer with a weight that is made of another one's each time it is read.

    `bias` is the new one, with a value for each output; by default the old one.
    """
    weight, bias = linear.weight, linear.bias if bias is None else bias
    made = Later(
        (len(bias), weight.shape[1]), lambda rows: change(np.asarray(weight, np.float32))[rows]
    )
    return dataclasses.replace(linear, weight=made, bias=bias)


def picked(linear: Linear, rows: NDArray[np.intp]) -> Linear:
    """Return a linear layer with some outputs of another one, or with all in another order."""
    return changed(linear, lambda weight: weight[rows], linear.bias[rows])


def centered(linear: Linear) -> Linear:
    """Return a linear layer that also centers its outputs: the mean of each row is 0."""
    mean = np.float32(linear.bias.mean(dtype=np.float64))
    return changed(linear, _centered, linear.bias - mean)


def _centered(weight: Floats) -> Floats:
    mean: Floats = weight.mean(axis=0, dtype=np.float64).astype(np.float32)
    return weight - mean


FoundExperts = tuple[Linear, Linear, Experts]
"""The linear layers of experts, and what chooses them."""

ReadExperts = Callable[[Reader, Sizes, int], FoundExperts | None]
"""Returns the experts of a layer, given its reader and its index, if it has some."""


def read_layer(
    reader: Reader,
    paths: LayerPaths,
    sizes: Sizes,
    *,
    activation: Activation,
    norms_first: bool = False,
    change: Callable[[Attention], Attention] = lambda attention: attention,
    experts: FoundExperts | None = None,
) -> Layer:
    """Read a layer with separate linear layers for query, key and value.

    Args:
        reader: Reader of the layer.
        paths: Paths of its parts.
        sizes: Its sizes.
        activation: Activation function of the feed-forward part.
        norms_first: Whether both LayerNorms stand before the parts of the layer, and not after the
            residual adds.
        change: Returns the attention with the family's additions.
        experts: The linear layers of experts, which have no paths, and what chooses them.
    """
    width = sizes.heads * sizes.head
    query, key, value = (
        reader.linear(each, inputs=sizes.hidden, outputs=width)
        for each in (paths.query, paths.key, paths.value)
    )
    attention = Attention(
        query=query,
        key=key,
        value=value,
        output=reader.linear(paths.output, inputs=width, outputs=sizes.hidden),
        heads=sizes.heads,
        scale=float(sizes.head) ** -0.5,
    )
    first, second = (
        reader.norm(each, size=sizes.hidden, epsilon=sizes.epsilon)
        for each in (paths.attention_norm, paths.norm)
    )
    up, down, chooses = experts or (
        reader.linear(paths.up, inputs=sizes.hidden, outputs=sizes.inner),
        reader.linear(paths.down, inputs=sizes.inner, outputs=sizes.hidden),
        None,
    )
    return Layer(
        attention_norm=first if norms_first else None,
        attention=change(attention),
        attention_residual=Residual(norm=None if norms_first else first),
        up_norm=second if norms_first else None,
        up=up,
        gate=None
        if paths.gate is None
        else reader.linear(paths.gate, inputs=sizes.hidden, outputs=sizes.inner),
        activation=activation,
        down=down,
        residual=Residual(norm=None if norms_first else second),
        experts=chooses,
    )


def read_layers(
    reader: Reader,
    paths: LayerPaths,
    sizes: Sizes,
    *,
    path: str = "encoder.layer",
    activation: Activation | None = None,
    norms_first: bool = False,
    change: Callable[[Attention], Attention] = lambda attention: attention,
    experts: ReadExperts = lambda *_: None,
) -> tuple[Layer, ...]:
    """Read all layers of an encoder; see `read_layer`.

    `path` is that of the layers. The activation function is the config's by default.
    """
    config = reader.config
    activation = activation or config.activation("hidden_act")
    return tuple(
        read_layer(
            at,
            paths,
            sizes,
            activation=activation,
            norms_first=norms_first,
            change=change,
            experts=experts(at, sizes, index),
        )
        for index in range(config.integer("num_hidden_layers", least=1))
        for at in [reader.at(f"{path}.{index}")]
    )
