"""UltraBERT: EuroBERT with windows in two of three layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from qdqbert.encoders.config import Config
from qdqbert.encoders.families.bert import answer, classify_tokens
from qdqbert.encoders.families.llama import ATTENTION, LLAMA_DEFAULTS, MLP, LlamaLike, sizes_of
from qdqbert.encoders.family import Encoder, Family, Heads, Parts
from qdqbert.encoders.heads import decoder, logits
from qdqbert.encoders.layers import FULL, SLIDING, kinds_of_layers
from qdqbert.encoders.model import Head, Pooling
from qdqbert.encoders.reader import Reader
from qdqbert.encoders.rotation import read_rotation, rope_settings
from qdqbert.encoders.weights import Conversion

_POOLINGS: Mapping[str, Pooling] = {"cls": "first", "mean": "mean"}
_THETAS = {FULL: 2_560_000.0, SLIDING: 10_000.0}


def read_ultrabert(reader: Reader) -> Encoder:
    """Read a model like EuroBERT, with a rotation for each kind of layer."""
    config, sizes = reader.config, sizes_of(reader)
    if sizes.hidden % sizes.heads:
        raise config.refuse("num_attention_heads", f"{sizes.hidden} is not a multiple of it.")
    limit = config.integer("max_position_embeddings", least=1)
    kinds, window = _kinds_of_layers(config)
    rotations = {
        kind: read_rotation(config, sizes.head, limit, _rope_parameters(config, kind, kinds))
        for kind in set(kinds)
    }
    biased = [*(ATTENTION if config.flag("attention_bias") else ())]
    biased += MLP if config.flag("mlp_bias") else ()
    return LlamaLike(
        causal=False,
        biased=biased,
        windows=[window if kind == SLIDING else None for kind in kinds],
        rotations=[rotations[kind] for kind in kinds],
    ).read(reader)


def _kinds_of_layers(config: Config) -> tuple[list[str], int]:
    """Return the kind of each layer, and the tokens on each side that those with a window see."""
    count = config.integer("num_hidden_layers", least=1)
    window = config.integer("sliding_window")
    usual = [FULL if (index + 1) % 3 == 0 else SLIDING for index in range(count)]
    # Of older files: the window of each layer, 0 for none.
    given = config.values.get("attention_windows", [])
    if not isinstance(given, list) or not all(type(each) is int and each >= 0 for each in given):
        raise config.refuse("attention_windows", "expected a whole number for each layer.")
    if given:
        window = next(filter(None, given), window)
        usual = [SLIDING if each else FULL for each in given]
    if len(usual) != count or {*given} - {0, window}:
        raise config.refuse("attention_windows", f"expected one size for {count} layers, or 0.")
    return kinds_of_layers(config, usual), window


def _rope_parameters(config: Config, kind: str, kinds: Sequence[str]) -> Mapping[str, Any]:
    """Return the settings of the rotation of a kind of layer."""
    every, thetas = rope_settings(config, "rope_parameters"), config.values.get("rope_theta")
    if every:
        own = every.get(kind)
    elif thetas is None:
        own = {"rope_theta": _THETAS[kind]}
    elif isinstance(thetas, list) and len(thetas) == len(kinds):
        # Of older files: the base of each layer.
        own = {"rope_theta": dict(zip(kinds, thetas, strict=True))[kind]}
    else:
        raise config.refuse("rope_theta", "expected a number for each layer.")
    if not isinstance(own, dict):
        raise config.refuse("rope_parameters", f"expected settings for {FULL} and {SLIDING}.")
    return {"rope_theta": LLAMA_DEFAULTS["rope_theta"], **own}


def classify(parts: Parts) -> tuple[Head, ...]:
    """Return the head of `UltrabertForSequenceClassification`."""
    name = parts.config.text("classifier_pooling")
    if name not in _POOLINGS:
        raise parts.config.refuse("classifier_pooling", "expected 'cls' or 'mean'.")
    return logits(_POOLINGS[name], parts.root.linear("classifier", inputs=parts.hidden))


def fill_mask(parts: Parts) -> tuple[Head, ...]:
    """Return the head of `UltrabertForMaskedLM`."""
    inner, at = parts.config.integer("prediction_head_size", least=1), parts.root.at("head")
    first = at.linear("linear1", inputs=parts.hidden, outputs=inner, has_bias=False)
    second = at.linear("linear2", inputs=inner, outputs=parts.hidden, has_bias=False)
    scores = decoder(at, "decoder", "", parts.encoder.embeddings, has_bias=False)
    return logits("none", first, "gelu_tanh", second, "gelu_tanh", scores)


ULTRABERT = Family(
    model_type="ultrabert",
    prefix="model",
    first="embed_tokens.weight",
    encoder=read_ultrabert,
    heads=Heads(
        answer=answer, classify=classify, classify_tokens=classify_tokens, fill_mask=fill_mask
    ),
    # The names in files.
    conversion=Conversion(renames=((r"^ultrabert\.", "model."), (r"^cls\.", "head.decoder."))),
    defaults={
        **{name: each for name, each in LLAMA_DEFAULTS.items() if name != "rope_theta"},
        "attention_bias": False,
        "classifier_pooling": "cls",
        "layer_types": None,
        "max_position_embeddings": 32768,
        "mlp_bias": False,
        "prediction_head_size": 768,
        "sliding_window": 128,
        "tie_word_embeddings": False,
    },
)
