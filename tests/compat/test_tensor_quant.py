from __future__ import annotations

import copy
import logging
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch import Tensor

from compat_tensors import wide
from qdqbert.compat import tensor_quant as toolkit
from qdqbert.compat.tensor_quant import (
    QuantDescriptor,
    ScaledQuantDescriptor,
    fake_affine_tensor_quant,
    fake_tensor_quant,
    legacy_fake_tensor_quant,
    scaled_e4m3,
    tensor_quant,
)

DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64]
EACH_DTYPE = pytest.mark.parametrize("dtype", DTYPES, ids=str)
# Unsigned, narrow.
KINDS = {"full": (False, False), "narrow": (False, True), "unsigned": (True, False)}
EACH_KIND = pytest.mark.parametrize(("unsigned", "narrow"), KINDS.values(), ids=KINDS.keys())
KEPT_AXES: list[tuple[int, ...] | None] = [None, (0,), (1,), (-1,), (0, 2)]
EACH_AXIS = pytest.mark.parametrize("axes", KEPT_AXES, ids=str)
BITS = range(2, 9)


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.standard_normal(shape) * 3).to(dtype)


def largest(x: Tensor, axes: tuple[int, ...] | None) -> Tensor:
    """Four fifths of the largest magnitudes, so that some values saturate, in `x`'s dtype."""
    rest = None if axes is None else tuple(set(range(x.dim())) - {axis % x.dim() for axis in axes})
    amax = np.abs(wide(x)).max(axis=rest, keepdims=axes is not None)
    return torch.as_tensor(0.8 * amax).to(x.dtype).to(x.device)


def bounds(bits: int, unsigned: bool, narrow: bool) -> tuple[int, int]:
    highest = 2 ** (bits - 1 + unsigned) - 1
    return (0 if unsigned else -highest if narrow else -highest - 1), highest


