"""TensorRT's calibration cache: ranges for its implicit quantization of a float graph.

    TRT-8601-EntropyCalibration2
    layer_norm: 3d0af2c4          name of a value, and amax / 127: float32 in hex, high byte first

TensorRT 10.1 deprecates implicit quantization, and 11 removes it. Versions 8 to 10 read the file
with `trtexec --int8 --calib=calibration.cache` next to the float graph, and only if the version in
its first line is their own.

Source: NVIDIA's sampleINT8, "Calibration file"; onnxruntime's `ReadDynamicRange` reads the same.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path

from qdqbert.spec import Range

# TensorRT 8.6.1 is the newest version before implicit quantization was deprecated.
_HEADER = "TRT-8601-EntropyCalibration2"
_CODES = 127


def write_calibration_cache(
    ranges: Mapping[str, Range],
    names: Mapping[str, str],
    path: Path,
) -> None:
    """Write symmetric ranges under the names of the values that sites read.

    A value that several sites read gets the widest of their ranges. A value with a range of 0 is
    left out, since TensorRT accepts no scale of 0.

    Args:
        ranges: Ranges by site name.
        names: The value that each site reads, in the float graph.
        path: The file to write.
    """
    widest: dict[str, float] = {}
    # In the order of the graph, not of the ranges.
    for site, name in names.items():
        if site in ranges and ranges[site].amax > 0:
            widest[name] = max(ranges[site].amax, widest.get(name, 0.0))
    lines = [_HEADER]
    for name, amax in widest.items():
        lines.append(f"{name}: {struct.pack('>f', amax / _CODES).hex()}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
