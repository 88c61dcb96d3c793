"""The state of a model's quantizers: made from switches, written to a config, read back."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from qdqbert.calibration.calibration import Calibration
from qdqbert.errors import CheckpointError
from qdqbert.insert.sited import SitedModel, site_of, weight_of
from qdqbert.nn import Clip, TensorQuantizer
from qdqbert.numerics.affine import reduce_amax
from qdqbert.numerics.calibrators import (
    Calibrator,
    HistogramCalibrator,
    MaxCalibrator,
    reduced_axes,
)
from qdqbert.recipes import QuantizerOptions, build_recipe
from qdqbert.spec import Range, TensorSpec, is_residual_input, resolve, weight_site_of

_VERSION = 1
_FLAGS = {
    "num_bits": 8,
    "unsigned": False,
    "narrow_range": False,
    "symmetric": True,
    "moving": None,
    "scale_amax": None,
    "fake_quant": True,
    "learn_amax": False,
    "disabled": False,
    "if_quant": True,
    "if_clip": False,
}
_BUFFERS = ("amax", "range", "pre_quant_scale")

MOVING = 0.01
"""Share of a batch in moving ranges, that of torch's observers."""


def configure_(sited: SitedModel, quantizer_options: QuantizerOptions) -> None:
    """Sets bits, axes and switches of all quantizers, and gives them the calibrator asked for.

    What calibration gave is kept where it still fits.

    Raises:
        UnmatchedRuleError: A pattern finds nothing.
    """
    base: dict[str, TensorSpec | None] = {
        site.name: TensorSpec(axis=site.channel_axis if site.kind == "weight" else None)
        for site in sited.sites
    }
    specs = quantizer_options.apply(base, sited.sites)
    for name, quantizer in sited.quantizers.items():
        spec = specs[name]
        if spec is None:
            quantizer.disable()
            continue
        quantizer.enable()
        quantizer._num_bits = spec.bits
        if quantizer._axis != spec.axis:
            quantizer._axis = spec.axis
            forget_range_(quantizer)
        quantizer._calibrator = _calibrator(quantizer, quantizer_options)
    if quantizer_options.recalibrate_weights:
        calibrate_weights_(sited)
    adjust_(sited, quantizer_options)


def place_(
    sited: SitedModel, recipe: str, quantizer_options: QuantizerOptions, exclude: Sequence[str] = ()
) -> None:
    """Makes quantizers those of a named recipe; sites that it leaves in float are disabled.

    Args:
        sited: Any.
        recipe: Its name.
        quantizer_options: What is changed of it.
        exclude: Regular expressions: sites whose name they find are left in float.

    Raises:
        UserInputError: The recipe is unknown.
        UnmatchedRuleError: A pattern finds nothing.
    """
    # Tables are quantized when a graph is written; no quantizer of training stands on them.
    rules = build_recipe(recipe, embeddings=None).rules
    specs = quantizer_options.apply(resolve(rules, sited.sites), sited.sites)
    for name, quantizer in sited.quantizers.items():
        spec = specs[name]
        if spec is None or any(re.search(pattern, name) for pattern in exclude):
            quantizer.disable()
            continue
        quantizer.enable()
        if (quantizer.symmetric, quantizer.axis) != (spec.symmetric, spec.axis):
            forget_range_(quantizer)
        quantizer._num_bits, quantizer._axis = spec.bits, spec.axis
        quantizer.symmetric, quantizer.narrow_range = spec.symmetric, spec.narrow
        quantizer._unsigned = spec.symmetric and not spec.signed
        quantizer._calibrator = _calibrator(quantizer, quantizer_options)
    adjust_(sited, quantizer_options)


def apply_calibration_(sited: SitedModel, found: Calibration) -> None:
    """Set the ranges and scales of a calibration. Weights without a range use their own."""
    device = next(sited.model.parameters()).device
    if found.scales:
        for quantizer in sited.quantizers.values():
            if quantizer.pre_quant_scale is not None:
                del quantizer._pre_quant_scale
    for name, scale in found.scales.items():
        sited.quantizers[name].pre_quant_scale = scale
        if not is_residual_input(name):
            sited.quantizers[weight_site_of(name)].pre_quant_scale = 1 / scale
    for name, chosen in found.ranges.items():
        set_range_(sited.quantizers[name], chosen)
        sited.quantizers[name].to(device)
    calibrate_weights_(sited)
    for name, amax in found.weight_amax.items():
        if not sited.quantizers[name]._disabled:
            set_range_(sited.quantizers[name], amax.to(device))


def calibrate_weights_(sited: SitedModel) -> None:
    """Set the range of each weight from its current values."""
    for name, quantizer in sited.quantizers.items():
        if site_of(quantizer).kind == "weight" and not quantizer._disabled:
            weight = weight_of(sited.model, name)
            if quantizer.pre_quant_scale is not None:
                weight = weight * quantizer.pre_quant_scale
            amax = reduce_amax(weight, axis=reduced_axes(quantizer.axis, weight.dim()))
            set_range_(quantizer, amax)


