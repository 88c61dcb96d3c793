"""The passes of a calibration over its data, and the part of the result that each computes.

A pass is a function. It runs the model once over all batches with observers of its own, and returns
the calibration with its results. `CalibrationPlan.passes` lists them in order.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Collection, Mapping, Sequence

import torch
from torch import Tensor

from qdqbert.calibration.bias_correction import MeanObserver
from qdqbert.calibration.calibration import CalibrationResult
from qdqbert.calibration.processes import (
    max_over_processes_,
    share_groups_,
    shared_statistics,
    sum_over_processes_,
)
from qdqbert.calibration.residual_clipping import ResidualErrorObserver, clip_residual_ranges
from qdqbert.calibration.second_moments import SecondMomentObserver, moments_of
from qdqbert.calibration.smoothing import ChannelObserver, choose_pre_quant_scales
from qdqbert.calibration.statistics import (
    CombinedObserver,
    HistogramObserver,
    MergeableObserver,
    choose_ranges,
)
from qdqbert.quantization.hadamard import Hadamard
from qdqbert.quantization.numerics.affine import spread_weight
from qdqbert.quantization.numerics.ranges import Calibrator
from qdqbert.quantization.numerics.threads import map_on_threads
from qdqbert.quantization.numerics.weight_rounding import UnroundedWeight, choose_rounding, pack
from qdqbert.quantization.recipes import QuantizerOptions
from qdqbert.quantization.spec import Range, Site, Smoothing, TensorSpec, weight_site_of

# Memory of the second moments of one pass: enough for all layers of BERT-base.
_BYTES_AT_ONCE = 600_000_000

_Rounded = tuple[str, TensorSpec]

Run = Callable[[MergeableObserver, Mapping[str, Tensor]], None]
"""Runs a model once over all batches. Passes each batch's mask `(batch, seq)` to the observer, then
each activation, multiplied by its scale if the mapping has one for its site."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class CalibrationPlan:
    """Settings of a calibration.

    Attributes:
        sites: Activations that need a range.
        all_sites: All sites of the model.
        weights: Weight `(out, in)` of each linear layer, by the name of its input's site.
        calibrator: Rule that turns statistics into a range.
        smoothing: Which inputs get a `pre_quant_scale`; `None` for none.
        unsmoothed_sites: Names of the activations that also need a range without a scale.
        clips_residuals: Clip the ranges of residual adds by the error behind the LayerNorm.
        corrects_biases: Keep the means of the inputs of linear layers, which corrected biases need.
        rounded_weights: Site and spec of each weight that is rounded by the second moments of its
            input, by recipes that smooth if any does.
        unsmoothed_rounded_weights: The same by recipes that do not smooth, if others do.
        quantizer_options: Bits, and how ranges are clipped and shared afterwards.
        on_rounded: Called after the weights that read an input were rounded, once for each of
            `rounded_inputs`.
        shared_on: Device that statistics are sent from when several processes calibrate together.
            `None` if this process calibrates alone.
    """

    sites: Sequence[Site]
    all_sites: Sequence[Site]
    weights: Mapping[str, Tensor]
    calibrator: Calibrator
    smoothing: Smoothing | None = None
    unsmoothed_sites: frozenset[str] = frozenset()
    clips_residuals: bool = False
    corrects_biases: bool = False
    rounded_weights: frozenset[tuple[str, TensorSpec]] = frozenset()
    unsmoothed_rounded_weights: frozenset[tuple[str, TensorSpec]] = frozenset()
    quantizer_options: QuantizerOptions = dataclasses.field(default_factory=QuantizerOptions)
    on_rounded: Callable[[], None] = lambda: None
    shared_on: torch.device | None = None

    @property
    def names(self) -> frozenset[str]:
        """Names of all sites of the model."""
        return frozenset(site.name for site in self.all_sites)

    @property
    def smoothed(self) -> frozenset[str]:
        """Names of the activations that get a `pre_quant_scale`."""
        smoothing = self.smoothing
        if smoothing is None:
            return frozenset()
        return frozenset(site.name for site in self.sites if smoothing.matches(site))

    @property
    def keeps_unsmoothed(self) -> bool:
        """Whether there is a calibration without any `pre_quant_scale` beside the one with them."""
        return bool(self.smoothed and self.unsmoothed_sites)

    def passes(self, names: Collection[str]) -> tuple[Pass, ...]:
        """Return the passes over a part of the model, in order. Each runs it over all batches.

        Args:
            names: All sites of the part. Sites that read the same tensor, the two inputs of a
                residual add, and sites that share a range are in the same part.
        """
        wanted = [site.name for site in self.sites if site.name in names]
        if not wanted:
            return ()
        passes: list[Pass] = [functools.partial(range_pass, names=wanted)]
        smoothed = self.smoothed
        if not smoothed.isdisjoint(wanted):
            chosen = [name for name in wanted if name in smoothed]
            passes.append(functools.partial(smoothed_range_pass, names=chosen))
        for part in self._rounded_at_once(names):
            passes.append(functools.partial(rounding_pass, names=part))
        return tuple(passes)

    @property
    def observed_again(self) -> frozenset[str]:
        """Names of the sites that passes after the first one observe."""
        return self.smoothed | set(self._rounded)

    @property
    def rounded_inputs(self) -> int:
        """Number of inputs by whose second moments weights are rounded."""
        return len(self._rounded)

    @property
    def _rounded(self) -> list[str]:
        """Names of the inputs by whose second moments weights are rounded."""
        rounded = {name for name, _ in self.rounded_weights | self.unsmoothed_rounded_weights}
        names = [site.name for site in self.sites]
        return [name for name in names if weight_site_of(name) in rounded and name in self.weights]

    def _rounded_at_once(self, names: Collection[str]) -> list[list[str]]:
        """Divide the inputs of rounded weights into groups that fit into memory."""
        parts: list[list[str]] = []
        left = 0
        for name in self._rounded:
            if name not in names:
                continue
            # float32, or int32.
            size = 4 * self.weights[name].shape[1] ** 2
            if size > left:
                parts.append([])
                left = max(size, _BYTES_AT_ONCE)
            parts[-1].append(name)
            left -= size
        return parts


