"""`qdqbert.calibrate`: find the ranges of a model that keeps its quantizers."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from torch import Tensor, nn

from qdqbert.calibration.calibrate import run_observed, run_passes
from qdqbert.calibration.calibration import CalibrationResult
from qdqbert.calibration.passes import CalibrationPlan
from qdqbert.calibration.processes import is_shared
from qdqbert.calibration.reference.sited_model import SitedModel, linear_weights, sited_model
from qdqbert.calibration.statistics import MergeableObserver, calibrator_of
from qdqbert.common.choices import CalibratorName
from qdqbert.common.errors import SpecError
from qdqbert.common.keywords import suggest_keywords
from qdqbert.encoders.checkpoint.configuration import quantizer_options_of, recipe_of
from qdqbert.quantization.recipes import PERCENTILE, QuantizerOptions, build_recipe
from qdqbert.training.models.quantized import set_options_
from qdqbert.training.models.state import apply_calibration_

_Model = TypeVar("_Model", bound=nn.Module)


@suggest_keywords
def calibrate(
    model: _Model,
    batches: Iterable[Mapping[str, Tensor]],
    *,
    calibrator: CalibratorName | None = None,
    percentile: float | None = None,
    wprec: int | None = None,
    aprec: int | None = None,
    quant_per_tensor: bool | None = None,
    quant_disable: bool | None = None,
    quant_disable_keyword: Sequence[str] | None = None,
    quant_disable_layer_module: str | None = None,
    quant_enable_layer_module: str | None = None,
    fuse_qkv: bool | None = None,
    clip_gelu: float | None = None,
    advance: Callable[[], None] = lambda: None,
) -> _Model:
    """Find and set the range of every quantizer of a model. Changes `model` in place.

    The model runs in evaluation mode and without gradients, on its own device. Values at [PAD]
    positions are left out, and memory does not grow with the data. Weights use the range of their
    values. Afterwards all quantizers that are not disabled quantize. If several processes calibrate
    together, as `torchrun` starts them, each passes its part of the data, which may be empty, and
    all get the ranges that one process would find that sees all of it.

    An option that is `None` stays as the model has it, see `qdqbert.prepare`; an option that is
    given is stored in the model's config.

    Args:
        model: A QDQBERT model, or a model that went through `qdqbert.prepare`.
        batches: Keyword arguments of the model's `forward`, as a tokenizer or a DataLoader yields
            them. They are read once, or kept in memory if the recipe smooths, which needs two
            passes.
        calibrator: Rule for a range from the observed values: `max`, `percentile`, `mse` or
            `entropy`. `max` if neither the model nor the call specifies one.
        percentile: Share of the magnitudes that a range covers, in percent, above 0 and at most
            100. Only for the calibrator `percentile`, whose default is 99.999.
        wprec: Bits of weights, 2 to 8.
        aprec: Bits of activations, 2 to 8.
        quant_per_tensor: Use one scale per weight instead of one per output channel.
        quant_disable: Keep all tensors in float.
        quant_disable_keyword: Patterns of quantizers that stay in float.
        quant_disable_layer_module: Pattern of modules that stay in float in every layer.
        quant_enable_layer_module: Pattern of modules that are quantized in every layer, although
            another option disables them.
        fuse_qkv: Share one range among query, key and value of the attention matmuls. With
            `quant_per_tensor`, share one among their weights too.
        clip_gelu: Upper limit of the range of GELU's output, in real units.
        advance: Called after each batch of each pass.

    Returns:
        The model.

    Raises:
        SpecError: The model has no quantizer, or an option is out of its range.
        CalibrationError: There was no batch, a quantizer saw no value or one that is not finite, or
            another process that calibrates with this one failed.
        UnmatchedRuleError: A pattern matches no quantizer.
    """
    given = {
        "wprec": wprec,
        "aprec": aprec,
        "quant_per_tensor": quant_per_tensor,
        "quant_disable": quant_disable,
        "quant_disable_keyword": quant_disable_keyword,
        "quant_disable_layer_module": quant_disable_layer_module,
        "quant_enable_layer_module": quant_enable_layer_module,
        "calibrator": calibrator,
        "percentile": percentile,
        "fuse_qkv": fuse_qkv,
        "clip_gelu": clip_gelu,
    }
    sited = sited_model(model)
    if not sited.quantizers:
        raise SpecError(
            f"The model ({type(model).__name__}) has no quantizer. Insert quantizers first: "
            "`qdqbert.prepare(model)`, or build a QDQBERT model: "
            "`qdqbert.QDQBertModel.from_pretrained(checkpoint)`.",
            argument="model",
        )
    options = _options(model, {name: each for name, each in given.items() if each is not None})
    apply_calibration_(sited, _calibration(sited, batches, options, advance))
    return model


def _options(model: nn.Module, given: Mapping[str, Any]) -> QuantizerOptions:
    """Apply the given options to a model, and return all of its options."""
    known = quantizer_options_of(getattr(model, "config", None)) or QuantizerOptions()
    if not given:
        return known
    changes = dict(given)
    if "calibrator" in changes and "percentile" not in changes:
        changes["percentile"] = PERCENTILE if changes["calibrator"] == "percentile" else None
    options = dataclasses.replace(known, **changes)
    set_options_(model, options)
    return options


def count_passes(model: nn.Module) -> int:
    """Return how many times `calibrate` reads all batches, with the options of the model."""
    plan = _plan(sited_model(model), _options(model, {}))
    return len(plan.passes(plan.names))


def _plan(sited: SitedModel, quantizer_options: QuantizerOptions) -> CalibrationPlan:
    model = sited.model
    recipe = recipe_of(getattr(model, "config", None))
    placed = None if recipe is None else build_recipe(recipe)
    return CalibrationPlan(
        sites=[
            site
            for site in sited.sites
            if site.kind == "activation" and sited.quantizers[site.name].is_enabled
        ],
        all_sites=sited.sites,
        weights=linear_weights(sited),
        calibrator=calibrator_of(quantizer_options),
        smoothing=None if placed is None else placed.smoothing,
        clips_residuals=placed is not None and placed.clips_residuals,
        quantizer_options=quantizer_options,
        shared_on=next(model.parameters()).device if is_shared() else None,
    )


def _calibration(
    sited: SitedModel,
    batches: Iterable[Mapping[str, Tensor]],
    quantizer_options: QuantizerOptions,
    advance: Callable[[], None],
) -> CalibrationResult:
    model = sited.model
    plan = _plan(sited, quantizer_options)

    @functools.cache
    def repeated() -> Iterable[Mapping[str, Tensor]]:
        # Each pass reads all batches, which an iterator gives only once.
        return list(batches) if len(plan.passes(plan.names)) > 1 else batches

    def run(observer: MergeableObserver, scales: Mapping[str, Tensor]) -> None:
        run_observed(
            sited, lambda each: model(**each), repeated(), observer, scales, advance=advance
        )

    return run_passes(run, plan)
