"""The report of `push`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from qdqbert.evidence.reporting.document import MEGABYTE, Document, Section, Table
from qdqbert.evidence.reporting.report import Report


@dataclasses.dataclass(frozen=True, kw_only=True)
class PushReport(Report):
    """Result of `push`.

    Attributes:
        model: The folder.
        repo: Name of the model on the hub.
        files: Sizes of the files in bytes, by path in the repository.
        size_bytes: Size of all files.
        url: Address of the commit; `None` if nothing was uploaded.
        notices: Messages for the user.
    """

    model: str
    repo: str
    files: Mapping[str, int]
    size_bytes: int
    url: str | None
    notices: Sequence[str]

    def document(self) -> Document:
        """Return the files with their sizes, and where they are now."""
        sizes = [*self.files.items(), ("all", self.size_bytes)]
        rows = [(name, size / MEGABYTE) for name, size in sizes]
        return Document(
            title=f"{self.model} to {self.repo}",
            summary="Nothing was uploaded." if self.url is None else f"Uploaded: {self.url}",
            sections=[Section("Files", table=Table("file | size {:.1f} MB", rows))],
        )