Pass = Callable[[Run, CalibrationPlan, CalibrationResult], CalibrationResult]
"""Runs the model once, and returns the calibration with the results of this pass."""


def range_pass(
    run: Run, plan: CalibrationPlan, found: CalibrationResult, *, names: Sequence[str]
) -> CalibrationResult:
    """Choose the ranges of activations without a `pre_quant_scale`, and the scales of others."""
    smoothed = plan.smoothed
    plain = [name for name in names if name not in smoothed]
    channels = ChannelObserver(smoothed.intersection(names))
    histograms = HistogramObserver(
        [name for name in names if name not in smoothed or name in plan.unsmoothed_sites]
    )
    # Smoothed channels of a residual add have comparable ranges, so nothing is clipped there.
    residuals = ResidualErrorObserver(
        plain if plan.clips_residuals else (), bits=plan.quantizer_options.aprec
    )
    means = _mean_observer(plan, plain)
    run(CombinedObserver(channels, histograms, residuals, means), found.scales)
    if plan.shared_on is not None:
        share_groups_(channels, smoothed.intersection(names), plan.shared_on)
        leaders = list(channels.groups)
        max_over_processes_({leader: channels.ends[leader] for leader in leaders})
        sum_over_processes_({leader: channels.totals[leader] for leader in leaders}, plan.shared_on)
        sum_over_processes_(residuals.errors, plan.shared_on)
        sum_over_processes_(means.totals, plan.shared_on)
    ranges = clip_residual_ranges(_ranges_of(histograms, plan), residuals.errors)
    found = dataclasses.replace(found, scales={**found.scales, **_chosen_scales(channels, plan)})
    if plan.keeps_unsmoothed:
        without = found.without_smoothing or CalibrationResult()
        unsmoothed = {name: each for name, each in ranges.items() if name in plan.unsmoothed_sites}
        without = _with_ranges(without, plan, unsmoothed, {})
        found = dataclasses.replace(found, without_smoothing=without)
    return _with_ranges(found, plan, {name: ranges[name] for name in plain}, means.means({}))


def smoothed_range_pass(
    run: Run, plan: CalibrationPlan, found: CalibrationResult, *, names: Collection[str]
) -> CalibrationResult:
    """Choose the ranges of activations after multiplication by their `pre_quant_scale`."""
    histograms, means = HistogramObserver(names), _mean_observer(plan, names)
    run(CombinedObserver(histograms, means), found.scales)
    if plan.shared_on is not None:
        sum_over_processes_(means.totals, plan.shared_on)
    return _with_ranges(found, plan, _ranges_of(histograms, plan), means.means(found.scales))


def rounding_pass(
    run: Run, plan: CalibrationPlan, found: CalibrationResult, *, names: Collection[str]
) -> CalibrationResult:
    """Choose how weights are rounded, by the second moments of their inputs."""
    observer = SecondMomentObserver({name: found.ranges[name] for name in names})
    run(observer, found.scales)
    groups = observer.groups
    shared: dict[str, tuple[Tensor, Tensor]] = {}
    if plan.shared_on is not None:
        shared = {leader: observer.take_totals(leader) for leader in groups}
        for index in range(2):
            mine = {leader: totals[index] for leader, totals in shared.items()}
            sum_over_processes_(mine, plan.shared_on)
    found = with_shared_weights(found, plan)
    wanted, unsmoothed = plan.rounded_weights, plan.unsmoothed_rounded_weights
    without = found.without_smoothing
    if without is None:
        # No input is smoothed, so all recipes use the same ranges.
        wanted |= unsmoothed

    def choose(leader: str) -> tuple[dict[_Rounded, Tensor], dict[_Rounded, Tensor]]:
        totals = shared.pop(leader) if shared else observer.take_totals(leader)
        inputs, moments = groups[leader], moments_of(*totals)
        rounded = _roundings(found, plan, wanted, inputs, moments)
        if without is None or not unsmoothed:
            return rounded, {}
        # The observed input was multiplied by the scale.
        scale = found.scales.get(leader, torch.ones(())).double()
        moments = moments / scale / scale.unsqueeze(-1)
        return rounded, _roundings(without, plan, unsmoothed, inputs, moments)

    roundings = dict(found.roundings)
    others = {} if without is None else dict(without.roundings)
    # The widest first, so that no thread is left with it at the end.
    widest = sorted(groups, key=lambda leader: -plan.weights[leader].shape[1])
    for leader, (rounded, other) in zip(widest, map_on_threads(choose, widest), strict=True):
        roundings |= rounded
        others |= other
        for _ in groups[leader]:
            plan.on_rounded()
    if without is not None:
        without = dataclasses.replace(without, roundings=others)
    return dataclasses.replace(found, roundings=roundings, without_smoothing=without)


