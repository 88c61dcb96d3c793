"""DistilBERT (Sanh et al. 2019, arXiv:1910.01108)."""

from __future__ import annotations

from qdqbert.encoders.families.bert import bert_heads, pooled_heads, read_embeddings
from qdqbert.encoders.family import Encoder, Family, Parts, longest_text
from qdqbert.encoders.heads import decoder, logits
from qdqbert.encoders.layer_sites import LayerSites, TrainingSites
from qdqbert.encoders.layers import LayerPaths, Sizes, read_layer
from qdqbert.encoders.model import Head, Step
from qdqbert.encoders.reader import Reader

# transformers has no field for it.
_EPSILON = 1e-12
_LAYER = LayerPaths(
    query="attention.q_lin",
    key="attention.k_lin",
    value="attention.v_lin",
    output="attention.out_lin",
    attention_norm="sa_layer_norm",
    up="ffn.lin1",
    down="ffn.lin2",
    norm="output_layer_norm",
)


def read_distilbert(reader: Reader) -> Encoder:
    """Read a model, whose config has names of its own."""
    config = reader.config
    hidden, heads = config.integer("dim", least=1), config.integer("n_heads", least=1)
    if hidden % heads:
        raise config.refuse("n_heads", f"`dim={hidden}` is not a multiple of it.")
    sizes = Sizes(
        hidden=hidden,
        inner=config.integer("hidden_dim", least=1),
        heads=heads,
        head=hidden // heads,
        epsilon=_EPSILON,
    )
    activation = config.activation("activation")
    embeddings = read_embeddings(reader, hidden, _EPSILON, has_types=False)
    return Encoder(
        embeddings=embeddings,
        layers=tuple(
            read_layer(reader.at(f"transformer.layer.{each}"), _LAYER, sizes, activation=activation)
            for each in range(config.integer("n_layers", least=1))
        ),
        limit=longest_text(embeddings),
    )


def _pooled(parts: Parts) -> tuple[Step, ...]:
    return parts.root.linear("pre_classifier", inputs=parts.hidden), "relu"


# The heads of `DistilBertForSequenceClassification` and `DistilBertForMultipleChoice`.
classify, choose = pooled_heads(_pooled)


def fill_mask(parts: Parts) -> tuple[Head, ...]:
    """Return the head of `DistilBertForMaskedLM`."""
    root = parts.root
    dense = root.linear("vocab_transform", inputs=parts.hidden, outputs=parts.hidden)
    norm = root.norm("vocab_layer_norm", size=parts.hidden, epsilon=_EPSILON)
    activation = parts.config.activation("activation")
    scores = decoder(root, "vocab_projector", "", parts.encoder.embeddings)
    return logits("none", dense, activation, norm, scores)


DISTILBERT = Family(
    model_type="distilbert",
    prefix="distilbert",
    encoder=read_distilbert,
    heads=bert_heads(fill_mask, classify, choose),
    defaults={
        "activation": "gelu",
        "dim": 768,
        "hidden_dim": 3072,
        "is_decoder": False,
        "max_position_embeddings": 512,
        "n_heads": 12,
        "n_layers": 6,
        "tie_word_embeddings": True,
        "vocab_size": 30522,
    },
    aliases={
        "hidden_size": "dim",
        "num_attention_heads": "n_heads",
        "num_hidden_layers": "n_layers",
    },
    training=TrainingSites(
        layers="transformer.layer", layer=LayerSites.of(_LAYER, branches=("attention", "ffn"))
    ),
)
