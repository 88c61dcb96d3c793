"""Options of `push`."""

from __future__ import annotations

import dataclasses

from qdqbert.options import Options


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class PushOptions(Options):
    """Options of `push`, whose docstring describes them."""

    model: str
    repo: str
    private: bool = True
    publish_texts: bool = False
    dry_run: bool = False
