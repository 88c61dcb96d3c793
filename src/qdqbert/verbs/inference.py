"""Runs examples through a checkpoint or a graph, to one row for each row of their features."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch

from qdqbert.encoding import Batch, make_batches
from qdqbert.engines.runner import Runner
from qdqbert.evidence.fidelity import Fidelity, compare
from qdqbert.graph.export import GraphBody, to_numpy
from qdqbert.tasks.task import Features, Prediction, Predictions, Task, TaskOptions


@dataclasses.dataclass(frozen=True, kw_only=True)
class EncodedExamples:
    """Examples as batches of model inputs.

    Attributes:
        features: What the batches are cut from.
        batches: Length-bucketed.
    """

    features: Features
    batches: tuple[Batch, ...]

    @property
    def texts(self) -> int:
        """How many rows they make."""
        return len(self.features.encoded.inputs)


def encode_examples(
    task: Task,
    tokenizer: Any,
    examples: Sequence[Any],
    *,
    input_names: Sequence[str],
    max_length: int,
    batch_size: int,
    options: TaskOptions,
) -> EncodedExamples:
    """Tokenizes and batches examples as their task feeds them."""
    features = task.encode(
        examples, tokenizer, input_names=input_names, max_length=max_length, options=options
    )
    return EncodedExamples(
        features=features, batches=tuple(make_batches(features.encoded, batch_size=batch_size))
    )


class TorchRunner:
    """Runs a PyTorch model as an engine; see `engines.runner.Runner`."""

    precision = "float32"

    def __init__(self, body: GraphBody, input_names: Sequence[str]) -> None:
        self._body = body
        self.input_names = tuple(input_names)
        self.output_names = body.output_names

    def run(self, inputs: Any) -> dict[str, Any]:
        """One forward pass."""
        device = next(self._body.parameters()).device
        with torch.inference_mode():
            outputs = self._body(**{k: torch.from_numpy(v).to(device) for k, v in inputs.items()})
        return to_numpy(outputs, self.output_names)


def predict(
    task: Task,
    runner: Runner,
    encoded: EncodedExamples,
    advance: Callable[[], None] = lambda: None,
) -> Predictions:
    """What the model says, one row for each of the features'."""
    rows: dict[int, Prediction] = {}
    for batch in encoded.batches:
        inputs = {name: batch.inputs[name] for name in runner.input_names}
        made = task.predictions(runner.run(inputs), batch, encoded.features)
        rows.update(zip(batch.indices, made, strict=True))
        advance()
    return [rows[index] for index in range(encoded.texts)]


def fidelity_of(
    task: Task,
    reference: Predictions,
    candidate: Predictions,
    features: Features,
    options: TaskOptions,
) -> Fidelity:
    """How near one model's rows are to another's, by what counts in the task."""
    answers = [task.decisions(rows, features, options) for rows in (reference, candidate)]
    return compare(
        reference,
        candidate,
        is_embedding=task.is_embedding,
        decisions=None if answers[0] is None or answers[1] is None else (answers[0], answers[1]),
        signal=task.signal,
    )
