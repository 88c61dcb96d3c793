"""Ranges of a call: stored in the checkpoint, taken from an earlier call, or calibrated."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Literal

from qdqbert.calibration.calibrate import count_passes, run_passes
from qdqbert.calibration.calibration import CalibrationResult
from qdqbert.calibration.passes import CalibrationPlan
from qdqbert.calibration.ranges_file import read_ranges
from qdqbert.calibration.statistics import calibrator_of
from qdqbert.common.errors import CheckpointError, UserInputError
from qdqbert.common.progress import Progress
from qdqbert.data.tokenizing.encoding import Batch
from qdqbert.encoders.model import EncoderModel
from qdqbert.encoders.stored import channels_of
from qdqbert.graphs.targets.target import Plan
from qdqbert.pipeline.cluster import cluster_run
from qdqbert.pipeline.plans import Scheme
from qdqbert.pipeline.sited import OnOutputs, SitedSource
from qdqbert.pipeline.source import Source, StoredQuantizers
from qdqbert.quantization.recipes import WIDE_INPUTS, QuantizerOptions
from qdqbert.quantization.spec import TensorSpec, is_weight
from qdqbert.runtime.artifact import RANGES, Artifact, open_artifact, rows_of

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
    """

    kind: RangeKind = "calibrated"
    known: Collection[str] | None = None
    earlier: Artifact | None = None
    notices: tuple[str, ...] = ()


def open_earlier(scheme: Scheme) -> Artifact | None:
    """Open the folder whose ranges are used again, if one was given.

    Raises:
        UserInputError: `quantize` did not write it, or options that determine ranges differ.
    """
    given = scheme.calibration.ranges_from
    if given is None:
        return None
    try:
        earlier = open_artifact(Path(given))
    except CheckpointError as error:
        raise UserInputError(f"`ranges_from`: {error}", argument="ranges_from") from error
    theirs = earlier.quantizer_options
    ours = scheme.quantizer_options.to_dict()
    for name in _RANGE_OPTIONS:
        if theirs.get(name) != ours.get(name):
            default = getattr(QuantizerOptions(), name)
            raise UserInputError(
                f"`{name}` determines ranges: it is {ours.get(name, default)} now, and was "
                f"{theirs.get(name, default)} for `ranges_from={given!r}`. Use the same value, or "
                "leave `ranges_from` out.",
                argument=name,
            )
    return earlier


def choose_range_source(source: Source, scheme: Scheme, earlier: Artifact | None) -> RangeSource:
    """Decide where the ranges come from.

    Raises:
        UserInputError: The checkpoint has ranges, and an option about calibration was given.
    """
    if earlier is not None:
        return RangeSource(kind="earlier", earlier=earlier, known=earlier.calibration_fingerprints)
    if source.stored is None or scheme.calibration.recalibrate:
        return RangeSource()
    if scheme.recipe is not None:
        notice = (
            f"`recipe={scheme.recipe!r}` replaces the quantizers of the checkpoint and the ranges "
            "that it was trained with. Leave `recipe` out to keep them."
        )
        return RangeSource(notices=(notice,))
    if not _has_all_ranges(source.stored):
        return RangeSource()
    for name in ("calibrator", "percentile"):
        value = getattr(scheme.calibration, name)
        if value is not None:
            raise UserInputError(
                f"`{name}={value!r}` applies to a new calibration, and the checkpoint "
                f"{source.name!r} has ranges of its own. Add `recalibrate=True`, or leave "
                f"`{name}` out.",
                argument=name,
            )
    notice = (
        "The ranges of the checkpoint's own quantizers are used. Pass `recalibrate=True` to "
        "calibrate again."
    )
    known = rows_of(source.training, "calibration")
    return RangeSource(kind="stored", known=tuple(sorted(known)), notices=(notice,))


