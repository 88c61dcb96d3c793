from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from compat_tensors import wide
from qdqbert.compat.calibrators import (
    METHODS,
    Calibrator,
    HistogramCalibrator,
    MaxCalibrator,
    calibrate_weights,
)
from qdqbert.compat.nn import (
    QuantConv2d,
    QuantConvTranspose2d,
    QuantLinear,
    QuantLSTMCell,
    QuantMaxPool1d,
)
from qdqbert.compat.tensor_quant import QuantDescriptor
from qdqbert.quantization.numerics import histogram
from qdqbert.quantization.numerics.ranges import entropy_amax, mse_amax, percentile_amax

EACH_METHOD = pytest.mark.parametrize("method", METHODS)


def draw(*shape: int, seed: int = 0) -> Tensor:
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.standard_t(4, shape)).float()


def histogram_of(*batches: Tensor, **arguments: Any) -> HistogramCalibrator:
    calibrator = HistogramCalibrator(8, None, False, **arguments)
    for batch in batches:
        calibrator.collect(batch)
    return calibrator


def grid(calibrator: HistogramCalibrator) -> tuple[np.ndarray, float]:
    """Counts and the width of a bin."""
    edges = wide(calibrator._calib_bin_edges)
    np.testing.assert_allclose(edges, np.arange(len(edges)) * edges[1])
    return wide(calibrator._calib_hist), edges[1]


# Max


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize("axis", [None, 0, 1, -1, (0, 2), (-1, 0), (0, 1, 2)], ids=str)
def test_max_is_the_running_largest_over_all_axes_but_the_kept(device, dtype, axis) -> None:
    calibrator = MaxCalibrator(8, axis, False)
    batches = [(draw(3, 4, 5, seed=seed) * 2**-seed).to(dtype).to(device) for seed in range(3)]
    for batch in batches:
        calibrator.collect(batch)
    kept = () if axis is None else (axis,) if isinstance(axis, int) else axis
    reduced = tuple({0, 1, 2} - {index % 3 for index in kept})
    magnitudes = np.max([np.abs(wide(batch)) for batch in batches], axis=0)
    expected = magnitudes.max(axis=reduced, keepdims=axis is not None)
    amax = calibrator.compute_amax()
    np.testing.assert_array_equal(wide(amax), expected, strict=True)
    assert calibrator.axis == axis
    assert not amax.requires_grad


def test_max_without_data_is_none() -> None:
    assert MaxCalibrator(8, None, False).compute_amax() is None


def test_max_takes_batches_of_other_sizes() -> None:
    calibrator = MaxCalibrator(8, -1, False)
    calibrator.collect(torch.tensor([[1.0, -5.0]]))
    calibrator.collect(torch.tensor([[[2.0, 3.0]], [[-4.0, 0.0]]]).view(2, 2))
    assert calibrator.compute_amax().tolist() == [[4.0, 5.0]]


def test_max_refuses_a_kept_axis_of_another_size() -> None:
    calibrator = MaxCalibrator(8, 0, False)
    calibrator.collect(draw(3, 4))
    with pytest.raises(RuntimeError, match=r"^amax shape changed!$"):
        calibrator.collect(draw(2, 4))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")], ids=str)
@pytest.mark.parametrize("axis", [None, 0], ids=str)
def test_max_refuses_values_that_are_not_finite_and_keeps_its_state(bad, axis) -> None:
    calibrator = MaxCalibrator(8, axis, False)
    calibrator.collect(torch.tensor([[1.0], [2.0]]))
    with pytest.raises(ValueError, match="values must be finite"):
        calibrator.collect(torch.tensor([[9.0], [bad]]))
    assert calibrator.compute_amax().max() == 2


def test_max_does_not_alias_a_batch() -> None:
    calibrator = MaxCalibrator(8, (0, 1), False)
    batch = torch.ones(2, 2)
    calibrator.collect(batch)
    batch.fill_(7)
    assert calibrator.compute_amax().tolist() == [[1, 1], [1, 1]]


def test_max_forgets_at_a_reset() -> None:
    calibrator = MaxCalibrator(8, 0, False, track_amax=True)
    calibrator.collect(draw(3, 4))
    calibrator.reset()
    assert calibrator.compute_amax() is None
    assert calibrator.amaxs == []
    calibrator.collect(draw(2, 4))
    assert calibrator.compute_amax().shape == (2, 1)


