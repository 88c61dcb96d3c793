"""The passes of a calibration over its data, and what each adds to the result.

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
from qdqbert.calibration.calibration import Calibration
from qdqbert.calibration.processes import (
    max_over_processes_,
    shared_statistics,
    sum_over_processes_,
)
from qdqbert.calibration.residual_clipping import ResidualErrorObserver, clip_residual_ranges
from qdqbert.calibration.second_moments import SecondMomentObserver
from qdqbert.calibration.smoothing import ChannelObserver, choose_pre_quant_scales
from qdqbert.calibration.statistics import (
    CombinedObserver,
    HistogramObserver,
    MergeableObserver,
    choose_ranges,
)
from qdqbert.numerics.ranges import Calibrator
from qdqbert.numerics.threads import map_on_threads
from qdqbert.numerics.weight_rounding import UnroundedWeight, choose_rounding, pack
from qdqbert.recipes import QuantizerOptions
from qdqbert.spec import Range, Site, Smoothing, TensorSpec, weight_site_of

# Memory of the second moments of one pass: those of all layers of BERT-base.
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
        clips_residuals: Clip the ranges of residual adds to what LayerNorm can distinguish.
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
    def smoothed(self) -> list[str]:
        """Names of the activations that get a `pre_quant_scale`."""
        smoothing = self.smoothing
        return [
            each.name for each in self.sites if smoothing is not None and smoothing.matches(each)
        ]

    @property
    def passes(self) -> tuple[Pass, ...]:
        """The passes, in order. Each runs the model over all batches."""
        first = (range_pass,) if self.smoothing is None else (smoothing_pass, range_pass)
        return (
            *first,
            *(functools.partial(rounding_pass, names=names) for names in self._rounded_at_once()),
        )

    @property
    def rounded_inputs(self) -> int:
        """Number of inputs by whose second moments weights are rounded."""
        return sum(map(len, self._rounded_at_once()))

    def _rounded_at_once(self) -> list[list[str]]:
        """Divide the inputs of rounded weights into those whose moments are kept at a time."""
        rounded = {name for name, _ in self.rounded_weights | self.unsmoothed_rounded_weights}
        parts: list[list[str]] = []
        left = 0
        for site in self.sites:
            if weight_site_of(site.name) not in rounded or site.name not in self.weights:
                continue
            # int32, with the sums in one more row and column.
            size = 4 * (self.weights[site.name].shape[1] + 1) ** 2
            if size > left:
                parts.append([])
                left = max(size, _BYTES_AT_ONCE)
            parts[-1].append(site.name)
            left -= size
        return parts


Pass = Callable[[Run, CalibrationPlan, Calibration], Calibration]
"""Runs the model once, and returns the calibration with the results of this pass."""


def smoothing_pass(run: Run, plan: CalibrationPlan, found: Calibration) -> Calibration:
    """Choose the `pre_quant_scale` of smoothed inputs, and their ranges without it."""
    channels = ChannelObserver(plan.smoothed)
    unscaled = HistogramObserver(plan.unsmoothed_sites.intersection(plan.smoothed))
    run(CombinedObserver(channels, unscaled), found.scales)
    if plan.shared_on is not None:
        leaders = list(channels.groups)
        max_over_processes_({leader: channels.ends[leader] for leader in leaders})
        sum_over_processes_({leader: channels.totals[leader] for leader in leaders}, plan.shared_on)
    assert plan.smoothing is not None
    alphas = {site.name: plan.smoothing.alpha_of(site) for site in plan.sites}
    scales = choose_pre_quant_scales(
        channels, plan.weights, alphas=alphas, search=plan.smoothing.search
    )
    without = None
    if scales and plan.unsmoothed_sites:
        without = Calibration(ranges=_ranges_of(unscaled, plan))
    return dataclasses.replace(found, scales=scales, without_smoothing=without)


def range_pass(run: Run, plan: CalibrationPlan, found: Calibration) -> Calibration:
    """Choose the ranges of all activations, and those that weights share."""
    names = [site.name for site in plan.sites]
    histograms = HistogramObserver(names)
    # Smoothed channels of a residual add have comparable ranges, so nothing is clipped there.
    clipped = [name for name in names if plan.clips_residuals and name not in found.scales]
    residuals = ResidualErrorObserver(clipped, bits=plan.quantizer_options.aprec)
    means = MeanObserver(plan.weights.keys() & set(names) if plan.corrects_biases else ())
    run(CombinedObserver(histograms, residuals, means), found.scales)
    if plan.shared_on is not None:
        sum_over_processes_(residuals.errors, plan.shared_on)
        sum_over_processes_(means.totals, plan.shared_on)
    ranges = clip_residual_ranges(_ranges_of(histograms, plan), residuals.errors)
    chosen = means.means(found.scales)
    without = found.without_smoothing
    if without is not None:
        every = {**ranges, **without.ranges}
        wanted = {name: each for name, each in every.items() if name in plan.unsmoothed_sites}
        without = _adjusted(plan, wanted, {}, chosen)
    return dataclasses.replace(
        _adjusted(plan, ranges, found.scales, chosen), without_smoothing=without
    )


def rounding_pass(
    run: Run, plan: CalibrationPlan, found: Calibration, *, names: Collection[str]
) -> Calibration:
    """Choose how weights are rounded, by the second moments of their inputs.

    Args:
        run: See `Run`.
        plan: Settings of the calibration.
        found: Its results so far.
        names: Sites of the inputs.
    """
    observer = SecondMomentObserver({name: found.ranges[name] for name in names})
    run(observer, found.scales)
    if plan.shared_on is not None:
        observer.totals = {name: total.long() for name, total in observer.totals.items()}
        sum_over_processes_(observer.totals, plan.shared_on)
    wanted, unsmoothed = plan.rounded_weights, plan.unsmoothed_rounded_weights
    without = found.without_smoothing
    if without is None:
        # No input is smoothed, so all recipes use the same ranges.
        wanted |= unsmoothed

    def choose(leader: str) -> tuple[dict[_Rounded, Tensor], dict[_Rounded, Tensor]]:
        inputs, moments = groups[leader], observer.take_moments(leader)
        rounded = _roundings(found, plan, wanted, inputs, moments)
        if without is None or not unsmoothed:
            return rounded, {}
        # The observed input was multiplied by the scale.
        scale = found.scales.get(leader, torch.ones(())).double()
        moments = moments / scale / scale.unsqueeze(-1)
        return rounded, _roundings(without, plan, unsmoothed, inputs, moments)

    groups = observer.groups
    roundings = dict(found.roundings)
    others = {} if without is None else dict(without.roundings)
    for inputs, (rounded, other) in zip(
        groups.values(), map_on_threads(choose, groups), strict=True
    ):
        roundings |= rounded
        others |= other
        for _ in inputs:
            plan.on_rounded()
    if without is not None:
        without = dataclasses.replace(without, roundings=others)
    return dataclasses.replace(found, roundings=roundings, without_smoothing=without)


def _roundings(
    found: Calibration,
    plan: CalibrationPlan,
    wanted: frozenset[_Rounded],
    inputs: Sequence[str],
    moments: Tensor,
) -> dict[_Rounded, Tensor]:
    """Return how the weights are rounded that read one input, by the sites at which they do."""
    weights = {weight_site_of(name): plan.weights[name] for name in inputs}
    keys = sorted(((name, spec) for name, spec in wanted if name in weights), key=str)
    if not keys:
        return {}
    scales = {weight_site_of(name): found.scales.get(name) for name in inputs}
    unrounded = []
    for name, spec in keys:
        weight, scale = weights[name], scales[name]
        scaled = weight if scale is None else weight * (1 / scale)
        amax = found.weight_amax.get(name)
        unrounded.append(UnroundedWeight(weight=scaled, spec=spec, amax=amax))
    rounded = [pack(each) for each in choose_rounding(unrounded, moments)]
    return dict(zip(keys, rounded, strict=True))


def _ranges_of(observer: HistogramObserver, plan: CalibrationPlan) -> dict[str, Range]:
    statistics = observer.statistics
    if plan.shared_on is not None:
        statistics = shared_statistics(statistics, plan.shared_on)
    return choose_ranges(statistics, plan.calibrator, bits=plan.quantizer_options.aprec)


def _adjusted(
    plan: CalibrationPlan,
    ranges: Mapping[str, Range],
    scales: Mapping[str, Tensor],
    means: Mapping[str, Tensor],
) -> Calibration:
    """Clip and share ranges as the quantizer options specify."""
    options = plan.quantizer_options
    weight_amax: dict[str, Tensor] = {}
    if options.shares_weights:
        largest = {
            weight_site_of(name): _scaled_amax(weight, scales.get(name))
            for name, weight in plan.weights.items()
        }
        shared = options.shared_weight_amax(largest)
        weight_amax = {name: torch.tensor(amax) for name, amax in shared.items()}
    return Calibration(
        ranges=options.adjust(ranges, plan.all_sites),
        scales=scales,
        weight_amax=weight_amax,
        means=means,
    )


def _scaled_amax(weight: Tensor, scale: Tensor | None) -> float:
    scaled = weight if scale is None else weight * (1 / scale)
    return float(scaled.abs().amax())
