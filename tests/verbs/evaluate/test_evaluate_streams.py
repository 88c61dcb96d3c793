"""Predictions in the batches and streams of `load`, with a runner that computes on numpy arrays."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from qdqbert.common.errors import UserInputError
from qdqbert.data.tokenizing.encoding import Encoded
from qdqbert.runtime.batches import BatchPlan
from qdqbert.runtime.runners import Runners
from qdqbert.runtime.scheduler import Schedule, Scheduler
from qdqbert.tasks.task import Features
from qdqbert.tasks.text_classification import TEXT_CLASSIFICATION
from qdqbert.verbs.evaluate.streams import predict_in_streams

LENGTHS = (3, 9, 1, 5, 7, 2, 4)
# Its prediction is the place of a feature, with the sum of its ids.
TASK = dataclasses.replace(
    TEXT_CLASSIFICATION,
    predictions=lambda results: [
        np.array([place, values.sum()], np.float32)
        for place, values in zip(results.places, results.rows("ids"), strict=True)
    ],
)


class Runner:
    input_names = ("input_ids",)
    output_names = ("ids",)
    precision = "float32"

    def run(self, inputs, wanted=None):
        if (inputs["input_ids"] > 9).any():
            raise UserInputError("too large")
        return {"ids": inputs["input_ids"].astype(np.float32)}


@pytest.fixture
def scheduler():
    plan = BatchPlan(tokens=8, multiple=1)
    return Scheduler(
        Runners(lambda threads, streams: Runner(), threads=2, streams=2),
        Schedule(plan=plan, window=4, single_tokens=8),
        limit=16,
        padding={"input_ids": 8},
    )


def features(*ids: int) -> Features:
    inputs = tuple(
        {"input_ids": np.full(length, each, np.int32)}
        for each, length in zip(ids, LENGTHS, strict=True)
    )
    return Features(
        examples=(),
        encoded=Encoded(inputs=inputs, padding={"input_ids": 8}, truncated=0),
        places=tuple(range(len(inputs))),
    )


def test_predictions_are_in_the_order_of_the_features_and_without_padding(scheduler) -> None:
    steps = []
    made = predict_in_streams(TASK, scheduler, features(*[1] * 7), lambda: steps.append(1))
    assert [each.tolist() for each in made] == [[i, each] for i, each in enumerate(LENGTHS)]
    assert len(steps) == len(LENGTHS)


def test_a_feature_that_cannot_be_run_is_an_error(scheduler) -> None:
    with pytest.raises(UserInputError, match="too large"):
        predict_in_streams(TASK, scheduler, features(1, 1, 1, 10, 1, 1, 1), lambda: None)