def test_max_tracks_each_batch_if_asked() -> None:
    calibrator = MaxCalibrator(8, None, False, track_amax=True)
    for value in (1.0, -3.0, 2.0):
        calibrator.collect(torch.tensor([value, 0.5]))
    assert [float(amax) for amax in calibrator.amaxs] == [1, 3, 2]
    assert calibrator.compute_amax() == 3
    assert not hasattr(MaxCalibrator(8, None, False), "amaxs")


def test_max_reads_as_in_the_toolkit() -> None:
    calibrator = MaxCalibrator(8, 0, True)
    assert str(calibrator) == "MaxCalibrator(track_amax=False)"
    assert repr(calibrator) == (
        "MaxCalibrator(num_bits=8 axis=0 unsigned=True calib_amax=None track_amax=False)"
    )
    assert repr(MaxCalibrator(8, None, False, track_amax=True)).endswith(
        "track_amax=True amaxs=[])"
    )


def test_a_calibrator_of_ones_own_has_to_do_all() -> None:
    calibrator = Calibrator(8, None, False)
    assert repr(calibrator) == "num_bits=8 axis=None unsigned=False"
    for call in (lambda: calibrator.collect(draw(1)), calibrator.reset, calibrator.compute_amax):
        with pytest.raises(NotImplementedError):
            call()


# What a histogram holds


@pytest.mark.parametrize("num_bins", [1, 2, 100, 129, 2048], ids=str)
def test_bins_are_bounded_whatever_the_first_batch_was(num_bins) -> None:
    first, huge = torch.full((9,), 1e-9), draw(999) * 1e9
    for batches in ([first], [huge], [first, huge], [huge, first], [torch.zeros(9), first, huge]):
        calibrator = histogram_of(*batches, num_bins=num_bins)
        counts, width = grid(calibrator)
        assert num_bins <= len(counts) <= 4 * num_bins
        assert len(counts) * width >= max(float(batch.abs().max()) for batch in batches)
        assert counts.sum() == sum(batch.numel() for batch in batches)


def test_number_of_bins_may_be_set_before_the_first_batch() -> None:
    calibrator = histogram_of()
    calibrator._num_bins = 16
    calibrator.collect(draw(999))
    assert 16 <= len(grid(calibrator)[0]) <= 64
    assert torch.equal(calibrator._calib_hist, histogram_of(draw(999), num_bins=16)._calib_hist)


def test_zeros_are_skipped_if_asked() -> None:
    x = torch.tensor([0.0, 1.0, 0.0, -2.0])
    assert grid(histogram_of(x))[0].sum() == 4
    assert grid(histogram_of(x, skip_zeros=True))[0].sum() == 2
    assert histogram_of(torch.zeros(3), skip_zeros=True).compute_amax("mse") is None


def test_counts_are_shown_as_tensors_or_arrays() -> None:
    calibrator = histogram_of(draw(99))
    assert isinstance(calibrator._calib_hist, Tensor)
    assert isinstance(calibrator._calib_bin_edges, Tensor)
    assert calibrator._calib_hist.numel() == calibrator._calib_bin_edges.numel() - 1
    calibrator._torch_hist = False
    assert isinstance(calibrator._calib_hist, np.ndarray)
    assert isinstance(calibrator._calib_bin_edges, np.ndarray)


@EACH_METHOD
def test_histogram_of_nothing_has_no_range(method) -> None:
    for calibrator in (histogram_of(), histogram_of(torch.zeros(0))):
        assert calibrator.compute_amax(method) is None
        assert calibrator._calib_hist is None
        assert calibrator._calib_bin_edges is None


@EACH_METHOD
def test_histogram_forgets_at_a_reset(method) -> None:
    calibrator = histogram_of(draw(99) * 100, num_bins=256)
    calibrator.reset()
    assert calibrator.compute_amax(method) is None
    calibrator.collect(draw(999))
    fresh = histogram_of(draw(999), num_bins=256)
    assert calibrator.compute_amax(method) == fresh.compute_amax(method)


# Its ranges


