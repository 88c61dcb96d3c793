"""The report of `verify`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from qdqbert.evidence.checksums import FileCheck
from qdqbert.evidence.reporting.document import Cell, Document, Section, Table, counted
from qdqbert.evidence.reporting.report import Report


@dataclasses.dataclass(frozen=True, kw_only=True)
class VersionCheck:
    """The version of a package when the folder was written, and now.

    Attributes:
        name: Name of the package.
        stored: The version then.
        installed: The version now; `None` if it is not installed.
    """

    name: str
    stored: str
    installed: str | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class FidelityCheck:
    """Fidelity of a graph on an engine when the folder was written, and now.

    Attributes:
        target: Target of the graph.
        engine: The engine.
        stored_db: SQNR to float on the stored rows then, dB.
        sqnr_db: The same on this machine.
        lowest_db: SQNR that is required; see `evidence.verification.lowest_sqnr`.
    """

    target: str
    engine: str
    stored_db: float
    sqnr_db: float
    lowest_db: float

    @property
    def is_close(self) -> bool:
        """Whether the graph is about as close to float as when the folder was written."""
        return self.sqnr_db >= self.lowest_db


@dataclasses.dataclass(frozen=True, kw_only=True)
class VerifyReport(Report):
    """Result of `verify`.

    Attributes:
        model: The folder.
        files: Its files, compared with their checksums.
        has_checksums: Whether the folder has checksums. Without them, its files cannot be checked.
        versions: Packages that determine numbers.
        fidelity: One entry for each graph and engine that could be measured.
        cpu: Name of the CPU.
        cpu_features: Its features that matter for INT8, under Linux' names.
        notices: Checks that could not run, and why.
    """

    model: str
    files: Sequence[FileCheck]
    has_checksums: bool
    versions: Sequence[VersionCheck]
    fidelity: Sequence[FidelityCheck]
    cpu: str
    cpu_features: Sequence[str]
    notices: Sequence[str]

    @property
    def meets_limits(self) -> bool:
        """Whether all files are as they were written, and all graphs as close to float."""
        are_intact = all(each.verdict == "intact" for each in self.files)
        return self.has_checksums and are_intact and all(each.is_close for each in self.fidelity)

    def document(self) -> Document:
        """Return damaged files, packages whose versions differ, and fidelity then and now."""
        damaged = [
            (each.name, Cell(text=each.verdict, level="bad"))
            for each in self.files
            if each.verdict != "intact"
        ]
        versions = [
            (each.name, each.stored, each.installed or "not installed")
            for each in self.versions
            if each.stored != each.installed
        ]
        fidelity = [
            (
                f"{each.target} on {each.engine}",
                each.stored_db,
                Cell(text=f"{each.sqnr_db:.1f} dB", level="good" if each.is_close else "bad"),
                each.lowest_db,
            )
            for each in self.fidelity
        ]
        levels = "graph | SQNR then {:.1f} dB | SQNR now {} | at least {:.1f} dB"
        tables = {
            "Damaged files": Table("file | verdict", damaged),
            "Other versions": Table("package | then | now", versions),
            "Is it as close to float?": Table(levels, fidelity),
        }
        is_intact = self.has_checksums and not damaged
        return Document(
            title=f"{self.model} on {self.cpu}",
            level="good" if self.meets_limits else "bad",
            verdict="Verified" if self.meets_limits else "Not verified",
            facts=[f"all {counted(len(self.files), 'file')} are intact"] if is_intact else [],
            sections=[Section(title, table=table) for title, table in tables.items() if table.rows],
        )
