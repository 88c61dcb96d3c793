"""EuroBERT (Boizard et al. 2025, arXiv:2503.05500)."""

from __future__ import annotations

from collections.abc import Mapping

from qdqbert.encoders.families.bert import BERT_DEFAULTS, classify_tokens
from qdqbert.encoders.families.llama import ATTENTION, MLP, LlamaLike
from qdqbert.encoders.family import JINA_V5, Encoder, Family, Heads, Parts
from qdqbert.encoders.heads import decoder, logits
from qdqbert.encoders.model import Head, Pooling, Step
from qdqbert.encoders.reader import Reader

# Ends of the names of its own classes, some of which have no head here.
_CODE = (
    *("Model", "PreTrainedModel", "ForMaskedLM", "ForSequenceClassification"),
    *("ForTokenClassification", "ForQuestionAnswering"),
)
_POOLINGS: Mapping[str, Pooling] = {"bos": "first", "late": "mean", "mean": "mean"}


def read_eurobert(reader: Reader) -> Encoder:
    """Read a model like Llama whose tokens attend to all others."""
    config = reader.config
    biased = [*(ATTENTION if config.flag("attention_bias") else ())]
    biased += MLP if config.flag("mlp_bias") else ()
    return LlamaLike(causal=False, biased=biased).read(reader)


def classify(parts: Parts) -> tuple[Head, ...]:
    """Return the head of `EuroBertForSequenceClassification`."""
    kind = parts.config.text("classifier_pooling")
    if kind not in _POOLINGS:
        raise parts.config.refuse("classifier_pooling", f"expected one of {', '.join(_POOLINGS)}.")
    dense = parts.root.linear("dense", inputs=parts.hidden, outputs=parts.hidden)
    classifier = parts.root.linear("classifier", inputs=parts.hidden)
    steps: tuple[Step, ...] = (dense, "gelu", classifier)
    # "late" is the mean of the scores of tokens.
    count = len(steps) if kind == "late" else 0
    return logits(_POOLINGS[kind], *steps, token_steps=count)


def fill_mask(parts: Parts) -> tuple[Head, ...]:
    """Return the head of `EuroBertForMaskedLM`."""
    has_bias = parts.config.flag("mlp_bias")
    embeddings = parts.encoder.embeddings
    return logits("none", decoder(parts.root, "lm_head", "", embeddings, has_bias=has_bias))


EUROBERT = Family(
    model_type="eurobert",
    prefix="model",
    first="embed_tokens.weight",
    encoder=read_eurobert,
    heads=Heads(fill_mask=fill_mask, classify=classify, classify_tokens=classify_tokens),
    defaults={
        **BERT_DEFAULTS,
        "attention_bias": False,
        "classifier_pooling": "late",
        "head_dim": None,
        "hidden_act": "silu",
        "max_position_embeddings": 8192,
        "mlp_bias": False,
        "num_key_value_heads": None,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10_000.0,
        "tie_word_embeddings": False,
        "vocab_size": 128256,
    },
    code=(JINA_V5, *(f"EuroBert{end}" for end in _CODE)),
    fields={"clf_pooling": "classifier_pooling"},
)
