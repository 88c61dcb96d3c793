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
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from qdqbert.calibration.calibration import CalibrationResult
from qdqbert.common.errors import CalibrationError
from qdqbert.encoders.stored import problem_of, wrong_range
from qdqbert.quantization.numerics.weight_rounding import Roundings
from qdqbert.quantization.spec import Range, TensorSpec

FORMAT = "qdqbert-ranges/2"
_SUFFIX, _PLAIN, _WEIGHT, _MEAN = ".pre_quant_scale", ".plain", ".weight_amax", ".mean"
_ROUNDS_UP = ".rounds_up."
# The same tensors of a quantizer in a checkpoint.
_BUFFERS = {_SUFFIX: "_pre_quant_scale", _WEIGHT: "_amax"}


def write_ranges(calibration: CalibrationResult, path: Path) -> None:
    """Write a calibration. Equal calibrations give equal bytes."""
    tensors = _rows(calibration.ranges)
    if calibration.without_smoothing is not None:
        plain = _rows(calibration.without_smoothing.ranges)
        tensors |= {site + _PLAIN: row for site, row in plain.items()}
        weights = calibration.without_smoothing.weight_amax
        tensors |= {site + _PLAIN + _WEIGHT: amax.clone() for site, amax in weights.items()}
        tensors |= _named_roundings(calibration.without_smoothing.roundings, _PLAIN)
    tensors |= {site + _WEIGHT: amax.clone() for site, amax in calibration.weight_amax.items()}
    tensors |= {site + _SUFFIX: scale.clone() for site, scale in calibration.scales.items()}
    tensors |= {site + _MEAN: mean.clone() for site, mean in calibration.means.items()}
    tensors |= _named_roundings(calibration.roundings, "")
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
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise CalibrationError(f"{str(path)!r} is not a ranges file: {error}") from error
    if format_name != FORMAT:
        raise CalibrationError(
            f"{str(path)!r} is not a ranges file: expected format {FORMAT!r}, got {format_name!r}."
        )
    _check(path, tensors)
    bits = {name: tensors.pop(name) for name in list(tensors) if _ROUNDS_UP in name}
    roundings, plain_roundings = _roundings(bits)
    scales = _ending(tensors, _SUFFIX)
    plain = _ranges(_ending(tensors, _PLAIN))
    plain_amax = _ending(tensors, _PLAIN + _WEIGHT)
    weight_amax = {
        site: amax for site, amax in _ending(tensors, _WEIGHT).items() if not site.endswith(_PLAIN)
    }
    suffixes = (_SUFFIX, _PLAIN, _WEIGHT, _MEAN)
    names = [name for name in sorted(tensors) if not name.endswith(suffixes)]
    means = _ending(tensors, _MEAN)
    return CalibrationResult(
        ranges=_ranges({name: tensors[name] for name in names}),
        scales=scales,
        weight_amax=weight_amax,
        means=means,
        roundings=roundings,
        without_smoothing=(
            CalibrationResult(
                ranges=plain, weight_amax=plain_amax, means=means, roundings=plain_roundings
            )
            if plain
            else None
        ),
    )


def _check(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Refuse ranges, scales and means that cannot be used."""
    for name, x in tensors.items():
        if _ROUNDS_UP in name:
            continue
        suffix = next((each for each in (_SUFFIX, _WEIGHT, _MEAN) if name.endswith(each)), None)
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


def _named_roundings(roundings: Roundings, suffix: str) -> dict[str, Tensor]:
    return {
        f"{site}{suffix}{_ROUNDS_UP}{_json_of(spec)}": bits.clone()
        for (site, spec), bits in roundings.items()
    }


def _roundings(tensors: Mapping[str, Tensor]) -> tuple[Roundings, Roundings]:
    """Return the roundings of scaled weights, and of unscaled ones."""
    smoothed: dict[tuple[str, TensorSpec], Tensor] = {}
    plain: dict[tuple[str, TensorSpec], Tensor] = {}
    for name, bits in tensors.items():
        site, spec = name.split(_ROUNDS_UP)
        found = plain if site.endswith(_PLAIN) else smoothed
        found[site.removesuffix(_PLAIN), TensorSpec(**json.loads(spec))] = bits
    return smoothed, plain


def _json_of(spec: TensorSpec) -> str:
    changed = {
        field.name: getattr(spec, field.name)
        for field in dataclasses.fields(spec)
        if getattr(spec, field.name) != field.default
    }
    return json.dumps(changed, sort_keys=True)


def _rows(ranges: Mapping[str, Range]) -> dict[str, Tensor]:
    return {
        site: torch.tensor([chosen.amax, chosen.low, chosen.high], dtype=torch.float64)
        for site, chosen in ranges.items()
    }


def _ranges(rows: Mapping[str, Tensor]) -> dict[str, Range]:
    return {
        site: Range(amax=float(row[0]), low=float(row[1]), high=float(row[2]))
        for site, row in rows.items()
    }


def _ending(tensors: Mapping[str, Tensor], suffix: str) -> dict[str, Tensor]:
    return {
        name.removesuffix(suffix): each for name, each in tensors.items() if name.endswith(suffix)
    }
