"""Write and read the file of a packed model: safetensors, whose arrays are used where they lie.

Every array starts at a multiple of 64 bytes, because the size of each one is such a multiple and
the header is padded. The settings are JSON in the header's metadata.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbert.engines.native.memory import LINE
from qdqbert.engines.native.packed import Packed
from qdqbert.errors import CheckpointError
from qdqbert.files import write_parts

FORMAT = 1
"""Number of the layout of arrays and settings."""

_NAMES = {"int8": "I8", "int32": "I32", "float32": "F32"}
_TYPES = {name: np.dtype(dtype) for dtype, name in _NAMES.items()}
_LARGEST_HEADER = 100_000_000


def save_packed(packed: Packed, path: Path) -> None:
    """Write a model, completely or not at all."""
    header: dict[str, Any] = {
        "__metadata__": {
            "format": "qdqbert-native",
            "version": str(FORMAT),
            "settings": json.dumps(packed.settings),
        }
    }
    end = 0
    for name, array in packed.arrays.items():
        assert array.nbytes % LINE == 0, f"{name} {array.shape}"
        header[name] = {
            "dtype": _NAMES[array.dtype.name],
            "shape": list(array.shape),
            "data_offsets": [end, end + array.nbytes],
        }
        end += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-(8 + len(text)) % LINE)
    arrays = (np.ascontiguousarray(each).data for each in packed.arrays.values())
    write_parts(path, (struct.pack("<Q", len(text)), text, *arrays))


def load_packed(path: Path) -> Packed:
    """Map a model into memory.

    Raises:
        CheckpointError: The file does not exist, is damaged, or has another format.
    """
    try:
        data: NDArray[np.uint8] = np.memmap(path, np.uint8, mode="r")
    except (OSError, ValueError) as error:
        raise CheckpointError(f"Cannot read {str(path)!r}: {error}.") from error
    header, start = _read_header(path, data)
    metadata = header.pop("__metadata__", {})
    if metadata.get("format") != "qdqbert-native" or metadata.get("version") != str(FORMAT):
        raise CheckpointError(
            f"{str(path)!r} is not a model of the native engine in format {FORMAT}. Quantize the "
            "model again with this version."
        )
    arrays: dict[str, NDArray[Any]] = {}
    end = 0
    for name, entry in sorted(header.items(), key=lambda each: each[1]["data_offsets"]):
        kind, shape = _TYPES.get(entry["dtype"]), tuple(entry["shape"])
        first, last = entry["data_offsets"]
        size = 0 if kind is None else int(np.prod(shape)) * kind.itemsize
        if kind is None or min(shape) < 0 or first != end or last - first != size:
            raise _damaged(path, f"array {name!r} has wrong offsets")
        if start + last > len(data):
            raise _damaged(path, "it ends too early")
        arrays[name] = data[start + first : start + last].view(kind).reshape(shape)
        end = last
    if start + end != len(data):
        raise _damaged(path, "it is longer than its arrays")
    try:
        settings = json.loads(metadata["settings"])
    except (KeyError, ValueError) as error:
        raise _damaged(path, "its settings are not JSON") from error
    return Packed(arrays=arrays, settings=settings)


def _read_header(path: Path, data: NDArray[np.uint8]) -> tuple[dict[str, Any], int]:
    """Return the header and where the arrays start."""
    if len(data) < 8:
        raise _damaged(path, "it is too short")
    (length,) = struct.unpack("<Q", data[:8].tobytes())
    if not 2 <= length <= min(_LARGEST_HEADER, len(data) - 8):
        raise _damaged(path, "its header has a wrong length")
    try:
        header = json.loads(data[8 : 8 + length].tobytes())
    except ValueError as error:
        raise _damaged(path, "its header is not JSON") from error
    if not isinstance(header, dict):
        raise _damaged(path, "its header is not an object")
    return header, 8 + length


def _damaged(path: Path, reason: str) -> CheckpointError:
    return CheckpointError(f"{str(path)!r} is damaged: {reason}. Quantize the model again.")
