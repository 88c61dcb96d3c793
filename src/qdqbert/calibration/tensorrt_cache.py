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

from qdqbert.errors import CalibrationError
from qdqbert.spec import Range

LAST_FREE = "8.6.1"
"""The newest version before implicit quantization was deprecated."""

_CODES = 127


def cache_header(version: str = LAST_FREE) -> str:
    """Return the first line for a version of TensorRT, such as `"10.3.0"`: `TRT-100300-...`.

    Raises:
        ValueError: The version does not have three numbers.
    """
    numbers = [int(part) for part in version.split(".")[:3]]
    if len(numbers) != 3:
        raise ValueError(f"Expected a version such as '8.6.1', got {version!r}.")
    major, minor, patch = numbers
    # NV_TENSORRT_VERSION: two digits for the minor version since 10.
    number = major * 1000 + minor * 100 + patch
    if major >= 10:
        number = major * 10_000 + minor * 100 + patch
    return f"TRT-{number}-EntropyCalibration2"


def write_calibration_cache(
    ranges: Mapping[str, Range],
    names: Mapping[str, str],
    path: Path,
    *,
    version: str = LAST_FREE,
) -> None:
    """Write symmetric ranges under the names of the values that sites read.

    A value that several sites read gets the widest of their ranges. A value with a range of 0 is
    left out, since TensorRT accepts no scale of 0.

    Args:
        ranges: Ranges by site name.
        names: The value that each site reads, in the float graph.
        path: The file to write.
        version: Version of TensorRT.

    Raises:
        ValueError: The version does not have three numbers.
    """
    widest: dict[str, float] = {}
    # In the order of the graph, not of the ranges.
    for site, name in names.items():
        if site in ranges and ranges[site].amax > 0:
            widest[name] = max(ranges[site].amax, widest.get(name, 0.0))
    lines = [cache_header(version)]
    for name, amax in widest.items():
        lines.append(f"{name}: {struct.pack('>f', amax / _CODES).hex()}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def read_calibration_cache(path: Path) -> dict[str, float]:
    """Return the largest magnitude of each value, by its name.

    Raises:
        CalibrationError: The file is not a calibration cache.
    """
    try:
        header, *lines = path.read_text(encoding="utf-8").splitlines()
        if not header.startswith("TRT-"):
            raise ValueError(f"it starts with {header[:20]!r}")
        pairs = [line.rpartition(": ") for line in lines if line]
        return {
            name: struct.unpack(">f", bytes.fromhex(scale))[0] * _CODES for name, _, scale in pairs
        }
    except (OSError, ValueError, struct.error) as error:
        raise CalibrationError(
            f"{str(path)!r} is not a TensorRT calibration cache ({error})."
        ) from error
