"""Functions shared by the protocols of embeddings."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from qdqbert.json_files import shown
from qdqbert.serving.limits import BadRequestError


def check_width(vectors: Sequence[np.ndarray], requested: int | None) -> None:
    """Refuse a number of dimensions that the model does not have.

    Raises:
        BadRequestError: The vectors have fewer dimensions than requested.
    """
    width = len(vectors[0])
    if requested is not None and requested > width:
        raise BadRequestError(
            400,
            f"`dimensions` is {shown(requested)}, but embeddings of the model have {width}. "
            f"Send {width} or less, or leave it out.",
            "Validation",
        )
