"""Read damaged files of torch.

A process of its own does this, without torch and with little memory, so that a crash is seen.
"""

from __future__ import annotations

import io
import json
import random
import resource
import struct
import sys
import zipfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from qdqbert.common.errors import CheckpointError
from qdqbert.encoders.weights import Weights


def damaged(rng: random.Random, content: bytes) -> bytes:
    """Return a file with a change somewhere, mostly in its pickle."""
    kind = rng.randrange(4)
    if kind == 0:
        # Headers of the archive are at the end, and before each entry.
        found = bytearray(content)
        places = [found.find(b"PK\3\4", rng.randrange(len(found))), found.find(b"PK\1\2")]
        place = max(0, rng.choice(places)) + rng.randrange(80)
        found[place : place + rng.choice((0, 1, 4))] = rng.randbytes(rng.choice((0, 1, 4)))
        return bytes(found if rng.random() < 0.8 else found[: rng.randrange(len(found))])
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        entries = {each: bytearray(archive.read(each)) for each in archive.namelist()}
    code = next(each for name, each in entries.items() if name.endswith("data.pkl"))
    if kind == 1:
        name = rng.choice(list(entries))
        entries[name] = entries[name][: rng.randrange(len(entries[name]) + 1)]
    for _ in range(rng.choice((1, 1, 2, 5))):
        place = rng.randrange(len(code))
        if kind == 2:
            # Opcodes, and their arguments.
            known = b"().0NQRabcdehjlpqstu}]KMJXh\x85\x86\x87\x88\x89\x8a\x93\xff"
            code[place : place + rng.choice((0, 1))] = bytes([rng.choice(known)])
        else:
            values = (0, 1, 255, 2**31 - 1, 2**32 - 1, rng.randrange(256))
            value = struct.pack("<I", rng.choice(values))[: rng.choice((1, 2, 4))]
            code[place : place + len(value)] = value
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, each in entries.items():
            archive.writestr(name, bytes(each))
    return buffer.getvalue()


def check(files: Sequence[Path], first: int, count: int, folder: Path) -> Counter[str]:
    """Return how many damaged files were refused, and how many were read.

    Args:
        files: Files that are not damaged.
        first: The first seed.
        count: Number of damaged files.
        folder: Where they go.
    """
    contents = [each.read_bytes() for each in files]
    found: Counter[str] = Counter()
    for seed in range(first, first + count):
        sys.stderr.write(f"seed={seed}\n")
        sys.stderr.flush()
        rng = random.Random(seed)
        (folder / "pytorch_model.bin").write_bytes(damaged(rng, contents[seed % len(contents)]))
        try:
            weights = Weights(folder)
            with np.errstate(all="ignore"):
                for name in weights:
                    weights.read(name)
        except CheckpointError as error:
            found["not finite" if "not finite" in str(error) else "refused"] += 1
        else:
            found["read"] += 1
    return found


if __name__ == "__main__":
    assert "torch" not in sys.modules
    *paths, first, count, folder = sys.argv[1:]
    # What is there, and 100 MB.
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 100_000_000,) * 2)
    outcomes = check([Path(each) for each in paths], int(first), int(count), Path(folder))
    sys.stdout.write(json.dumps(outcomes))
