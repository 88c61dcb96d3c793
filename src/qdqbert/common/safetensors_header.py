"""Read the header of a safetensors file, which has the offsets of the tensors."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbert.common.errors import CheckpointError

# safetensors has the same limit.
_LARGEST_HEADER = 100_000_000


def read_header(
    data: NDArray[np.uint8], damaged: Callable[[str], CheckpointError]
) -> tuple[dict[str, Any], int]:
    """Return the header of a file, and the offset of the first tensor.

    `damaged` returns the error with a reason, such as "it is too short".

    Raises:
        CheckpointError: The header is no JSON object.
    """
    if len(data) < 8:
        raise damaged("it is too short")
    (length,) = struct.unpack("<Q", data[:8].tobytes())
    if not 2 <= length <= min(_LARGEST_HEADER, len(data) - 8):
        raise damaged("its header has a wrong length")
    try:
        header = json.loads(data[8 : 8 + length].tobytes(), object_pairs_hook=_with_each_name_once)
    except (ValueError, RecursionError) as error:
        raise damaged("its header is not JSON, or has a name twice") from error
    if not isinstance(header, dict):
        raise damaged("its header is not an object")
    return header, 8 + length


def _with_each_name_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError
    return found


def are_sizes(values: object) -> bool:
    """Return whether a value is a list of sizes or offsets that numpy can hold."""
    # Python has no limit of integers, but numpy has.
    return isinstance(values, list) and all(
        type(each) is int and 0 <= each < 2**48 for each in values
    )
