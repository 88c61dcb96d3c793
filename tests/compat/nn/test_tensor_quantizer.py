from __future__ import annotations

import copy
import logging
import pickle
from collections import OrderedDict
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from compat_tensors import draw, saved_and_loaded, wide
from qdqbert.common.errors import UncalibratedError
from qdqbert.compat.calibrators import Calibrator, HistogramCalibrator
from qdqbert.compat.nn import QuantLinear, TensorQuantizer
from qdqbert.compat.tensor_quant import QuantDescriptor
from qdqbert.quantization.spec import Site

pytestmark = pytest.mark.usefixtures("toolkit_defaults")

SITE = Site(name="encoder.layer.0.x._input_quantizer", kind="activation")
EACH_DTYPE = pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64], ids=str
)


def quantizer(*, site: Site | None = None, disabled: bool = False, **desc: Any) -> TensorQuantizer:
    return TensorQuantizer(QuantDescriptor(**desc), site=site, disabled=disabled)


def assert_rounds(
    result: Tensor, x: Tensor, amax: Any, *, highest: int = 127, lowest: int | None = None
) -> None:
    """Whether codes times the step came out, by float64; ties aside."""
    step = np.asarray(amax, dtype=np.float64) / highest
    ratio = wide(x) / step
    expected = np.rint(ratio).clip(-highest - 1 if lowest is None else lowest, highest) * step
    is_clear = np.abs(ratio - np.floor(ratio) - 0.5) > 1e-4
    assert is_clear.mean() > 0.9
    rtol = max(2.0**-21, torch.finfo(result.dtype).eps)
    np.testing.assert_allclose(wide(result)[is_clear], expected[is_clear], rtol=rtol)


def largest(x: Tensor, kept: tuple[int, ...] | None) -> np.ndarray:
    if kept is None:
        return np.abs(wide(x)).max()
    rest = tuple(set(range(x.dim())) - {axis % x.dim() for axis in kept})
    return np.abs(wide(x)).max(axis=rest, keepdims=True)


# Rounding


@EACH_DTYPE
@pytest.mark.parametrize("kept", [None, (0,), (-1,), (0, 2)], ids=str)
def test_range_is_each_tensors_own_until_one_is_given(device, dtype, kept) -> None:
    made = quantizer(axis=kept[0] if kept and len(kept) == 1 else kept).to(device)
    for seed in range(2):
        x = (draw(3, 4, 5, seed=seed) * 4**seed).to(dtype).to(device)
        result = made(x)
        assert_rounds(result, x, largest(x, kept))
        assert result.dtype == dtype
    assert made.amax is None
    assert not hasattr(made, "_amax")


@EACH_DTYPE
@pytest.mark.parametrize("bits", range(2, 9))
def test_fixed_range_is_used(device, dtype, bits) -> None:
    x = draw(6, 7).to(dtype).to(device)
    highest = 2 ** (bits - 1) - 1
    made = quantizer(num_bits=bits, amax=1.5).to(device)
    assert_rounds(made(x), x, 1.5, highest=highest)
    narrow = quantizer(num_bits=bits, amax=1.5, narrow_range=True).to(device)
    assert_rounds(narrow(x), x, 1.5, highest=highest, lowest=-highest)
    unsigned = quantizer(num_bits=bits, amax=1.5, unsigned=True).to(device)
    assert_rounds(unsigned(x.abs()), x.abs(), 1.5, highest=2**bits - 1, lowest=0)


def test_range_may_be_given_as_a_list_or_an_array() -> None:
    x = draw(2, 50)
    for amax in ([[1.0], [2.0]], np.array([[1.0], [2.0]])):
        assert_rounds(quantizer(axis=0, amax=amax)(x), x, [[1.0], [2.0]])


@pytest.mark.parametrize("amax", [None, 1.5], ids=["dynamic", "fixed"])
def test_scale_amax_is_a_factor_of_the_range_that_is_not_stored(amax) -> None:
    x = draw(50)
    made = quantizer(scale_amax=0.5, amax=amax)
    for _ in range(2):
        assert_rounds(made(x), x, 0.5 * (largest(x, None) if amax is None else amax))
    assert made.amax == amax


