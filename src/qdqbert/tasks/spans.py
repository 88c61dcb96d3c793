"""Find the best span of all windows of a context, from each token's scores as start and as end.

Source: transformers' examples/pytorch/question-answering, `utils_qa.py`; the answers are equal.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbert.encoders.task_kinds import TaskSettings
from qdqbert.runtime.batches import Results
from qdqbert.tasks.logits import probabilities
from qdqbert.tasks.task import Prediction

NULL = 0
"""The position of [CLS], which means "no answer"."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SpanPrediction:
    """A model's answer to one question.

    Attributes:
        text: The answer; "" for no answer.
        n_best: The best spans, best first, with `start_logit`, `end_logit`, `text`, `probability`.
        spans: Position in the context of the first character of each span of `n_best`, and of the
            character after its last one. `(0, 0)` for no answer.
        null_odds: Score of "no answer" minus the score of the best answer; `None` if all questions
            have an answer.
    """

    text: str
    n_best: list[dict[str, Any]]
    spans: list[tuple[int, int]]
    null_odds: float | None


def span_logits(results: Results) -> list[Prediction]:
    """Return each token's scores as start and as end, `(tokens, 2)`, for each feature."""
    ends = (results.rows("start_logits"), results.rows("end_logits"))
    return [np.stack(each, axis=-1) for each in zip(*ends, strict=True)]


def predict(
    windows: Sequence[tuple[Prediction, NDArray[np.int32]]],
    context: str,
    options: TaskSettings,
    *,
    has_null: bool,
) -> SpanPrediction:
    """Return the answer to one question.

    Args:
        windows: For each window of the context, the scores of its tokens as start and as end,
            shape `(tokens, 2)`, and their offsets in the context, shape `(tokens, 2)`.
        context: The context.
        options: Task options of question answering.
        has_null: Whether "no answer" is a possible answer.
    """
    parts = [_spans(scores, offsets, options) for scores, offsets in windows]
    # "No answer" must hold for all windows, so its lowest score counts.
    null = min((scores[NULL] for scores, _ in windows), key=lambda each: float(each[0] + each[1]))
    if has_null:
        parts.append((np.zeros((1, 2), np.int32), null[None]))
    spans, logits = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    scores = logits[:, 0] + logits[:, 1]
    best = np.argsort(-scores, kind="stable")[: options.n_best_size]
    if has_null and spans[best].any(axis=1).all():
        best = np.append(best, len(scores) - 1)
    spans, logits, scores = spans[best], logits[best], scores[best]
    places = [(start, end) for start, end in spans.tolist()]
    texts = [context[start:end] for start, end in places]
    if not any(texts[:1]) and len(texts) < 2:
        # Without any span, the usual scripts answer with this word.
        texts = ["empty", *texts]
        places = [(0, 0), *places]
        logits = np.concatenate([np.zeros((1, 2), np.float32), logits])
        scores = np.append(0.0, scores)
    n_best = _n_best(texts, logits, scores)
    if not has_null:
        return SpanPrediction(text=texts[0], n_best=n_best, spans=places, null_odds=None)
    first = next((index for index, text in enumerate(texts) if text), 0)
    odds = null[0] + null[1] - logits[first, 0] - logits[first, 1]
    text = "" if odds > options.null_score_diff_threshold else texts[first]
    return SpanPrediction(text=text, n_best=n_best, spans=places, null_odds=float(odds))


def _spans(
    scores: Prediction, offsets: NDArray[np.int32], options: TaskSettings
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Return offsets and logits of the possible answers in one window, shape `(spans, 2)` each.

    Candidates are all pairs of the best starts and the best ends that are a span of the context.
    """
    starts, ends = (
        np.argsort(column, kind="stable")[: -options.n_best_size - 1 : -1] for column in scores.T
    )
    starts, ends = np.repeat(starts, len(ends)), np.tile(ends, len(starts))
    lengths = ends - starts + 1
    fits = (lengths >= 1) & (lengths <= options.max_answer_length)
    fits &= (offsets[starts, 0] >= 0) & (offsets[ends, 0] >= 0)
    starts, ends = starts[fits], ends[fits]
    return (
        np.stack([offsets[starts, 0], offsets[ends, 1]], axis=-1),
        np.stack([scores[starts, 0], scores[ends, 1]], axis=-1),
    )


def _n_best(
    texts: Sequence[str], logits: NDArray[np.float32], scores: NDArray[Any]
) -> list[dict[str, Any]]:
    return [
        {"start_logit": start, "end_logit": end, "text": text, "probability": probability}
        for (start, end), text, probability in zip(
            logits.tolist(), texts, probabilities(scores).tolist(), strict=True
        )
    ]
