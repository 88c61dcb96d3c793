"""The report of `serve`."""

from __future__ import annotations

import dataclasses

from qdqbert.evidence.reporting.document import Document, counted
from qdqbert.evidence.reporting.report import Report


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServeReport(Report):
    """Numbers of a server that has ended.

    Attributes:
        requests: Requests, with those that were refused.
        inputs: Inputs that were answered.
        tokens: Tokens that ran.
        seconds: Time that the server ran.
    """

    requests: int
    inputs: int
    tokens: int
    seconds: float

    def document(self) -> Document:
        """Return the totals of the server."""
        answered = f"Answered {counted(self.requests, 'request')} with "
        inputs = f"{counted(self.inputs, 'input')} ({self.tokens:,} tokens)"
        return Document(title=f"{answered}{inputs} in {self.seconds:.0f} s.")
