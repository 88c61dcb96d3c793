"""Evaluate a model during training."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from qdqbert.data.tokenizing.encoding import make_batches
from qdqbert.encoders.checkpoint.load import Checkpoint
from qdqbert.encoders.task_kinds import TaskSettings
from qdqbert.pipeline.predictions import EncodedExamples, TorchRunner, predict
from qdqbert.tasks.task import Features, Metric, Outcome, Task
from qdqbert.training.body import GraphBody


class Scorer:
    """Computes the metrics of a model as it is now, on the evaluation data.

    Attributes:
        task: Task of the model.
        body: The model with its pooling.
    """

    def __init__(
        self,
        task: Task,
        checkpoint: Checkpoint,
        features: Features | None,
        task_options: TaskSettings,
        *,
        batch_size: int,
        device: torch.device,
    ) -> None:
        """Batch the evaluation data."""
        self.task, self.body = task, GraphBody.of(checkpoint).to(device)
        self._checkpoint, self._options = checkpoint, task_options
        self._encoded: EncodedExamples | None = None
        if features is not None:
            batches = make_batches(features.encoded, batch_size=batch_size)
            self._encoded = EncodedExamples(features=features, batches=tuple(batches))

    def metrics(self) -> list[Metric]:
        """Return the metrics of the task; none without evaluation data."""
        if self._encoded is None:
            return []
        training = self.body.training
        self.body.eval()
        runner = TorchRunner(self.body, self._checkpoint.input_names)
        predictions = predict(self.task, runner, self._encoded)
        self.body.train(training)
        id2label: Mapping[int, str] = self._checkpoint.config.id2label
        outcome = Outcome(predictions, self._encoded.features, id2label, self._options)
        return self.task.metrics(outcome)
