"""Load and run damaged files of packed models, with a guard page around every buffer.

A process of its own runs this, so that a crash is seen.
"""

from __future__ import annotations

import copy
import json
import random
import struct
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from native_guard import Guard, guarded
from native_models import random_batch
from qdqbert.common.errors import QdqBertError
from qdqbert.engines.native.runner import NativeRunner

LONGEST = 24
"""Tokens of the longest text that the files take."""

_VALUES = (
    *(0, 1, -1, 2, 3, 15, 16, 17, 64, 255, 256, 2**31 - 1, 2**31, 2**48, 2**63, 2**64, -(2**63)),
    *(0.5, 1e-45, 1e308, -1e308, float("nan"), float("inf"), True, False, None, "", "x", "none"),
    *([], {}, [[]], [0], "gelu", "first"),
)

Place = tuple[Any, ...]


def places(value: Any, path: Place = ()) -> list[Place]:
    """Return the place of each part of a JSON value, nested ones too."""
    found = [path] if path else []
    items = value.items() if isinstance(value, dict) else []
    items = enumerate(value) if isinstance(value, list) else items
    return found + [each for key, part in items for each in places(part, (*path, key))]


def _at(value: Any, path: Place) -> Any:
    for key in path:
        value = value[key]
    return value


def change(rng: random.Random, value: Any) -> None:
    """Change a part of a JSON value in place."""
    *parents, last = rng.choice(places(value))
    inner = _at(value, tuple(parents))
    old, kind = inner[last], rng.randrange(5)
    if kind == 0:
        del inner[last]
    elif kind == 1:
        # Another value of the file is more likely to be accepted.
        inner[last] = copy.deepcopy(_at(value, rng.choice(places(value))))
    elif kind == 2 and type(old) is int:
        inner[last] = rng.choice((old + 1, old - 1, 2 * old, old // 2, -old, old + 64, old - 64))
    elif kind == 2 and isinstance(old, list):
        rng.shuffle(old)
    elif kind == 3 and isinstance(old, list) and old:
        old.append(copy.deepcopy(rng.choice(old)))
    else:
        inner[last] = rng.choice(_VALUES)


def _of_settings(rng: random.Random, header: dict[str, Any], data: bytearray) -> None:
    settings = json.loads(header["__metadata__"]["settings"])
    for _ in range(rng.choice((1, 1, 2))):
        change(rng, settings)
    header["__metadata__"]["settings"] = json.dumps(settings)


def _of_header(rng: random.Random, header: dict[str, Any], data: bytearray) -> None:
    arrays = [name for name in header if name != "__metadata__"]
    kind = rng.randrange(3)
    if kind == 0:
        one, other = rng.sample(arrays, 2)
        header[one], header[other] = header[other], header[one]
    elif kind == 1:
        # The same bytes as another shape or dtype.
        entry = header[rng.choice(arrays)]
        rng.shuffle(entry["shape"])
        entry["dtype"] = rng.choice(("I8", "I32", "F32"))
    else:
        change(rng, header)


def _of_data(rng: random.Random, header: dict[str, Any], data: bytearray) -> None:
    for _ in range(rng.choice((1, 1, 100))):
        place, count = rng.randrange(len(data)), rng.choice((1, 4, 64))
        # Half of them are NaN, infinite or large.
        bytes_ = rng.choice(
            (rng.randbytes(count), rng.choice(b"\xff\x7f\x80\0").to_bytes() * count)
        )
        data[place : place + count] = bytes_[: len(data) - place]


def damaged(rng: random.Random, content: bytes) -> bytes:
    """Return a file with a change somewhere."""
    (length,) = struct.unpack("<Q", content[:8])
    if rng.random() < 0.2:
        found = bytearray(content)
        place = rng.randrange(8 + length)
        found[place : place + 1] = rng.randbytes(rng.choice((0, 1, 1, 1, 2)))
        return bytes(found if rng.random() < 0.8 else found[: rng.randrange(len(found))])
    header, data = json.loads(content[8 : 8 + length]), bytearray(content[8 + length :])
    kinds: tuple[Callable[..., None], ...] = (_of_settings, _of_settings, _of_header, _of_data)
    rng.choice(kinds)(rng, header, data)
    text = json.dumps(header).encode()
    text += b" " * (-(8 + len(text)) % 64)
    return struct.pack("<Q", len(text)) + text + bytes(data)


def check(files: list[Path], kernel: str, first: int, count: int, scratch: Path) -> Counter[str]:
    """Return how many damaged files were refused, and how many ran.

    Args:
        files: Packed models that are not damaged.
        kernel: Name of the instruction set.
        first: The first seed.
        count: Number of damaged files.
        scratch: Where they go.
    """
    contents, batch = [each.read_bytes() for each in files], random_batch((LONGEST, 1, 17))
    found: Counter[str] = Counter()
    for seed in range(first, first + count):
        # What runs when the process crashes.
        sys.stderr.write(f"seed={seed}\n")
        sys.stderr.flush()
        rng = random.Random(seed)
        scratch.write_bytes(damaged(rng, contents[seed % len(contents)]))
        with guarded(Guard(at_start=False)):
            try:
                NativeRunner(scratch, threads=1 + seed % 2, kernel=kernel).run(batch)
            except QdqBertError as error:
                found[type(error).__name__] += 1
            else:
                found["ran"] += 1
    return found


if __name__ == "__main__":
    *files, kernel, first, count, scratch = sys.argv[1:]
    outcomes = check([Path(each) for each in files], kernel, int(first), int(count), Path(scratch))
    sys.stdout.write(json.dumps(outcomes))
