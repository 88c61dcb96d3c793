"""BERT (Devlin et al. 2018, arXiv:1810.04805), and readers for families with its layout."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from qdqbert.encoders.family import Encoder, Family, Heads, Parts, ReadHead, longest_text
from qdqbert.encoders.heads import answer_spans, decoder, logits, scored_choice
from qdqbert.encoders.layer_sites import LayerSites, TrainingSites
from qdqbert.encoders.layers import BERT_LAYER, LayerPaths, Sizes, read_layers
from qdqbert.encoders.model import Activation, Embeddings, Head, Layer, Linear, Norm, Step
from qdqbert.encoders.reader import Reader

BERT_DEFAULTS: Mapping[str, Any] = {
    "hidden_act": "gelu",
    "hidden_size": 768,
    "intermediate_size": 3072,
    "is_decoder": False,
    "layer_norm_eps": 1e-12,
    "max_position_embeddings": 512,
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
    "position_embedding_type": "absolute",
    "tie_word_embeddings": True,
    "type_vocab_size": 2,
    "vocab_size": 30522,
}
"""Fields that readers use, and what they are in a config without them."""


def read_bert_like(
    reader: Reader,
    *,
    padding_id: int | None = None,
    width: int | None = None,
    projection: str = "",
    always_projects: bool = False,
    has_types: bool = True,
    has_norm: bool = True,
    paths: LayerPaths = BERT_LAYER,
    norms_first: bool = False,
    layers: Callable[[Reader, Sizes], tuple[Layer, ...]] | None = None,
) -> Encoder:
    """Read a model with embeddings like BERT's.

    Args:
        reader: Reader of the encoder.
        padding_id: Id of the padding token, if positions are counted from the row after it and
            over other tokens only, as in RoBERTa; `None` if they are counted from 0.
        width: Channels of the embeddings; by default as many as the hidden states have.
        projection: Path of the linear layer that follows embeddings of another width.
        always_projects: Whether there is such a layer for embeddings of the same width, too.
        has_types: Whether there are embeddings of token types.
        has_norm: Whether embeddings are normalized.
        paths: Paths of the parts of a layer.
        norms_first: Whether layers normalize first.
        layers: Reads the layers; by default one layer after the other.
    """
    check_absolute_positions(reader)
    sizes = Sizes.of(reader)
    width = sizes.hidden if width is None else width
    embeddings = read_embeddings(
        reader, width, sizes.epsilon, padding_id=padding_id, has_types=has_types, has_norm=has_norm
    )
    if width != sizes.hidden or always_projects:
        linear = reader.linear(projection, inputs=width, outputs=sizes.hidden)
        embeddings = dataclasses.replace(embeddings, projection=linear)
    return Encoder(
        embeddings=embeddings,
        layers=layers(reader, sizes)
        if layers
        else read_layers(reader, paths, sizes, norms_first=norms_first),
        limit=longest_text(embeddings),
    )


def check_absolute_positions(reader: Reader) -> None:
    """Refuse positions that transformers 5 does not compute."""
    kind = reader.config.text("position_embedding_type")
    if kind != "absolute":
        raise reader.config.refuse(
            "position_embedding_type", "transformers 5 computes 'absolute' positions only."
        )


def read_embeddings(
    reader: Reader,
    width: int,
    epsilon: float,
    *,
    padding_id: int | None = None,
    has_positions: bool = True,
    has_types: bool = True,
    has_norm: bool = True,
) -> Embeddings:
    """Read a table of words, and those of positions and token types and a LayerNorm if any."""
    at = reader.at("embeddings")
    return Embeddings(
        words=at.table("word_embeddings", rows="vocab_size", width=width),
        positions=at.table("position_embeddings", rows="max_position_embeddings", width=width)
        if has_positions
        else None,
        token_types=at.table("token_type_embeddings", rows="type_vocab_size", width=width)
        if has_types
        else None,
        norm=at.norm("LayerNorm", size=width, epsilon=epsilon) if has_norm else None,
        padding_id=padding_id,
        # No token has a position before the padding's.
        first_position=padding_id or 0,
    )


def pooled(parts: Parts) -> tuple[Step, ...]:
    """Return the steps of the encoder's pooler, which reads the first token."""
    return parts.body.linear("pooler.dense", inputs=parts.hidden), "tanh"


