"""The report of `push`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence


@dataclasses.dataclass(frozen=True, kw_only=True)
class PushReport:
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
