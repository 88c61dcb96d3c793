"""Run the features of examples as `load` runs inputs, so that metrics hold for `load`."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Sequence

from qdqbert.common.errors import UserInputError
from qdqbert.runtime.batches import Results
from qdqbert.runtime.scheduler import Done, EncodedItem, Scheduler
from qdqbert.tasks.task import Features, Prediction, Predictions, Task


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Predict:
    """The job whose answer is the prediction for a feature, given by its number; see `Job`."""

    task: Task
    features: Features

    def encode(self, items: Sequence[int]) -> list[EncodedItem]:
        inputs, places = self.features.encoded.inputs, self.features.places
        return [
            EncodedItem(features=(inputs[index],), places=places[index : index + 1])
            for index in items
        ]

    def split(self, results: Results) -> Predictions:
        return self.task.predictions(results)

    def answer(self, item: int, encoded: EncodedItem, values: Predictions) -> Prediction:
        del item, encoded
        return values[0]


def predict_in_streams(
    task: Task, scheduler: Scheduler, features: Features, advance: Callable[[], None]
) -> Predictions:
    """Return the predictions of a model, one for each feature, in their order.

    The threads of the scheduler end with the call. `advance` is called for each feature.
    """

    def count(done: Done) -> None:
        for _ in range(done.items):
            advance()

    job = _Predict(task=task, features=features)
    predictions = []
    with contextlib.closing(scheduler):
        for each in scheduler.run(job, range(len(features.encoded.inputs)), count):
            if isinstance(each, UserInputError):
                raise each
            predictions.append(each)
    return predictions
