"""Ranges of a call: stored in the checkpoint, taken from an earlier call, or calibrated."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import onnx_ir as ir

from qdqbert.artifact import RANGES, Artifact, open_artifact, read_training
from qdqbert.calibration.calibrate import count_passes, run_passes
from qdqbert.calibration.calibration import CalibrationResult
from qdqbert.calibration.passes import CalibrationPlan
from qdqbert.calibration.ranges_file import read_ranges
from qdqbert.calibration.statistics import calibrator_of
from qdqbert.encoding import Batch
from qdqbert.errors import CheckpointError, UserInputError
from qdqbert.progress import Progress
from qdqbert.recipes import QuantizerOptions
from qdqbert.spec import Site, TensorSpec, is_weight
from qdqbert.targets.target import Plan
from qdqbert.verbs.quantize.cluster import cluster_run
from qdqbert.verbs.quantize.graphs import digest_parameters
from qdqbert.verbs.quantize.options import QuantizeOptions
from qdqbert.verbs.quantize.source import ModelSource, StoredQuantizers
from qdqbert.verbs.quantize.source.sited import SitedSource
from qdqbert.verbs.settings import quantizer_options_of

RangeKind = Literal["calibrated", "stored", "earlier"]
"""Where ranges come from: this call, the checkpoint, or an earlier call."""

# Quantizer options that determine ranges.
_RANGE_OPTIONS = ("aprec", "fuse_qkv", "clip_gelu", "quant_per_tensor", "recalibrate_weights")


@dataclasses.dataclass(frozen=True, kw_only=True)
class RangeSource:
    """Where the ranges of a call come from.

    Attributes:
        kind: `calibrated` in this call, `stored` in the checkpoint, or from an `earlier` call.
        known: Fingerprints of the examples that stored or earlier ranges were taken from; `None`
            if the ranges are calibrated.
        earlier: Folder of the earlier call.
        notices: Messages for the user.
    """

    kind: RangeKind
    known: Collection[str] | None = None
    earlier: Artifact | None = None
    notices: tuple[str, ...] = ()

    def parameters_sha256(self, graph: ir.Model) -> str:
        """Return the digest of a graph's weights; those of an earlier call were compared."""
        if self.earlier is not None:
            return str(self.earlier.quantization["checkpoint"]["parameters_sha256"])
        return digest_parameters(graph)

    def manifest(self, options: QuantizeOptions) -> Mapping[str, Any] | None:
        """Return the entry of `quantization.json`; `None` if the ranges are calibrated."""
        if self.earlier is not None:
            return {
                **self.earlier.quantization["calibration"],
                "ranges_from": options.calibration.ranges_from,
            }
        if self.kind == "stored":
            known = list(self.known or ())
            return {"calibrator": "stored", "examples": len(known), "fingerprints": known}
        return None


def open_earlier(options: QuantizeOptions) -> Artifact | None:
    """Open the folder whose ranges are used again, if one was given.

    Raises:
        UserInputError: `quantize` did not write it, or options that determine ranges differ.
    """
    if options.calibration.ranges_from is None:
        return None
    try:
        earlier = open_artifact(Path(options.calibration.ranges_from))
    except CheckpointError as error:
        raise UserInputError(f"`ranges_from`: {error}", argument="ranges_from") from error
    _check_same_options(earlier, options)
    return earlier


def choose_range_source(
    source: ModelSource, options: QuantizeOptions, earlier: Artifact | None
) -> RangeSource:
    """Decide where the ranges come from.

    Raises:
        UserInputError: The checkpoint has ranges, and an option about calibration was given.
    """
    if earlier is not None:
        return RangeSource(kind="earlier", earlier=earlier, known=earlier.calibration_fingerprints)
    if source.stored is None or options.calibration.recalibrate:
        return RangeSource(kind="calibrated")
    if options.recipe is not None:
        notice = (
            f"`recipe={options.recipe!r}` replaces the quantizers of the checkpoint and the ranges "
            "that it was trained with. Leave `recipe` out to keep them."
        )
        return RangeSource(kind="calibrated", notices=(notice,))
    if not _has_all_ranges(source.stored):
        return RangeSource(kind="calibrated")
    for name in ("calibrator", "percentile"):
        value = getattr(options.calibration, name)
        if value is not None:
            raise UserInputError(
                f"`{name}={value!r}` applies to a new calibration, and the checkpoint "
                f"{source.name!r} has ranges of its own. Add `recalibrate=True`, or leave "
                f"`{name}` out.",
                argument=name,
            )
    trained = read_training(Path(options.model or "")).get("calibration", {})
    notice = (
        "The ranges of the checkpoint's own quantizers are used. Pass `recalibrate=True` to "
        "calibrate again."
    )
    return RangeSource(
        kind="stored", known=tuple(trained.get("fingerprints", ())), notices=(notice,)
    )


