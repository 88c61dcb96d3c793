"""The state of a model's quantizers: configure it, write it to a config, read it back."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from qdqbert.calibration.calibration import CalibrationResult
from qdqbert.calibration.quantizers.quantizer import Quantizer
from qdqbert.calibration.reference.sited_model import SitedModel, site_of, weight_of
from qdqbert.common.errors import CheckpointError, SpecError
from qdqbert.encoders.stored import (
    STATE_VERSION,
    TENSORS,
    default_state,
    names_of,
    problem_of_inverse,
    wrong_range,
)
from qdqbert.quantization.recipes import QuantizerOptions, build_recipe
from qdqbert.quantization.spec import (
    SAFE_ADJACENT_SUM_LIMIT,
    Range,
    TensorSpec,
    is_linear_input,
    is_residual_input,
    weight_site_of,
)

MOVING = 0.01
"""Share of a batch in moving ranges, as in torch's observers."""


def configure_(sited: SitedModel, quantizer_options: QuantizerOptions) -> None:
    """Set bits and axes of all quantizers, and disable those that the options disable.

    Ranges that still fit are kept.
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
        quantizer.set_precision(spec.bits, spec.axis)


def place_(
    sited: SitedModel, recipe: str, quantizer_options: QuantizerOptions, exclude: Sequence[str] = ()
) -> None:
    """Configure quantizers as a recipe specifies. Sites that it leaves in float are disabled."""
    # QDQBERT models have none.
    has_tables = any(site.group == "table" for site in sited.sites)
    embeddings = (quantizer_options.embeddings or "int8") if has_tables else None
    resolved = build_recipe(recipe, embeddings=embeddings).resolve(sited.sites)
    specs = quantizer_options.apply(resolved, sited.sites)
    # Only GPUs run `qordered`.
    limits_pairs = has_tables and quantizer_options.weights_for != "vnni" and recipe != "qordered"
    for name, quantizer in sited.quantizers.items():
        excluded = any(re.search(pattern, name) for pattern in exclude)
        spec, site = None if excluded else specs[name], site_of(quantizer)
        if spec is not None and limits_pairs and site.kind == "weight" and site.group != "table":
            spec = dataclasses.replace(spec, adjacent_sum_limit=SAFE_ADJACENT_SUM_LIMIT)
        quantizer.configure(spec)


def apply_calibration_(sited: SitedModel, found: CalibrationResult) -> None:
    """Set the ranges and scales of a calibration. Weights without a range use their own."""
    device = next(sited.model.parameters()).device
    if found.scales:
        for quantizer in sited.quantizers.values():
            quantizer.forget_scale()
    for name, scale in found.scales.items():
        sited.quantizers[name].pre_quant_scale = scale
        if not is_residual_input(name):
            sited.quantizers[weight_site_of(name)].pre_quant_scale = 1 / scale
    for name, chosen in found.ranges.items():
        sited.quantizers[name].set_range(chosen)
        sited.quantizers[name].to(device)
    calibrate_weights_(sited)
    for name, amax in found.weight_amax.items():
        if sited.quantizers[name].is_enabled:
            sited.quantizers[name].set_range(amax.to(device))


def calibrate_weights_(sited: SitedModel) -> None:
    """Set the range of each weight from its current values."""
    for name, quantizer in sited.quantizers.items():
        if site_of(quantizer).kind == "weight" and quantizer.is_enabled:
            weight = weight_of(sited.model, name)
            if quantizer.pre_quant_scale is not None:
                weight = weight * quantizer.pre_quant_scale
            quantizer.set_range(quantizer.own_amax(weight))


def adjust_(sited: SitedModel, quantizer_options: QuantizerOptions) -> None:
    """Clip and share the ranges that are already set, as the options specify."""
    if quantizer_options.clip_gelu is None and not quantizer_options.fuse_qkv:
        return
    known = {
        name: chosen
        for name, quantizer in sited.quantizers.items()
        if (chosen := _range_of(quantizer, quantizer.amax)) is not None
    }
    for name, chosen in quantizer_options.adjust(known, sited.sites).items():
        quantizer = sited.quantizers[name]
        if chosen != known[name] and not quantizer.is_symmetric:
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


def _range_of(quantizer: Quantizer, amax: Tensor | None) -> Range | None:
    """Return the range of an activation quantizer, if it has one for the whole tensor.

    `amax` is its `amax`, or its `used_amax` to include learned ranges.
    """
    if site_of(quantizer).kind == "weight":
        return None
    ends = quantizer.range
    if ends is not None:
        low, high = ends.detach().tolist()
        return Range(amax=max(-low, high), low=low, high=high)
    if amax is None or amax.numel() != 1:
        return None
    largest = float(amax)
    return Range(amax=largest, low=-largest, high=largest)


def _amax_of(quantizer: Quantizer) -> Tensor:
    assert quantizer.amax is not None
    return quantizer.amax


def learn_ranges_(sited: SitedModel, how: Literal["fixed", "learned", "moving"]) -> None:
    """Fix calibrated ranges, or let training learn or move them.

    `fixed` keeps them, as the toolkit's guide recommends. `learned` makes the ranges of activations
    parameters. `moving` moves all ranges towards each batch's.
    """
    for quantizer in sited.quantizers.values():
        if not quantizer.is_enabled:
            continue
        if how == "learned" and site_of(quantizer).kind == "activation":
            quantizer.learn_range()
        if how == "moving" and site_of(quantizer).group != "table":
            quantizer.moving = MOVING


def fix_ranges_(sited: SitedModel) -> None:
    """Stop learning and moving ranges. They keep their present values."""
    for quantizer in sited.quantizers.values():
        quantizer.fix_range()


def stored_state(sited: SitedModel) -> dict[str, Any]:
    """Return the state that `restore_` reads besides tensors: shapes, and changed settings.

    Returns:
        Plain values. `amax`, `range` and `pre_quant_scale` map names of quantizers to shapes such
        as `"768,1"`, and `changed` maps names to attributes.
    """
    base = _base_of(sited)
    changed: dict[str, dict[str, Any]] = {}
    shapes: dict[str, dict[str, str]] = {tensor: {} for tensor in TENSORS}
    for path, quantizer in sited.quantizers.items():
        name = path.removeprefix(base)
        defaults = default_state(site_of(quantizer))
        values = quantizer.state()
        different = {key: value for key, value in values.items() if value != defaults[key]}
        if different:
            changed[name] = different
        for buffer, known in shapes.items():
            tensor = getattr(quantizer, f"_{buffer}", None)
            if tensor is not None:
                known[name] = ",".join(str(size) for size in tensor.shape)
    return {"version": STATE_VERSION, **shapes, "changed": changed}


def restore_(sited: SitedModel, stored: Mapping[str, Any]) -> None:
    """Give the quantizers of a new model a stored state. Their ranges are loaded later.

    Raises:
        CheckpointError: The state has another version, or names a quantizer that the model lacks.
    """
    base = _base_of(sited)
    unknown = sorted(names_of(stored) - {path.removeprefix(base) for path in sited.quantizers})
    if unknown:
        raise CheckpointError(
            f"config.json describes {len(unknown)} quantizers that the model does not have, such "
            f"as `{unknown[0]}`."
        )
    # transformers builds a model on the meta device before it loads weights. A model that is built
    # from a config alone loads no ranges, so it is not calibrated.
    is_loading = torch.empty(0).is_meta
    for path, quantizer in sited.quantizers.items():
        name = path.removeprefix(base)
        defaults = default_state(site_of(quantizer))
        quantizer.restore({**defaults, **stored["changed"].get(name, {})})
        for buffer in TENSORS:
            shape = stored.get(buffer, {}).get(name)
            if shape is not None and is_loading:
                sizes = tuple(int(size) for size in shape.split(",") if size)
                quantizer.expect(f"_{buffer}", sizes)


def stored_specs(sited: SitedModel) -> dict[str, TensorSpec | None]:
    """Return the spec of each quantizer, by site name. `None` if it is disabled.

    Raises:
        CheckpointError: An int8 graph cannot represent a quantizer.
    """
    return {name: _spec_of(name, each) for name, each in sited.quantizers.items()}


def stored_calibration(sited: SitedModel) -> CalibrationResult:
    """Return the ranges that a model was calibrated or trained with.

    Raises:
        CheckpointError: The `pre_quant_scale` of a weight does not undo that of its input.
    """
    ranges: dict[str, Range] = {}
    scales: dict[str, Tensor] = {}
    weight_amax: dict[str, Tensor] = {}
    for name, quantizer in sited.quantizers.items():
        if site_of(quantizer).kind == "weight":
            amax = quantizer.used_amax
            if amax is not None:
                amax = amax.detach().cpu().clone()
                weight_amax[name] = amax.reshape(()) if amax.numel() == 1 else amax.flatten()
            continue
        chosen = _range_of(quantizer, quantizer.used_amax)
        if chosen is not None:
            ranges[name] = chosen
        scale = quantizer.pre_quant_scale
        if scale is not None:
            scales[name] = scale.cpu().expand(quantizer.sizes or scale.shape).clone()
        if quantizer.is_enabled and is_linear_input(name):
            _check_inverse(sited, weight_site_of(name), scale)
    return CalibrationResult(ranges=ranges, scales=scales, weight_amax=weight_amax)


def _check_inverse(sited: SitedModel, weight: str, scale: Tensor | None) -> None:
    """Refuse a weight whose `pre_quant_scale` does not undo that of its input, `scale`."""
    both = (scale, sited.quantizers[weight].pre_quant_scale)
    problem = problem_of_inverse(*(None if x is None else x.cpu().numpy() for x in both))
    if problem is not None:
        where = str(getattr(sited.model, "name_or_path", ""))
        raise CheckpointError(wrong_range(f"{weight}._pre_quant_scale", problem, where))


def _spec_of(name: str, quantizer: Quantizer) -> TensorSpec | None:
    kept = (None, site_of(quantizer).channel_axis)
    try:
        spec = quantizer.spec
    except SpecError as error:
        raise CheckpointError(f"Quantizer `{name}` does not fit into a graph. {error}") from error
    if spec is not None and spec.axis not in kept:
        raise CheckpointError(
            f"Quantizer `{name}` has axis={spec.axis}. In a graph it can have an axis of {kept[1]} "
            "or none. Change it with `apply_quantizer_options`."
        )
    return spec


def _base_of(sited: SitedModel) -> str:
    """Return the path of the encoder in a model with a head. It is not stored with ranges."""
    return f"{sited.model.base_model_prefix}."
