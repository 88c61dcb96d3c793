"""The ranges file: what one calibration chose, keyed by site, in safetensors.

    <site>                    float64 (3,)    amax, low, high
    <site>.pre_quant_scale    float32 (in,)

Every target's graph, and every re-run at other settings, reads it; none calibrates again.
"""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from qdqbert.calibration.session import Calibration
from qdqbert.errors import CalibrationError
from qdqbert.spec import Range

_FORMAT = "qdqbert-ranges/1"
_SUFFIX = ".pre_quant_scale"


def write_ranges(calibration: Calibration, path: Path) -> None:
    """Writes a calibration; equal calibrations give equal bytes."""
    tensors = {
        site: torch.tensor([chosen.amax, chosen.low, chosen.high], dtype=torch.float64)
        for site, chosen in calibration.ranges.items()
    }
    tensors |= {site + _SUFFIX: scale.clone() for site, scale in calibration.scales.items()}
    save_file(tensors, path, metadata={"format": _FORMAT})
    path.chmod(0o644)  # safetensors makes it private; the rest of the folder is not


def read_ranges(path: Path) -> Calibration:
    """Reads what `write_ranges` wrote, exactly.

    Raises:
        CalibrationError: The file is not there or is no ranges file.
    """
    try:
        with safe_open(path, framework="pt") as file:
            format_name = (file.metadata() or {}).get("format")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise CalibrationError(f"{str(path)!r} is no ranges file: {error}") from error
    if format_name != _FORMAT:
        raise CalibrationError(
            f"{str(path)!r} is no ranges file: expected format {_FORMAT!r}, got {format_name!r}."
        )
    ranges = {
        site: Range(amax=float(row[0]), low=float(row[1]), high=float(row[2]))
        for site, row in tensors.items()
        if not site.endswith(_SUFFIX)
    }
    scales = {
        site.removesuffix(_SUFFIX): row for site, row in tensors.items() if site.endswith(_SUFFIX)
    }
    return Calibration(ranges=ranges, scales=scales)