def test_gradient_passes_where_the_range_reaches() -> None:
    x = torch.tensor([-1.6, -1.5, 0.0, 1.5, 1.6], requires_grad=True)
    quantizer(amax=1.5)(x).backward(torch.arange(1.0, 6.0))
    assert x.grad.tolist() == [0, 2, 3, 4, 0]


def test_codes_come_out_where_quantization_is_real() -> None:
    x = draw(99)
    made = quantizer(fake_quant=False, amax=1.5, narrow_range=True)
    assert made.scale is None
    result = made(x)
    ratio = wide(x) * 127 / 1.5
    is_clear = np.abs(ratio - np.floor(ratio) - 0.5) > 1e-4
    expected = np.rint(ratio).clip(-127, 127)
    np.testing.assert_array_equal(wide(result)[is_clear], expected[is_clear])
    assert float(made.scale) == pytest.approx(127 / 1.5)


def test_e4m3_gives_amax_448() -> None:
    # 448 / 28 = 16, so that halves of float8's steps stay where they are.
    made = quantizer(num_bits=(4, 3), amax=28.0)
    assert made.maxbound == 448
    x = torch.tensor([28.0, 99.0, -99.0, 1.0625, 1.03, 0.0])
    # Of 16 to 32 the step is 2: 17 is a tie, 16.48 is nearer to 16.
    assert made(x).tolist() == [28.0, 28.0, -28.0, 1.0, 1.0, 0.0]


def test_negative_values_are_refused_as_unsigned() -> None:
    with pytest.raises(TypeError, match="Negative values encountered in unsigned quantization"):
        quantizer(unsigned=True)(torch.tensor([1.0, -1.0]))


def test_bits_axis_and_switches_may_be_set_from_outside() -> None:
    x = draw(4, 30)
    made = quantizer()
    made._num_bits = 4
    assert_rounds(made(x), x, largest(x, None), highest=7)
    made.num_bits = 3
    assert_rounds(made(x), x, largest(x, None), highest=3)
    made._axis = 0
    assert_rounds(made(x), x, largest(x, (0,)), highest=3)
    made.narrow_range, made.unsigned = True, True
    assert_rounds(made(x.abs()), x.abs(), largest(x, (0,)), highest=7, lowest=0)
    made._if_quant = False
    assert made(x) is x
    made._if_quant, made._disabled = True, True
    assert made(x) is x


def test_an_action_replaces_every_mode() -> None:
    made = quantizer(disabled=True)
    made.action = lambda x: x + 1
    assert made(torch.zeros(2)).tolist() == [1, 1]


# Torch's own operators


@pytest.mark.parametrize("unsigned", [False, True], ids=["signed", "unsigned"])
@pytest.mark.parametrize("bits", [4, 8], ids=str)
def test_native_quantization_per_tensor_is_torchs(unsigned, bits) -> None:
    x = draw(100).abs() if unsigned else draw(100)
    TensorQuantizer.use_fb_fake_quant = True
    highest = 2 ** (bits - 1 + unsigned) - 1
    lowest = 0 if unsigned else -highest - 1
    for made, amax in (
        (quantizer(num_bits=bits, unsigned=unsigned, amax=1.5), 1.5),
        (quantizer(num_bits=bits, unsigned=unsigned), float(x.abs().max())),
    ):
        scale = float(np.float32(amax) / np.float32(highest))
        expected = torch.fake_quantize_per_tensor_affine(x, scale, 0, lowest, highest)
        assert torch.equal(made(x), expected)


def test_native_quantization_per_channel_is_torchs() -> None:
    x = draw(3, 4, 5)
    TensorQuantizer.use_fb_fake_quant = True
    for axis in (0, 1, -1, (1,)):
        made = quantizer(axis=axis)
        index = axis[0] if isinstance(axis, tuple) else axis % 3
        scale = torch.from_numpy(largest(x, (index,)) / 127).float().flatten()
        zeros = torch.zeros(len(scale), dtype=torch.int32)
        expected = torch.fake_quantize_per_channel_affine(x, scale, zeros, index, -128, 127)
        # One of the two divides in float64.
        torch.testing.assert_close(made(x), expected, rtol=1e-6, atol=0)