def find_calibration(
    ranges: RangeSource,
    source: ModelSource,
    sited: SitedSource,
    batches: Sequence[Batch],
    plans: Sequence[Plan],
    options: QuantizeOptions,
    progress: Progress,
) -> CalibrationResult:
    """Return the ranges that the plans need, from wherever they come.

    Raises:
        UserInputError: Earlier ranges do not fit the model or the recipes.
        CalibrationError: A site saw no value, or one that is not finite.
    """
    if ranges.earlier is not None:
        return _earlier_calibration(ranges.earlier, source, sited, plans, options)
    if ranges.kind == "stored" and source.stored is not None:
        wanted = {name for plan in plans for name in plan.activations}
        return _stored_calibration(source.stored.calibration, sited.sites, wanted, options)
    return _calibrate(sited, batches, plans, options, progress)


def rounding_notices(
    ranges: RangeSource, plans: Sequence[Plan], calibration: CalibrationResult
) -> tuple[str, ...]:
    """Say which targets round weights to the nearest codes because of an earlier call."""
    if ranges.earlier is None:
        return ()
    targets = [
        plan.target.name
        for plan in plans
        if not plan.rounded_weights <= calibration.for_recipe(plan.recipe).roundings.keys()
    ]
    if not targets or ranges.earlier.quantization["calibration"]["calibrator"] == "stored":
        return ()
    return (
        f"Weights for {', '.join(targets)} are rounded to the nearest codes: `ranges_from` has the "
        "rounded weights of other targets or settings only. To get closer to float, calibrate for "
        "all targets in one call.",
    )


def effective_quantizer_options(options: QuantizeOptions) -> QuantizerOptions:
    """Return the quantizer options of a call, with the calibrator in use."""
    return quantizer_options_of(
        options.quantizers,
        calibrator=options.calibrator_used,
        percentile=options.calibration.percentile,
        recalibrate_weights=options.calibration.recalibrate_weights,
    )


def _calibrate(
    sited: SitedSource,
    batches: Sequence[Batch],
    plans: Sequence[Plan],
    options: QuantizeOptions,
    progress: Progress,
) -> CalibrationResult:
    # Targets that smooth by default do it in the same way, and a recipe that is named applies to
    # all targets.
    smoothing = next((plan.recipe.smoothing for plan in plans if plan.recipe.smoothing), None)
    without_smoothing = [plan.activations for plan in plans if plan.recipe.smoothing is None]
    quantizer_options = effective_quantizer_options(options)
    wanted = frozenset().union(*(plan.activations for plan in plans))
    calibration_plan = CalibrationPlan(
        sites=[site for site in sited.sites if site.name in wanted],
        all_sites=sited.sites,
        weights=sited.weights(),
        calibrator=calibrator_of(quantizer_options),
        smoothing=smoothing,
        unsmoothed_sites=frozenset().union(*without_smoothing),
        clips_residuals=any(plan.recipe.clips_residuals for plan in plans),
        corrects_biases=True,
        rounded_weights=_rounded_weights(plans, smooths=smoothing is not None),
        unsmoothed_rounded_weights=(
            frozenset() if smoothing is None else _rounded_weights(plans, smooths=False)
        ),
        quantizer_options=quantizer_options,
    )
    with contextlib.ExitStack() as stack:
        if options.calibration.ray is None:
            run = sited.observed_run(batches, lambda: advance())
        else:
            groups = {site.group for site in sited.sites}
            run = stack.enter_context(cluster_run(options, groups, batches, lambda: advance()))
        passes = count_passes(run, calibration_plan)
        total = passes * len(batches) + calibration_plan.rounded_inputs
        advance = stack.enter_context(progress.stage("Calibrating", total))
        return run_passes(run, dataclasses.replace(calibration_plan, on_rounded=advance))


