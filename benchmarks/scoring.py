"""Score models on a whole test file, and compare them with the float checkpoint.

The benchmarks of accuracy share this module. Each encodes the test file and runs the float
checkpoint once.
"""

from __future__ import annotations

import dataclasses
import random
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from qdqbert.common.choices import EngineName
from qdqbert.data import texts as resources
from qdqbert.data.rows.data import Columns
from qdqbert.encoders.checkpoint.demo import demo_checkpoint
from qdqbert.encoders.checkpoint.load import Checkpoint, load_checkpoint
from qdqbert.encoders.checkpoint.tokenizer import runtime_tokenizer
from qdqbert.encoders.task_kinds import TaskSettings
from qdqbert.engines.registry import open_runner
from qdqbert.engines.runner import Runner
from qdqbert.pipeline.predictions import (
    Baseline,
    EncodedExamples,
    TorchRunner,
    encode_examples,
    predict,
)
from qdqbert.tasks.registry import TASKS
from qdqbert.tasks.task import Predictions, Tokenization
from qdqbert.training.body import GraphBody
from qdqbert.training.models.quantized import load_model

CALIBRATION_EXAMPLES = 300


@dataclasses.dataclass(frozen=True, kw_only=True)
class Score:
    """Metric of a model, and its fidelity to the float checkpoint.

    Attributes:
        name: Name of the task's main metric.
        value: Value of the metric, in percent for most tasks.
        changed: Predictions that differ from the float checkpoint's, in percent. `None` for tasks
            without decisions.
        sqnr_db: SQNR of all outputs, in dB.
        cosine: Mean and lowest cosine to the float vectors. `None` if the model is not an embedder.
    """

    name: str
    value: float
    changed: float | None
    sqnr_db: float
    cosine: tuple[float, float] | None

    def __str__(self) -> str:
        return f"{self.value:.2f}" + ("" if self.changed is None else f" ({self.changed:.2f} %)")

    def cells(self) -> str:
        """Return cells of a table: metric, cosines if any, changed predictions if any, and SQNR."""
        cosine = [] if self.cosine is None else ["{:.4f} / {:.4f}".format(*self.cosine)]
        changed = [] if self.changed is None else [f"{self.changed:.2f}"]
        return " | ".join([f"{self.value:.2f}", *cosine, *changed, f"{self.sqnr_db:.1f}"])

    def titles(self) -> str:
        """Return the column titles of `cells`."""
        cosine = [] if self.cosine is None else ["cosine mean / worst"]
        changed = [] if self.changed is None else ["changed %"]
        return " | ".join([self.name, *cosine, *changed, "SQNR dB"])


class TestSet:
    """A test file, encoded for a checkpoint.

    Attributes:
        model: Folder or hub id of the checkpoint.
        checkpoint: The float checkpoint.
        task: Its task.
        max_length: Longest input, in tokens.
        encoded: The encoded examples.
        body: The checkpoint's model and pooling.
        runner: Runs `body` in PyTorch, with any quantizers that have been inserted.
        expected: Predictions of the float checkpoint.
        float: Score of the float checkpoint.
    """

    def __init__(
        self,
        model: str,
        path: str,
        *,
        columns: Columns | None = None,
        max_length: int | None = None,
        batch_size: int = 16,
    ) -> None:
        """Encode a test file, and run the float checkpoint on it.

        Args:
            model: Folder or hub id of the checkpoint. `demo` is the packaged one.
            path: The test file.
            columns: Columns of the file. `None` uses those with known names.
            max_length: Longest input, in tokens. `None` uses the default of the task.
            batch_size: Examples per batch.
        """
        self.model = str(demo_checkpoint()) if model == "demo" else model
        self.checkpoint: Checkpoint = load_checkpoint(self.model)
        self.task = TASKS[self.checkpoint.task]
        self._columns, self._batch_size = columns or Columns(), batch_size
        length = max_length or self.task.max_length or self.checkpoint.max_length
        self.max_length = min(length, self.checkpoint.max_length)
        self.encoded = self.encode(path)
        self.body = GraphBody.of(self.checkpoint)
        self.runner = TorchRunner(self.body, self.checkpoint.input_names)
        self.baseline = Baseline(
            task=self.task,
            encoded=self.encoded,
            predictions=predict(self.task, self.runner, self.encoded),
            tokenizer=runtime_tokenizer(self.checkpoint.tokenizer),
            id2label=self.checkpoint.config.id2label,
            options=TaskSettings(),
        ).with_scores()
        self.float = self.score(self.baseline.predictions)

    def encode(self, path: str | None, *, count: int | None = None) -> EncodedExamples:
        """Encode the examples of a file, or the built-in examples without one.

        Args:
            path: The file, or `None`.
            count: Number of examples, drawn at random. `None` takes all.
        """
        examples: Sequence[Any] = (
            resources.calibration_examples()
            if path is None
            else self.task.read(path, columns=self._columns, max_examples=None).examples
        )
        if count is not None:
            examples = random.Random(0).sample(list(examples), min(count, len(examples)))
        how = Tokenization(
            tokenizer=runtime_tokenizer(self.checkpoint.tokenizer),
            input_names=self.checkpoint.input_names,
            max_length=self.max_length,
            settings=TaskSettings(),
        )
        return encode_examples(self.task.encode, examples, how, batch_size=self._batch_size)

    def score(self, predictions: Predictions) -> Score:
        """Score the predictions of a model."""
        metric = self.baseline.scores_of(predictions)[0].metric()
        fidelity = self.baseline.fidelity(predictions)
        cosine = (
            None
            if fidelity.cosine_mean is None or fidelity.cosine_min is None
            else (fidelity.cosine_mean, fidelity.cosine_min)
        )
        return Score(
            name=metric.name,
            value=metric.value,
            changed=fidelity.flips_percent,
            sqnr_db=fidelity.sqnr_db,
            cosine=cosine,
        )

    def run(self, runner: Runner) -> Score:
        """Return the score of a runner."""
        return self.score(predict(self.task, runner, self.encoded))

    def graph(self, engine: EngineName, path: Path) -> Score:
        """Return the score of a graph on an engine."""
        return self.run(open_runner(engine, path, threads=torch.get_num_threads()))

    def trained(self, folder: Path) -> Score:
        """Return the score of a trained checkpoint in PyTorch, with its quantizers if any."""
        checkpoint = load_model(str(folder), task=self.task.name)
        return self.run(TorchRunner(GraphBody.of(checkpoint), checkpoint.input_names))


def mean_of(scores: Sequence[Score]) -> Score:
    """Return the mean score over seeds, without cosines."""
    changed = [score.changed for score in scores if score.changed is not None]
    return dataclasses.replace(
        scores[0],
        value=statistics.mean(score.value for score in scores),
        changed=statistics.mean(changed) if changed else None,
        sqnr_db=statistics.mean(score.sqnr_db for score in scores),
        cosine=None,
    )
