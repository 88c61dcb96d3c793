"""Write and read the file of a packed model: safetensors, which is mapped into memory.

Every array starts at a multiple of 64 bytes, because the size of each one is such a multiple and
the header is padded. The settings are JSON in the header's metadata.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from qdqbert.common.errors import CheckpointError
from qdqbert.common.files import new_file, refuse_pointer
from qdqbert.common.safetensors_header import are_sizes, read_header
from qdqbert.engines.native.memory import LINE

FORMAT = 13
"""Number of the layout of arrays and settings."""

_NAMES = {"int8": "I8", "int32": "I32", "float32": "F32"}
_TYPES = {name: np.dtype(dtype) for dtype, name in _NAMES.items()}
_MOST_AXES = 8
# Bytes that are moved at a time.
_MOVED = 2**24


@dataclasses.dataclass(frozen=True, kw_only=True)
class Packed:
    """A stored model: named arrays and settings.

    Attributes:
        arrays: Arrays by name.
        settings: Everything else: numbers, names, lists of them.
    """

    arrays: dict[str, NDArray[Any]]
    settings: dict[str, Any]


Keep = Callable[[str, NDArray[Any]], None]
"""What takes the arrays of a model, by name."""


def save_packed(packed: Packed, path: Path) -> None:
    """Write a model, completely or not at all."""

    def fill(keep: Keep) -> dict[str, Any]:
        for name, array in packed.arrays.items():
            keep(name, array)
        return packed.settings

    write_packed(path, fill)


def write_packed(path: Path, fill: Callable[[Keep], dict[str, Any]]) -> None:
    """Write a model whose arrays need not be in memory together, completely or not at all.

    `fill` passes each array and its name to its argument, which writes them at once, and returns
    the settings.

    Raises:
        OSError: The file cannot be written. An existing file is unchanged.
    """
    header: dict[str, Any] = {"__metadata__": None}
    with new_file(path) as file:

        def keep(name: str, array: NDArray[Any]) -> None:
            assert array.nbytes % LINE == 0, f"{name} {array.shape}"
            start = file.tell()
            file.write(np.ascontiguousarray(array).data)
            header[name] = {
                "dtype": _NAMES[array.dtype.name],
                "shape": list(array.shape),
                "data_offsets": [start, start + array.nbytes],
            }

        settings = fill(keep)
        header["__metadata__"] = {
            "format": "qdqbert-native",
            "version": str(FORMAT),
            "settings": json.dumps(settings),
        }
        text = json.dumps(header).encode()
        text += b" " * (-(8 + len(text)) % LINE)
        _insert(file, struct.pack("<Q", len(text)) + text)


def _insert(file: BinaryIO, start: bytes) -> None:
    """Insert bytes at the start of a file. What follows is moved in parts, from the last one on."""
    end = file.tell()
    while end:
        begin = max(0, end - _MOVED)
        file.seek(begin)
        part = file.read(end - begin)
        file.seek(begin + len(start))
        file.write(part)
        end = begin
    file.seek(0)
    file.write(start)


def load_packed(path: Path) -> Packed:
    """Map a model into memory.

    Raises:
        CheckpointError: The file does not exist, is damaged, or has another format.
    """
    refuse_pointer(path)
    try:
        data: NDArray[np.uint8] = np.memmap(path, np.uint8, mode="r")
    except (OSError, ValueError) as error:
        raise CheckpointError(f"Cannot read {str(path)!r}: {error}.") from error
    header, start = read_header(data, functools.partial(_damaged, path))
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict):
        raise _damaged(path, "its metadata is not an object")
    if metadata.get("format") != "qdqbert-native" or metadata.get("version") != str(FORMAT):
        raise CheckpointError(
            f"{str(path)!r} is not a model of the native engine in format {FORMAT}. Quantize the "
            "model again with this version."
        )
    arrays: dict[str, NDArray[Any]] = {}
    end = 0
    entries = [_entry(path, *each) for each in header.items()]
    for name, kind, shape, first, last in sorted(entries, key=lambda each: each[3:]):
        if first != end or last - first != math.prod(shape) * kind.itemsize:
            raise _damaged(path, f"array {name!r} has wrong offsets")
        if start + last > len(data):
            raise _damaged(path, "it ends too early")
        arrays[name] = data[start + first : start + last].view(kind).reshape(shape)
        end = last
    if start + end != len(data):
        raise _damaged(path, "it is longer than its arrays")
    try:
        settings = json.loads(metadata["settings"])
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise _damaged(path, "its settings are not JSON") from error
    if not isinstance(settings, dict):
        raise _damaged(path, "its settings are not an object")
    return Packed(arrays=arrays, settings=settings)


def _entry(
    path: Path, name: str, entry: Any
) -> tuple[str, np.dtype[Any], tuple[int, ...], int, int]:
    """Return name, dtype, shape, start and end of an array of the header."""
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise _damaged(path, f"array {name!r} has wrong fields")
    kind = _TYPES.get(entry["dtype"]) if isinstance(entry["dtype"], str) else None
    if kind is None:
        raise _damaged(path, f"array {name!r} has the dtype {entry['dtype']!r:.40}")
    shape, offsets = entry["shape"], entry["data_offsets"]
    for numbers in (shape, offsets):
        if not are_sizes(numbers):
            raise _damaged(path, f"array {name!r} has a wrong shape or wrong offsets")
    if not 1 <= len(shape) <= _MOST_AXES or len(offsets) != 2:
        raise _damaged(path, f"array {name!r} has a wrong shape or wrong offsets")
    return name, kind, tuple(shape), offsets[0], offsets[1]


def _damaged(path: Path, reason: str) -> CheckpointError:
    return CheckpointError(f"{str(path)!r} is damaged: {reason}. Quantize the model again.")