def reference(
    x: Tensor, amax: Tensor, bits: int, unsigned: bool, narrow: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Codes, reals, and where no rounding of ours can turn a code, all in float64."""
    lowest, highest = bounds(bits, unsigned, narrow)
    step = wide(amax) / highest
    ratio = wide(x) / step
    codes = np.rint(ratio).clip(lowest, highest)
    # Two float32 roundings, of the step and of the quotient, each of 2^-24.
    is_clear = np.abs(np.abs(ratio - np.floor(ratio)) - 0.5) > np.abs(ratio) * 2.0**-22 + 1e-5
    return codes, codes * step, is_clear


def relative_error(dtype: torch.dtype) -> float:
    """Three roundings of float32, and the last one to a half."""
    return max(2.0**-21, torch.finfo(dtype).eps)


# Codes


@EACH_DTYPE
@EACH_KIND
@EACH_AXIS
def test_codes_are_those_of_float64(device, dtype, unsigned, narrow, axes) -> None:
    x = draw(4, 5, 6, dtype=dtype).to(device)
    x = x.abs() if unsigned else x
    amax = largest(x, axes)
    for bits in BITS:
        codes, scale = tensor_quant(x, amax, bits, unsigned, narrow)
        expected, _, is_clear = reference(x, amax, bits, unsigned, narrow)
        np.testing.assert_array_equal(wide(codes)[is_clear], expected[is_clear])
        assert is_clear.mean() > 0.9
        assert codes.dtype == scale.dtype == dtype
        assert codes.device == x.device


@EACH_DTYPE
@EACH_AXIS
def test_scale_is_what_codes_are_divided_by(device, dtype, axes) -> None:
    x = draw(4, 5, 6, dtype=dtype).to(device)
    amax = largest(x, axes)
    for bits in BITS:
        _, scale = tensor_quant(x, amax, bits)
        assert scale.shape == amax.shape
        expected = (2 ** (bits - 1) - 1) / wide(amax)
        np.testing.assert_allclose(wide(scale), expected, rtol=relative_error(dtype))


def test_codes_are_narrow_by_default() -> None:
    x = torch.tensor([-9.0, 9.0])
    codes, _ = tensor_quant(x, torch.tensor(1.0))
    assert codes.tolist() == [-127, 127]
    assert fake_tensor_quant(x, torch.tensor(127.0 / 16), 8).tolist() == [-127 / 16, 127 / 16]


def test_ties_go_to_even() -> None:
    # Steps of 1 exactly.
    x = torch.tensor([0.5, 1.5, 2.5, -0.5, -1.5, -2.5])
    codes, _ = tensor_quant(x, torch.tensor(127.0))
    assert codes.tolist() == [0, 2, 2, 0, -2, -2]


@pytest.mark.parametrize("narrow", [True, False], ids=["narrow", "full"])
def test_only_a_narrow_range_leaves_out_the_lowest_code(narrow) -> None:
    for bits in range(2, 17):
        highest = 2 ** (bits - 1) - 1
        codes, _ = tensor_quant(
            torch.tensor([-9.0, 9.0]), torch.tensor(1.0), bits, narrow_range=narrow
        )
        assert codes.tolist() == [-highest if narrow else -highest - 1, highest]


@pytest.mark.parametrize(
    ("bits", "unsigned", "codes"), [(0, False, [0, 0]), (1, False, [0, 0]), (1, True, [0, 1])]
)
def test_fewer_than_two_bits_leave_what_they_can(bits, unsigned, codes) -> None:
    x, amax = torch.tensor([0.1, 0.9]), torch.tensor(1.0)
    assert tensor_quant(x, amax, bits, unsigned)[0].tolist() == codes
    assert fake_tensor_quant(x, amax, bits, unsigned).tolist() == codes


# Reals


@EACH_DTYPE
@EACH_KIND
@EACH_AXIS
def test_reals_are_those_of_float64(device, dtype, unsigned, narrow, axes) -> None:
    x = draw(4, 5, 6, seed=1, dtype=dtype).to(device)
    x = x.abs() if unsigned else x
    amax = largest(x, axes)
    for bits in (*BITS, 16):
        reals = fake_tensor_quant(x, amax, bits, unsigned, narrow)
        _, expected, is_clear = reference(x, amax, bits, unsigned, narrow)
        np.testing.assert_allclose(
            wide(reals)[is_clear], expected[is_clear], rtol=relative_error(dtype), atol=0
        )
        assert is_clear.mean() > 0.9
        assert reals.dtype == dtype


@EACH_DTYPE
def test_half_precision_is_rounded_once_at_the_end(device, dtype) -> None:
    x = draw(1000, dtype=dtype).to(device)
    amax = largest(x, None)
    exact = fake_tensor_quant(x.double(), amax.double())
    in_float32 = fake_tensor_quant(x.float(), amax.float())
    if dtype == torch.float64:
        np.testing.assert_allclose(wide(fake_tensor_quant(x, amax)), wide(exact), rtol=1e-15)
    else:
        assert torch.equal(fake_tensor_quant(x, amax), in_float32.to(dtype))


def test_range_may_be_wider_than_the_tensor_in_dtype() -> None:
    x = draw(100, dtype=torch.float16)
    amax = torch.tensor(5.0)
    assert fake_tensor_quant(x, amax).dtype == torch.float16
    assert torch.equal(fake_tensor_quant(x, amax), fake_tensor_quant(x, amax.half()))


def test_legacy_name_is_the_same_function() -> None:
    assert legacy_fake_tensor_quant is fake_tensor_quant


@pytest.mark.parametrize("unsigned", [False, True], ids=["signed", "unsigned"])
def test_tensor_of_nothing_comes_back(unsigned) -> None:
    x = torch.zeros(0, 3)
    assert fake_tensor_quant(x, torch.tensor(1.0), 8, unsigned).shape == (0, 3)
    assert tensor_quant(x, torch.tensor(1.0), 8, unsigned)[0].shape == (0, 3)


values = hnp.arrays(np.float32, 20, elements=st.floats(-(2.0**100), 2.0**100, width=32))
# From just above a dead range.
ranges = st.floats(2.0**-23, 2.0**100, width=32).map(torch.tensor)


@given(values, ranges, st.integers(2, 16), st.booleans())
def test_quantizing_twice_changes_nothing(x, amax, bits, narrow) -> None:
    once = fake_tensor_quant(torch.from_numpy(x), amax, bits, False, narrow)
    assert torch.equal(fake_tensor_quant(once, amax, bits, False, narrow), once)


@given(hnp.arrays(np.float64, 20, elements=st.floats(-1, 1)), ranges, st.integers(2, 16))
def test_error_inside_of_the_range_is_at_most_half_a_step(shares, amax, bits) -> None:
    x = torch.from_numpy(shares * amax.double().numpy()).float()
    step = wide(amax) / (2 ** (bits - 1) - 1)
    error = np.abs(wide(fake_tensor_quant(x, amax, bits)) - wide(x))
    # Three float32 roundings of at most 32767 codes: 3 * 32767 * 2^-24 of a step.
    assert error.max() <= (0.5 + 0.006) * step


# Dead ranges


@EACH_DTYPE
@pytest.mark.parametrize("dead", [0.0, 2.0**-24], ids=["zero", "tiny"])
def test_dead_range_has_codes_0_and_scale_1(device, dtype, dead) -> None:
    x = torch.tensor([[1.0, -2.0, 0.0], [1.0, -2.0, 0.0]], dtype=dtype, device=device)
    amax = torch.tensor([[dead], [2.0]], dtype=dtype, device=device)
    codes, scale = tensor_quant(x, amax)
    assert codes.tolist() == [[0, 0, 0], [64, -127, 0]]
    assert scale.tolist() == [[1.0], [63.5]]
    assert fake_tensor_quant(x, amax)[0].tolist() == [0, 0, 0]
    assert scaled_e4m3(x, amax)[0].tolist() == [0, 0, 0]


def test_range_above_the_dead_ones_lives() -> None:
    amax = torch.tensor(2.0**-23)
    assert tensor_quant(amax, amax)[0].item() == 127
    assert fake_tensor_quant(amax, amax).item() == pytest.approx(2.0**-23)
    assert scaled_e4m3(amax, amax).item() == 2.0**-23


# Gradients


@EACH_DTYPE
@EACH_KIND
@EACH_AXIS
def test_gradient_passes_exactly_where_the_range_reaches(
    device, dtype, unsigned, narrow, axes
) -> None:
    x = draw(4, 5, 6, seed=2, dtype=dtype).to(device)
    x = x.abs() if unsigned else x
    amax = largest(x, axes)
    edge = amax.expand_as(x)[0, 0, 0].clone()
    x[0, 0, 0] = edge
    inside = np.abs(wide(x)) <= wide(amax)
    assert inside[0, 0, 0]
    assert 0 < inside.mean() < 1
    upstream = draw(4, 5, 6, seed=3, dtype=dtype).to(device)
    for function in (
        lambda x, amax: fake_tensor_quant(x, amax, 8, unsigned, narrow),
        lambda x, amax: tensor_quant(x, amax, 8, unsigned, narrow)[0],
        scaled_e4m3,
    ):
        x = x.detach().requires_grad_()
        function(x, amax).backward(upstream)
        assert x.grad.dtype == dtype
        np.testing.assert_array_equal(wide(x.grad), wide(upstream) * inside)


def test_gradient_of_the_full_range_stops_at_amax() -> None:
    # -1.004 is near code -128, which the full range has, but outside of -amax .. amax.
    x = torch.tensor([-1.004, -1.0, 1.0], requires_grad=True)
    fake_tensor_quant(x, torch.tensor(1.0), 8, False, False).sum().backward()
    assert x.grad.tolist() == [0, 1, 1]


@pytest.mark.parametrize("function", [fake_tensor_quant, scaled_e4m3], ids=["integer", "e4m3"])
def test_range_gets_no_gradient(function) -> None:
    x = draw(9).requires_grad_()
    amax = torch.tensor(2.0, requires_grad=True)
    function(x, amax).sum().backward()
    assert amax.grad is None
    assert x.grad is not None


# Refusals


@pytest.mark.parametrize("function", [fake_tensor_quant, tensor_quant], ids=["fake", "real"])
def test_negative_range_is_refused(function) -> None:
    with pytest.raises(ValueError, match=r"^Negative values in amax$"):
        function(draw(2, 3), torch.tensor([[1.0], [-1.0]]))


@pytest.mark.parametrize("function", [fake_tensor_quant, tensor_quant], ids=["fake", "real"])
def test_negative_values_are_refused_as_unsigned(function) -> None:
    with pytest.raises(
        TypeError, match=r"^Negative values encountered in unsigned quantization\.$"
    ):
        function(torch.tensor([1.0, -1e-9]), torch.tensor(1.0), 8, True)


def test_scale_that_overflows_float16_is_refused_where_it_is_returned() -> None:
    x, amax = torch.zeros(2, dtype=torch.float16), torch.tensor(1e-6, dtype=torch.float16)
    with pytest.raises(ValueError, match=r"^scale is too large for FP16 with amax="):
        tensor_quant(x, amax)
    assert fake_tensor_quant(x + 1, amax).isfinite().all()


# With a zero point


@EACH_DTYPE
@pytest.mark.parametrize(("low", "high"), [(-1.0, 2.0), (-3.0, 0.5), (0.0, 4.0), (-2.0, 0.0)])
def test_affine_reals_are_those_of_float64(device, dtype, low, high) -> None:
    x = draw(500, dtype=dtype).to(device)
    for bits in BITS:
        step = (high - low) / (2**bits - 1)
        lowest, highest = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
        ratio = wide(x) / step
        zero = np.rint(low / step) - lowest
        expected = ((np.rint(ratio) - zero).clip(lowest, highest) + zero) * step
        is_clear = np.abs(ratio - np.floor(ratio) - 0.5) > 1e-4
        reals = fake_affine_tensor_quant(
            x, torch.tensor(low, device=device), torch.tensor(high, device=device), bits
        )
        assert reals.dtype == dtype
        np.testing.assert_allclose(
            wide(reals)[is_clear], expected[is_clear], rtol=relative_error(dtype), atol=0
        )


def test_affine_gradient_passes_inside_of_the_ends() -> None:
    x = torch.tensor([-1.01, -1.0, 0.0, 2.0, 2.01], requires_grad=True)
    fake_affine_tensor_quant(x, -1.0, 2.0).backward(torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0]))
    assert x.grad.tolist() == [0, 2, 3, 4, 0]


# E4M3, by its definition: a sign, 4 bits of exponent of bias 7, 3 of mantissa


def e4m3_table() -> np.ndarray:
    """The values of codes 0 to 126; 127 is NaN."""
    codes = np.arange(127)
    exponent, mantissa = codes >> 3, codes & 7
    normal = (1 + mantissa / 8) * 2.0 ** (exponent - 7)
    return np.where(exponent == 0, mantissa / 8 * 2.0**-6, normal)


TABLE = e4m3_table()


def to_e4m3(x: np.ndarray) -> np.ndarray:
    """Nearest of the table, of two equally near the one with the even code, saturating."""
    magnitude = np.minimum(np.abs(x), TABLE[-1])
    above = np.searchsorted(TABLE, magnitude).clip(1)
    below = above - 1
    to_below, to_above = magnitude - TABLE[below], TABLE[above] - magnitude
    even = np.where(below % 2 == 0, below, above)
    index = np.where(to_below < to_above, below, np.where(to_above < to_below, above, even))
    return np.copysign(TABLE[index], x)


@EACH_DTYPE
def test_each_of_the_256_floats_is_left_alone(device, dtype) -> None:
    codes = torch.arange(256, dtype=torch.uint8, device=device)
    x = codes.view(torch.float8_e4m3fn).to(dtype)
    signed = np.concatenate([TABLE, [np.nan], -TABLE, [np.nan]])
    np.testing.assert_array_equal(wide(x), signed)
    np.testing.assert_array_equal(wide(scaled_e4m3(x)), signed)


@EACH_DTYPE
def test_e4m3_rounds_to_the_nearest_of_the_table(device, dtype) -> None:
    x = (draw(20_000) * torch.logspace(-4, 3, 20_000)).to(dtype).to(device)
    np.testing.assert_array_equal(wide(scaled_e4m3(x)), to_e4m3(wide(x)))


def test_e4m3_rounds_ties_to_the_even_code() -> None:
    ties = torch.from_numpy((TABLE[1:] + TABLE[:-1]) / 2).float()
    result = scaled_e4m3(ties)
    expected = [max(i, i + 1, key=lambda code: code % 2 == 0) for i in range(126)]
    np.testing.assert_array_equal(wide(result), TABLE[expected])
    np.testing.assert_array_equal(wide(scaled_e4m3(-ties)), -TABLE[expected])


def test_e4m3_saturates() -> None:
    x = torch.tensor([464.0, 1e9, float("inf"), -1e9])
    assert scaled_e4m3(x).tolist() == [448, 448, 448, -448]


@EACH_AXIS
def test_e4m3_is_scaled_so_that_amax_is_its_largest(device, axes) -> None:
    x = draw(4, 5, 6, seed=4).to(device)
    amax = largest(x, axes)
    scaled = wide(x) * 448 / wide(amax)
    midpoints = np.concatenate([[0], (TABLE[1:] + TABLE[:-1]) / 2])
    nearest = np.abs(np.abs(scaled)[..., None] - midpoints).min(axis=-1)
    is_clear = nearest > 1e-5 * np.abs(scaled)
    assert is_clear.mean() > 0.9
    np.testing.assert_allclose(
        wide(scaled_e4m3(x, amax))[is_clear],
        (to_e4m3(scaled) * wide(amax) / 448)[is_clear],
        rtol=relative_error(x.dtype),
    )


def test_gradient_of_unscaled_e4m3_stops_at_448() -> None:
    x = torch.tensor([448.0, 448.1, -448.0, -500.0], requires_grad=True)
    scaled_e4m3(x).sum().backward()
    assert x.grad.tolist() == [1, 0, 1, 0]


@pytest.mark.parametrize(("exponent", "mantissa"), [(5, 2), (3, 4)])
def test_other_float_formats_are_refused(exponent, mantissa) -> None:
    with pytest.raises(NotImplementedError, match=r"^Only support E=4 & M=3 for now\.$"):
        scaled_e4m3(draw(2), None, exponent, mantissa)


# Descriptors


EVERYTHING = {
    "num_bits": 5,
    "name": "x",
    "fake_quant": False,
    "axis": (0, 2),
    "amax": [1.0, 2.5],
    "scale_amax": 0.9,
    "calib_method": "histogram",
    "unsigned": True,
    "narrow_range": True,
}


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        EVERYTHING,
        {"axis": 0},
        {"axis": -1},
        {"num_bits": (4, 3)},
        {"amax": 0.1},
        {"learn_amax": True, "amax": 3.0},
        {"calib_method": "histogram"},
        {"narrow_range": True},
    ],
    ids=lambda arguments: "-".join(arguments) or "nothing",
)
def test_descriptor_survives_yaml_and_copies(arguments) -> None:
    desc = QuantDescriptor(**arguments)
    for other in (
        QuantDescriptor.from_yaml(desc.to_yaml()),
        QuantDescriptor(**desc.dict()),
        copy.deepcopy(desc),
        pickle.loads(pickle.dumps(desc)),
    ):
        assert other == desc
        assert hash(other) == hash(desc)
        for name, value in arguments.items():
            found = getattr(other, name)
            if name == "amax":
                np.testing.assert_array_equal(found, np.float32(value))
                assert found.dtype == np.float32
            else:
                assert found == value
                assert type(found) is type(value)


def test_descriptor_reads_block_yaml() -> None:
    desc = QuantDescriptor.from_yaml("amax: 1.5\naxis:\n- 0\nname: w\nnum_bits: 4\nunsigned: true")
    assert desc == QuantDescriptor(4, "w", amax=1.5, axis=(0,), unsigned=True)


def test_the_dict_contains_only_values_that_differ_from_the_default() -> None:
    assert QuantDescriptor().dict() == {"num_bits": 8, "name": None}
    assert QuantDescriptor(**EVERYTHING).dict() == EVERYTHING


@pytest.mark.parametrize("name", [name for name in EVERYTHING if name != "name"])
def test_descriptors_that_differ_are_unequal(name) -> None:
    assert QuantDescriptor(**EVERYTHING) != QuantDescriptor(
        **{key: value for key, value in EVERYTHING.items() if key != name}
    )


def test_descriptor_is_read_only() -> None:
    desc = QuantDescriptor()
    for name in EVERYTHING:
        with pytest.raises(AttributeError):
            setattr(desc, name, EVERYTHING[name])


def test_descriptor_does_not_alias_its_array() -> None:
    amax = np.array([1.0, 2.0], dtype=np.float32)
    desc = QuantDescriptor(amax=amax)
    amax[0] = 9.0
    assert desc.amax.tolist() == [1.0, 2.0]


@pytest.mark.parametrize(
    ("desc", "text"),
    [
        (QuantDescriptor(), "QuantDescriptor(8bit fake axis= per-tensor)"),
        (QuantDescriptor(axis=0), "QuantDescriptor(8bit fake axis=0)"),
        (QuantDescriptor(axis=(0, 1)), "QuantDescriptor(8bit fake axis=(0, 1))"),
        (
            QuantDescriptor(4, "w", unsigned=True, fake_quant=False),
            "w: (unsigned 4bit real axis= per-tensor)",
        ),
        (
            QuantDescriptor(amax=1.5, learn_amax=True, scale_amax=0.5),
            "QuantDescriptor(8bit fake axis= per-tensor amax=1.5 full_range learn_amax "
            "scale_amax=0.5)",
        ),
    ],
    ids=["default", "axis", "axes", "named", "all-else"],
)
def test_descriptor_reads_as_in_the_toolkit(desc, text) -> None:
    assert str(desc) == text


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"num_bits": -1}, ValueError, r"num_bits must be > 0, not -1\."),
        ({"num_bits": 8.0}, TypeError, "num_bits must be a postive integer or tuple"),
        ({"num_bits": "8"}, TypeError, "num_bits must be a postive integer or tuple"),
        ({"num_bits": True}, TypeError, "num_bits must be a postive integer or tuple"),
        ({"num_bits": (5, 2)}, TypeError, r"tuple \(4,3\), not <class 'tuple'>"),
        ({"name": 3}, TypeError, r"name must be a string or None, not <class 'int'>\."),
        ({"amax": 1}, TypeError, "amax must be float, list or ndarray, not <class 'int'>"),
        ({"amax": torch.ones(1)}, TypeError, "amax must be float, list or ndarray, not"),
        (
            {"learn_amax": True, "axis": 0},
            TypeError,
            "axis is ignored and must be None when learn_amax is true, got <class 'int'>",
        ),
        ({"axes": 0}, TypeError, r"Unused keys: dict_keys\(\['axes'\]\)"),
        ({"calib_method": "entropy"}, ValueError, "calib_method must be 'max' or 'histogram'"),
    ],
    ids=lambda value: str(value)[:24],
)
def test_descriptor_refuses(arguments, error, message) -> None:
    with pytest.raises(error, match=message):
        QuantDescriptor(**arguments)


def test_no_bits_only_log_an_error(caplog) -> None:
    with caplog.at_level(logging.ERROR, logger="qdqbert"):
        assert QuantDescriptor(num_bits=0).num_bits == 0
    assert "quantized to all zeros" in caplog.text


def test_names_are_the_toolkits() -> None:
    assert ScaledQuantDescriptor is QuantDescriptor
    assert QuantDescriptor(8) == toolkit.QUANT_DESC_8BIT_PER_TENSOR
    assert QuantDescriptor(8, unsigned=True) == toolkit.QUANT_DESC_UNSIGNED_8BIT_PER_TENSOR
    assert QuantDescriptor(8, axis=0) == toolkit.QUANT_DESC_8BIT_LINEAR_WEIGHT_PER_ROW
    for dims in (1, 2, 3):
        conv = getattr(toolkit, f"QUANT_DESC_8BIT_CONV{dims}D_WEIGHT_PER_CHANNEL")
        transposed = getattr(toolkit, f"QUANT_DESC_8BIT_CONVTRANSPOSE{dims}D_WEIGHT_PER_CHANNEL")
        assert conv == QuantDescriptor(8, axis=0)
        assert transposed == QuantDescriptor(8, axis=1)
