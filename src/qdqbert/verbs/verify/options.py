"""Options of `verify`."""

from __future__ import annotations

import dataclasses

from qdqbert.options import Options


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class VerifyOptions(Options):
    """Options of `verify`, whose docstring describes them."""

    model: str
