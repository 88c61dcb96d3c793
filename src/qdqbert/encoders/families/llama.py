"""Llama (Touvron et al. 2023, arXiv:2302.13971), and readers for families with its layout.

They are decoders of texts that are used as encoders: what is computed for a token depends on the
tokens before it, and the last token stands for the text.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from qdqbert.encoders.config import Config
from qdqbert.encoders.families.bert import answer
from qdqbert.encoders.family import Encoder, Family, Heads, Parts
from qdqbert.encoders.heads import logits
from qdqbert.encoders.layers import FULL, SLIDING, Sizes, changed, kinds_of_layers
from qdqbert.encoders.model import (
    Attention,
    Embeddings,
    Floats,
    Head,
    Layer,
    Linear,
    Norm,
    Residual,
    Rotary,
)
from qdqbert.encoders.reader import Reader
from qdqbert.encoders.rotation import read_rotation, rope_parameters
from qdqbert.encoders.weights import Conversion

LLAMA_DEFAULTS: Mapping[str, Any] = {
    "head_dim": None,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "is_causal": True,
    "max_position_embeddings": 2048,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": None,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10_000.0,
    "use_bidirectional_attention": False,
    "vocab_size": 32000,
}
"""Fields that `LlamaLike` and `is_causal` use, and what they are in a config without them."""

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
"""Names of the linear layers of the attention."""

MLP = ("gate_proj", "up_proj", "down_proj")
"""Names of the linear layers of the feed-forward part."""


def is_causal(config: Config) -> bool:
    """Return whether a token attends only to itself and those before it.

    transformers reads `is_causal`. Voyage's models, and text-embeddings-inference, have
    `use_bidirectional_attention` instead.
    """
    both_ways = config.flag("use_bidirectional_attention", null=False)
    return config.flag("is_causal", null=False) and not both_ways


@dataclasses.dataclass(frozen=True, kw_only=True)
class LlamaLike:
    """What models differ in that have RMSNorm first, rotation, gates, and shared keys and values.

    Attributes:
        causal: Whether a token attends only to itself and those before it.
        biased: Names of the linear layers that have biases.
        windows: `Attention.window` of each layer; `None` if tokens attend to all.
        rotations: The rotation of each layer; `None` if the config describes one for all.
        norms_heads: Whether queries and keys are normalized, each head by itself.
        norms_parts: Whether outputs of parts are normalized before they are added (Gemma 3).
        weights_from_one: Whether weights of norms are stored without the 1 that they start from
            (Gemma).
        activation: Name of the config's field of the activation function.
        scale: Factor of the scores; by default 1 by the square root of a head's channels.
        factor: Factor of the rows of words.
    """

    causal: bool
    biased: Collection[str] = ()
    windows: Sequence[int | None] | None = None
    rotations: Sequence[Rotary] | None = None
    norms_heads: bool = False
    norms_parts: bool = False
    weights_from_one: bool = False
    activation: str = "hidden_act"
    scale: float | None = None
    factor: float = 1.0

    def read(self, reader: Reader) -> Encoder:
        """Read a model."""
        config, sizes = reader.config, sizes_of(reader)
        limit = config.integer("max_position_embeddings", least=1)
        rotations = self.rotations
        if rotations is None:
            rotary = read_rotation(config, sizes.head, limit, rope_parameters(config))
            rotations = [rotary] * config.integer("num_hidden_layers", least=1)
        windows = self.windows or [None] * len(rotations)
        layers = (
            self._layer(reader.at(f"layers.{index}"), sizes, rotary, window)
            for index, (rotary, window) in enumerate(zip(rotations, windows, strict=True))
        )
        return Encoder(
            embeddings=Embeddings(
                words=reader.table("embed_tokens", rows="vocab_size", width=sizes.hidden),
                factor=self.factor,
            ),
            layers=tuple(layers),
            limit=limit,
            final_norm=self._norm(reader, "norm", sizes.hidden, sizes),
        )

    def _norm(self, at: Reader, name: str, size: int, sizes: Sizes) -> Norm:
        found = at.norm(name, size=size, epsilon=sizes.epsilon, has_bias=False)
        weight = found.weight + np.float32(1) if self.weights_from_one else found.weight
        return dataclasses.replace(found, weight=weight, subtracts_mean=False)

    def _layer(self, at: Reader, sizes: Sizes, rotary: Rotary, window: int | None) -> Layer:
        hidden = sizes.hidden
        norms: dict[str, Norm | None] = {
            name: self._norm(at, path, hidden, sizes)
            for name, path in (_FOUR_NORMS if self.norms_parts else _TWO_NORMS).items()
        }

        def linear(path: str, inputs: int, outputs: int) -> Linear:
            has_bias = path.rpartition(".")[2] in self.biased
            return at.linear(path, inputs=inputs, outputs=outputs, has_bias=has_bias)

        return Layer(
            attention_norm=norms["attention"],
            attention=self._attention(at, sizes, linear, rotary, window),
            attention_residual=Residual(local_norm=norms.get("after_attention")),
            up_norm=norms["up"],
            up=linear("mlp.gate_proj", hidden, sizes.inner),
            gate=linear("mlp.up_proj", hidden, sizes.inner),
            activation=at.config.activation(self.activation),
            down=linear("mlp.down_proj", sizes.inner, hidden),
            residual=Residual(local_norm=norms.get("after_down")),
        )

    def _attention(
        self,
        at: Reader,
        sizes: Sizes,
        linear: Callable[[str, int, int], Linear],
        rotary: Rotary,
        window: int | None,
    ) -> Attention:
        hidden, width = sizes.hidden, sizes.heads * sizes.head
        shared = at.config.integer("num_key_value_heads", null=sizes.heads, least=1)
        if sizes.heads % shared:
            raise at.config.refuse("num_key_value_heads", f"{sizes.heads} is not a multiple of it.")

        def repeated(values: Floats) -> Floats:
            by_head = values.reshape(shared, sizes.head, *values.shape[1:])
            return by_head.repeat(sizes.heads // shared, axis=0).reshape(width, *values.shape[1:])

        def spread(name: str) -> Linear:
            """Return keys or values, repeated for each head of their group."""
            found = linear(f"self_attn.{name}", hidden, shared * sizes.head)
            return changed(found, repeated, repeated(found.bias))

        query_norm, key_norm = (
            self._norm(at, f"self_attn.{name}_norm", sizes.head, sizes)
            if self.norms_heads
            else None
            for name in ("q", "k")
        )
        return Attention(
            query=linear("self_attn.q_proj", hidden, width),
            key=spread("k_proj"),
            value=spread("v_proj"),
            output=linear("self_attn.o_proj", width, hidden),
            heads=sizes.heads,
            scale=self.scale or float(sizes.head) ** -0.5,
            causal=self.causal,
            window=window,
            rotary=rotary,
            query_norm=query_norm,
            key_norm=key_norm,
            norms_each_head=self.norms_heads,
        )


# Norms of a layer, before its parts, and of their outputs before they are added.
_TWO_NORMS = {"attention": "input_layernorm", "up": "post_attention_layernorm"}
_FOUR_NORMS = {
    "attention": "input_layernorm",
    "after_attention": "post_attention_layernorm",
    "up": "pre_feedforward_layernorm",
    "after_down": "post_feedforward_layernorm",
}


def sizes_of(reader: Reader) -> Sizes:
    """Return the sizes of a model with `LLAMA_DEFAULTS`."""
    size = reader.config.integer("head_dim", null=0) or None
    return Sizes.of(reader, epsilon="rms_norm_eps", size=size)


def windows_of_kinds(config: Config, *, causal: bool) -> list[int | None]:
    """Return the windows of layers, some of which may have one, as Qwen's configs describe them.

    Raises:
        CheckpointError: A layer has a window, and no field its size.
    """
    count = config.integer("num_hidden_layers", least=1)
    whole = config.integer("max_window_layers")
    has_windows = config.flag("use_sliding_window") and "sliding_window" in config
    usual = [FULL if not has_windows or index < whole else SLIDING for index in range(count)]
    kinds = kinds_of_layers(config, usual)
    if SLIDING in kinds and not has_windows:
        raise config.refuse("layer_types", "`sliding_window` is not used, and some layers need it.")
    return [window_of(config, causal=causal) if kind == SLIDING else None for kind in kinds]


def window_of(config: Config, *, causal: bool) -> int | None:
    """Return `Attention.window` by the field `sliding_window`; `None` if it is null.

    transformers counts a token itself in windows of tokens before it.
    """
    if "sliding_window" not in config:
        return None
    return config.integer("sliding_window", least=int(causal)) - int(causal)


def classify(parts: Parts) -> tuple[Head, ...]:
    """Return the head of `LlamaForSequenceClassification`."""
    return logits("last", parts.root.linear("score", inputs=parts.hidden, has_bias=False))


def classify_tokens(parts: Parts) -> tuple[Head, ...]:
    """Return the head of `LlamaForTokenClassification`."""
    return logits("none", parts.root.linear("score", inputs=parts.hidden))


LLAMA_HEADS = Heads(answer=answer, classify=classify, classify_tokens=classify_tokens)

# Models that answer questions have an older name of the encoder.
LLAMA_CONVERSION = Conversion(renames=((r"^transformer\.", "model."),))


def read_llama(reader: Reader) -> Encoder:
    """Read a model of transformers' class."""
    config = reader.config
    biased = [*(ATTENTION if config.flag("attention_bias") else ())]
    biased += MLP if config.flag("mlp_bias") else ()
    return LlamaLike(causal=is_causal(config), biased=biased).read(reader)


LLAMA = Family(
    model_type="llama",
    prefix="model",
    first="embed_tokens.weight",
    encoder=read_llama,
    heads=LLAMA_HEADS,
    conversion=LLAMA_CONVERSION,
    skips_padding=True,
    defaults={**LLAMA_DEFAULTS, "attention_bias": False, "mlp_bias": False},
)