class Recorder(TorchFunctionMode):
    """Notes the functions of torch that are called."""

    def __init__(self) -> None:
        super().__init__()
        self.called: list[Any] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.called.append(func)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("amax", "axis", "function"),
    [
        (1.0, None, torch.fake_quantize_per_tensor_affine),
        ([[1.0], [2.0]], 0, torch.fake_quantize_per_channel_affine),
    ],
    ids=["tensor", "channel"],
)
@pytest.mark.parametrize("switch", [False, True], ids=["off", "on"])
def test_native_quantization_calls_torchs_operator(amax, axis, function, switch) -> None:
    TensorQuantizer.use_fb_fake_quant = switch
    with Recorder() as recorder:
        quantizer(axis=axis, amax=amax)(draw(2, 3))
    assert (function in recorder.called) == switch


def test_native_quantization_knows_one_axis() -> None:
    TensorQuantizer.use_fb_fake_quant = True
    with pytest.raises(
        TypeError, match=r"^Pytorch's native quantization doesn't support multiple axes"
    ):
        quantizer(axis=(0, 1))(draw(2, 3))


def test_native_quantization_leaves_dead_ranges_and_halves_usable() -> None:
    TensorQuantizer.use_fb_fake_quant = True
    assert quantizer()(torch.zeros(3)).tolist() == [0, 0, 0]
    x = draw(20).half()
    assert quantizer()(x).dtype == torch.float16
    assert_rounds(quantizer()(x), x, largest(x, None))


# Calibration


def test_range_is_collected_then_loaded() -> None:
    made = quantizer()
    made.enable_calib()
    made.disable_quant()
    batches = [draw(20, seed=seed) for seed in range(3)]
    for batch in batches:
        assert made(batch) is batch
    assert made.amax is None
    made.load_calib_amax()
    made.disable_calib()
    made.enable_quant()
    amax = max(float(batch.abs().max()) for batch in batches)
    assert made.amax.item() == pytest.approx(amax)
    assert_rounds(made(batches[0]), batches[0], amax)


def test_quantization_goes_on_during_calibration_unless_it_is_stopped() -> None:
    made, x = quantizer(), draw(50)
    made.enable_calib()
    assert_rounds(made(x), x, largest(x, None))


def test_nothing_is_collected_while_disabled() -> None:
    made = quantizer()
    made.enable_calib()
    made.disable()
    x = draw(3)
    assert made(x) is x
    assert made._calibrator.compute_amax() is None
    made.enable()
    made(x)
    assert made._calibrator.compute_amax() == x.abs().max()


def test_loaded_range_does_not_follow_the_calibrator() -> None:
    made = quantizer()
    made.enable_calib()
    made(torch.ones(2))
    made.load_calib_amax()
    made(torch.ones(2) * 9)
    assert made.amax == 1
    made.load_calib_amax()
    assert made.amax == 9


def test_range_per_channel_is_collected_along_the_axis() -> None:
    made = quantizer(axis=-1)
    made.enable_calib()
    made(torch.tensor([[1.0, -5.0], [2.0, 3.0]]))
    made.load_calib_amax()
    assert made.amax.tolist() == [[2, 5]]


@pytest.mark.parametrize("method", ["entropy", "mse", "percentile"])
def test_histogram_gives_the_range_of_a_method(method) -> None:
    made, other = quantizer(calib_method="histogram"), HistogramCalibrator(8, None, False)
    assert isinstance(made._calibrator, HistogramCalibrator)
    x = draw(500)
    made.enable_calib()
    made(x)
    other.collect(x)
    made.load_calib_amax(method, start_bin=2000, percentile=90.0)
    assert made.amax == other.compute_amax(method, start_bin=2000, percentile=90.0)


