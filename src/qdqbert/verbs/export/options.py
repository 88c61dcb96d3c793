"""Options of `export`."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from qdqbert.choices import ExportedOutputs, ExportFormat, TargetName
from qdqbert.options import Options, option


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class ExportOptions(Options):
    """Options of `export`, whose docstring describes them."""

    model: str
    to: ExportFormat
    output: str | None = option(None, short="o")
    target: TargetName | None = None
    returns: ExportedOutputs | None = None
    name: str | None = None
    pairs: bool = False
    overwrite: bool = False

    @property
    def folder(self) -> Path:
        """The folder to write."""
        model = Path(self.model)
        return Path(self.output) if self.output else model.with_name(f"{model.name}-{self.to}")
