"""Read TensorRT's calibration cache."""

from __future__ import annotations

import struct
from pathlib import Path


def read_calibration_cache(path: Path) -> dict[str, float]:
    """Return the largest magnitude of each value, by its name."""
    header, *lines = path.read_text(encoding="utf-8").splitlines()
    assert header == "TRT-8601-EntropyCalibration2"
    pairs = [line.rpartition(": ") for line in lines]
    return {name: struct.unpack(">f", bytes.fromhex(scale))[0] * 127 for name, _, scale in pairs}