def test_calibrator_of_ones_own_is_used() -> None:
    class Fixed(Calibrator):
        def collect(self, x: Tensor) -> None:
            del x

        def compute_amax(self) -> Tensor:  # type: ignore[override]
            return torch.tensor(4.5)

    made = quantizer()
    made._calibrator = Fixed(8, None, False)
    made.enable_calib()
    made(draw(3))
    made.load_calib_amax()
    assert made.amax == 4.5
    assert "calibrator=Fixed" in made.extra_repr()


def test_calibrating_without_a_calibrator_is_refused() -> None:
    made = quantizer()
    made._calibrator = None
    with pytest.raises(
        ValueError, match=r"^Calibrator was not created, cannot enable calibration\.$"
    ):
        made.enable_calib()
    with pytest.raises(RuntimeError, match=r"^Calibrator not created\.$"):
        made.load_calib_amax()
    made._if_calib = True
    with pytest.raises(RuntimeError, match="Calibrator was not created"):
        made(draw(2))


def test_range_without_data_is_refused() -> None:
    made = quantizer(site=SITE)
    message = (
        r"Calibrator returned None\. This usually happens when calibrator hasn't seen any tensor\. "
        r"Passing 'strict=False' to `load_calib_amax\(\)` will ignore the error\."
    )
    with pytest.raises(RuntimeError, match=message) as caught:
        made.load_calib_amax()
    assert SITE.name in str(caught.value)
    assert isinstance(caught.value, UncalibratedError)
    assert made.amax is None


def test_range_without_data_is_nan_if_not_strict(caplog) -> None:
    made = quantizer()
    with caplog.at_level(logging.WARNING, logger="qdqbert"):
        made.load_calib_amax(strict=False)
    assert made.amax.isnan()
    assert made(draw(3)).isnan().all()
    assert "Set amax to NaN!" in caplog.text


@pytest.mark.parametrize("method", ["max", "histogram"])
def test_values_that_are_not_finite_are_refused_with_the_site(method) -> None:
    made = quantizer(calib_method=method, site=SITE)
    made.enable_calib()
    with pytest.raises(ValueError, match=r"values must be finite.*encoder.layer.0.x"):
        made(torch.tensor([1.0, float("nan")]))


# QuantizerOptions


def test_disabled_tensor_is_the_same_object() -> None:
    made, x = quantizer(), draw(3)
    made.disable()
    assert made(x) is x
    made.enable()
    assert made(x) is not x
    made.disable_quant()
    assert made(x) is x
    made.enable_quant()
    assert made(x) is not x


def test_clipping_needs_a_learned_range() -> None:
    with pytest.raises(ValueError, match=r"^learn_amax is False\. Cannot enable clip\.$"):
        quantizer().enable_clip()
    with pytest.raises(ValueError, match=r"^learn_amax is False\. Cannot enable clip\.$"):
        TensorQuantizer(if_clip=True)
    made = quantizer()
    made._if_clip = True
    with pytest.raises(RuntimeError, match=r"^Clip without learning amax is not implemented\.$"):
        made(draw(2))


# Learned ranges


def ends_of(made: TensorQuantizer) -> tuple[float, float]:
    return made.clip.clip_value_min.item(), made.clip.clip_value_max.item()


def test_learned_range_starts_at_amax_or_1() -> None:
    for amax, limit in ((None, 1.0), (2.5, 2.5), ([1.0, 3.0], 3.0)):
        made = quantizer(learn_amax=True, amax=amax)
        assert ends_of(made) == (-limit, limit)
        assert {name for name, _ in made.named_parameters()} == {
            "clip.clip_value_min",
            "clip.clip_value_max",
        }


def test_learned_range_is_used_and_its_ends_get_the_gradients_beyond_them() -> None:
    made = quantizer(learn_amax=True, amax=1.5)
    x = torch.tensor([-9.0, -1.5, -0.3, 0.7, 1.5, 2.0, 3.0], requires_grad=True)
    upstream = torch.tensor([1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0])
    result = made(x)
    assert_rounds(result, x.clamp(-1.5, 1.5), 1.5)
    result.backward(upstream)
    assert x.grad.tolist() == [0, 0, 4, 8, 0, 0, 0]
    assert made.clip.clip_value_min.grad == 3
    assert made.clip.clip_value_max.grad == 112


