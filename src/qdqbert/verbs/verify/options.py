"""Options of `verify`."""

from __future__ import annotations

import dataclasses

from qdqbert.options import check_options, normalize_options


@dataclasses.dataclass(frozen=True, kw_only=True)
class VerifyOptions:
    """Common options.

    Attributes:
        model: Folder that `quantize` wrote.
    """

    model: str

    def __post_init__(self) -> None:
        """Check the options.

        Raises:
            UserInputError: A value is not allowed.
        """
        normalize_options(self)
        check_options(self)
