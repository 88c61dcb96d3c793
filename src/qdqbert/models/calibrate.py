"""Calibration of a model that keeps its quantizers: a QDQBERT one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from qdqbert.calibration.statistics import Collector, calibrator_of, choose_ranges
from qdqbert.errors import CalibrationError, SpecError
from qdqbert.insert.sited import SitedModel, observing, sited_model
from qdqbert.models.configuration import QDQBertConfig
from qdqbert.models.state import (
    adjust_,
    calibrate_weights_,
    configure_,
    set_range_,
)
from qdqbert.recipes import Switches

_Model = TypeVar("_Model", bound=nn.Module)


def calibrate(
    model: _Model, batches: Iterable[Mapping[str, Tensor]], *, recipe: Switches | None = None
) -> _Model:
    """Finds and sets the range of every quantizer of a model; changes `model` in place.

    Values at [PAD] positions are left out, memory does not grow with the data, and weights take
    their own ranges. Afterwards all quantizers that the recipe leaves on quantize.

    Args:
        model: A QDQBERT model, or another one with sited quantizers.
        batches: Keyword arguments of its forward, as a tokenizer or a DataLoader gives them.
        recipe: Bits, switches and calibrator; by default those the model has.

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
            f"The model ({type(model).__name__}) has no quantizer. Build a QDQBERT model first: "
            "`qdqbert.QDQBertModel.from_pretrained(checkpoint)`."
        )
    config = getattr(model, "config", None)
    if recipe is not None:
        configure_(sited, recipe)
        if isinstance(config, QDQBertConfig):
            config.recipe = recipe.to_dict()
    stored = config.switches if isinstance(config, QDQBertConfig) else None
    switches = recipe or stored or Switches()
    wanted = [
        site.name
        for site in sited.sites
        if site.kind == "activation" and not sited.quantizers[site.name]._disabled
    ]
    collector = Collector(wanted)
    _run(sited, batches, collector)
    ranges = choose_ranges(collector.statistics, calibrator_of(switches), bits=switches.aprec)
    device = next(model.parameters()).device
    for name, chosen in ranges.items():
        amax = torch.tensor(chosen.amax, dtype=torch.float32, device=device)
        set_range_(sited.quantizers[name], amax)
    calibrate_weights_(sited)
    adjust_(sited, switches)
    return model


def _run(sited: SitedModel, batches: Iterable[Mapping[str, Tensor]], collector: Collector) -> None:
    model = sited.model
    training = model.training
    device = next(model.parameters()).device
    seen = 0
    model.eval()
    try:
        with observing(sited, collector.observe), torch.no_grad():
            for batch in batches:
                inputs = {name: _moved(value, device) for name, value in batch.items()}
                collector.start_batch(_mask_of(inputs))
                model(**inputs)
                seen += 1
    finally:
        model.train(training)
    if not seen:
        raise CalibrationError("No batch was given, so that no quantizer saw data.")


def _moved(value: Any, device: torch.device) -> Any:
    return value.to(device) if isinstance(value, Tensor) else value


def _mask_of(inputs: Mapping[str, Any]) -> Tensor:
    mask = inputs.get("attention_mask")
    if isinstance(mask, Tensor):
        # Multiple choice has one more axis, which its model folds into the batch.
        return mask.flatten(0, -2) if mask.dim() > 2 else mask
    first = next(value for value in inputs.values() if isinstance(value, Tensor))
    return torch.ones(first.shape[:2], dtype=torch.int64, device=first.device)
