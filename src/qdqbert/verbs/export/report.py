"""The report of `export`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from qdqbert.exporting.checks import Agreement


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExportReport:
    """Result of `export`.

    Attributes:
        model: The folder that was exported.
        to: The format.
        target: Target of the exported graph.
        task: Task of the model.
        name: Name of the model in a server.
        inputs: Names of what the exported model takes.
        outputs: Names of what it returns.
        max_length: Longest input in tokens. Longer ones are cut.
        agreement: How close its results are to those of the folder, each on the same texts.
        files: Sizes of the files in bytes, by path in the output folder.
        size_bytes: Size of all files.
        usage: How to run it.
        notices: Messages for the user.
        directory: The output folder.
    """

    model: str
    to: str
    target: str
    task: str
    name: str
    inputs: Sequence[str]
    outputs: Sequence[str]
    max_length: int
    agreement: Sequence[Agreement]
    files: Mapping[str, int]
    size_bytes: int
    usage: str
    notices: Sequence[str]
    directory: str