def adjust_(sited: SitedModel, quantizer_options: QuantizerOptions) -> None:
    """Clip and share the ranges that are already set, as the options specify."""
    if quantizer_options.clip_gelu is None and not quantizer_options.fuse_qkv:
        return
    known = {
        name: chosen
        for name, quantizer in sited.quantizers.items()
        if (chosen := _range_of(quantizer)) is not None
    }
    for name, chosen in quantizer_options.adjust(known, sited.sites).items():
        quantizer = sited.quantizers[name]
        if chosen != known[name] and not quantizer.symmetric:
            quantizer.range = (chosen.low, chosen.high)
        elif chosen != known[name]:
            quantizer.amax = torch.full_like(_amax_of(quantizer), chosen.amax)
    amax = {
        name: float(quantizer.amax)
        for name, quantizer in sited.quantizers.items()
        if quantizer.amax is not None and quantizer.amax.numel() == 1
    }
    for name, largest in quantizer_options.shared_weight_amax(amax).items():
        quantizer = sited.quantizers[name]
        quantizer.amax = torch.full_like(_amax_of(quantizer), largest)


def _range_of(quantizer: TensorQuantizer) -> Range | None:
    """Return the range of an activation quantizer, if it has one for the whole tensor."""
    if site_of(quantizer).kind == "weight":
        return None
    if quantizer.range is not None:
        low, high = quantizer.range.tolist()
        return Range(amax=max(-low, high), low=low, high=high)
    if quantizer.amax is None or quantizer.amax.numel() != 1:
        return None
    largest = float(quantizer.amax)
    return Range(amax=largest, low=-largest, high=largest)


def _amax_of(quantizer: TensorQuantizer) -> Tensor:
    assert quantizer.amax is not None
    return quantizer.amax


def set_range_(quantizer: TensorQuantizer, chosen: Tensor | Range) -> None:
    """Gives a quantizer its range, whatever shape it had, and lets it quantize.

    Args:
        quantizer: Any.
        chosen: `amax`, or both ranges that calibration chose, on the CPU.
    """
    forget_range_(quantizer)
    if not quantizer.symmetric:
        assert isinstance(chosen, Range)
        quantizer.range = (chosen.low, chosen.high)
    elif isinstance(chosen, Range):
        quantizer.amax = torch.tensor(chosen.amax, dtype=torch.float32)
    else:
        quantizer.amax = chosen
    quantizer.enable_quant()
    quantizer.disable_calib()


def forget_range_(quantizer: TensorQuantizer) -> None:
    """Makes a quantizer dynamic again."""
    for buffer in ("_amax", "_range"):
        if getattr(quantizer, buffer, None) is not None:
            delattr(quantizer, buffer)


def learn_ranges_(sited: SitedModel, how: Literal["fixed", "learned", "moving"]) -> None:
    """Says what training does with calibrated ranges.

    Args:
        sited: A calibrated model.
        how: `fixed` keeps them, as the toolkit's guide says; `learned` makes those of activations
            parameters; `moving` moves all of them towards those of each batch.
    """
    for quantizer in sited.quantizers.values():
        if quantizer._disabled:
            continue
        if how == "learned" and site_of(quantizer).kind == "activation":
            quantizer.learn_range()
        if how == "moving":
            quantizer.moving = MOVING


def fix_ranges_(sited: SitedModel) -> None:
    """Ends what `learn_ranges_` began."""
    for quantizer in sited.quantizers.values():
        quantizer.fix_range()


def stored_state(sited: SitedModel) -> dict[str, Any]:
    """What `restore_` needs beside the tensors: shapes of ranges, and all that is not the default.

    Returns:
        Plain values: `amax`, `range` and `pre_quant_scale` map names to shapes such as `"768,1"`;
        `changed` maps names to attributes.
    """
    base = _base_of(sited)
    changed: dict[str, dict[str, Any]] = {}
    shapes: dict[str, dict[str, str]] = {buffer: {} for buffer in _BUFFERS}
    for path, quantizer in sited.quantizers.items():
        name = path.removeprefix(base)
        defaults = {**_FLAGS, "axis": site_of(quantizer).channel_axis}
        values = {key: getattr(quantizer, f"_{key}") for key in defaults}
        different = {key: value for key, value in values.items() if value != defaults[key]}
        if different:
            changed[name] = different
        for buffer, known in shapes.items():
            tensor = getattr(quantizer, f"_{buffer}", None)
            if tensor is not None:
                known[name] = ",".join(str(size) for size in tensor.shape)
    return {"version": _VERSION, **shapes, "changed": changed}