def find_calibration(
    ranges: RangeSource,
    source: Source,
    sited: SitedSource,
    batches: Sequence[Batch],
    plans: Sequence[Plan],
    scheme: Scheme,
    progress: Progress,
    on_outputs: OnOutputs | None = None,
) -> CalibrationResult:
    """Return the ranges that the plans need, from wherever they come.

    If this process calibrates, `on_outputs` receives the outputs of the float model.

    Raises:
        UserInputError: Earlier ranges do not fit the model or the recipes.
        CalibrationError: A site saw no value, or one that is not finite.
    """
    if ranges.earlier is not None:
        return _earlier_calibration(ranges.earlier, source, sited, plans)
    if ranges.kind == "stored" and source.stored is not None:
        wanted = sorted({name for plan in plans for name in plan.activations})
        return _stored_calibration(source.stored.calibration, sited, wanted, scheme)
    return _calibrate(source, sited, batches, plans, scheme, progress, on_outputs)


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
    if not targets or ranges.earlier.calibration["calibrator"] == "stored":
        return ()
    return (
        f"Weights for {', '.join(targets)} are rounded to the nearest codes: `ranges_from` has the "
        "rounded weights of other targets or settings only. To get closer to float, calibrate for "
        "all targets in one call.",
    )


def training_notices(
    ranges: RangeSource, source: Source, plans: Sequence[Plan], scheme: Scheme
) -> tuple[str, ...]:
    """Say what graphs round otherwise than the trained quantizers whose ranges they have."""
    if ranges.kind != "stored" or source.stored is None:
        return ()
    trained = source.stored.specs
    tables = {site.name for site in source.sites(["table"]) if site.group == "table"}
    weights = [
        (name, trained.get(name), spec)
        for plan in plans
        if plan.target.quantizes != "nothing"
        for name, spec in plan.specs.items()
        if is_weight(name)
    ]
    of_tables = {
        (before is not None, now is not None) for name, before, now in weights if name in tables
    }
    limits = {
        (before.adjacent_sum_limit is not None, now.adjacent_sum_limit is not None)
        for name, before, now in weights
        if name not in tables and before is not None and now is not None
    }
    differences = (
        (of_tables, "embeddings='float'", "embedding tables in float", "INT8 embedding tables"),
        (limits, "weights_for='vnni'", "weights for CPUs with VNNI", "weights for all CPUs"),
    )
    found = []
    for pairs, option, off, on in differences:
        name = option.partition("=")[0]
        if (False, True) in pairs:
            found.append((off, on, f"Pass `{option}`"))
        if (True, False) in pairs:
            found.append((on, off, f"Leave `{name}` out"))
    return (
        *(
            f"`{name}` changes the quantizers that the checkpoint was trained with. Leave it out "
            "to keep them."
            for name in scheme.changes
        ),
        *(
            f"The checkpoint was trained with {before}, and its graphs have {now}, so some "
            f"predictions differ from the trained model's. {advice} to keep what was trained."
            for before, now, advice in found
        ),
    )


def _calibrate(
    source: Source,
    sited: SitedSource,
    batches: Sequence[Batch],
    plans: Sequence[Plan],
    scheme: Scheme,
    progress: Progress,
    on_outputs: OnOutputs | None,
) -> CalibrationResult:
    # Targets that smooth by default do it in the same way, and a recipe that is named applies to
    # all targets.
    smoothing = next((plan.recipe.smoothing for plan in plans if plan.recipe.smoothing), None)
    rounded = [spec for plan in plans for _, spec in plan.rounded_weights]
    if smoothing is None and any(spec.hadamard is not None for spec in rounded):
        # Ranges of each token do not need it. The moments that weights are rounded by do: they are
        # those of codes with one range for all tokens.
        smoothing = WIDE_INPUTS
    without_smoothing = [plan.activations for plan in plans if plan.recipe.smoothing is None]
    wanted = frozenset().union(*(plan.activations for plan in plans))
    calibration_plan = CalibrationPlan(
        sites=[site for site in sited.sites if site.name in wanted],
        all_sites=sited.sites,
        weights=sited.weights(),
        calibrator=calibrator_of(scheme.quantizer_options),
        smoothing=smoothing,
        unsmoothed_sites=frozenset().union(*without_smoothing),
        clips_residuals=any(plan.recipe.clips_residuals for plan in plans),
        corrects_biases=True,
        rounded_weights=_rounded_weights(plans, smooths=smoothing is not None),
        unsmoothed_rounded_weights=(
            frozenset() if smoothing is None else _rounded_weights(plans, smooths=False)
        ),
        quantizer_options=scheme.quantizer_options,
    )
    with contextlib.ExitStack() as stack:
        ray = scheme.calibration.ray
        if ray is None:
            run = sited.observed_run(batches, lambda: advance(), on_outputs)
        else:
            groups = {site.group for site in sited.sites}
            on_cluster = cluster_run(ray, source.model, groups, batches, lambda: advance())
            run = stack.enter_context(on_cluster)
        passes = count_passes(run, calibration_plan)
        total = passes * len(batches) + calibration_plan.rounded_inputs
        advance = stack.enter_context(progress.stage("Calibrating", total))
        return run_passes(run, dataclasses.replace(calibration_plan, on_rounded=advance))


