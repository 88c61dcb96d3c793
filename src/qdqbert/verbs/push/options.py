"""Options of `push`."""

from __future__ import annotations

import dataclasses

from qdqbert.options import check_options, normalize_options


@dataclasses.dataclass(frozen=True, kw_only=True)
class PushOptions:
    """Common options.

    Attributes:
        model: Folder that `quantize` wrote.
        repo: OWNER/NAME of the model on the hub.
        private: Make a new repository that only you and your organization can read. An existing one
            that everyone can read is refused.
        dry_run: List the files and their sizes, and upload nothing.
    """

    model: str
    repo: str
    private: bool = True
    dry_run: bool = False

    def __post_init__(self) -> None:
        """Check the options.

        Raises:
            UserInputError: A value is not allowed.
        """
        normalize_options(self)
        check_options(self)
