"""The reports that the public functions return."""

from __future__ import annotations

import abc
import dataclasses
from typing import Any

from qdqbert.common.files import json_values
from qdqbert.evidence.reporting.document import Document


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report(abc.ABC):
    """Result of a public function.

    `print` shows its tables, and a notebook shows it as a page. Both also show what most reports
    have as fields: `warnings`, `notices`, the output `directory` and the `command`.
    """

    @abc.abstractmethod
    def document(self) -> Document:
        """Return the report as text and tables."""

    @property
    def meets_limits(self) -> bool:
        """Whether the result is as good as the call asked for."""
        return True

    def __str__(self) -> str:
        # rich takes longer to import than most reports take to make.
        from qdqbert.evidence.reporting.terminal import plain_text

        return plain_text(self)

    def _repr_html_(self) -> str:
        from qdqbert.evidence.reporting.page import fragment

        return fragment(self)


def json_ready(report: Report) -> dict[str, Any]:
    """Return a report as plain values, with `None` for NaN and infinities."""
    ready: dict[str, Any] = json_values(dataclasses.asdict(report))
    return ready
