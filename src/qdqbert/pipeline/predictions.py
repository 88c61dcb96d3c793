"""Run examples through a model, and compare the predictions of two models."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from qdqbert.encoding import Batch, make_batch, make_batches
from qdqbert.engines.runner import Outputs, Runner
from qdqbert.evidence.batch_invariance import BatchInvariance, compare_alone
from qdqbert.evidence.fidelity import Decisions, Fidelity, compare
from qdqbert.evidence.limits import (
    LimitCheck,
    MetricDifference,
    check_limits,
    metric_differences,
)
from qdqbert.evidence.predictions import ChangedExample, changed_examples, changed_rows
from qdqbert.options import Limits
from qdqbert.reference.body import Body, to_numpy
from qdqbert.task_kinds import TASK_KINDS, TaskSettings
from qdqbert.tasks.task import (
    Answer,
    Encoder,
    Features,
    Metric,
    Prediction,
    Predictions,
    Score,
    Task,
)
from qdqbert.tokenizing.tokenizer import Tokenizer


@dataclasses.dataclass(frozen=True, kw_only=True)
class EncodedExamples:
    """Examples as batches of model inputs.

    Attributes:
        features: One model input or more for each example.
        batches: The features in batches of similar length.
    """

    features: Features
    batches: tuple[Batch, ...]

    @property
    def texts(self) -> int:
        """Number of features."""
        return len(self.features.encoded.inputs)


def encode_examples(
    task: Task,
    tokenizer: Tokenizer,
    examples: Sequence[Any],
    *,
    input_names: Sequence[str],
    max_length: int,
    batch_size: int,
    options: TaskSettings,
    encode: Encoder | None = None,
) -> EncodedExamples:
    """Tokenize and batch examples for a task, with its own `encode` by default."""
    features = (encode or task.encode)(
        examples, tokenizer, input_names=input_names, max_length=max_length, options=options
    )
    batches = make_batches(features.encoded, batch_size=batch_size)
    return EncodedExamples(features=features, batches=tuple(batches))


class TorchRunner:
    """Runs a PyTorch model like an engine; see `engines.runner.Runner`."""

    precision = "float32"

    def __init__(self, body: Body, input_names: Sequence[str]) -> None:
        """Keep the model and the names of its inputs and outputs."""
        self._body = body
        self.input_names = tuple(input_names)
        self.output_names = body.output_names

    def run(self, inputs: Any, wanted: Collection[str] | None = None) -> dict[str, Any]:
        """Return all outputs by name, as numpy arrays."""
        # A `SitedEncoder` without sites shares the arrays of its model, and has no parameters.
        device = next((each.device for each in self._body.parameters()), torch.device("cpu"))
        with torch.inference_mode():
            outputs = self._body(**{k: torch.from_numpy(v).to(device) for k, v in inputs.items()})
        return to_numpy(outputs, self.output_names)


def predict(
    task: Task,
    runner: Runner,
    encoded: EncodedExamples,
    advance: Callable[[], None] = lambda: None,
) -> Predictions:
    """Return the predictions of a model, one for each feature, in their order."""
    predictions = predict_batches(task, runner, encoded.batches, encoded.features, advance)
    return [predictions[index] for index in range(encoded.texts)]


def predict_batches(
    task: Task,
    runner: Runner,
    batches: Sequence[Batch],
    features: Features,
    advance: Callable[[], None] = lambda: None,
) -> dict[int, Prediction]:
    """Return the predictions of a model for some batches, by index of the feature."""
    predictions: dict[int, Prediction] = {}
    for batch in batches:
        inputs = {name: batch.inputs[name] for name in runner.input_names}
        predictions |= predictions_of(task, features, batch, runner.run(inputs))
        advance()
    return predictions


def predictions_of(
    task: Task, features: Features, batch: Batch, outputs: Outputs
) -> dict[int, Prediction]:
    """Return the predictions for a batch that ran, by index of the feature."""
    return dict(zip(batch.indices, task.predictions(features.results(batch, outputs)), strict=True))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Comparison:
    """A model next to a reference, on the same examples.

    Attributes:
        fidelity: How close the model is to the reference.
        metrics: Metrics of the model, the main one first; none without labels.
        differences: These metrics minus the reference's.
    """

    fidelity: Fidelity
    metrics: tuple[Metric, ...]
    differences: tuple[MetricDifference, ...]

    def check(self, limits: Limits) -> tuple[LimitCheck, ...]:
        """Return a check for each limit that was set; see `check_limits`."""
        return check_limits(limits, self.fidelity, self.differences)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Baseline:
    """Results of a reference on the examples that models are compared with it on.

    Attributes:
        task: Task of the models.
        encoded: The examples.
        predictions: Predictions of the reference.
        scores: Its results that metrics are computed from; none without labels.
        tokenizer: Tokenizer of the models.
        id2label: Labels of the models.
        options: Settings of the task.
    """

    task: Task
    encoded: EncodedExamples
    predictions: Predictions
    scores: tuple[Score, ...] = ()
    tokenizer: Tokenizer
    id2label: Mapping[int, str]
    options: TaskSettings

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """Metrics of the reference, the main one first; none without labels."""
        return tuple(each.metric() for each in self.scores)

    def with_scores(self) -> Baseline:
        """Return the same with scores; the examples have labels."""
        return dataclasses.replace(self, scores=self._scores(self.predictions))

    def fidelity(self, predictions: Predictions) -> Fidelity:
        """Return how close a model is to the reference."""
        kind = TASK_KINDS[self.task.name]
        return compare(
            self.predictions,
            predictions,
            is_embedding=kind.is_embedding,
            is_sparse=kind.is_sparse,
            is_multi_vector=kind.is_multi_vector,
            decisions=self._decisions(predictions),
            signal=self.task.signal,
        )

    def scores_of(self, predictions: Predictions) -> tuple[Score, ...]:
        """Return the results of a model that its metrics are computed from; none without labels."""
        return self._scores(predictions) if self.scores else ()

    def compare(self, predictions: Predictions) -> Comparison:
        """Compare a model with the reference."""
        scores = self.scores_of(predictions)
        return Comparison(
            fidelity=self.fidelity(predictions),
            metrics=tuple(each.metric() for each in scores),
            differences=metric_differences(scores, self.scores),
        )

    def answers(self, predictions: Predictions) -> Sequence[Answer]:
        """Return the answers of a model, for people."""
        return self.task.answers(
            predictions,
            self.encoded.features,
            tokenizer=self.tokenizer,
            id2label=self.id2label,
            options=self.options,
        )

    def changed_rows(self, predictions: Predictions) -> list[dict[str, Any]]:
        """Return the answers of a model that differ from the reference's; see `changed_rows`."""
        ours, theirs = self.answers(predictions), self.answers(self.predictions)
        return changed_rows(ours, theirs, self._decisions(predictions))

    def changed(self, predictions: Predictions) -> tuple[ChangedExample, ...]:
        """Return examples whose decision differs from the reference's; see `changed_examples`."""
        decisions = self._decisions(predictions)
        if decisions is None or list(decisions[0]) == list(decisions[1]):
            return ()
        return changed_examples(self.changed_rows(predictions))

    def batch_invariance(
        self, runner: Runner, together: Predictions, *, texts: int
    ) -> BatchInvariance:
        """Run some features alone, without padding, and compare the results with the batches'.

        Args:
            runner: A model.
            together: Its predictions in batches.
            texts: Number of features to run alone, at most.
        """
        features, count = self.encoded.features, self.encoded.texts
        chosen = np.unique(np.linspace(0, count - 1, texts).round().astype(int)).tolist()
        batches = [make_batch(features.encoded, [index]) for index in chosen]
        alone = predict_batches(self.task, runner, batches, features)
        replaced = [alone.get(index, each) for index, each in enumerate(together)]
        batched = dataclasses.replace(self, predictions=together)
        return compare_alone(together, alone, batched._decisions(replaced))

    def _scores(self, predictions: Predictions) -> tuple[Score, ...]:
        features = self.encoded.features
        return tuple(self.task.scores(predictions, features, self.id2label, self.options))

    def _decisions(self, predictions: Predictions) -> tuple[Decisions, Decisions] | None:
        """Return the decisions of the reference and of a model; `None` if the task has none."""
        theirs, ours = (
            self.task.decisions(each, self.encoded.features, self.options)
            for each in (self.predictions, predictions)
        )
        return None if theirs is None or ours is None else (theirs, ours)
