"""The report of `export`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from qdqbert.evidence.reporting.document import (
    MEGABYTE,
    Document,
    Section,
    Table,
    counted,
    decibels,
    short_name,
)
from qdqbert.evidence.reporting.report import Report

if TYPE_CHECKING:
    from qdqbert.evidence.agreement import Agreement


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExportReport(Report):
    """Result of `export`.

    Attributes:
        model: The folder that was exported.
        to: The format.
        target: Target of the exported graph.
        task: Task of the model.
        name: Name of the model in a server.
        inputs: Names of the inputs of the exported model.
        outputs: Names of its outputs.
        max_length: Longest input in tokens. Longer ones are cut.
        agreement: How close its results are to the folder's, on the same texts.
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

    def document(self) -> Document:
        """Return how close the exported model is, and how to run it."""
        rows = [
            (each.output, each.texts, decibels(each.sqnr_db), decibels(each.worst_sqnr_db))
            for each in self.agreement
        ]
        table = Table("output | texts {} | SQNR to the folder {} | worst text {}", rows)
        text = f"Texts are cut at {self.max_length} tokens."
        return Document(
            title=f"{short_name(self.model)} as {self.to}",
            summary=f"{self.model} ({self.task}, graph for {self.target}) was written as "
            f"{counted(len(self.files), 'file')}, {self.size_bytes / MEGABYTE:.1f} MB.",
            sections=[
                Section("Does it return the same?", text, table),
                Section("How to run it", code=self.usage),
            ],
        )
