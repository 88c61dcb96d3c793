"""The kind of the values of embeddings in requests, as Voyage's API names it."""

from __future__ import annotations

import base64
from typing import Literal

import numpy as np
from pydantic import Field

from qdqbert.choices import OutputDtype
from qdqbert.serving.fields import Body


def base64_of(vector: np.ndarray) -> str:
    """Return the bytes of the values of a vector, the least significant byte first, as base64."""
    values = vector.astype(vector.dtype.newbyteorder("<"), copy=False)
    return base64.b64encode(values.tobytes()).decode()


class Vectors(Body):
    """Fields about the embeddings that are returned."""

    output_dtype: Literal["float", OutputDtype] | None = Field(
        None,
        description="`float` by default, or `float32`, its other name. `int8` and `uint8` have a "
        "byte for each dimension, by a range that the model has to have. `binary` (int8) and "
        "`ubinary` (uint8) have a bit for each, eight to a byte.",
    )

    @property
    def kind(self) -> OutputDtype:
        """The kind of the values."""
        if self.output_dtype is None or self.output_dtype == "float":
            return "float32"
        return self.output_dtype

    @property
    def dimensions_per_value(self) -> int:
        """Number of dimensions that a value of an embedding holds."""
        return 8 if self.kind in ("binary", "ubinary") else 1