@pytest.mark.parametrize(("low", "high"), [(-0.5, 2.0), (-2.0, 0.5)], ids=["high", "low"])
def test_learned_range_follows_its_ends(low, high) -> None:
    made, x = quantizer(learn_amax=True), draw(100)
    with torch.no_grad():
        made.clip.clip_value_min.fill_(low)
        made.clip.clip_value_max.fill_(high)
    assert_rounds(made(x), x.clamp(low, high), 2.0)


def test_learned_range_starts_over_at_the_calibrated_one() -> None:
    made = quantizer(learn_amax=True)
    made.enable_calib()
    made(torch.tensor([1.0, -4.0]))
    made.load_calib_amax()
    made.init_learn_amax()
    assert ends_of(made) == (-4, 4)


def test_clipping_does_not_round() -> None:
    made, x = quantizer(learn_amax=True, amax=1.5), draw(50)
    made.disable_quant()
    assert torch.equal(made(x), x.clamp(-1.5, 1.5))


def test_learning_stops_and_starts_with_the_clip() -> None:
    made = quantizer(learn_amax=True)
    assert made._if_clip
    made.disable_clip()
    assert not made._if_clip
    assert not any(parameter.requires_grad for parameter in made.parameters())
    made.disable_quant()
    x = draw(9)
    assert made(x) is x
    made.enable_clip()
    assert all(parameter.requires_grad for parameter in made.parameters())
    assert torch.equal(made(x), x.clamp(-1, 1))


def test_starting_over_needs_a_learned_and_a_calibrated_range() -> None:
    with pytest.raises(RuntimeError, match=r"^Called init_learn_amax with learn_amax=False\.$"):
        quantizer(amax=1.0).init_learn_amax()
    with pytest.raises(RuntimeError, match="before a range was calibrated or given"):
        quantizer(learn_amax=True).init_learn_amax()


# The range as an attribute


@pytest.mark.parametrize(
    "value",
    [2.5, 2, np.float32(2.5), np.array(2.5), torch.tensor(2.5), torch.tensor(2)],
    ids=lambda value: f"{type(value).__name__}-{value}",
)
def test_range_can_be_set(value) -> None:
    made = quantizer()
    made.amax = value
    assert made.amax.dtype == torch.float32
    assert made.amax.shape == ()
    assert made.amax == float(value)
    assert list(made.state_dict()) == ["_amax"]
    buffer = made.amax
    made.amax = 7.0
    assert made.amax is buffer
    assert buffer == 7


def test_range_that_is_set_is_a_copy() -> None:
    made, value = quantizer(axis=0), torch.ones(2, 1)
    made.amax = value
    value.fill_(9)
    assert made.amax.tolist() == [[1], [1]]


def test_shape_of_the_range_cannot_be_changed_by_setting_it() -> None:
    made = quantizer(amax=1.0, site=SITE)
    with pytest.raises(
        RuntimeError, match=r"Changing shape when setting amax is not allowed.*\(\) to \(2,\)"
    ) as caught:
        made.amax = [1.0, 2.0]
    assert SITE.name in str(caught.value)
    assert made.amax == 1


def test_setting_no_range_only_logs_an_error(caplog) -> None:
    made = quantizer(amax=1.0)
    with caplog.at_level(logging.ERROR, logger="qdqbert"):
        made.amax = None
    assert made.amax == 1
    assert "Setting amax no None is meaningless." in caplog.text


def test_negative_range_is_refused() -> None:
    made = quantizer(site=SITE)
    with pytest.raises(ValueError, match=r"`amax` must not be negative, got -1.*encoder.layer.0.x"):
        made.amax = -1.0


def test_buffer_may_be_set_and_deleted_from_outside() -> None:
    made, x = quantizer(), draw(50)
    made.register_buffer("_amax", torch.tensor(1.5))
    assert_rounds(made(x), x, 1.5)
    made._amax.data.fill_(2.0)
    assert_rounds(made(x), x, 2.0)
    del made._amax
    assert_rounds(made(x), x, largest(x, None))


