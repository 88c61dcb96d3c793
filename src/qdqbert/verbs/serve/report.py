"""Counts of a server's requests."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServeReport:
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
