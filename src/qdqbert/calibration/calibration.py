"""One calibration: runs a model over batches and chooses ranges and `pre_quant_scale`s."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Collection, Mapping, Sequence

import torch
from torch import Tensor

from qdqbert.calibration.residual_clipping import ResidualErrorObserver, clip_residual_ranges
from qdqbert.calibration.smoothing import ChannelAmaxObserver, choose_pre_quant_scales
from qdqbert.calibration.statistics import (
    CombinedObserver,
    HistogramObserver,
    Observer,
    choose_ranges,
)
from qdqbert.encoding import Batch
from qdqbert.insert.sited import SitedModel, linear_weights, observing, site_of
from qdqbert.numerics.ranges import Calibrator
from qdqbert.recipes import QKV_WEIGHTS, QuantizerOptions, fused_groups
from qdqbert.spec import Range, Recipe, Site, Smoothing

Forward = Callable[[Mapping[str, Tensor]], object]

Pass = Callable[[Observer, Mapping[str, Tensor]], None]
"""One run over all batches: tells a watcher each batch's mask `(batch, seq)`, then shows it each
activation, multiplied by its scale where one is given."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Calibration:
    """What calibration chose.

    Attributes:
        ranges: Of activations, by site name. Of a site with a scale: after multiplying by it.
        scales: `pre_quant_scale` by site name, `(channels,)`, float32.
        weight_amax: Of weights that do not take their own, by site name: those that share one, or
            were trained with a fixed one. `()` or `(channels,)`, float32.
        plain: The same without `pre_quant_scale`s, for recipes that do not smooth; `None` if no one
            asked for it.
    """

    ranges: Mapping[str, Range]
    scales: Mapping[str, Tensor]
    weight_amax: Mapping[str, Tensor] = dataclasses.field(default_factory=dict)
    plain: Calibration | None = None

    def for_recipe(self, recipe: Recipe) -> Calibration:
        """What of it a recipe wants."""
        return self.plain if self.plain is not None and recipe.smoothing is None else self


def calibrate(
    sited: SitedModel,
    forward: Forward,
    batches: Sequence[Batch],
    *,
    sites: Collection[str],
    calibrator: Calibrator,
    smoothing: Smoothing | None = None,
    plain_sites: Collection[str] = (),
    clips_residuals: bool = False,
    quantizer_options: QuantizerOptions | None = None,
    advance: Callable[[], None] = lambda: None,
) -> Calibration:
    """Runs the float model over all batches, twice if inputs are smoothed.

    Args:
        sited: The model with quantizers.
        forward: Runs the model on inputs by name, `(batch, seq)`.
        batches: What it sees.
        sites: Names of the activations that need a range.
        calibrator: How ranges are chosen.
        smoothing: Which inputs get a `pre_quant_scale`.
        plain_sites: Names of those that need a range without one too.
        clips_residuals: Whether what is added to a residual is clipped to what LayerNorm can see.
        quantizer_options: How ranges are clipped and shared afterwards, and their bits.
        advance: Called after each batch of each pass.

    Raises:
        CalibrationError: A site saw no value, or one that is not finite.
    """
    return calibrate_passes(
        functools.partial(run_observed, sited, forward, batches, advance=advance),
        sites=[site_of(sited.quantizers[name]) for name in sites],
        all_sites=sited.sites,
        weights=linear_weights(sited),
        calibrator=calibrator,
        smoothing=smoothing,
        plain_sites=plain_sites,
        clips_residuals=clips_residuals,
        quantizer_options=quantizer_options,
    )


def run_observed(
    sited: SitedModel,
    forward: Forward,
    batches: Sequence[Batch],
    observer: Observer,
    scales: Mapping[str, Tensor],
    *,
    advance: Callable[[], None] = lambda: None,
) -> None:
    """Runs a model over all batches and shows its activations; see `Pass`."""
    with observing(sited, observer.observe, scales), torch.inference_mode():
        for batch in batches:
            inputs = {name: torch.from_numpy(array) for name, array in batch.inputs.items()}
            # Choices are folded into the batch by their model.
            observer.start_batch(inputs["attention_mask"].flatten(0, -2))
            forward(inputs)
            advance()


def calibrate_passes(
    run: Pass,
    *,
    sites: Sequence[Site],
    all_sites: Sequence[Site],
    weights: Mapping[str, Tensor],
    calibrator: Calibrator,
    smoothing: Smoothing | None = None,
    plain_sites: Collection[str] = (),
    clips_residuals: bool = False,
    quantizer_options: QuantizerOptions | None = None,
) -> Calibration:
    """The same of anything that can be run and watched.

    Args:
        run: Runs it over all batches; called twice if inputs are smoothed.
        sites: The activations that need a range.
        all_sites: Those and all others.
        weights: Weight `(out, in)` of each linear, by the name of its input's site.
        calibrator: How ranges are chosen.
        smoothing: Which inputs get a `pre_quant_scale`.
        plain_sites: Names of those that need a range without one too.
        clips_residuals: Whether what is added to a residual is clipped to what LayerNorm can see.
        quantizer_options: How ranges are clipped and shared afterwards, and their bits.

    Raises:
        CalibrationError: A site saw no value, or one that is not finite.
    """
    quantizer_options = quantizer_options or QuantizerOptions()
    smoothed = [site.name for site in sites if smoothing is not None and smoothing.matches(site)]
    scales: dict[str, Tensor] = {}
    unscaled = HistogramObserver(set(smoothed).intersection(plain_sites))
    if smoothing is not None:
        channels = ChannelAmaxObserver(smoothed)
        run(CombinedObserver(channels, unscaled), {})
        scales = choose_pre_quant_scales(channels, weights, alpha=smoothing.alpha)
    names = [site.name for site in sites]
    collector = HistogramObserver(names)
    # Sums are measured as they are: with channels of a like range there is nothing to clip.
    clipped = [name for name in names if clips_residuals and name not in scales]
    sums = ResidualErrorObserver(clipped, bits=quantizer_options.aprec)
    run(CombinedObserver(collector, sums), scales)
    ranges = choose_ranges(collector.statistics, calibrator, bits=quantizer_options.aprec)
    ranges = clip_residual_ranges(ranges, sums.errors)

    def finished(
        ranges: Mapping[str, Range], scales: Mapping[str, Tensor], plain: Calibration | None = None
    ) -> Calibration:
        shares = quantizer_options.fuse_qkv and quantizer_options.quant_per_tensor
        return Calibration(
            ranges=quantizer_options.adjust(ranges, all_sites),
            scales=scales,
            weight_amax=_shared_weight_amax(weights, scales) if shares else {},
            plain=plain,
        )

    plain = None
    if scales and plain_sites:
        without = choose_ranges(unscaled.statistics, calibrator, bits=quantizer_options.aprec)
        wanted = set(plain_sites)
        plain = finished(
            {name: chosen for name, chosen in {**ranges, **without}.items() if name in wanted}, {}
        )
    return finished(ranges, scales, plain)


def _shared_weight_amax(
    weights: Mapping[str, Tensor], scales: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """One range for the weights of query, key and value."""
    found: dict[str, Tensor] = {}
    names = {name.replace("._input_", "._weight_"): name for name in weights}
    for group in fused_groups(names, QKV_WEIGHTS):
        amax = 0.0
        for name in group:
            scale = scales.get(names[name], torch.ones(()))
            amax = max(amax, float((weights[names[name]] * (1 / scale)).abs().max()))
        found.update(dict.fromkeys(group, torch.tensor(amax)))
    return found
