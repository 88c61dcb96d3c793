"""Heads that several families share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from qdqbert.common.choices import PoolingMode
from qdqbert.encoders.model import Embeddings, Head, HeadOutput, Linear, Pooling, Step
from qdqbert.encoders.reader import Reader

EMBEDDING = "sentence_embedding"
"""Name of the pooled output of embedders."""

WORDS = "sparse_embedding"
"""Name of the output of sparse embedders: a weight of each word of the vocabulary."""

TOKEN_WEIGHTS = "token_weights"
"""Name of the output of embedders with a weight for each token, 0 or more (BGE-M3)."""

PROJECTION = "linear.weight"
"""Name of the weight that makes vectors of tokens, in checkpoints of Stanford's ColBERT.

Voyage's embedders have it, too.
"""

TOKEN_VECTORS = "token_embeddings"
"""Name of the output with a vector for each token, of multi-vector embedders and of BGE-M3."""

# Poolings whose result for products is the product of the result.
_LINEAR = (("first",), ("last",), ("mean",))

POOLINGS: Mapping[PoolingMode, Pooling] = {
    "cls": "first",
    "lasttoken": "last",
    "max": "max",
    "mean": "mean",
    "mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "weightedmean": "weightedmean",
}
"""Poolings by their names in sentence-transformers."""


def logits(
    pooling: Pooling, *steps: Step, column: int | None = None, token_steps: int = 0
) -> tuple[Head, ...]:
    """Return the head of a model with the output `logits`.

    Args:
        pooling: Which token states it reads.
        steps: Its steps on each of them.
        column: The only column of the result that is the output; `None` for all.
        token_steps: How many of the steps each token takes before pooling.
    """
    outputs = (HeadOutput(name="logits", column=column),)
    return (Head(poolings=(pooling,), steps=steps, outputs=outputs, token_steps=token_steps),)


def answer_spans(*steps: Step) -> tuple[Head, ...]:
    """Return the head of a model that scores each token as start and as end of an answer."""
    names = ("start_logits", "end_logits")
    outputs = tuple(HeadOutput(name=name, column=index) for index, name in enumerate(names))
    return (Head(poolings=("none",), steps=steps, outputs=outputs),)


def scores(poolings: Sequence[Pooling], steps: Sequence[Step]) -> tuple[Head, ...]:
    """Return the head of a reranker whose `steps` make a score of the vector of a pair."""
    outputs = (HeadOutput(name="logits"),)
    return (Head(poolings=tuple(poolings), steps=tuple(steps), outputs=outputs),)


def scored_choice(pooling: Pooling, *steps: Step) -> tuple[Head, ...]:
    """Return the head of a model that gives each choice one score."""
    return logits(pooling, *steps, column=0)


def states(
    poolings: Sequence[Pooling], *steps: Step, projection: Linear | None = None
) -> tuple[Head, ...]:
    """Return the heads of an embedder: token states and, if pooling is known, their embedding.

    Args:
        poolings: How token states become one vector; none leaves the embedding out.
        steps: Steps on the vector.
        projection: Linear layer without bias on the state of each token, before the pooling;
            `None` for none.
    """
    own = () if projection is None else (projection,)
    named = (HeadOutput(name="last_hidden_state"),)
    tokens = Head(poolings=("none",), steps=own, outputs=named)
    if not poolings:
        return (tokens,)
    count = 0 if tuple(poolings) in _LINEAR else len(own)
    outputs = (HeadOutput(name=EMBEDDING),)
    every = (*own, *steps)
    return tokens, Head(poolings=tuple(poolings), steps=every, outputs=outputs, token_steps=count)


def pooled_words(
    head: Head, poolings: Sequence[Pooling], steps: Sequence[Step]
) -> tuple[Head, ...]:
    """Return the head of a sparse embedder (Formal et al. 2021, arXiv:2107.05720, SPLADE).

    Args:
        head: The head of a masked language model, which scores the vocabulary for each token.
        poolings: How the weights of a word for all tokens become one: "max" or "sum".
        steps: Functions of a score that give its weight.
    """
    # No step decreases, so the weight of the largest score is the largest weight.
    count = len(head.steps) + (len(steps) if "sum" in poolings else 0)
    outputs = (HeadOutput(name=WORDS),)
    every = (*head.steps, *steps)
    return (Head(poolings=tuple(poolings), steps=every, outputs=outputs, token_steps=count),)


def token_vectors(steps: Sequence[Step]) -> tuple[Head, ...]:
    """Return the head of a multi-vector embedder (Khattab and Zaharia 2020, arXiv:2004.12832).

    `steps` make the vector of a token of its state.
    """
    outputs = (HeadOutput(name=TOKEN_VECTORS),)
    return (Head(poolings=("none",), steps=tuple(steps), outputs=outputs),)


def token_weights(linear: Linear) -> tuple[Head, ...]:
    """Return the head that weighs the tokens of a text (Chen et al. 2024, arXiv:2402.03216).

    `linear` has one output. The weight of a word is the largest weight of its tokens, which a call
    finds by their ids.
    """
    outputs = (HeadOutput(name=TOKEN_WEIGHTS, column=0),)
    return (Head(poolings=("none",), steps=(linear, "relu"), outputs=outputs),)


def decoder(
    reader: Reader, name: str, bias: str, embeddings: Embeddings, *, has_bias: bool = True
) -> Linear:
    """Return the linear layer that scores each word of the vocabulary.

    It shares the table of word embeddings if the config says so, and the checkpoint does not have
    another weight for it. transformers does the same.

    Args:
        reader: Reader of the head.
        name: Path of the layer.
        bias: Name of a bias of the head, which counts if the layer has none in the checkpoint.
        embeddings: The embeddings.
        has_bias: Whether the model has a bias.
    """
    words = embeddings.words.rows
    weight = words
    is_shared = reader.config.flag("tie_word_embeddings")
    if not is_shared or reader.has(f"{name}.weight"):
        weight = reader.tensor(f"{name}.weight", words.shape)
    if is_shared and weight is not words and np.array_equal(weight, words):
        weight = words
    biases = (f"{name}.bias", bias) if has_bias else ()
    found = next((each for each in biases if reader.has(each)), None)
    shape = (len(weight),)
    return Linear(
        weight=weight, bias=reader.zeros(*shape) if found is None else reader.tensor(found, shape)
    )