def pooled_heads(read: Callable[[Parts], tuple[Step, ...]]) -> tuple[ReadHead, ReadHead]:
    """Return the heads that classify texts and that score choices by the first token.

    `read` reads the steps before the layer `classifier`.
    """

    def classify(parts: Parts) -> tuple[Head, ...]:
        return logits("first", *read(parts), parts.root.linear("classifier", inputs=parts.hidden))

    def choose(parts: Parts) -> tuple[Head, ...]:
        classifier = parts.root.linear("classifier", inputs=parts.hidden, outputs=1)
        return scored_choice("first", *read(parts), classifier)

    return classify, choose


# The heads of `BertForSequenceClassification` and `BertForMultipleChoice`.
classify, choose = pooled_heads(pooled)


def classify_tokens(parts: Parts) -> tuple[Head, ...]:
    """Return the head of `BertForTokenClassification`."""
    return logits("none", parts.root.linear("classifier", inputs=parts.hidden))


def answer(parts: Parts) -> tuple[Head, ...]:
    """Return the head of `BertForQuestionAnswering`."""
    return answer_spans(parts.root.linear("qa_outputs", inputs=parts.hidden, outputs=2))


def fill_mask(parts: Parts) -> tuple[Head, ...]:
    """Return the head of `BertForMaskedLM`."""
    at = parts.root.at("cls.predictions")
    activation = parts.config.activation("hidden_act")
    steps = transform(parts, at, "transform.dense", "transform.LayerNorm", activation)
    return logits("none", *steps, decoder(at, "decoder", "bias", parts.encoder.embeddings))


def transform(
    parts: Parts,
    at: Reader,
    dense: str,
    norm: str,
    activation: Activation,
    *,
    outputs: int | None = None,
) -> tuple[Linear, Activation, Norm]:
    """Return the steps before the decoder of a masked LM.

    `dense` and `norm` are paths in the head, and `outputs` is the number of outputs of the linear
    layer, if it is known.
    """
    layer = at.linear(dense, inputs=parts.hidden, outputs=outputs)
    added = parts.config.number("layer_norm_eps", least=0)
    return layer, activation, at.norm(norm, size=len(layer.bias), epsilon=added)


def follow(parts: Parts) -> tuple[Head, ...]:
    """Return the head of `BertForNextSentencePrediction`."""
    scores = parts.root.linear("cls.seq_relationship", inputs=parts.hidden, outputs=2)
    return logits("first", *pooled(parts), scores)


BERT_HEADS = Heads(
    answer=answer,
    choose=choose,
    classify=classify,
    classify_tokens=classify_tokens,
    fill_mask=fill_mask,
    follow=follow,
)


def bert_heads(fill_mask: ReadHead, classify: ReadHead, choose: ReadHead) -> Heads:
    """Return the heads of a family that scores tokens and answers as BERT does."""
    return dataclasses.replace(
        BERT_HEADS, fill_mask=fill_mask, classify=classify, choose=choose, follow=None
    )


BERT_SITES = TrainingSites(
    layer=LayerSites.of(
        BERT_LAYER, residual_outputs=("attention.output", "output"), activation="intermediate"
    ),
    # 14 sites: 4 linear layers x 2, 4 inputs of matmuls, 1 residual add x 2.
    cross_attention=LayerSites(
        linear_layers={
            "norm": ("crossattention.self.query",),
            "encoder": ("crossattention.self.key", "crossattention.self.value"),
            "attention": ("crossattention.output.dense",),
        },
        attention="crossattention.self",
        residual_outputs=("crossattention.output",),
    ),
)

BERT = Family(
    model_type="bert",
    prefix="bert",
    encoder=read_bert_like,
    heads=BERT_HEADS,
    defaults=BERT_DEFAULTS,
    training=BERT_SITES,
)

# BERT with quantizers; see `encoders.stored`.
QDQBERT = dataclasses.replace(BERT, model_type="qdqbert", training=None)
