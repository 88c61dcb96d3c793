"""`qdqbert run`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from qdqbert.cli._command import Command
from qdqbert.cli._tables import run_table
from qdqbert.integrations.ray_cluster import ANY_CLUSTER
from qdqbert.verbs.run import run
from qdqbert.verbs.run.options import RunOptions


def _after_interrupt(given: Mapping[str, Any]) -> str:
    if "-" in (given["input"], given["output"]):
        return "The run cannot be continued, because it used stdin or stdout."
    return "Finished parts are kept. Continue with `--resume`."


# An address of Ray: `HOST:PORT`, `ray://HOST:PORT`, or one of its words. A folder or another option
# can follow the flag, too.
_RAY_ADDRESS = re.compile(r"(ray://)?[\w.\-\[\]:]+:\d+|auto|local")


def _with_address(words: list[str]) -> list[str]:
    """Add "auto" to `--ray` if no address follows."""
    found = []
    for word, following in zip(words, [*words[1:], ""], strict=True):
        is_bare = word == "--ray" and not _RAY_ADDRESS.fullmatch(following)
        found.append(f"{word}={ANY_CLUSTER}" if is_bare else word)
    return found


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
    rewrite=_with_address,
)
