"""The report of `doctor`."""

from __future__ import annotations

import dataclasses

from qdqbert.evidence.reporting.document import MEGABYTE, Document, Section, Table, counted
from qdqbert.evidence.reporting.report import Report


@dataclasses.dataclass(frozen=True, kw_only=True)
class Part:
    """An engine, or another part of the package that may be missing.

    Attributes:
        name: Name of the engine, or of the extra that installs the part.
        purpose: Its purpose.
        version: Version of its library; `None` if it is not installed.
        details: Its features on this machine, such as execution providers.
        install: Command that installs it; `None` if it is installed.
    """

    name: str
    purpose: str
    version: str | None
    details: tuple[str, ...]
    install: str | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cache:
    """The packed models of float checkpoints, and what was downloaded from object storage.

    Attributes:
        folder: Their folder, which need not exist.
        models: Number of models; `None` if the folder cannot be read.
        size_bytes: Their size; `None` if the folder cannot be read.
        limit_bytes: Size beyond which those that were not used for longest are removed.
        problem: Why the folder cannot be read.
        downloads: Number of downloads.
    """

    folder: str
    models: int | None
    size_bytes: int | None
    limit_bytes: int
    problem: str | None = None
    downloads: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class DoctorReport(Report):
    """Result of `doctor`.

    Attributes:
        verdict: What the CPU means for INT8, in one sentence.
        cpu: Name of the CPU.
        cpu_features: Its features that matter for INT8, under Linux' names, and their meanings.
        cores: Number of physical cores that this process may use.
        gpus: Names of the NVIDIA GPUs.
        system: Operating system and architecture.
        python: Version of Python.
        engines: The engines, installed or not.
        extras: Other parts of the package, installed or not.
        cache: The packed models of float checkpoints, and downloads.
        notices: Messages for the user.
    """

    verdict: str
    cpu: str
    cpu_features: dict[str, str]
    cores: int
    gpus: tuple[str, ...]
    system: str
    python: str
    engines: tuple[Part, ...]
    extras: tuple[Part, ...]
    cache: Cache
    notices: tuple[str, ...]

    def document(self) -> Document:
        """Return the machine, the engines, and what is missing."""
        machine = [
            ("CPU", f"{self.cpu}, {counted(self.cores, 'core')}"),
            *self.cpu_features.items(),
            *(("GPU", name) for name in self.gpus),
            ("system", f"{self.system}, Python {self.python}"),
            ("cache", _cache_text(self.cache)),
        ]
        parts = [
            (
                each.name,
                each.version or f"missing: {each.install}",
                ", ".join((each.purpose, *each.details)),
            )
            for each in (*self.engines, *self.extras)
        ]
        table = Table("part | version | what it is for", parts)
        return Document(
            title="This machine",
            verdict=self.verdict.removesuffix("."),
            sections=[
                Section("Machine", table=Table("", machine)),
                Section("Parts of the package", table=table),
            ],
        )


def _cache_text(cache: Cache) -> str:
    """Return the content of the cache in words: "FOLDER: 2 models, 45.9 MB of at most 20 GB"."""
    limit = f"{cache.limit_bytes / 1e9:.3g} GB"
    if cache.models is None or cache.size_bytes is None:
        return f"{cache.folder} cannot be read ({cache.problem}), at most {limit}"
    size = f"{cache.size_bytes / MEGABYTE:.1f} MB"
    found = counted(cache.models, "model")
    if cache.downloads:
        found += f", {counted(cache.downloads, 'download')}"
    return f"{cache.folder}: {found}, {size} of at most {limit}"