@pytest.mark.parametrize(
    ("desc", "highest"),
    [({}, 127), ({"num_bits": 4}, 7), ({"unsigned": True}, 255), ({"num_bits": (4, 3)}, 448)],
    ids=str,
)
def test_step_is_the_range_over_the_highest_code(desc, highest) -> None:
    made = quantizer(amax=2.5, **desc)
    assert made.maxbound == highest
    assert float(made.step_size) == pytest.approx(2.5 / highest)


def test_step_of_a_dynamic_range_is_undefined(caplog) -> None:
    with caplog.at_level(logging.ERROR, logger="qdqbert"):
        assert quantizer().step_size is None
    assert "step_size is undefined under dynamic amax mode!" in caplog.text


def test_scale_is_for_real_quantization(caplog) -> None:
    with caplog.at_level(logging.ERROR, logger="qdqbert"):
        assert quantizer().scale == 1.0
    assert "Fake quantize mode doesn't use scale explicitly!" in caplog.text
    with caplog.at_level(logging.ERROR, logger="qdqbert"):
        assert quantizer(fake_quant=False).scale is None
    assert "Accessing scale before quantizing any tensor!" in caplog.text


@pytest.mark.parametrize("name", ["axis", "fake_quant", "scale", "step_size", "maxbound"])
def test_the_rest_is_read_only(name) -> None:
    with pytest.raises(AttributeError):
        setattr(quantizer(), name, 1)


# Scale before quantization


def test_tensor_is_scaled_before_all_else() -> None:
    made, x = quantizer(amax=1.5), draw(4, 3)
    factor = torch.tensor([1.0, 0.5, 2.0])
    made.pre_quant_scale = factor
    assert_rounds(made(x), x * factor, 1.5)
    made.disable()
    assert torch.equal(made(x), x * factor)
    made.enable()
    made.disable_quant()
    made.enable_calib()
    assert torch.equal(made(x), x * factor)
    made.load_calib_amax()
    assert made.amax == (x * factor).abs().max()


def test_shape_of_the_scale_cannot_be_changed_by_setting_it() -> None:
    made = quantizer()
    made.pre_quant_scale = [1.0, 2.0]
    with pytest.raises(RuntimeError, match="Changing shape when setting pre_quant_scale"):
        made.pre_quant_scale = 1.0


# Storage


CHANGED = {
    "num_bits": 4,
    "axis": (0, 2),
    "unsigned": True,
    "narrow_range": True,
    "scale_amax": 0.75,
}


def changed() -> TensorQuantizer:
    made = quantizer(**CHANGED)
    made.amax = torch.tensor([1.0, 2.0]).view(2, 1, 1)
    made.pre_quant_scale = 0.5
    made.disable_quant()
    made.enable_calib()
    made.disable()
    return made


def settings_of(made: TensorQuantizer) -> dict[str, Any]:
    names = ("_num_bits", "_axis", "_unsigned", "_narrow_range", "_scale_amax", "_fake_quant")
    quantizer_options = ("_disabled", "_if_quant", "_if_clip", "_if_calib")
    return {name: getattr(made, name) for name in (*names, *quantizer_options)}


def assert_same(made: TensorQuantizer, other: TensorQuantizer) -> None:
    assert settings_of(made) == settings_of(other)
    assert made.extra_repr() == other.extra_repr()
    assert {name: value.tolist() for name, value in made.state_dict().items()} == {
        name: value.tolist() for name, value in other.state_dict().items()
    }
    x = draw(2, 3, 1).abs()
    assert torch.equal(made(x), other(x))
    made, other = copy.deepcopy(made), copy.deepcopy(other)
    for each in (made, other):
        each.enable()
        each.enable_quant()
    assert torch.equal(made(x), other(x))


