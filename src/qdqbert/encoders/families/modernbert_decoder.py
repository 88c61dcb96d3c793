"""The decoder of ModernBERT's form (Weller et al. 2025, arXiv:2507.11412, Ettin), as an encoder."""

from __future__ import annotations

from qdqbert.encoders.config import Config
from qdqbert.encoders.families.llama import is_causal
from qdqbert.encoders.families.modernbert import MODERNBERT, read_like, transform
from qdqbert.encoders.family import Encoder, Family, Heads, Parts
from qdqbert.encoders.heads import logits
from qdqbert.encoders.layers import Sizes
from qdqbert.encoders.model import Head, Linear
from qdqbert.encoders.reader import Reader


def read_modernbert_decoder(reader: Reader) -> Encoder:
    """Read a model like ModernBERT whose tokens see those before them."""
    config = reader.config
    causal = is_causal(config)
    return read_like(
        reader,
        Sizes.of(reader, epsilon="norm_eps"),
        projections=_projections,
        window=_window(config) - int(causal),
        causal=causal,
    )


def _window(config: Config) -> int:
    """Return the number of tokens of a window, which the token itself counts to if it is causal."""
    if "sliding_window" in config:
        return config.integer("sliding_window", least=1)
    return config.integer("local_attention", least=2) // 2


def _projections(at: Reader, sizes: Sizes) -> list[Linear]:
    has_bias, hidden = at.config.flag("attention_bias"), sizes.hidden
    return [
        at.linear(f"attn.{name}_proj", inputs=hidden, outputs=hidden, has_bias=has_bias)
        for name in ("q", "k", "v")
    ]


def classify(parts: Parts) -> tuple[Head, ...]:
    """Return the head of `ModernBertDecoderForSequenceClassification`."""
    has_bias = parts.config.flag("classifier_bias")
    classifier = parts.root.linear("classifier", inputs=parts.hidden, has_bias=has_bias)
    return logits("last", *transform(parts), classifier)


_NOT_READ = ("classifier_pooling", "decoder_bias", "head_dim")

MODERNBERT_DECODER = Family(
    model_type="modernbert-decoder",
    prefix=MODERNBERT.prefix,
    first=MODERNBERT.first,
    encoder=read_modernbert_decoder,
    heads=Heads(classify=classify),
    skips_padding=True,
    defaults={
        **{name: each for name, each in MODERNBERT.defaults.items() if name not in _NOT_READ},
        "is_causal": True,
        "use_bidirectional_attention": False,
    },
)