def _roundings(
    found: CalibrationResult,
    plan: CalibrationPlan,
    wanted: frozenset[_Rounded],
    inputs: Sequence[str],
    moments: Tensor,
) -> dict[_Rounded, Tensor]:
    """Return the roundings of the weights that read one input, by site."""
    weights = {weight_site_of(name): plan.weights[name] for name in inputs}
    keys = sorted(((name, spec) for name, spec in wanted if name in weights), key=str)
    if not keys:
        return {}
    scales = {weight_site_of(name): found.scales.get(name) for name in inputs}
    # Weights with the same matrix are rounded by the same moments.
    unrounded: dict[Hadamard | None, dict[_Rounded, UnroundedWeight]] = {}
    for name, spec in keys:
        weight, scale, matrix = weights[name], scales[name], spec.hadamard
        weight = weight if scale is None else weight * (1 / scale)
        weight, amax = spread_weight(weight, spec, found.weight_amax.get(name))
        unrounded.setdefault(matrix, {})[name, spec] = UnroundedWeight(
            weight=weight, spec=spec, amax=amax
        )
    rounded: dict[_Rounded, Tensor] = {}
    for matrix, group in unrounded.items():
        spread = moments if matrix is None else matrix.spread(matrix.spread(moments).T)
        chosen = choose_rounding(list(group.values()), spread)
        rounded |= zip(group, map(pack, chosen), strict=True)
    return rounded


def with_shared_weights(found: CalibrationResult, plan: CalibrationPlan) -> CalibrationResult:
    """Return a calibration with the ranges that weights share, with its scales and without."""
    without = found.without_smoothing
    if without is not None:
        without = dataclasses.replace(without, weight_amax=_shared_weight_amax(plan, {}))
    return dataclasses.replace(
        found, weight_amax=_shared_weight_amax(plan, found.scales), without_smoothing=without
    )


def _mean_observer(plan: CalibrationPlan, names: Collection[str]) -> MeanObserver:
    return MeanObserver(plan.weights.keys() & set(names) if plan.corrects_biases else ())


def _ranges_of(observer: HistogramObserver, plan: CalibrationPlan) -> dict[str, Range]:
    statistics = observer.statistics
    if plan.shared_on is not None and statistics:
        statistics = shared_statistics(statistics, plan.shared_on)
    return choose_ranges(statistics, plan.calibrator, bits=plan.quantizer_options.aprec)


def _chosen_scales(channels: ChannelObserver, plan: CalibrationPlan) -> dict[str, Tensor]:
    smoothing = plan.smoothing
    if smoothing is None:
        return {}
    alphas = {site.name: smoothing.alpha_of(site) for site in plan.sites}
    return choose_pre_quant_scales(channels, plan.weights, alphas=alphas, search=smoothing.search)


def _with_ranges(
    found: CalibrationResult,
    plan: CalibrationPlan,
    ranges: Mapping[str, Range],
    means: Mapping[str, Tensor],
) -> CalibrationResult:
    """Add ranges and means, and clip and share ranges as the quantizer options specify."""
    # Ranges that were adjusted before stay the same.
    adjusted = plan.quantizer_options.adjust({**found.ranges, **ranges}, plan.all_sites)
    means = {**found.means, **means}
    without = found.without_smoothing
    if without is not None:
        without = dataclasses.replace(without, means=means)
    return dataclasses.replace(found, ranges=adjusted, means=means, without_smoothing=without)


def _shared_weight_amax(plan: CalibrationPlan, scales: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the ranges that weights share, by site name; see `CalibrationResult.weight_amax`."""
    options = plan.quantizer_options
    if not options.shares_weights:
        return {}
    largest = {
        weight_site_of(name): _scaled_amax(weight, scales.get(name))
        for name, weight in plan.weights.items()
    }
    shared = options.shared_weight_amax(largest)
    return {name: torch.tensor(amax) for name, amax in shared.items()}


def _scaled_amax(weight: Tensor, scale: Tensor | None) -> float:
    scaled = weight if scale is None else weight * (1 / scale)
    return float(scaled.abs().amax())