def _rounded_weights(plans: Sequence[Plan], *, smooths: bool) -> frozenset[tuple[str, TensorSpec]]:
    """Return the rounded weights of the plans whose recipe smooths, or of those whose does not."""
    return frozenset().union(
        *(plan.rounded_weights for plan in plans if (plan.recipe.smoothing is not None) is smooths)
    )


def _has_all_ranges(stored: StoredQuantizers) -> bool:
    activations = {
        name for name, spec in stored.specs.items() if spec is not None and not is_weight(name)
    }
    return activations <= set(stored.calibration.ranges)


def _stored_calibration(
    stored: CalibrationResult,
    sites: Sequence[Site],
    wanted: Collection[str],
    options: QuantizeOptions,
) -> CalibrationResult:
    ranges = effective_quantizer_options(options).adjust(stored.ranges, sites)
    # A weight that was trained with a range keeps it, unless its axis or range changes.
    keeps_weights = not (
        options.quantizers.quant_per_tensor or options.calibration.recalibrate_weights
    )
    return CalibrationResult(
        ranges={name: ranges[name] for name in sorted(wanted)},
        scales={name: stored.scales[name] for name in sorted(set(stored.scales) & set(wanted))},
        weight_amax=stored.weight_amax if keeps_weights else {},
    )


def _earlier_calibration(
    earlier: Artifact,
    source: ModelSource,
    sited: SitedSource,
    plans: Sequence[Plan],
    options: QuantizeOptions,
) -> CalibrationResult:
    """Read the ranges of an earlier call, if they fit these weights and recipes."""
    given = f"`ranges_from={options.calibration.ranges_from!r}`"
    theirs = earlier.quantization["checkpoint"]
    if theirs.get("parameters_sha256") != digest_parameters(sited.graph):
        raise UserInputError(
            f"{given} contains ranges for the weights of {theirs['name']!r}, which differ from "
            f"those of {source.name!r}. Leave it out to calibrate.",
            argument="ranges_from",
        )
    calibration = read_ranges(earlier.directory / RANGES)
    for plan in plans:
        _check_ranges_fit(plan, sited.sites, calibration, earlier, given)
    return calibration


def _check_same_options(earlier: Artifact, options: QuantizeOptions) -> None:
    """Refuse options that determine ranges and differ from those of the earlier call."""
    theirs = earlier.quantization["quantizer_options"]
    ours = effective_quantizer_options(options).to_dict()
    for name in _RANGE_OPTIONS:
        if theirs.get(name) != ours.get(name):
            default = getattr(QuantizerOptions(), name)
            raise UserInputError(
                f"`{name}` determines ranges: it is {ours.get(name, default)} now, and was "
                f"{theirs.get(name, default)} for "
                f"`ranges_from={options.calibration.ranges_from!r}`. Use the same value, or leave "
                "`ranges_from` out.",
                argument=name,
            )


def _check_ranges_fit(
    plan: Plan, sites: Sequence[Site], calibration: CalibrationResult, earlier: Artifact, given: str
) -> None:
    chosen, smoothing = calibration.for_recipe(plan.recipe), plan.recipe.smoothing
    smoothed = {site.name for site in sites if smoothing is not None and smoothing.matches(site)}
    ranged = plan.activations if plan.target.dynamic else set(chosen.ranges)
    missing = sorted(plan.activations - ranged | plan.activations & (smoothed ^ set(chosen.scales)))
    if not missing:
        return
    recipes = {entry["recipe"]["name"] for entry in earlier.quantization["targets"].values()}
    raise UserInputError(
        f"{given} has no suitable ranges for {len(missing)} of {len(plan.activations)} sites of "
        f"recipe `{plan.recipe.name}`, such as `{missing[0]}`. It was made for the recipe "
        f"{', '.join(sorted(recipes))}. Pass that as `recipe`, or calibrate for all targets in one "
        "call.",
        argument="ranges_from",
    )