@pytest.mark.parametrize(
    "through",
    [
        lambda made: made.state_dict(),
        lambda made: saved_and_loaded(made.state_dict()),
        lambda made: copy.deepcopy(made.state_dict()),
    ],
    ids=["as-it-is", "weights-only-file", "deepcopy"],
)
def test_state_holds_bits_axis_range_and_switches(through) -> None:
    loaded = quantizer()
    assert loaded.load_state_dict(through(changed())).missing_keys == []
    assert_same(loaded, changed())


def test_state_of_a_model_holds_those_of_each_quantizer() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(QuantLinear(3, 3), nn.ModuleList([quantizer(num_bits=4, amax=1.0)]))
    model[0].weight_quantizer.num_bits = 5
    model[0].input_quantizer.disable()
    other = nn.Sequential(QuantLinear(3, 3), nn.ModuleList([quantizer()]))
    other.load_state_dict(saved_and_loaded(model.state_dict()))
    assert other[0].weight_quantizer.num_bits == 5
    assert other[0].input_quantizer._disabled
    assert not other[0].weight_quantizer._disabled
    assert other[1][0].num_bits == 4
    assert other[1][0].amax == 1


def test_e4m3_survives_storage() -> None:
    loaded = quantizer()
    loaded.load_state_dict(saved_and_loaded(quantizer(num_bits=(4, 3), amax=1.0).state_dict()))
    assert loaded.num_bits == (4, 3)
    assert loaded.maxbound == 448


@pytest.mark.parametrize(
    "through",
    [copy.deepcopy, lambda made: pickle.loads(pickle.dumps(made))],
    ids=["deepcopy", "pickle"],
)
def test_copies_are_equal_and_apart(through) -> None:
    made = changed()
    other = through(made)
    assert_same(other, changed())
    other.amax = torch.tensor([8.0, 9.0]).view(2, 1, 1)
    other.enable()
    assert_same(made, changed())


def test_calibration_goes_on_in_a_copy() -> None:
    made = quantizer()
    made.enable_calib()
    made(torch.ones(2))
    other = copy.deepcopy(made)
    other(torch.ones(2) * 3)
    made.load_calib_amax()
    other.load_calib_amax()
    assert (made.amax, other.amax) == (1, 3)


def test_range_calibrated_after_loading_is_along_the_loaded_axis() -> None:
    loaded = quantizer()
    loaded.load_state_dict(quantizer(axis=0).state_dict())
    loaded.enable_calib()
    loaded(torch.tensor([[1.0], [2.0]]))
    loaded.load_calib_amax()
    assert loaded.amax.tolist() == [[1], [2]]


@pytest.mark.parametrize("kind", [dict, OrderedDict], ids=["dict", "ordered"])
@pytest.mark.parametrize(
    ("amax", "axis"), [(1.5, None), ([[1.0], [2.0]], 0)], ids=["tensor", "channel"]
)
def test_state_of_the_toolkit_itself_loads(device, kind, amax, axis) -> None:
    # It has a range, and no word on bits or switches.
    state = kind({"0._input_quantizer._amax": torch.tensor(amax, device=device)})
    model = nn.ModuleDict({"0": nn.Module()})
    model["0"]._input_quantizer = quantizer(num_bits=4, axis=axis)
    model.load_state_dict(state, strict=True)
    loaded = model["0"]._input_quantizer
    assert loaded.amax.tolist() == amax
    assert loaded.amax.device.type == device.type
    assert loaded.num_bits == 4


def test_range_of_another_shape_is_not_loaded_over_one_that_is_there() -> None:
    loaded = quantizer(amax=9.0)
    with pytest.raises(
        RuntimeError, match=r"`_amax` of 'the state dict' has shape \(2, 1\), not \(\)"
    ):
        loaded.load_state_dict({"_amax": torch.ones(2, 1)})


def test_range_that_is_missing_is_an_error(caplog) -> None:
    with (
        caplog.at_level(logging.ERROR, logger="qdqbert"),
        pytest.raises(RuntimeError, match=r'Missing key\(s\) in state_dict: "_amax"'),
    ):
        quantizer(amax=1.0).load_state_dict({})
    assert "No amax in state_dict." in caplog.text