def test_ranges_are_those_of_the_histogram() -> None:
    x = draw(3000).abs()
    calibrator = HistogramCalibrator(4, None, False, num_bins=256)
    calibrator.collect(x)
    seen = histogram.summarize(x, calibrator._histogram.bins)
    candidates = seen.centers()[50 : seen.used : 7].clamp_max(seen.amax)
    expected = {
        "percentile": percentile_amax(seen, 90.0),
        "mse": mse_amax(seen, candidates, qmax=7),
        "entropy": entropy_amax(seen, levels=8, start_bin=50, stride=7),
    }
    for method, amax in expected.items():
        found = calibrator.compute_amax(method, start_bin=50, stride=7, percentile=90.0)
        assert float(found) == np.float32(amax)
        assert (found.dtype, found.shape) == (torch.float32, ())


def test_entropy_and_mse_of_2048_bins_cut_an_outlier() -> None:
    normal = np.random.default_rng(0).standard_normal(100_000)
    calibrator = histogram_of(torch.from_numpy(np.append(normal, 40.0)))
    assert 2 < calibrator.compute_amax("entropy") < 10
    # Clipping to a costs (40 - a)^2, rounding 100,000 values 1e5 (a / 127)^2 / 12: least at 26.4.
    assert calibrator.compute_amax("mse") == pytest.approx(26.4, abs=0.8)


@pytest.mark.parametrize("method", ["mse", "entropy"])
def test_first_candidate_beyond_all_bins_covers_all(method) -> None:
    calibrator = histogram_of(draw(1000), num_bins=64)
    assert calibrator.compute_amax(method, start_bin=10_000) == draw(1000).abs().max()


# Refusals of the histogram


@pytest.mark.parametrize("axis", [0, (0,), (0, 1)], ids=str)
def test_histogram_along_an_axis_is_refused(axis) -> None:
    with pytest.raises(
        NotImplementedError,
        match=r"^Calibrator histogram collection only supports per tensor scaling$",
    ):
        HistogramCalibrator(8, axis, False)


@pytest.mark.parametrize("num_bins", [0, -5], ids=str)
def test_histogram_without_bins_is_refused(num_bins) -> None:
    with pytest.raises(ValueError, match="num_bins must be above 0"):
        HistogramCalibrator(8, None, False, num_bins=num_bins)


@pytest.mark.parametrize("seen", [True, False], ids=["seen", "empty"])
def test_unknown_method_is_refused(seen) -> None:
    calibrator = histogram_of(*[draw(9)] * seen)
    with pytest.raises(TypeError, match=r"^Unknown calibration method max$"):
        calibrator.compute_amax("max")


@pytest.mark.parametrize("seen", [True, False], ids=["seen", "empty"])
@pytest.mark.parametrize("percentile", [-0.1, 100.1, float("nan")], ids=str)
def test_percentile_outside_of_0_to_100_is_refused(percentile, seen) -> None:
    calibrator = histogram_of(*[draw(9)] * seen)
    with pytest.raises(
        ValueError, match=r"^Invalid percentile. Must be in range 0 <= percentile <= 100\.$"
    ):
        calibrator.compute_amax("percentile", percentile=percentile)


def test_entropy_weighs_integer_codes_only() -> None:
    calibrator = HistogramCalibrator((4, 3), None, False)
    calibrator.collect(draw(99))
    with pytest.raises(TypeError, match="Invalid num_bits for entropy"):
        calibrator.compute_amax("entropy")
    assert calibrator.compute_amax("percentile", percentile=100) == draw(99).abs().max()


def test_mse_of_float8_is_the_best_of_its_candidates() -> None:
    x = draw(5000) ** 3  # heavy tails, so that the whole range is not the best
    calibrator = HistogramCalibrator((4, 3), None, False)
    calibrator.collect(x)
    found = calibrator.compute_amax("mse", stride=4)
    assert found is not None

    def error(amax: float) -> float:
        scale = 448 / amax
        clipped = np.clip(wide(x) * scale, -448, 448).astype(np.float32)
        rounded = torch.from_numpy(clipped).to(torch.float8_e4m3fn).double().numpy() / scale
        return float(((rounded - wide(x)) ** 2).mean())

    largest = float(x.abs().max())
    others = [largest * share / 20 for share in range(1, 21)]
    assert error(float(found)) <= min(error(amax) for amax in others) * 1.05


@pytest.mark.parametrize("bad", [float("nan"), float("inf")], ids=str)
def test_histogram_refuses_values_that_are_not_finite_and_keeps_its_state(bad) -> None:
    calibrator = histogram_of(draw(9))
    with pytest.raises(ValueError, match="values must be finite"):
        calibrator.collect(torch.tensor([1.0, bad]))
    assert grid(calibrator)[0].sum() == 9


