"""Text towers of CLIP (Radford et al. 2021, arXiv:2103.00020) and SigLIP (arXiv:2303.15343).

They are also read from files of whole models, whose image towers are left out. Their vectors are
those that texts are compared with images by: `get_text_features` of transformers.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import numpy as np

from qdqbert.encoders.family import Encoder, Family, Parts, longest_text
from qdqbert.encoders.heads import EMBEDDING, states
from qdqbert.encoders.layers import LayerPaths, Sizes, changed, read_layers
from qdqbert.encoders.model import Attention, Embeddings, Head, HeadOutput, Layer
from qdqbert.encoders.reader import Reader
from qdqbert.encoders.task_kinds import architectures_of

_LAYER = LayerPaths(
    query="self_attn.q_proj",
    key="self_attn.k_proj",
    value="self_attn.v_proj",
    output="self_attn.out_proj",
    attention_norm="layer_norm1",
    up="mlp.fc1",
    down="mlp.fc2",
    norm="layer_norm2",
)
_QUICK = np.float32(1.702)
"""Quick GELU is `x * sigmoid(1.702 * x)`."""

_PROJECTION = "text_projection"


def read_tower(reader: Reader, *, causal: bool) -> Encoder:
    """Read a text tower: CLIP's tokens see those before them, SigLIP's those that fill a text."""
    config, sizes = reader.config, Sizes.of(reader)
    is_quick = config.values["hidden_act"] == "quick_gelu"

    def change(attention: Attention) -> Attention:
        return dataclasses.replace(attention, causal=causal)

    layers = read_layers(
        reader,
        _LAYER,
        sizes,
        path="encoder.layers",
        activation="silu" if is_quick else config.activation("hidden_act"),
        norms_first=True,
        change=change,
    )
    at = reader.at("embeddings")
    embeddings = Embeddings(
        words=at.table("token_embedding", rows="vocab_size", width=sizes.hidden),
        positions=at.table(
            "position_embedding", rows="max_position_embeddings", width=sizes.hidden
        ),
    )
    return Encoder(
        embeddings=embeddings,
        layers=tuple(map(_of_quick_gelu, layers)) if is_quick else layers,
        limit=longest_text(embeddings),
        final_norm=reader.norm("final_layer_norm", size=sizes.hidden, epsilon=sizes.epsilon),
    )


def _of_quick_gelu(layer: Layer) -> Layer:
    """Return a layer with SiLU that computes what it does with quick GELU: `silu(a x) / a`."""
    return dataclasses.replace(
        layer,
        up=changed(layer.up, lambda weight: weight * _QUICK, layer.up.bias * _QUICK),
        down=changed(layer.down, lambda weight: weight / _QUICK),
    )


def embed_clip(parts: Parts) -> tuple[Head, ...]:
    """Return the heads of CLIP's classes: the state of the token that ends a text, projected.

    `CLIPTextModel` does not project it.
    """
    config = parts.config
    named = architectures_of(config.values.get("architectures"))
    is_plain = config.values.get("model_type") != CLIP.model_type and any(
        each.endswith("TextModel") for each in named
    )
    if is_plain or (not named and f"{_PROJECTION}.weight" not in parts.root.weights):
        return states(("last",))
    width = config.integer("projection_dim", least=1)
    projection = parts.root.linear(_PROJECTION, inputs=parts.hidden, outputs=width, has_bias=False)
    return states(("last",), projection)


def embed_siglip(parts: Parts) -> tuple[Head, ...]:
    """Return the head of SigLIP's classes, on the last of the tokens that fill a text."""
    width = parts.config.integer("projection_size", null=parts.hidden, least=1)
    linear = parts.body.linear("head", inputs=parts.hidden, outputs=width)
    return (Head(poolings=("last",), steps=(linear,), outputs=(HeadOutput(name=EMBEDDING),)),)


def _family(model_type: str, *, is_whole: bool, **own: Any) -> Family:
    is_clip = model_type.startswith("clip")
    return Family(
        model_type=model_type,
        prefix="text_model",
        first="embeddings.token_embedding.weight",
        encoder=functools.partial(read_tower, causal=is_clip),
        embedding=embed_clip if is_clip else embed_siglip,
        # `load` alone reads them.
        is_quantized=False,
        nested="text_config" if is_whole else None,
        fills_texts=not is_clip,
        others=("logit_bias", "logit_scale", _PROJECTION, "vision_model", "visual_projection"),
        defaults=own,
    )


_CLIP_FIELDS = {
    "hidden_act": "quick_gelu",
    "hidden_size": 512,
    "intermediate_size": 2048,
    "layer_norm_eps": 1e-5,
    "max_position_embeddings": 77,
    "num_attention_heads": 8,
    "num_hidden_layers": 12,
    "projection_dim": 512,
    "vocab_size": 49408,
}
_SIGLIP_FIELDS = {
    "hidden_act": "gelu_pytorch_tanh",
    "hidden_size": 768,
    "intermediate_size": 3072,
    "layer_norm_eps": 1e-6,
    "max_position_embeddings": 64,
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
    "pad_token_id": 1,
    "projection_size": None,
    "vocab_size": 32000,
}

CLIP = _family("clip", is_whole=True, **_CLIP_FIELDS)
CLIP_TEXT = _family("clip_text_model", is_whole=False, **_CLIP_FIELDS)
SIGLIP = _family("siglip", is_whole=True, **_SIGLIP_FIELDS)
SIGLIP_TEXT = _family("siglip_text_model", is_whole=False, **_SIGLIP_FIELDS)
