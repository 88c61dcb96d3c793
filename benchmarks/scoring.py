"""A whole test set, what the float checkpoint says to it, and how near others come.

What the benchmarks of accuracy share: each encodes the set and runs the float checkpoint once.
"""

from __future__ import annotations

import dataclasses
import random
import statistics
from collections.abc import Sequence
from pathlib import Path

import torch

from qdqbert import resources
from qdqbert.checkpoint.demo import demo_checkpoint
from qdqbert.checkpoint.load import Checkpoint, load_checkpoint
from qdqbert.choices import EngineName
from qdqbert.engines.runner import Runner, open_runner
from qdqbert.graph.export import GraphBody
from qdqbert.models.loading import load_model
from qdqbert.tasks import TASKS
from qdqbert.tasks.data import Columns
from qdqbert.tasks.task import Predictions, TaskOptions
from qdqbert.verbs.inference import (
    EncodedExamples,
    TorchRunner,
    encode_examples,
    fidelity_of,
    predict,
)

CALIBRATION_EXAMPLES = 300


@dataclasses.dataclass(frozen=True, kw_only=True)
class Score:
    """How right a model is, and how near to the float checkpoint.

    Attributes:
        name: Of the task's main metric.
        value: The metric, most often in percent.
        flips: Answers that differ from float's, %; `None` where answers are no choices.
        sqnr_db: Of all outputs, dB.
        cosine: Mean and worst cosine to float's vector, of embedders.
    """

    name: str
    value: float
    flips: float | None
    sqnr_db: float
    cosine: tuple[float, float] | None

    def __str__(self) -> str:
        return f"{self.value:.2f}" + ("" if self.flips is None else f" ({self.flips:.2f} %)")

    def cells(self) -> str:
        """The metric, cosines if there are any, flips and SQNR: cells of a table."""
        cosine = [] if self.cosine is None else ["{:.4f} / {:.4f}".format(*self.cosine)]
        flips = [] if self.flips is None else [f"{self.flips:.2f}"]
        return " | ".join([f"{self.value:.2f}", *cosine, *flips, f"{self.sqnr_db:.1f}"])

    def titles(self) -> str:
        """What stands above `cells`."""
        cosine = [] if self.cosine is None else ["cosine mean / worst"]
        flips = [] if self.flips is None else ["flips %"]
        return " | ".join([self.name, *cosine, *flips, "SQNR dB"])


class TestSet:
    """A test file as a checkpoint is fed it.

    Attributes:
        checkpoint: The float one.
        body: Its model and pooling.
        runner: Runs them in PyTorch; quantizers that are put in count.
        encoded: The examples.
        expected: What the float checkpoint says.
        float: Its score.
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
        """Reads and encodes `path`, and runs the checkpoint `model`; `demo` is the packaged one."""
        self.model = str(demo_checkpoint()) if model == "demo" else model
        self.checkpoint: Checkpoint = load_checkpoint(self.model)
        self.task = TASKS[self.checkpoint.task]
        self._columns, self._batch_size = columns or Columns(), batch_size
        usual = max_length or self.task.max_length or self.checkpoint.max_length
        self.max_length = min(usual, self.checkpoint.max_length)
        self.encoded = self.encode(path)
        self.body = GraphBody.of(self.checkpoint)
        self.runner = TorchRunner(self.body, self.checkpoint.input_names)
        self.expected = predict(self.task, self.runner, self.encoded)
        self.float = self.score(self.expected)

    def encode(self, path: str | None, *, count: int | None = None) -> EncodedExamples:
        """The examples of a file, or `count` drawn of them; of the built-in ones without a file."""
        examples = (
            resources.calibration_examples()
            if path is None
            else self.task.read(path, columns=self._columns, max_examples=None).examples
        )
        if count is not None:
            examples = random.Random(0).sample(list(examples), min(count, len(examples)))
        return encode_examples(
            self.task,
            self.checkpoint.tokenizer,
            examples,
            input_names=self.checkpoint.input_names,
            max_length=self.max_length,
            batch_size=self._batch_size,
            options=TaskOptions(),
        )

    def score(self, rows: Predictions) -> Score:
        """What a model's rows are worth."""
        labels, features = self.checkpoint.config.id2label, self.encoded.features
        metric = self.task.metrics(rows, features, labels, TaskOptions())[0]
        nearness = fidelity_of(self.task, self.expected, rows, features, TaskOptions())
        cosine = (
            None
            if nearness.cosine_mean is None or nearness.cosine_min is None
            else (nearness.cosine_mean, nearness.cosine_min)
        )
        return Score(
            name=metric.name,
            value=metric.value,
            flips=nearness.flips_percent,
            sqnr_db=nearness.sqnr_db,
            cosine=cosine,
        )

    def run(self, runner: Runner) -> Score:
        """The score of whatever runs."""
        return self.score(predict(self.task, runner, self.encoded))

    def graph(self, engine: EngineName, path: Path) -> Score:
        """The score of a graph on an engine."""
        return self.run(open_runner(engine, path, threads=torch.get_num_threads()))

    def trained(self, folder: Path) -> Score:
        """The score of a trained checkpoint in PyTorch, with its quantizers if it has any."""
        checkpoint = load_model(str(folder), task=self.task.name)
        return self.run(TorchRunner(GraphBody.of(checkpoint), checkpoint.input_names))


def mean_of(scores: Sequence[Score]) -> Score:
    """The mean over seeds; of cosines there is none."""
    flips = [score.flips for score in scores if score.flips is not None]
    return dataclasses.replace(
        scores[0],
        value=statistics.mean(score.value for score in scores),
        flips=statistics.mean(flips) if flips else None,
        sqnr_db=statistics.mean(score.sqnr_db for score in scores),
        cosine=None,
    )
