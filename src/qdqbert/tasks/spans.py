"""From the scores of tokens, as start and as end, to the answer: the best span of all windows.

Source: transformers' examples/pytorch/question-answering, `utils_qa.py`, whose answers these are.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbert.tasks.task import Prediction, TaskOptions

NULL = 0
"""The position of [CLS], which stands for "no answer"."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SpanPrediction:
    """What a model answers to one question.

    Attributes:
        text: "" for no answer.
        n_best: The best spans, best first, with `start_logit`, `end_logit`, `text`, `probability`.
        null_odds: By how much the score of "no answer" is above that of the best other one; `None`
            where all questions have an answer.
    """

    text: str
    n_best: list[dict[str, Any]]
    null_odds: float | None


def predict(
    shown: Sequence[tuple[Prediction, NDArray[np.int32]]],
    context: str,
    options: TaskOptions,
    *,
    has_null: bool,
) -> SpanPrediction:
    """The answer that the windows of one context give, as rows and their offsets."""
    parts = [_spans(row, offsets, options) for row, offsets in shown]
    # "No answer" must suit all windows, so the one where it is least likely counts.
    null = min((row[NULL] for row, _ in shown), key=lambda each: float(each[0] + each[1]))
    if has_null:
        parts.append((np.zeros((1, 2), np.int32), null[None]))
    spans, logits = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    scores = logits[:, 0] + logits[:, 1]
    best = np.argsort(-scores, kind="stable")[: options.n_best_size]
    if has_null and spans[best].any(axis=1).all():
        best = np.append(best, len(scores) - 1)
    spans, logits, scores = spans[best], logits[best], scores[best]
    texts = [context[start:end] for start, end in spans.tolist()]
    if not any(texts[:1]) and len(texts) < 2:
        # Not one span: the usual scripts answer with this word.
        texts = ["empty", *texts]
        logits = np.concatenate([np.zeros((1, 2), np.float32), logits])
        scores = np.append(0.0, scores)
    n_best = _n_best(texts, logits, scores)
    if not has_null:
        return SpanPrediction(text=texts[0], n_best=n_best, null_odds=None)
    first = next((index for index, text in enumerate(texts) if text), 0)
    odds = null[0] + null[1] - logits[first, 0] - logits[first, 1]
    text = "" if odds > options.null_score_diff_threshold else texts[first]
    return SpanPrediction(text=text, n_best=n_best, null_odds=float(odds))


def _spans(
    row: Prediction, offsets: NDArray[np.int32], options: TaskOptions
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Characters and start and end logit of the possible answers in one window, `(spans, 2)` each.

    They are the pairs of the best starts with the best ends that make a span of the context.
    """
    starts, ends = (
        np.argsort(column, kind="stable")[: -options.n_best_size - 1 : -1] for column in row.T
    )
    starts, ends = np.repeat(starts, len(ends)), np.tile(ends, len(starts))
    lengths = ends - starts + 1
    fits = (lengths >= 1) & (lengths <= options.max_answer_length)
    fits &= (offsets[starts, 0] >= 0) & (offsets[ends, 0] >= 0)
    starts, ends = starts[fits], ends[fits]
    return (
        np.stack([offsets[starts, 0], offsets[ends, 1]], axis=-1),
        np.stack([row[starts, 0], row[ends, 1]], axis=-1),
    )


def _n_best(
    texts: Sequence[str], logits: NDArray[np.float32], scores: NDArray[Any]
) -> list[dict[str, Any]]:
    powers = np.exp(scores - scores.max())
    return [
        {"start_logit": start, "end_logit": end, "text": text, "probability": probability}
        for (start, end), text, probability in zip(
            logits.tolist(), texts, (powers / powers.sum()).tolist(), strict=True
        )
    ]