def test_state_without_a_range_has_no_keys() -> None:
    assert list(quantizer().state_dict()) == []
    assert list(QuantLinear(2, 2).state_dict()) == ["weight", "bias"]


@pytest.mark.parametrize(
    "convert",
    [
        lambda made: made.half(),
        lambda made: made.bfloat16(),
        lambda made: made.to(torch.float16),
        lambda made: nn.Sequential(made).half()[0],
    ],
    ids=["half", "bfloat16", "to", "within-a-model"],
)
def test_range_of_a_model_in_half_precision_is_a_float32(convert) -> None:
    # float16 cannot represent 3.3.
    made = convert(quantizer(amax=3.3))
    assert made.amax.dtype == torch.float32
    assert made.amax.item() == np.float32(3.3)
    x = draw(50).half()
    assert_rounds(made(x), x, np.float32(3.3))
    assert "_amax" in dict(made.named_buffers())


# How it reads


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (
            lambda: quantizer(),
            "8bit fake per-tensor amax=dynamic calibrator=MaxCalibrator scale=1.0 quant",
        ),
        (
            lambda: quantizer(amax=2.63871, calib_method="histogram"),
            "8bit fake per-tensor amax=2.6387 calibrator=HistogramCalibrator scale=1.0 quant",
        ),
        (
            lambda: quantizer(num_bits=4, axis=0, unsigned=True, narrow_range=True),
            "unsigned 4bit narrow fake axis=0 amax=dynamic calibrator=MaxCalibrator scale=1.0 "
            "quant",
        ),
        (
            lambda: quantizer(axis=(0, 1), amax=[[0.0, 0.78172], [0.5, 0.25]], scale_amax=0.9),
            "8bit fake axis=(0, 1) amax=[0.0000, 0.7817](4) *0.9 calibrator=MaxCalibrator "
            "scale=1.0 quant",
        ),
        (
            lambda: quantizer(learn_amax=True),
            "8bit fake per-tensor amax=dynamic learned calibrator=MaxCalibrator scale=1.0 quant "
            "clip",
        ),
        (
            lambda: quantizer(num_bits=(4, 3)),
            "(4, 3)bit fake per-tensor amax=dynamic calibrator=MaxCalibrator scale=1.0 quant",
        ),
        (
            lambda: quantizer(fake_quant=False),
            "8bit per-tensor amax=dynamic calibrator=MaxCalibrator quant",
        ),
        (
            lambda: TensorQuantizer(if_quant=False, if_calib=True),
            "8bit fake per-tensor amax=dynamic calibrator=MaxCalibrator scale=1.0 calib",
        ),
        (lambda: quantizer(disabled=True, amax=1.0), "disabled"),
    ],
    ids=["default", "histogram", "kinds", "axes", "learned", "e4m3", "real", "calib", "disabled"],
)
def test_quantizer_reads_as_in_the_toolkit(made, text) -> None:
    assert made().extra_repr() == text
    assert repr(made()).startswith(f"TensorQuantizer({text}" if "learned" not in text else "Tensor")


def test_scale_before_quantization_is_reported() -> None:
    made = quantizer(amax=1.0)
    made.pre_quant_scale = 2.0
    assert made.extra_repr() == (
        "8bit fake per-tensor amax=1.0000 pre_quant_scale calibrator=MaxCalibrator scale=1.0 quant"
    )


def test_exported_range_of_a_learned_quantizer_is_scaled_once(tmp_path) -> None:
    made = quantizer(learn_amax=True, amax=2.0, scale_amax=0.5).eval()
    path = tmp_path / "model.onnx"
    torch.onnx.export(made, (torch.randn(2, 3),), str(path), dynamo=False, opset_version=17)
    graph = onnx.load(path).graph
    constants = {
        node.output[0]: onnx.numpy_helper.to_array(node.attribute[0].t)
        for node in graph.node
        if node.op_type == "Constant" and node.attribute[0].name == "value"
    }
    (pair,) = [node for node in graph.node if node.op_type == "QuantizeLinear"]
    np.testing.assert_allclose(constants[pair.input[1]], 2.0 * 0.5 / 127, rtol=1e-6)
