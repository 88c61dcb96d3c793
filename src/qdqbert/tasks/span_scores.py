"""Scores of spans of words by labels, of the states of an encoder, in float32.

Each text is computed alone: its scores do not depend on the other texts of a batch.

Source: modeling/ of gliner 0.2, `Scorer`; for gliner2, `gliner2_scores`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from qdqbert.encoders.checkpoint.gliner import GlinerHead
from qdqbert.encoders.checkpoint.gliner2 import Gliner2Head
from qdqbert.encoders.checkpoint.own_layers import SpanHead
from qdqbert.encoders.model import Floats
from qdqbert.engines.native.float_layers import FloatLinear
from qdqbert.tasks.gliner2_scores import SchemaScorer
from qdqbert.tasks.logits import apply
from qdqbert.tasks.recurrent import Recurrent, recurrent
from qdqbert.tasks.span_layers import FIRST, LAST, Tensors, fitting, relu, span_scores


class Tokens(NamedTuple):
    """Which tokens of a feature the scores are made of.

    Attributes:
        labels: Positions of the tokens with the states of the labels; for gliner2, of the marks of
            the task and of the labels. None if labels have vectors of their own. Shape `(labels,)`.
        words: Positions of the first token of each word, and of the one after its last token; equal
            for a word without tokens. Shape `(words, 2)`.
    """

    labels: NDArray[np.int64]
    words: NDArray[np.int64]


class Found(NamedTuple):
    """Spans whose score is above a threshold.

    Attributes:
        first, last: The first and the last word of each span. Shape `(spans,)`.
        label: Index of its label. Shape `(spans,)`.
        score: Its probability. Shape `(spans,)`, float32.
    """

    first: NDArray[np.int64]
    last: NDArray[np.int64]
    label: NDArray[np.int64]
    score: NDArray[np.float32]


@dataclasses.dataclass(frozen=True, kw_only=True)
class SpanScorer:
    """The layers after the encoder.

    Attributes:
        head: How spans are scored.
        projection: Layer on the states of the encoder; `None` if they have the width of the others.
        label_projection: The same for the vectors of the encoder of labels.
        recurrent: Layers of the LSTM over the words.
        score: Returns the scores of the vectors of words, `(words, width)`, and of labels,
            `(labels, width)`.
        schemas: The layers of gliner2; `None` for other models.
        path: Where their weights are, for messages.
    """

    head: SpanHead
    projection: FloatLinear | None = None
    label_projection: FloatLinear | None = None
    recurrent: tuple[Recurrent, ...] = ()
    score: Callable[[Floats, Floats], Floats]
    schemas: SchemaScorer | None = None
    path: Path

    @classmethod
    def of(cls, head: SpanHead, tensors: Tensors) -> SpanScorer:
        """Return the layers that some weights make.

        Raises:
            CheckpointError: A tensor is missing, or does not fit the others.
        """
        if isinstance(head, Gliner2Head):
            schemas = SchemaScorer.of(tensors, head)
            return cls(head=head, score=schemas.entities, schemas=schemas, path=tensors.path)
        assert isinstance(head, GlinerHead), "there are two packages"
        projection, label_projection = (
            tensors.linear(name) if f"{name}.weight" in tensors else None
            for name in ("token_rep_layer.projection", "token_rep_layer.labels_projection")
        )
        return cls(
            head=head,
            projection=projection,
            label_projection=label_projection,
            recurrent=tuple(
                recurrent(tensors, "rnn.lstm", index) for index in range(head.recurrent_layers)
            ),
            score=_gliner_scores(tensors, head),
            path=tensors.path,
        )

    def logits(self, states: Floats, tokens: Tokens, vectors: Floats | None = None) -> Floats:
        """Return the logit of each span for each label.

        Args:
            states: States of the tokens of a text. Shape `(tokens, hidden)`.
            tokens: Which of them are read.
            vectors: Vectors of the labels, of a model with an encoder for them. Shape `(labels,
                channels)`.

        Returns:
            `[first, width - 1, label]`, of spans beyond the last word 0; or for models that score
            words `[word, label, ...]`, the scores as first, last and any word of an entity. Models
            of gliner2 have another score before those of the labels: whether there is an entity.

        Raises:
            CheckpointError: Weights have other widths than the states, or than each other.
        """
        with fitting(self.path, states.shape[1]):
            return self._logits(states, tokens, vectors)

    def _logits(self, states: Floats, tokens: Tokens, vectors: Floats | None) -> Floats:
        project = self.projection or _unchanged
        if vectors is None:
            labels = project(states[tokens.labels])
        else:
            labels = (self.label_projection or _unchanged)(vectors)
        if self.head.subtoken_pooling == "max":
            # The largest channels of a projection are not the projection of the largest ones.
            words = self.words(project(states), tokens.words)
        else:
            words = project(self.words(states, tokens.words))
        if not self.head.keeps_empty_words:
            words[tokens.words[:, 0] == tokens.words[:, 1]] = 0
        for each in self.recurrent:
            words = each(words)
        return self.score(words, labels)

    def spans(self, logits: Floats, *, threshold: float) -> Found:
        """Return the spans whose probability is above a threshold, by their first word.

        `logits` is what the method of this name returns.
        """
        extra = self.head.extra_scores
        if extra and not (logits[..., :extra] > 0).all():
            logits = np.full_like(logits, -np.inf)
        chances = apply("sigmoid", logits[..., extra:])
        if self.head.is_of_words:
            return _of_words(chances, threshold)
        first, more, label = np.nonzero(chances > threshold)
        is_inside = first + more < len(chances)
        first, more, label = first[is_inside], more[is_inside], label[is_inside]
        return Found(first, first + more, label, chances[first, more, label])

    def words(self, states: Floats, words: NDArray[np.int64]) -> Floats:
        """Return the state of each word, any for one without tokens. Shape `(words, hidden)`."""
        starts, ends = words.T
        pooling = self.head.subtoken_pooling
        if pooling in ("first", "last"):
            chosen = starts if pooling == "first" else ends - 1
            return np.asarray(states[np.minimum(chosen, len(states) - 1)])
        # From the first token of each word to the one after its last, and from there to the next.
        function = np.add if pooling == "mean" else np.maximum
        padded = np.concatenate([states, np.zeros_like(states[:1])])
        found: Floats = function.reduceat(padded, words.reshape(-1), axis=0)[::2]
        if pooling == "mean":
            found /= np.maximum(ends - starts, 1).astype(np.float32)[:, None]
        return found


def _unchanged(x: Floats) -> Floats:
    return x


def _gliner_scores(tensors: Tensors, head: GlinerHead) -> Callable[[Floats, Floats], Floats]:
    """Return the function from vectors of words and labels to scores of spans, or of words."""
    if head.is_of_words:
        return _word_scores(tensors)
    label = tensors.two("prompt_rep_layer")
    score = span_scores(
        tensors,
        "span_rep_layer.span_rep_layer.",
        max_width=head.max_width,
        parts=3 if head.span_mode == "markerV1" else 2,
        is_linear=head.span_mode == "marker",
    )
    return lambda words, labels: score(words, label(labels))


def _word_scores(tensors: Tensors) -> Callable[[Floats, Floats], Floats]:
    """Return the function from vectors of words and labels to scores of words."""
    of_word, of_label = tensors.linear("scorer.proj_token"), tensors.linear("scorer.proj_label")
    weight, bias = tensors.layer(f"scorer.out_mlp.{FIRST}")
    last = tensors.linear(f"scorer.out_mlp.{LAST}")
    size = weight.shape[1] // 3
    own, added = FloatLinear(weight[:, :size], bias), FloatLinear(weight[:, size : 2 * size])
    product = FloatLinear(weight[:, 2 * size :])

    def score(words: Floats, labels: Floats) -> Floats:
        word, label = of_word(words), of_label(labels)
        inner, outer = own(word[:, :size]), added(label[:, :size])
        found = np.empty((len(words), len(labels), 3), np.float32)
        for index, each in enumerate(label[:, size:]):
            pairs = product(word[:, size:] * each)
            found[:, index] = last(relu(pairs + inner + outer[index]))
        return found

    return score


def _of_words(chances: Floats, threshold: float) -> Found:
    """Return the spans from a first word to a last one, whose words are all inside of an entity.

    The score of a span is the lowest of these chances. Those inside may be equal to the threshold,
    as in gliner.
    """
    found: list[tuple[int, int, int, float]] = []
    starts, ends, inside = np.moveaxis(chances, -1, 0)
    for label in range(chances.shape[1]):
        last_words = np.flatnonzero(ends[:, label] > threshold)
        for first in np.flatnonzero(starts[:, label] > threshold).tolist():
            below = np.flatnonzero(inside[first:, label] < threshold)
            stop = first + int(below[0]) if len(below) else len(chances)
            lowest = np.minimum.accumulate(inside[first:stop, label])
            for last in last_words[(last_words >= first) & (last_words < stop)].tolist():
                score = min(lowest[last - first], starts[first, label], ends[last, label])
                found.append((first, last, label, float(score)))
    # gliner goes through the words, and then through the labels.
    found.sort(key=lambda each: (each[0], each[2], each[1]))
    columns = list(zip(*found, strict=True)) or [(), (), (), ()]
    first_words, last_words, labels = (np.array(each, np.int64) for each in columns[:3])
    return Found(first_words, last_words, labels, np.array(columns[3], np.float32))
