"""The commands of the command line."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import qdqbert
from qdqbert.training.trainer.checkpoints import checkpoints_of, last_checkpoint


@dataclasses.dataclass(frozen=True, kw_only=True)
class Command:
    """A command that calls a public function.

    Attributes:
        function: The public function, whose name the command has.
        positional: Names of the options that are arguments without a flag.
        example: A command line for `--help`.
        first: Names of the options that `--help` begins with; all that are in no group if empty.
        after_interrupt: A sentence on what an interruption leaves.
        runs_artifacts: Whether the command needs no transformers, and shows messages of the log.
    """

    function: Any
    example: str
    positional: tuple[str, ...] = ("model",)
    first: tuple[str, ...] = ()
    after_interrupt: Callable[[Mapping[str, Any]], str] = lambda _: "Nothing was written."
    runs_artifacts: bool = False

    @property
    def name(self) -> str:
        """Name on the command line."""
        return str(self.function.__name__)

    @property
    def options(self) -> type:
        """Class of the options of the function."""
        return self.function.options  # type: ignore[no-any-return]


def _after_run(given: Mapping[str, Any]) -> str:
    if "-" in (given["input"], given["output"]):
        return "The run cannot be continued, because it used stdin or stdout."
    return "Finished parts are kept. Continue with `--resume`."


def _after_training(given: Mapping[str, Any]) -> str:
    folder = checkpoints_of(given["output"])
    if last_checkpoint(folder) is None:
        return "Nothing was written, because there was no checkpoint yet."
    return f"Checkpoints are in {folder}. Continue with `--resume`."


COMMANDS = (
    Command(
        function=qdqbert.quantize,
        first=("model", "output", "targets", "calibration_data", "eval_data", "max_drop"),
        example=(
            "qdqbert quantize ./my-classifier --calibration-data train.csv --eval-data dev.csv"
        ),
    ),
    Command(
        function=qdqbert.evaluate,
        first=("model", "data", "reference", "output", "engine", "max_drop"),
        example=(
            "qdqbert evaluate ./my-classifier-int8 --data dev.tsv --engine openvino "
            "--reference ./my-classifier"
        ),
    ),
    Command(
        function=qdqbert.analyze,
        first=("model", "data", "calibration_data", "granularity", "target", "plot"),
        example="qdqbert analyze ./my-classifier --calibration-data train.csv --data dev.csv",
    ),
    Command(
        function=qdqbert.train,
        first=("model", "output", "train_data", "eval_data", "qat", "distill_from"),
        example=(
            "qdqbert train ./my-classifier -o ./my-qat --train-data train.csv --eval-data dev.csv "
            "--qat --distill-from ./my-classifier"
        ),
        after_interrupt=_after_training,
    ),
    Command(
        function=qdqbert.benchmark,
        positional=("models",),
        example=(
            "qdqbert benchmark ./my-classifier ./my-classifier-int8 --batch 1,8 --sequence 32,128 "
            "--threads 2"
        ),
    ),
    Command(
        function=qdqbert.run,
        example=(
            "qdqbert run ./my-classifier-int8 --input reviews.parquet --output answers.parquet "
            "--resume"
        ),
        after_interrupt=_after_run,
        runs_artifacts=True,
    ),
    Command(
        function=qdqbert.serve,
        positional=("models",),
        example="qdqbert serve ./my-embedder-int8 ./my-reranker-int8 --port 8080",
        after_interrupt=lambda _: "The server has stopped.",
        runs_artifacts=True,
    ),
    Command(function=qdqbert.export, example="qdqbert export ./my-embedder-int8 --to openvino"),
    Command(
        function=qdqbert.verify,
        example="qdqbert verify ./my-classifier-int8",
        after_interrupt=lambda _: "Nothing was changed.",
        runs_artifacts=True,
    ),
    Command(
        function=qdqbert.push,
        positional=("model", "repo"),
        example="qdqbert push ./my-classifier-int8 me/my-classifier-int8 --dry-run",
        after_interrupt=lambda _: "The repository has all files or none of them.",
        runs_artifacts=True,
    ),
    Command(function=qdqbert.doctor, positional=(), example="qdqbert doctor", runs_artifacts=True),
)
