"""Numbers for each text or pair of texts: ratings, ages, similarities.

The tasks of text classifiers whose config has `problem_type="regression"`, or which have one
output: then scores are the sigmoids of the numbers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np

from qdqbert.common.errors import DataFileError
from qdqbert.data.rows.columns import is_number
from qdqbert.data.rows.data import Dataset, Example, read_dataset
from qdqbert.runtime.rows import SCORE, RowFormat, always
from qdqbert.tasks.logits import logit_predictions, score_answers
from qdqbert.tasks.metrics import rmse
from qdqbert.tasks.multi_label_classification import labels_of
from qdqbert.tasks.reranking import Reranker
from qdqbert.tasks.scores import check_scores_differ, correlations, score_of
from qdqbert.tasks.task import Answer, Extremes, Features, Labels, Outcome, Rows, Score, Task
from qdqbert.tasks.texts import checking, encode_texts


def numbers_of(example: Example, outputs: int) -> list[float]:
    """Return the label as a number for each output: a JSON list, or joined by `|` or `;`."""
    if outputs == 1:
        return [score_of(example)]
    found = labels_of(example)
    if len(found) != outputs or not all(map(is_number, found)):
        raise DataFileError(
            f"Label {example.label!r:.60} is not a list of {outputs} finite numbers, one for each "
            "output of the model. Name another column with `label_column`."
        )
    return [float(each) for each in found]


def _check_metrics(dataset: Dataset, id2label: Mapping[int, str]) -> None:
    check_scores_differ(dataset, lambda example: numbers_of(example, len(id2label)))


def _scores(outcome: Outcome) -> list[Score]:
    """Return correlations, means over the outputs, and the root mean squared error of all."""
    found = _correlations(outcome)
    errors = Score(name="rmse", rows=found[0].rows, compute=rmse, extremes=_extremes, is_error=True)
    return [*found, errors]


def _extremes(rows: Rows) -> Extremes:
    """Give the output for the lowest label this value, and that of the highest label or output."""
    numbers = np.concatenate(np.split(rows, 2, axis=1))
    low, high = numbers.min(axis=0), numbers.max(axis=0)
    return np.concatenate([low, low])[None, None], np.concatenate([high, low])[None, None]


def _correlations(outcome: Outcome) -> list[Score]:
    known = [numbers_of(each, len(outcome.id2label)) for each in outcome.examples]
    return correlations(np.stack(outcome.predictions), known)


def _answers(outcome: Outcome) -> list[Answer]:
    if len(outcome.id2label) == 1:
        return score_answers(outcome, np.concatenate(outcome.predictions), "score")
    numbers = np.stack(outcome.predictions).astype(np.float64)
    return [
        Answer(given=example.given, found={"scores": each.tolist()}, numbers=each)
        for each, example in zip(numbers, outcome.examples, strict=True)
    ]


def _labels(features: Features, id2label: Mapping[int, str]) -> list[Labels]:
    """Return the number of each example, or the numbers `(outputs,)`."""
    numbers = [numbers_of(example, len(id2label)) for example in features.examples]
    if len(id2label) == 1:
        return [{"labels": number} for (number,) in numbers]
    return [{"labels": np.array(each, np.float32)} for each in numbers]


class Regressor(Reranker):
    """Computes a number for each text or pair: a rating, an age, a similarity.

    Scores are the outputs of the model, unless its files name a function for `predict`.
    """

    rows = RowFormat(
        name="a regressor",
        pair="optional",
        columns=always(SCORE),
        job=lambda model, _: model.job(),
        values=lambda answer, _: (answer[0]["score"],),
    )


REGRESSION = Task(
    name="text-classification",
    read=read_dataset,
    encode=encode_texts,
    check_labels=checking(lambda each, names: numbers_of(each, len(names))),
    check_metrics=_check_metrics,
    predictions=logit_predictions,
    scores=_scores,
    labels=_labels,
    answers=_answers,
    model=Regressor,
)
"""Numbers as the labels have them."""

ONE_SCORE = dataclasses.replace(REGRESSION, scores=_correlations, model=Reranker)
"""One number, whose sigmoid is a score. It is in the order of the labels, on another scale."""
