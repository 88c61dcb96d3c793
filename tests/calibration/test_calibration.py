from __future__ import annotations

import pytest
import torch

from calibrated import calibrate
from qdqbert.graphs.targets import TARGETS
from qdqbert.quantization.numerics.ranges import Entropy, Max, Percentile
from qdqbert.quantization.recipes import WIDE_INPUTS, QuantizerOptions, build_recipe
from qdqbert.quantization.spec import is_residual_input

FUSED = QuantizerOptions(fuse_qkv=True, quant_per_tensor=True)


def calibrated(
    each,
    *,
    smoothing=WIDE_INPUTS,
    unsmoothed_sites=None,
    calibrator=None,
    quantizer_options=None,
    clips_residuals=False,
):
    names = [site.name for site in each.sited.sites if site.kind == "activation"]
    seen = []
    calibration = calibrate(
        each.sited,
        lambda inputs: each.body(**inputs),
        each.batches,
        sites=names,
        calibrator=calibrator or Max(),
        smoothing=smoothing,
        unsmoothed_sites=frozenset(names if unsmoothed_sites is None else unsmoothed_sites),
        quantizer_options=quantizer_options or QuantizerOptions(),
        clips_residuals=clips_residuals,
        advance=lambda: seen.append(1),
    )
    return calibration, len(seen) // len(each.batches)


def test_targets_that_smooth_do_it_alike() -> None:
    # One calibration serves all targets: it has ranges with these scales, and without any.
    quantizing = [target for target in TARGETS.values() if target.quantizes != "nothing"]
    smoothings = {build_recipe(target.recipe).smoothing for target in quantizing}
    assert smoothings == {None, WIDE_INPUTS}


def test_sums_of_smoothed_channels_are_not_clipped(prepared) -> None:
    each = prepared("bert")
    smoothing = build_recipe("full-smoothed").smoothing
    clipped, _ = calibrated(each, smoothing=smoothing, unsmoothed_sites=(), clips_residuals=True)
    whole, _ = calibrated(each, smoothing=smoothing, unsmoothed_sites=())
    adds = {site.name for site in each.sited.sites if is_residual_input(site.name)}
    assert len(adds) == 4 * len(each.layers)
    assert adds <= set(whole.scales)
    assert dict(clipped.ranges) == dict(whole.ranges)


@pytest.mark.parametrize("quantizer_options", [None, FUSED], ids=["own", "fused"])
@pytest.mark.parametrize(
    "calibrator",
    [Max(), Percentile(99.0), pytest.param(Entropy(), marks=pytest.mark.slow)],
    ids=str,
)
def test_ranges_without_scales_are_those_of_a_calibration_without_any(
    prepared, calibrator, quantizer_options
) -> None:
    each = prepared("bert")
    both, passes = calibrated(each, calibrator=calibrator, quantizer_options=quantizer_options)
    smooth, _ = calibrated(
        each, unsmoothed_sites=(), calibrator=calibrator, quantizer_options=quantizer_options
    )
    plain, _ = calibrated(
        each, smoothing=None, calibrator=calibrator, quantizer_options=quantizer_options
    )
    assert passes == 2
    assert both.without_smoothing is not None
    assert dict(both.ranges) == dict(smooth.ranges)
    assert dict(both.without_smoothing.ranges) == dict(plain.ranges)
    assert both.without_smoothing.scales == {}
    for mine, theirs in ((both, smooth), (both.without_smoothing, plain)):
        assert set(mine.weight_amax) == set(theirs.weight_amax)
        assert bool(mine.weight_amax) is (quantizer_options is FUSED)
        assert all(
            torch.equal(mine.weight_amax[n], theirs.weight_amax[n]) for n in mine.weight_amax
        )


def test_a_recipe_is_given_the_ranges_that_it_wants(prepared) -> None:
    both, _ = calibrated(prepared("bert"))
    assert both.for_recipe(build_recipe("linear")) is both
    assert both.for_recipe(build_recipe("qordered")) is both.without_smoothing
    smooth, _ = calibrated(prepared("bert"), unsmoothed_sites=())
    assert smooth.without_smoothing is None
    assert smooth.for_recipe(build_recipe("linear")) is smooth


def test_only_wanted_sites_have_ranges_without_scales(prepared) -> None:
    each = prepared("bert")
    names = [
        name for name in each.sited.quantizers if name.endswith("output.dense._input_quantizer")
    ]
    both, _ = calibrated(each, unsmoothed_sites=names)
    assert both.without_smoothing is not None
    assert set(both.without_smoothing.ranges) == set(names)
    everything, _ = calibrated(each, smoothing=None)
    assert all(both.without_smoothing.ranges[name] == everything.ranges[name] for name in names)
