"""The commands of the command line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import qdqbert
from qdqbert.cli import _tables
from qdqbert.cli._command import Command
from qdqbert.cli._ray_address import with_ray_address
from qdqbert.reporting.usage import closing_lines


def _after_run(given: Mapping[str, Any]) -> str:
    if "-" in (given["input"], given["output"]):
        return "The run cannot be continued, because it used stdin or stdout."
    return "Finished parts are kept. Continue with `--resume`."


COMMANDS = (
    Command(
        function=qdqbert.quantize,
        first=("model", "output", "targets", "calibration_data", "eval_data", "max_drop"),
        render=_tables.quantize_table,
        closing=closing_lines,
        rewrite=with_ray_address,
        example=(
            "qdqbert quantize ./my-classifier --calibration-data train.csv --eval-data dev.csv"
        ),
    ),
    Command(
        function=qdqbert.evaluate,
        first=("model", "data", "reference", "output", "engine", "max_drop"),
        render=_tables.evaluate_table,
        example=(
            "qdqbert evaluate ./my-classifier-int8 --data dev.tsv --engine openvino "
            "--reference ./my-classifier"
        ),
    ),
    Command(
        function=qdqbert.analyze,
        first=("model", "data", "calibration_data", "granularity", "target", "plot"),
        render=_tables.analyze_table,
        example="qdqbert analyze ./my-classifier --calibration-data train.csv --data dev.csv",
    ),
    Command(
        function=qdqbert.train,
        first=("model", "output", "train_data", "eval_data", "qat", "distill_from"),
        render=_tables.train_table,
        example=(
            "qdqbert train ./my-classifier -o ./my-qat --train-data train.csv --eval-data dev.csv "
            "--qat --distill-from ./my-classifier"
        ),
        after_interrupt=lambda given: (
            f"Checkpoints are in {given['output']}-checkpoints. Continue with `--resume`."
        ),
    ),
    Command(
        function=qdqbert.benchmark,
        positional=("models",),
        render=_tables.benchmark_table,
        example=(
            "qdqbert benchmark ./my-classifier ./my-classifier-int8 --batch 1,8 --sequence 32,128 "
            "--threads 2"
        ),
    ),
    Command(
        function=qdqbert.run,
        render=_tables.run_table,
        example=(
            "qdqbert run ./my-classifier-int8 --input reviews.parquet --output answers.parquet "
            "--resume"
        ),
        after_interrupt=_after_run,
        runs_artifacts=True,
        rewrite=with_ray_address,
    ),
    Command(
        function=qdqbert.serve,
        positional=("models",),
        render=_tables.serve_table,
        example="qdqbert serve ./my-embedder-int8 ./my-reranker-int8 --port 8080",
        after_interrupt=lambda _: "The server has stopped.",
        runs_artifacts=True,
    ),
    Command(
        function=qdqbert.export,
        render=_tables.export_table,
        example="qdqbert export ./my-embedder-int8 --to openvino",
    ),
    Command(
        function=qdqbert.verify,
        render=_tables.verify_table,
        example="qdqbert verify ./my-classifier-int8",
        after_interrupt=lambda _: "Nothing was changed.",
        runs_artifacts=True,
    ),
    Command(
        function=qdqbert.push,
        positional=("model", "repo"),
        render=_tables.push_table,
        example="qdqbert push ./my-classifier-int8 me/my-classifier-int8 --dry-run",
        after_interrupt=lambda _: "The repository has all files or none of them.",
        runs_artifacts=True,
    ),
    Command(
        function=qdqbert.doctor,
        positional=(),
        render=_tables.doctor_table,
        example="qdqbert doctor",
        runs_artifacts=True,
    ),
)