def restore_(sited: SitedModel, stored: Mapping[str, Any]) -> None:
    """Makes the quantizers of a new model those of a stored one; their ranges are still to load.

    Raises:
        CheckpointError: The state is of another version, or names a quantizer that is not there.
    """
    if stored.get("version") != _VERSION:
        raise CheckpointError(
            f"`quantizers` of config.json has version {stored.get('version')!r}; this version of "
            f"qdqbert reads {_VERSION}. Save the checkpoint again, or update."
        )
    named = {name for part in (*_BUFFERS, "changed") for name in stored.get(part, ())}
    base = _base_of(sited)
    unknown = sorted(named - {path.removeprefix(base) for path in sited.quantizers})
    if unknown:
        raise CheckpointError(
            f"config.json tells of {len(unknown)} quantizers that the model has not, among them "
            f"`{unknown[0]}`."
        )
    # transformers builds a model on the meta device when it is going to load it. A model that is
    # built from a config alone has nothing to load: it is not calibrated.
    is_loading = torch.empty(0).is_meta
    for path, quantizer in sited.quantizers.items():
        name = path.removeprefix(base)
        values = {**_FLAGS, "axis": site_of(quantizer).channel_axis}
        for key, value in {**values, **stored["changed"].get(name, {})}.items():
            setattr(quantizer, f"_{key}", tuple(value) if isinstance(value, list) else value)
        quantizer.sync_calibrator()
        if quantizer._learn_amax:
            quantizer.clip = Clip(-1.0, 1.0, learn_min=True, learn_max=True)
        for buffer in _BUFFERS:
            shape = stored.get(buffer, {}).get(name)
            if shape is not None and is_loading:
                sizes = [int(size) for size in shape.split(",") if size]
                quantizer.register_buffer(f"_{buffer}", torch.empty(sizes))


def stored_specs(sited: SitedModel) -> dict[str, TensorSpec | None]:
    """How each quantizer quantizes, as the pipeline says it; `None` for one that is disabled.

    Raises:
        CheckpointError: A quantizer does what no int8 graph can.
    """
    return {name: _spec_of(name, each) for name, each in sited.quantizers.items()}


def stored_calibration(sited: SitedModel) -> Calibration:
    """The ranges that a model was calibrated, or trained, with."""
    ranges: dict[str, Range] = {}
    scales: dict[str, Tensor] = {}
    weight_amax: dict[str, Tensor] = {}
    for name, quantizer in sited.quantizers.items():
        amax, ends = quantizer._known_amax, quantizer.range
        if site_of(quantizer).kind == "weight":
            if amax is not None:
                amax = amax.detach().cpu() * (quantizer._scale_amax or 1.0)
                weight_amax[name] = amax.reshape(()) if quantizer.axis is None else amax.flatten()
            continue
        if ends is not None:
            low, high = ends.detach().tolist()
            ranges[name] = Range(amax=max(-low, high), low=low, high=high)
        elif amax is not None:
            largest = float(amax) * (quantizer._scale_amax or 1.0)
            ranges[name] = Range(amax=largest, low=-largest, high=largest)
        if quantizer.pre_quant_scale is not None:
            scales[name] = quantizer.pre_quant_scale.cpu()
    return Calibration(ranges=ranges, scales=scales, weight_amax=weight_amax)


def _spec_of(name: str, quantizer: TensorQuantizer) -> TensorSpec | None:
    if quantizer._disabled or not quantizer._if_quant:
        return None
    bits, axis = quantizer.num_bits, quantizer.axis
    axis = axis[0] if isinstance(axis, tuple) and len(axis) == 1 else axis
    kept = (None, site_of(quantizer).channel_axis)
    if not isinstance(bits, int) or not 2 <= bits <= 8 or axis not in kept:
        raise CheckpointError(
            f"Quantizer `{name}` has num_bits={bits} and axis={axis}; a graph can have 2 to 8 "
            f"bits and an axis of {kept[1]} or none. Set others with `apply_quantizer_options`."
        )
    assert not isinstance(axis, tuple)
    if not quantizer.symmetric:
        return TensorSpec(bits=bits, signed=False, symmetric=False)
    narrow = quantizer.narrow_range and not quantizer.unsigned
    return TensorSpec(bits=bits, signed=not quantizer.unsigned, narrow=narrow, axis=axis)


def _base_of(sited: SitedModel) -> str:
    """Heads have the encoder under this path, which is not stored: ranges are the encoder's."""
    return f"{sited.model.base_model_prefix}."


def _calibrator(quantizer: TensorQuantizer, quantizer_options: QuantizerOptions) -> Calibrator:
    kind = site_of(quantizer).kind
    if kind == "weight" or quantizer_options.calibrator == "max":
        return MaxCalibrator(quantizer.num_bits, quantizer.axis, quantizer.unsigned)
    return HistogramCalibrator(quantizer.num_bits, quantizer.axis, quantizer.unsigned)
