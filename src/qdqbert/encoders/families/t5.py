"""Encoders of T5 (Raffel et al. 2020, arXiv:1910.10683), mT5 and UMT5.

Files of whole models have a decoder too, which is left out.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbert.encoders.config import Config
from qdqbert.encoders.families.bert import classify_tokens
from qdqbert.encoders.family import Encoder, Family, Heads
from qdqbert.encoders.layers import LayerPaths, Sizes, read_layer
from qdqbert.encoders.model import Attention, Embeddings, Floats, Layer, Norm
from qdqbert.encoders.reader import Reader
from qdqbert.encoders.weights import Conversion

_LIMIT = 2048
"""Tokens of the longest text. transformers has no limit, and published models are for 512."""

_LAYER = LayerPaths(
    query="layer.0.SelfAttention.q",
    key="layer.0.SelfAttention.k",
    value="layer.0.SelfAttention.v",
    output="layer.0.SelfAttention.o",
    attention_norm="layer.0.layer_norm",
    up="layer.1.DenseReluDense.wi",
    down="layer.1.DenseReluDense.wo",
    norm="layer.1.layer_norm",
)
_GATED = dataclasses.replace(
    _LAYER, up="layer.1.DenseReluDense.wi_0", gate="layer.1.DenseReluDense.wi_1"
)
_BIAS = "layer.0.SelfAttention.relative_attention_bias"


def buckets_of(distances: NDArray[np.int64], buckets: int, farthest: int) -> NDArray[np.int64]:
    """Return the bucket of each distance `key - query`.

    Source: `_relative_position_bucket` of transformers' T5.

    Args:
        distances: The distances.
        buckets: Number of buckets, 4 or more.
        farthest: Distance from which on all are in the last bucket of their side.
    """
    half = buckets // 2
    exact = half // 2
    distance = np.abs(distances)
    far = np.log(np.maximum(distance, 1).astype(np.float32) / np.float32(exact))
    far = far / np.float32(math.log(farthest / exact)) * np.float32(half - exact)
    far = np.minimum(exact + far.astype(np.int64), half - 1)
    return np.asarray(half * (distances > 0) + np.where(distance < exact, distance, far))


def read_t5(reader: Reader, *, own_biases: bool) -> Encoder:
    """Read a model whose layers have biases of distances: their own, or that of the first one."""
    config = reader.config
    sizes = Sizes(
        hidden=config.integer("d_model", least=1),
        inner=config.integer("d_ff", least=1),
        heads=config.integer("num_heads", least=1),
        head=config.integer("d_kv", least=1),
        epsilon=config.number("layer_norm_epsilon", least=0),
    )
    named, is_gated = _activation(config)
    own = dataclasses.replace(config, values={**config.values, "dense_act_fn": named})
    activation = own.activation("dense_act_fn")
    count = config.integer("num_layers", least=1)
    bias = None if own_biases else _position_bias(reader.at("encoder.block.0"), sizes.heads)

    def layer(index: int) -> Layer:
        at = reader.at(f"encoder.block.{index}")
        own = _position_bias(at, sizes.heads) if bias is None else bias

        def change(attention: Attention) -> Attention:
            return dataclasses.replace(attention, scale=1.0, position_bias=own)

        found = read_layer(
            at,
            _GATED if is_gated else _LAYER,
            sizes,
            activation=activation,
            norms_first=True,
            change=change,
        )
        attention_norm, up_norm = _of_size(found.attention_norm), _of_size(found.up_norm)
        return dataclasses.replace(found, attention_norm=attention_norm, up_norm=up_norm)

    final = reader.norm("encoder.final_layer_norm", size=sizes.hidden, epsilon=sizes.epsilon)
    return Encoder(
        embeddings=Embeddings(
            words=reader.table("encoder.embed_tokens", rows="vocab_size", width=sizes.hidden)
        ),
        layers=tuple(map(layer, range(count))),
        limit=_LIMIT,
        final_norm=_of_size(final),
    )


def _of_size(norm: Norm | None) -> Norm | None:
    """Return a norm as RMSNorm."""
    return norm and dataclasses.replace(norm, subtracts_mean=False)


def _activation(config: Config) -> tuple[str, bool]:
    """Return the name of the activation function, and whether there is a gate.

    transformers makes two fields of `feed_forward_proj`, which count before it if they are there.
    """
    named = config.text("feed_forward_proj")
    gate, _, function = named.rpartition("-")
    if gate not in ("", "gated") or named.count("-") > 1:
        raise config.refuse("feed_forward_proj", "expected 'gated-gelu', 'relu' or another one.")
    if named == "gated-gelu":
        function = "gelu_new"
    return config.values.get("dense_act_fn", function), config.values.get(
        "is_gated_act", gate != ""
    )


def _position_bias(at: Reader, heads: int) -> Floats:
    """Return the bias of each distance, from a key far before on, `(heads, 2 * limit - 1)`."""
    names = ("relative_attention_num_buckets", "relative_attention_max_distance")
    buckets, farthest = (at.config.integer(name, least=1) for name in names)
    if buckets < 4 or farthest <= buckets // 4:
        raise at.config.refuse(names[0], f"expected 4 to 4 times `{names[1]}={farthest}`.")
    table = at.table(_BIAS, rows=names[0], width=heads)
    distances = np.arange(1 - _LIMIT, _LIMIT)
    return np.ascontiguousarray(table.rows[buckets_of(distances, buckets, farthest)].T)


def _family(model_type: str, **own: Any) -> Family:
    fields = {
        "d_ff": 1024,
        "d_kv": 64,
        "d_model": 512,
        "feed_forward_proj": "gated-gelu",
        "is_decoder": False,
        "layer_norm_epsilon": 1e-6,
        "num_heads": 6,
        "num_layers": 8,
        "relative_attention_max_distance": 128,
        "relative_attention_num_buckets": 32,
        "vocab_size": 250112,
    }
    return Family(
        model_type=model_type,
        prefix="transformer",
        first="encoder.embed_tokens.weight",
        encoder=functools.partial(read_t5, own_biases=model_type == "umt5"),
        # The other heads read the decoder.
        heads=Heads(classify_tokens=classify_tokens),
        encoder_class="AutoModelForTextEncoding",
        defaults={**fields, **own},
        aliases={
            "hidden_size": "d_model",
            "num_attention_heads": "num_heads",
            "num_hidden_layers": "num_layers",
            "head_dim": "d_kv",
        },
        conversion=_CONVERSION,
    )


# The same table, under the name that it has in most files.
_CONVERSION = Conversion(renames=((r"^((transformer\.)?)shared\.", r"\1encoder.embed_tokens."),))

T5 = _family(
    "t5",
    d_ff=2048,
    feed_forward_proj="relu",
    num_heads=8,
    num_layers=6,
    vocab_size=32128,
)
MT5 = _family("mt5")
UMT5 = _family("umt5")
