"""What the protocols of embeddings share."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from qdqbert.serving.limits import BadRequestError

# A longer number is not repeated in a message.
_MOST_SHOWN = 10**9


def check_width(vectors: Sequence[np.ndarray], requested: int | None) -> None:
    """Refuse a number of dimensions that the model does not have.

    Raises:
        BadRequestError: The vectors have fewer dimensions than requested.
    """
    width = len(vectors[0])
    if requested is not None and requested > width:
        shown = requested if requested < _MOST_SHOWN else f"over {_MOST_SHOWN}"
        raise BadRequestError(
            400,
            f"`dimensions` is {shown}, but embeddings of the model have {width}. Send {width} or "
            "less, or leave it out.",
            "Validation",
        )
