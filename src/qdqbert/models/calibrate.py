"""Calibration of a model that keeps its quantizers: a QDQBERT one, or one that was prepared."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from qdqbert.calibration.processes import shared_amax, shared_errors, shared_statistics
from qdqbert.calibration.residual_clipping import ResidualErrorObserver, clip_residual_ranges
from qdqbert.calibration.smoothing import ChannelAmaxObserver, choose_pre_quant_scales
from qdqbert.calibration.statistics import (
    CombinedObserver,
    HistogramObserver,
    Observer,
    calibrator_of,
    choose_ranges,
)
from qdqbert.errors import CalibrationError, SpecError
from qdqbert.insert.sited import SitedModel, linear_weights, observing, site_of, sited_model
from qdqbert.models.configuration import excluded_of, quantizer_options_of
from qdqbert.models.state import adjust_, calibrate_weights_, configure_, place_, set_range_
from qdqbert.recipes import QuantizerOptions, build_recipe
from qdqbert.spec import Smoothing, is_residual_input

_Model = TypeVar("_Model", bound=nn.Module)


def calibrate(
    model: _Model,
    batches: Iterable[Mapping[str, Tensor]],
    *,
    recipe: QuantizerOptions | None = None,
    advance: Callable[[], None] = lambda: None,
) -> _Model:
    """Finds and sets the range of every quantizer of a model; changes `model` in place.

    Values at [PAD] positions are left out, memory does not grow with the data, and weights take
    their own ranges. Afterwards all quantizers that the recipe leaves on quantize. With several
    processes, as `torchrun` starts them, each gives its part of the data and all get the same
    ranges as one that saw everything.

    Args:
        model: A QDQBERT model, or one that went through `qdqbert.prepare`.
        batches: Keyword arguments of its forward, as a tokenizer or a DataLoader gives them.
        recipe: Bits, switches and calibrator; by default those the model has.
        advance: Called after each batch of each pass; there are two where inputs are smoothed.

    Returns:
        The model.

    Raises:
        SpecError: The model has no quantizer.
        CalibrationError: There was no batch, or a quantizer saw no value or one not finite.
        UnmatchedRuleError: A pattern of the recipe finds nothing.
    """
    sited = sited_model(model)
    if not sited.quantizers:
        raise SpecError(
            f"The model ({type(model).__name__}) has no quantizer. Put them in first: "
            "`qdqbert.prepare(model)`, or build a QDQBERT model: "
            "`qdqbert.QDQBertModel.from_pretrained(checkpoint)`."
        )
    config = getattr(model, "config", None)
    placement = getattr(config, "placement", None)
    if recipe is not None:
        if placement is None:
            configure_(sited, recipe)
        else:
            place_(sited, placement, recipe, excluded_of(config))
        if hasattr(config, "recipe"):
            config.recipe = recipe.to_dict()  # type: ignore[union-attr]
    quantizer_options = recipe or quantizer_options_of(config) or QuantizerOptions()
    scales: dict[str, Tensor] = {}
    placed = None if placement is None else build_recipe(placement)
    if placed is not None and placed.smoothing is not None:
        batches = list(batches)  # they are read twice
        scales = _smooth_(sited, batches, placed.smoothing, advance)
    collector = HistogramObserver(_wanted(sited))
    clips = placed is not None and placed.clips_residuals
    clipped = [name for name in _wanted(sited) if clips and name not in scales]
    sums = ResidualErrorObserver(clipped, bits=quantizer_options.aprec)
    _run(sited, batches, CombinedObserver(collector, sums), scales, advance)
    statistics = shared_statistics(collector.statistics, _device(model))
    ranges = choose_ranges(
        statistics, calibrator_of(quantizer_options), bits=quantizer_options.aprec
    )
    ranges = clip_residual_ranges(ranges, shared_errors(sums.errors, _device(model)))
    for name, chosen in ranges.items():
        set_range_(sited.quantizers[name], chosen)
        sited.quantizers[name].to(_device(model))
    calibrate_weights_(sited)
    adjust_(sited, quantizer_options)
    return model


def _wanted(sited: SitedModel) -> list[str]:
    return [
        site.name
        for site in sited.sites
        if site.kind == "activation" and not sited.quantizers[site.name]._disabled
    ]


def _smooth_(
    sited: SitedModel,
    batches: Iterable[Mapping[str, Tensor]],
    smoothing: Smoothing,
    advance: Callable[[], None],
) -> dict[str, Tensor]:
    """Gives smoothed inputs their `pre_quant_scale`, and the weights its inverse."""
    for quantizer in sited.quantizers.values():
        if quantizer.pre_quant_scale is not None:
            del quantizer._pre_quant_scale
    channels = ChannelAmaxObserver(
        [name for name in _wanted(sited) if smoothing.matches(site_of(sited.quantizers[name]))]
    )
    _run(sited, batches, channels, {}, advance)
    shared_amax({leader: channels.amax[leader] for leader in channels.groups})
    scales = choose_pre_quant_scales(channels, linear_weights(sited), alpha=smoothing.alpha)
    for name, scale in scales.items():
        sited.quantizers[name].pre_quant_scale = scale
        if not is_residual_input(name):
            weight = name.replace("._input_quantizer", "._weight_quantizer")
            sited.quantizers[weight].pre_quant_scale = 1 / scale
    return scales


def _run(
    sited: SitedModel,
    batches: Iterable[Mapping[str, Tensor]],
    observer: Observer,
    scales: Mapping[str, Tensor],
    advance: Callable[[], None],
) -> None:
    model = sited.model
    training = model.training
    device = _device(model)
    seen = 0

    model.eval()
    try:
        with observing(sited, observer.observe, scales), torch.no_grad():
            for batch in batches:
                inputs = {name: _moved(value, device) for name, value in batch.items()}
                observer.start_batch(_mask_of(inputs))
                model(**inputs)
                seen += 1
                advance()
    finally:
        model.train(training)
    if not seen:
        raise CalibrationError("No batch was given, so that no quantizer saw data.")


def _device(model: nn.Module) -> torch.device:
    return next(model.parameters()).device


def _moved(value: Any, device: torch.device) -> Any:
    return value.to(device) if isinstance(value, Tensor) else value


def _mask_of(inputs: Mapping[str, Any]) -> Tensor:
    mask = inputs.get("attention_mask")
    if isinstance(mask, Tensor):
        # Multiple choice has one more axis, which its model folds into the batch.
        return mask.flatten(0, -2) if mask.dim() > 2 else mask
    first = next(value for value in inputs.values() if isinstance(value, Tensor))
    return torch.ones(first.shape[:2], dtype=torch.int64, device=first.device)
