"""`qdqbert run`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qdqbert.cli._command import Command
from qdqbert.cli._ray_address import with_ray_address
from qdqbert.cli._tables import run_table
from qdqbert.verbs.run import run
from qdqbert.verbs.run.options import RunOptions


def _after_interrupt(given: Mapping[str, Any]) -> str:
    if "-" in (given["input"], given["output"]):
        return "The run cannot be continued, because it used stdin or stdout."
    return "Finished parts are kept. Continue with `--resume`."


COMMAND = Command(
    name="run",
    function=run,
    options=RunOptions,
    positional=("model",),
    render=run_table,
    example=(
        "qdqbert run ./my-classifier-int8 --input reviews.parquet --output answers.parquet --resume"
    ),
    after_interrupt=_after_interrupt,
    runs_artifacts=True,
    rewrite=with_ray_address,
)
