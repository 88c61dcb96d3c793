"""The ranges file: the result of a calibration, by site name, in safetensors.

    <site>                    float64 (3,)    amax, low, high
    <site>.pre_quant_scale    float32 (channels,)
    <site>.plain              float64 (3,)    range without smoothing, for recipes without it
    <site>.weight_amax        float32 () or (channels,)    for weights that do not use their own
    <site>.plain.weight_amax  the same for weights that are not divided by a scale
    <site>.mean               float32 (channels,)    for linear layers whose bias is corrected
    <site>.rounds_up.<spec>   uint8 (out, ceil(in / 8))    bits of weights that are rounded up
    <site>.plain.rounds_up.<spec>    the same for weights that are not divided by a scale

`<spec>` is JSON with the fields of a `TensorSpec` that differ from their defaults.

The graphs of all targets use it, and so does a later run with `ranges_from`. Neither calibrates
again.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from qdqbert.calibration.calibration import CalibrationResult
from qdqbert.common.errors import CalibrationError
from qdqbert.encoders.stored import problem_of, wrong_range
from qdqbert.quantization.hadamard import Hadamard
from qdqbert.quantization.spec import Range, TensorSpec

FORMAT = "qdqbert-ranges/2"
_SCALE, _WEIGHT, _MEAN = ".pre_quant_scale", ".weight_amax", ".mean"
_ROUNDS_UP, _PLAIN = ".rounds_up.", ".plain"
# A part of the names of tensors without smoothing.
_IS_PLAIN = re.compile(r"\.plain(?=$|\.weight_amax$|\.rounds_up\.)")
# The same tensors of a quantizer in a checkpoint.
_BUFFERS = {_SCALE: "_pre_quant_scale", _WEIGHT: "_amax"}


def write_ranges(calibration: CalibrationResult, path: Path) -> None:
    """Write a calibration. Equal calibrations give equal bytes."""
    tensors = _named(calibration)
    tensors |= {site + _MEAN: mean.clone() for site, mean in calibration.means.items()}
    if calibration.without_smoothing is not None:
        tensors |= _named(calibration.without_smoothing, _PLAIN)
    save_file(tensors, path, metadata={"format": FORMAT})
    # safetensors makes the file private, unlike the rest of the folder.
    path.chmod(0o644)


def read_ranges(path: Path) -> CalibrationResult:
    """Read a calibration that `write_ranges` wrote. Values are exactly the same.

    Raises:
        CalibrationError: The file does not exist, is not a ranges file, or has a range or a scale
            that cannot be used.
    """
    try:
        with safe_open(path, framework="pt") as file:
            format_name = (file.metadata() or {}).get("format")
            tensors = {name: file.get_tensor(name) for name in sorted(file.keys())}
    except (OSError, SafetensorError) as error:
        raise CalibrationError(f"{str(path)!r} is not a ranges file: {error}") from error
    if format_name != FORMAT:
        raise CalibrationError(
            f"{str(path)!r} is not a ranges file: expected format {FORMAT!r}, got {format_name!r}."
        )
    _check(path, tensors)
    plain = {name: x for name, x in tensors.items() if _IS_PLAIN.search(name)}
    found = _calibration({name: x for name, x in tensors.items() if name not in plain})
    without = _calibration({_IS_PLAIN.sub("", name): x for name, x in plain.items()})
    if not without.ranges:
        return found
    without = dataclasses.replace(without, means=found.means)
    return dataclasses.replace(found, without_smoothing=without)


def _check(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Refuse ranges, scales and means that cannot be used."""
    for name, x in tensors.items():
        if _ROUNDS_UP in name:
            continue
        suffix = next((each for each in (_SCALE, _WEIGHT, _MEAN) if name.endswith(each)), None)
        values = x.numpy()
        if suffix is not None:
            problem = problem_of(_BUFFERS.get(suffix, ""), values)
        else:
            problem = (
                problem_of("", values, [(3,)])
                or problem_of("_amax", values[:1])
                or problem_of("_range", values[1:])
            )
        if problem is not None:
            raise CalibrationError(wrong_range(name, problem, str(path)))


def _named(calibration: CalibrationResult, mark: str = "") -> dict[str, Tensor]:
    """Return the tensors of a calibration but its means, by names with a mark behind the site."""
    tensors = {
        f"{site}{mark}": torch.tensor([chosen.amax, chosen.low, chosen.high], dtype=torch.float64)
        for site, chosen in calibration.ranges.items()
    }
    tensors |= {site + mark + _SCALE: x.clone() for site, x in calibration.scales.items()}
    tensors |= {site + mark + _WEIGHT: x.clone() for site, x in calibration.weight_amax.items()}
    for (site, spec), bits in calibration.roundings.items():
        changed = {
            field.name: getattr(spec, field.name)
            for field in dataclasses.fields(spec)
            if getattr(spec, field.name) != field.default
        }
        text = json.dumps(changed, sort_keys=True, default=dataclasses.asdict)
        tensors[f"{site}{mark}{_ROUNDS_UP}{text}"] = bits.clone()
    return tensors


def _spec_of(text: str) -> TensorSpec:
    changed = json.loads(text)
    if "hadamard" in changed:
        changed["hadamard"] = Hadamard(**changed["hadamard"])
    return TensorSpec(**changed)


def _calibration(tensors: Mapping[str, Tensor]) -> CalibrationResult:
    """Return the calibration with these tensors, whose names have no mark."""
    roundings = {}
    ranges = {}
    for name, x in tensors.items():
        site, is_rounding, spec = name.partition(_ROUNDS_UP)
        if is_rounding:
            roundings[site, _spec_of(spec)] = x
        elif not name.endswith((_SCALE, _WEIGHT, _MEAN)):
            amax, low, high = x.tolist()
            ranges[name] = Range(amax=amax, low=low, high=high)
    return CalibrationResult(
        ranges=ranges,
        scales=_ending(tensors, _SCALE),
        weight_amax=_ending(tensors, _WEIGHT),
        means=_ending(tensors, _MEAN),
        roundings=roundings,
    )


def _ending(tensors: Mapping[str, Tensor], suffix: str) -> dict[str, Tensor]:
    return {
        name.removesuffix(suffix): each for name, each in tensors.items() if name.endswith(suffix)
    }
