"""Write files so that a reader sees the old content or the new one, never a part, and hash them."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any


def digest_of(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file atomically.

    Raises:
        OSError: The file cannot be written. An existing file is unchanged.
    """
    write_parts(path, [content])


def write_parts(path: Path, parts: Iterable[bytes | memoryview]) -> None:
    """Write a file atomically from its parts, one after another.

    Raises:
        OSError: The file cannot be written. An existing file is unchanged.
    """
    partial = path.with_name(f".{path.name}.partial")
    try:
        with partial.open("wb") as file:
            for part in parts:
                file.write(part)
            # The name must not reach the disk before the content.
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write indented JSON atomically.

    Raises:
        OSError: The file cannot be written. An existing file is unchanged.
    """
    write_bytes(path, json_bytes(content))


def json_bytes(content: Mapping[str, Any]) -> bytes:
    """Return indented JSON in UTF-8."""
    return (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode()


def json_values(value: Any) -> Any:
    """Return a value with `None` for numbers that JSON cannot represent: NaN and infinities."""
    if isinstance(value, Mapping):
        return {key: json_values(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [json_values(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
