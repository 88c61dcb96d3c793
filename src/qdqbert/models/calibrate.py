"""Calibration of a model that keeps its quantizers: a QDQBERT one, or one that was prepared."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from qdqbert.calibration.calibrate import run_passes
from qdqbert.calibration.passes import CalibrationPlan
from qdqbert.calibration.processes import is_shared
from qdqbert.calibration.statistics import Observer, calibrator_of
from qdqbert.errors import CalibrationError, SpecError
from qdqbert.insert.sited import SitedModel, linear_weights, observing, sited_model
from qdqbert.models.configuration import excluded_of, quantizer_options_of
from qdqbert.models.state import apply_calibration_, configure_, place_
from qdqbert.recipes import QuantizerOptions, build_recipe

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
    placed = None if placement is None else build_recipe(placement)
    plan = CalibrationPlan(
        sites=[
            site
            for site in sited.sites
            if site.kind == "activation" and not sited.quantizers[site.name]._disabled
        ],
        all_sites=sited.sites,
        weights=linear_weights(sited),
        calibrator=calibrator_of(quantizer_options),
        smoothing=None if placed is None else placed.smoothing,
        clips_residuals=placed is not None and placed.clips_residuals,
        quantizer_options=quantizer_options,
        shared_on=_device(model) if is_shared() else None,
    )
    # Each pass reads all batches, which an iterator gives only once.
    seen = list(batches) if len(plan.passes) > 1 else batches
    found = run_passes(functools.partial(_run, sited, seen, advance=advance), plan)
    apply_calibration_(sited, found)
    return model


def _run(
    sited: SitedModel,
    batches: Iterable[Mapping[str, Tensor]],
    observer: Observer,
    scales: Mapping[str, Tensor],
    *,
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