def _rounded_weights(plans: Sequence[Plan], *, smooths: bool) -> frozenset[tuple[str, TensorSpec]]:
    """Return the rounded weights of the plans whose recipe smooths, or does not smooth."""
    return frozenset().union(
        *(plan.rounded_weights for plan in plans if (plan.recipe.smoothing is not None) is smooths)
    )


def _has_all_ranges(stored: StoredQuantizers) -> bool:
    activations = {
        name for name, spec in stored.specs.items() if spec is not None and not is_weight(name)
    }
    return activations <= set(stored.calibration.ranges)


def _stored_calibration(
    stored: CalibrationResult, sited: SitedSource, wanted: Sequence[str], scheme: Scheme
) -> CalibrationResult:
    ranges = scheme.quantizer_options.adjust(stored.ranges, sited.sites)
    # A weight that was trained with a range keeps it, unless its axis or range changes.
    changes_weights = scheme.quantizers.quant_per_tensor or scheme.calibration.recalibrate_weights
    return CalibrationResult(
        ranges={name: ranges[name] for name in wanted},
        scales={name: stored.scales[name] for name in wanted if name in stored.scales},
        weight_amax={} if changes_weights else stored.weight_amax,
    )


def _earlier_calibration(
    earlier: Artifact, source: Source, sited: SitedSource, plans: Sequence[Plan]
) -> CalibrationResult:
    """Read the ranges of an earlier call, if they fit these weights and recipes."""
    given = f"`ranges_from={str(earlier.directory)!r}`"
    theirs = earlier.checkpoint
    if theirs.get("parameters_sha256") != sited.parameters_sha256:
        raise UserInputError(
            f"{given} contains ranges for the weights of {theirs['name']!r}, which differ from "
            f"the weights of {source.name!r}. Leave it out to calibrate.",
            argument="ranges_from",
        )
    calibration = read_ranges(earlier.directory / RANGES)
    _check_sizes(calibration, source.encoder, given)
    for plan in plans:
        missing = _missing_ranges(plan, sited, calibration)
        if missing:
            recipes = sorted({each["recipe"]["name"] for each in earlier.targets.values()})
            raise UserInputError(
                f"{given} has no suitable ranges for {len(missing)} of {len(plan.activations)} "
                f"sites of recipe `{plan.recipe.name}`, such as `{missing[0]}`. It was made for "
                f"the recipe {', '.join(recipes)}. Pass that as `recipe`, or calibrate for all "
                "targets in one call.",
                argument="ranges_from",
            )
    return calibration


def _check_sizes(calibration: CalibrationResult, encoder: EncoderModel, given: str) -> None:
    """Refuse scales, means and ranges of weights that have another number of channels."""
    channels = dict(channels_of(encoder))
    vectors = [calibration.scales, calibration.means, calibration.weight_amax]
    for name, x in itertools.chain.from_iterable(each.items() for each in vectors):
        count = channels.get(name)
        if x.dim() and count is not None and x.shape != (count,):
            raise UserInputError(
                f"{given} has shape {tuple(x.shape)} for `{name}`, which has {count} channels. "
                "Leave it out to calibrate.",
                argument="ranges_from",
            )


def _missing_ranges(plan: Plan, sited: SitedSource, calibration: CalibrationResult) -> list[str]:
    """Return the sites of a plan that have no range, or one for another smoothing."""
    chosen, smoothing = calibration.for_recipe(plan.recipe), plan.recipe.smoothing
    smoothed = {
        site.name for site in sited.sites if smoothing is not None and smoothing.matches(site)
    }
    ranged = plan.activations if plan.target.dynamic else set(chosen.ranges)
    return sorted(plan.activations - ranged | plan.activations & (smoothed ^ set(chosen.scales)))
