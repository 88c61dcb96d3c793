"""Run examples through a model, and compare the predictions of two models."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import torch

from qdqbert.calibration.reference.body import Body, to_numpy
from qdqbert.common.options.limits import Limits
from qdqbert.data.rows.data import fingerprint
from qdqbert.data.rows.lines import counted
from qdqbert.data.tokenizing.encoding import Batch, make_batch, make_batches
from qdqbert.data.tokenizing.tokenizer import Tokenizer
from qdqbert.encoders.task_kinds import TASK_KINDS, TaskSettings
from qdqbert.engines.runner import Outputs, Runner
from qdqbert.evidence.batch_invariance import BatchInvariance, compare_alone
from qdqbert.evidence.fidelity import (
    Fidelity,
    Keys,
    all_cosines,
    changed_counts,
    changed_percent,
    compare,
    flips_interval_of,
    signals_and_noises,
    sqnr_interval_of,
    to_decibels,
)
from qdqbert.evidence.intervals import Interval, joined_keys
from qdqbert.evidence.limits import (
    LimitCheck,
    Measurement,
    MetricDifference,
    check_limits,
    loss,
    metric_differences,
)
from qdqbert.evidence.predictions import ChangedExample, changed_examples, changed_rows
from qdqbert.tasks.task import (
    Answer,
    Decisions,
    Encode,
    Features,
    Metric,
    Outcome,
    Prediction,
    Predictions,
    Score,
    Task,
    Tokenization,
)

_T = TypeVar("_T")


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


def example_keys(features: Features) -> Keys:
    """Return a key for each example.

    Keys are equal for examples whose texts differ in case and spacing only, and for those that are
    the same inputs of the model: what differs is cut off, or unknown to the tokenizer.
    """
    inputs = [
        tuple(values.tobytes() for values in each.values()) for each in features.encoded.inputs
    ]
    read = [tuple(inputs[index] for index in each) for each in features.by_example()]
    return joined_keys([fingerprint(each) for each in features.examples], read)


def answer_keys(task: Task, features: Features) -> Keys:
    """Return a key for each example or, if queries have an answer each, for each set of documents.

    See `example_keys`.
    """
    keys = example_keys(features)
    if task.queries is None:
        return keys
    return [frozenset(keys[index] for index in each) for each in task.queries(features.examples)]


def repeated_notices(task: Task, features: Features) -> list[str]:
    """Say how many answers are to what the model has answered before, if some are."""
    keys = answer_keys(task, features)
    repeated = len(keys) - len(set(keys))
    if not repeated:
        return []
    noun = "example" if len(keys) == len(features.examples) else task.decided
    verb = "repeats" if repeated == 1 else "repeat"
    return [
        f"{repeated:,} of {counted(len(keys), noun)} {verb} the text of an earlier one, or the "
        "tokens that the model reads of it. Intervals count each once."
    ]


def encode_examples(
    encode: Encode, examples: Sequence[Any], how: Tokenization, *, batch_size: int
) -> EncodedExamples:
    """Make features of examples, and batches of them."""
    features = encode(examples, how)
    batches = make_batches(features.encoded, batch_size=batch_size)
    return EncodedExamples(features=features, batches=tuple(batches))


class TorchRunner:
    """Runs a PyTorch model like an engine; see `engines.runner.Runner`."""

    precision = "float32"

    def __init__(self, body: Body, input_names: Sequence[str]) -> None:
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
    task: Task, runner: Runner, encoded: EncodedExamples, advance: Callable[[], None] = lambda: None
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Baseline:
    """Results of a reference on the examples that models are compared with it on.

    Attributes:
        scores: Its results that metrics are computed from; none without labels.
    """

    task: Task
    encoded: EncodedExamples
    predictions: Predictions
    scores: tuple[Score, ...] = ()
    tokenizer: Tokenizer
    id2label: Mapping[int, str]
    options: TaskSettings

    def outcome(self, predictions: Predictions) -> Outcome:
        """Return predictions of a model with what is needed to make sense of them."""
        return Outcome(
            predictions, self.encoded.features, self.id2label, self.options, self.tokenizer
        )

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """Metrics of the reference, the main one first; none without labels."""
        return tuple(each.metric() for each in self.scores)

    @functools.cached_property
    def text_keys(self) -> Keys:
        """A key for each feature, equal for those that are the same to the model."""
        features = self.encoded.features
        if self.encoded.texts == len(features.examples):
            return example_keys(features)
        return [each["input_ids"].tobytes() for each in features.encoded.inputs]

    @functools.cached_property
    def answer_keys(self) -> Keys:
        """A key for each answer; see `answer_keys`."""
        return answer_keys(self.task, self.encoded.features)

    def keys(self, score: Score) -> Keys:
        """Return a key for each row of a score."""
        known = self.answer_keys
        return known if score.answers is None else [known[index] for index in score.answers]

    def with_scores(self) -> Baseline:
        """Return the same with scores; the examples have labels."""
        return dataclasses.replace(self, scores=self._scores(self.predictions))

    def fidelity(self, predictions: Predictions) -> Fidelity:
        """Return how close a model is to the reference."""
        return compare(
            self.predictions,
            predictions,
            vectors=TASK_KINDS[self.task.name].vectors,
            decisions=self._decisions(predictions),
            entities=self._both(self.task.entities, predictions),
            signal=self.task.signal,
            text_keys=self.text_keys,
            answer_keys=self.answer_keys,
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
            differences=metric_differences(scores, self.scores, self.keys),
        )

    def check(
        self, predictions: Predictions, limits: Limits, *, counts_examples: bool = True
    ) -> tuple[LimitCheck, ...]:
        """Return a check of a model for each limit that was set; see `check_limits`."""

        def drop() -> Measurement:
            score, *_ = self.scores_of(predictions)
            return loss(score, self.scores[0], self.keys(score))

        def flips() -> Measurement | None:
            decisions = self._decisions(predictions)
            if decisions is None:
                return None
            counts, keys = changed_counts(*decisions), self.answer_keys
            return Measurement(
                value=changed_percent(counts),
                interval_at=lambda times: flips_interval_of(counts, keys, times=times),
                examples=len(set(keys)),
            )

        def sqnr() -> Measurement:
            powers = signals_and_noises(self.predictions, predictions, self.task.signal)
            return Measurement(
                value=to_decibels(*powers.sum(axis=0)),
                interval_at=lambda times: sqnr_interval_of(powers, self.text_keys, times=times),
                examples=len(set(self.text_keys)),
            )

        def cosine() -> Measurement | None:
            if not self.task.is_embedding:
                return None
            # The worst of these texts, not of all texts, which no sample can bound.
            lowest = float(all_cosines(self.predictions, predictions).min())
            interval = Interval(low=lowest, high=lowest)
            return Measurement(
                value=lowest, interval_at=lambda times: interval, examples=len(predictions)
            )

        measure = {
            "max_drop": drop,
            "max_flips": flips,
            "min_sqnr": sqnr,
            "min_cosine": cosine,
        }
        return check_limits(limits, measure, counts_examples=counts_examples)

    def answers(self, predictions: Predictions) -> Sequence[Answer]:
        """Return the answers of a model, for people."""
        return self.task.answers(self.outcome(predictions))

    def changed_rows(self, predictions: Predictions) -> list[dict[str, Any]]:
        """Return the answers of a model that differ from the reference's; see `changed_rows`."""
        ours, theirs = self.answers(predictions), self.answers(self.predictions)
        return changed_rows(ours, theirs, self._decisions(predictions))

    def changed(self, predictions: Predictions) -> tuple[ChangedExample, ...]:
        """Return examples whose decision differs from the reference's; see `changed_examples`."""
        decisions = self._decisions(predictions)
        if decisions is None or decisions[0] == decisions[1]:
            return ()
        return changed_examples(self.changed_rows(predictions))

    def batch_invariance(
        self, runner: Runner, together: Predictions, *, texts: int
    ) -> BatchInvariance:
        """Run some features alone, without padding, and compare the results with the batches'.

        `together` are its predictions in batches. At most `texts` features run alone.
        """
        features, count = self.encoded.features, self.encoded.texts
        chosen = np.unique(np.linspace(0, count - 1, texts).round().astype(int)).tolist()
        batches = [make_batch(features.encoded, [index]) for index in chosen]
        alone = predict_batches(self.task, runner, batches, features)
        replaced = [alone.get(index, each) for index, each in enumerate(together)]
        batched = dataclasses.replace(self, predictions=together)
        return compare_alone(together, alone, batched._decisions(replaced))

    def _scores(self, predictions: Predictions) -> tuple[Score, ...]:
        return tuple(self.task.scores(self.outcome(predictions)))

    def _decisions(self, predictions: Predictions) -> tuple[Decisions, Decisions] | None:
        """Return the decisions of the reference and of a model; `None` if the task has none."""
        return self._both(self.task.decisions, predictions)

    def _both(
        self, read: Callable[[Outcome], _T | None], predictions: Predictions
    ) -> tuple[_T, _T] | None:
        """Return what is read of the reference and of a model; `None` if the task has none."""
        theirs, ours = (read(self.outcome(each)) for each in (self.predictions, predictions))
        return None if theirs is None or ours is None else (theirs, ours)