def test_grow_method_is_ignored_with_a_warning(caplog) -> None:
    with caplog.at_level(logging.WARNING, logger="qdqbert"):
        HistogramCalibrator(8, None, False, grow_method="append")
    assert "grow_method is deprecated. Got append, ignored!" in caplog.text


def test_histogram_reads_as_in_the_toolkit() -> None:
    calibrator = HistogramCalibrator(8, None, False, num_bins=4)
    assert str(calibrator) == "HistogramCalibrator(calib_bin_edges=None)"
    calibrator.collect(torch.tensor([0.99, 0.0]))
    # 8 bins below 1.
    assert str(calibrator) == "HistogramCalibrator(calib_bin_edges=[0.000, ..., 1.000](9))"
    assert repr(calibrator).startswith(
        "HistogramCalibrator(num_bits=8 axis=None unsigned=False calib_bin_edges=[0.000"
    )


# Weights


def make_model(**weight_desc: Any) -> nn.ModuleDict:
    torch.manual_seed(0)
    descs: list[dict[str, Any]] = [{} for _ in range(3)]
    if weight_desc:
        for axis, desc in zip((0, 0, 1), descs, strict=True):
            desc["quant_desc_weight"] = QuantDescriptor(**{"axis": axis, **weight_desc})
    return nn.ModuleDict(
        {
            "linear": QuantLinear(7, 5, **descs[0]),
            "conv": QuantConv2d(3, 4, 3, **descs[1]),
            "transposed": QuantConvTranspose2d(3, 4, 3, **descs[2]),
            "plain": nn.Linear(3, 3),
            "pool": QuantMaxPool1d(2),
            "cell": QuantLSTMCell(2, 3),
        }
    )


CHANNEL_AXES = {"linear": 0, "conv": 0, "transposed": 1}


@pytest.mark.parametrize("method", ["max", "mse", "percentile"])
@pytest.mark.parametrize("desc", [{}, {"num_bits": 4}, {"num_bits": 5}], ids=str)
def test_weights_per_channel_are_calibrated_channel_by_channel(method, desc) -> None:
    model = make_model(**desc)
    calibrate_weights(model, method=method, percentile=90.0, num_bins=512)
    for name, axis in CHANNEL_AXES.items():
        module = model[name]
        shape = [1] * module.weight.dim()
        shape[axis] = -1
        expected = []
        for channel in module.weight.detach().movedim(axis, 0):
            calibrator = HistogramCalibrator(desc.get("num_bits", 8), None, False, num_bins=512)
            calibrator.collect(channel)
            found = (
                channel.abs().max()
                if method == "max"
                else calibrator.compute_amax(method, percentile=90.0)
            )
            expected.append(float(found))
        amax = module.weight_quantizer.amax
        assert torch.equal(amax, torch.tensor(expected).view(shape))
        assert amax.dtype == torch.float32
        assert not amax.requires_grad


@pytest.mark.parametrize("method", ["max", "mse", "percentile"])
def test_weights_per_tensor_get_one_range(method) -> None:
    model = make_model(axis=None)
    calibrate_weights(model, method=method, perchannel=False, percentile=90.0, num_bins=300)
    for name in CHANNEL_AXES:
        weight, quantizer = model[name].weight, model[name].weight_quantizer
        calibrator = histogram_of(weight, num_bins=300)
        expected = (
            weight.detach().abs().max()
            if method == "max"
            else calibrator.compute_amax(method, percentile=90.0)
        )
        assert quantizer.amax.shape == ()
        assert quantizer.amax == expected


def test_other_modules_are_left_alone() -> None:
    model = make_model()
    calibrate_weights(model)
    assert set(model.state_dict()) - set(make_model().state_dict()) == {
        f"{name}._weight_quantizer._amax" for name in CHANNEL_AXES
    }


def test_progress_is_reported_after_each_module() -> None:
    model, calls = make_model(), []
    calibrate_weights(model, advance=lambda: calls.append(None))
    assert len(calls) == len(CHANNEL_AXES)


@pytest.mark.parametrize("method", ["entropy", "minmax"])
def test_unknown_method_for_weights_is_refused(method) -> None:
    model = make_model()
    with pytest.raises(TypeError, match=f"^Unsupported calibration method {method}$"):
        calibrate_weights(model, method=method)
    assert model["linear"].weight_quantizer.amax is None
