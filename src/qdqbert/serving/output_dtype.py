"""The kind of the values of embeddings in requests, as Voyage's API names it."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from qdqbert.common.choices import OutputDtype
from qdqbert.serving.fields import Body, Renamed


def base64_of(vector: np.ndarray) -> str:
    """Return the bytes of the values of a vector, the least significant byte first, as base64."""
    values = vector.astype(vector.dtype.newbyteorder("<"), copy=False)
    return base64.b64encode(values.tobytes()).decode()


class Vectors(Body):
    """Fields about the embeddings that are returned."""

    renamed: ClassVar[Renamed] = {
        "output_dtype": {"float32": {"output_dtype": "float"}},
        "embedding_type": {
            "base64": {"encoding_format": "base64", "output_dtype": "float"},
            **{
                each: {"output_dtype": each}
                for each in ("float", "int8", "uint8", "binary", "ubinary")
            },
        },
    }

    encoding_format: Literal["float", "base64"] | None = Field(
        None,
        description="`float` by default. `base64` encodes the bytes of the values of "
        "`output_dtype`; float32 has its least significant byte first.",
    )
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

    def shown(self, vectors: Sequence[np.ndarray]) -> list[Any]:
        """Return vectors as a response has them."""
        return [base64_of(each) if self.encoding_format == "base64" else each for each in vectors]

    @property
    def dimensions_per_value(self) -> int:
        """Number of dimensions that a value of an embedding holds."""
        return 8 if self.kind in ("binary", "ubinary") else 1
