from __future__ import annotations

import functools

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator
from torch import Tensor

from qdqbert.quantization.numerics.affine import (
    QuantizationParameters,
    affine_parameters,
    clipped,
    dequantize,
    dynamic_parameters,
    fake_quantize,
    parameters_of,
    quantize,
    quantize_weight,
    reduce_amax,
    round_trip,
    symmetric_parameters,
    weight_parameters,
)
from qdqbert.quantization.spec import SAFE_ADJACENT_SUM_LIMIT, Range, TensorSpec

INT8 = TensorSpec(bits=8)
NARROW = TensorSpec(bits=8, narrow=True)
UINT8 = TensorSpec(bits=8, signed=False, symmetric=False)
INT8_AFFINE = TensorSpec(bits=8, symmetric=False)
WEIGHT = TensorSpec(bits=8, narrow=True, axis=0)
PAIRED = TensorSpec(bits=8, narrow=True, axis=0, adjacent_sum_limit=SAFE_ADJACENT_SUM_LIMIT)

# Three float32 roundings (x / scale, its product with scale, the scale itself) of at most 255
# codes: 3 * 255 * 2^-24 < 1e-4 of a step.
ROUNDING = 1e-4

specs = st.builds(
    lambda bits, kind: TensorSpec(bits=bits, **kind),
    st.integers(2, 8),
    st.sampled_from(
        [
            {"signed": True},
            {"signed": True, "narrow": True},
            {"signed": False},
            {"signed": True, "symmetric": False},
            {"signed": False, "symmetric": False},
        ]
    ),
)
# Normal float32 with room for `high - low` and for a step of 1/255 of it.
ends = st.floats(2.0**-100, 2.0**100, width=32) | st.just(0.0)
values = st.floats(width=32, allow_nan=False, allow_infinity=False)


def parameters(spec: TensorSpec, low: Tensor, high: Tensor) -> QuantizationParameters:
    if spec.symmetric:
        return symmetric_parameters(torch.maximum(-low, high), spec)
    return affine_parameters(low, high, spec)


@functools.lru_cache
def ort_session(operator: str, *, signed: bool, axis: int | None) -> ort.InferenceSession:
    codes = TensorProto.INT8 if signed else TensorProto.UINT8
    source, result = (
        (TensorProto.FLOAT, codes) if operator == "QuantizeLinear" else (codes, TensorProto.FLOAT)
    )
    shape = () if axis is None else ("channels",)
    graph = helper.make_graph(
        [
            helper.make_node(
                operator,
                ["x", "scale", "zero_point"],
                ["y"],
                **({} if axis is None else {"axis": axis}),
            )
        ],
        "one_node",
        [
            helper.make_tensor_value_info("x", source, None),
            helper.make_tensor_value_info("scale", TensorProto.FLOAT, shape),
            helper.make_tensor_value_info("zero_point", codes, shape),
        ],
        [helper.make_tensor_value_info("y", result, None)],
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=onnx.IR_VERSION_2024_3_25
    )
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    return ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def ort_run(
    operator: str, x: np.ndarray, chosen: QuantizationParameters, spec: TensorSpec
) -> np.ndarray:
    session = ort_session(operator, signed=spec.signed, axis=spec.axis)
    code_type = np.int8 if spec.signed else np.uint8
    (y,) = session.run(
        None,
        {
            "x": x if operator == "QuantizeLinear" else x.astype(code_type),
            "scale": chosen.scale.numpy(),
            "zero_point": chosen.zero_point.numpy().astype(code_type),
        },
    )
    return y


def assert_as_onnxruntime(x: Tensor, chosen: QuantizationParameters, spec: TensorSpec) -> None:
    ours = quantize(x, chosen, spec)
    theirs = ort_run("QuantizeLinear", x.numpy(), chosen, spec)
    # ONNX knows whole 8-bit types only; fewer codes saturate earlier.
    np.testing.assert_array_equal(ours.numpy(), theirs.clip(spec.qmin, spec.qmax))
    reals = ort_run("DequantizeLinear", ours.numpy(), chosen, spec)
    np.testing.assert_array_equal(dequantize(ours, chosen, spec).numpy(), reals)
    np.testing.assert_array_equal(fake_quantize(x, chosen, spec).numpy(), reals)


# By hand


@pytest.mark.parametrize(
    ("spec", "codes"),
    [
        (INT8, [0, 1, -3, 127, 127, -128]),
        (NARROW, [0, 1, -3, 127, 127, -127]),
        (TensorSpec(bits=8, signed=False), [0, 2, 0, 255, 255, 0]),
    ],
    ids=["int8", "narrow", "uint8"],
)
def test_symmetric_codes_by_hand(spec, codes) -> None:
    chosen = symmetric_parameters(torch.tensor(12.7), spec)  # steps of 0.1, or of 0.0498
    x = torch.tensor([0.0, 0.12, -0.31, 12.7, 99.0, -99.0])
    assert quantize(x, chosen, spec).tolist() == codes


def test_affine_codes_by_hand() -> None:
    # 63.75 / 255 = 0.25 and 8 / 0.25 = 32, both exact, so that halves are ties.
    chosen = affine_parameters(torch.tensor(-8.0), torch.tensor(55.75), UINT8)
    assert (chosen.scale.item(), chosen.zero_point.item()) == (0.25, 32)
    x = torch.tensor([0.0, 0.125, 0.375, -0.125, -8.0, 55.75, -99.0, 99.0])
    assert quantize(x, chosen, UINT8).tolist() == [32, 32, 34, 32, 0, 255, 0, 255]
    codes = torch.tensor([0.0, 32.0, 34.0, 255.0])
    assert dequantize(codes, chosen, UINT8).tolist() == [-8.0, 0.0, 0.5, 55.75]


def test_weight_gets_a_scale_for_each_channel_by_hand() -> None:
    weight = torch.tensor([[127.0, -1.0], [0.5, -63.5], [0.0, 0.0]])
    chosen = weight_parameters(weight, WEIGHT)
    assert chosen.scale.tolist() == [1.0, 0.5, 1.0]
    assert chosen.zero_point.tolist() == [0, 0, 0]
    assert quantize(weight, chosen, WEIGHT).tolist() == [[127, -1], [1, -127], [0, 0]]


def test_parameters_of_a_range_take_the_ends_that_the_spec_asks_for() -> None:
    chosen = Range(amax=12.7, low=-8.0, high=55.75)
    assert parameters_of(chosen, INT8).scale.item() == np.float32(12.7) / np.float32(127)
    assert parameters_of(chosen, INT8).zero_point.item() == 0
    assert parameters_of(chosen, UINT8).scale.item() == 0.25
    assert parameters_of(chosen, UINT8).zero_point.item() == 32
    assert parameters_of(chosen, INT8_AFFINE).zero_point.item() == 32 - 128


# Oracle: ONNX Runtime


def adversarial(scale: float) -> Tensor:
    """Ties and their neighbours, saturation, denormals and the largest numbers."""
    ties = (np.arange(-300, 300) + 0.5).astype(np.float32) * np.float32(scale)
    huge = np.float32([0.0, -0.0, 1e-45, -1e-45, 1.17e-38, -1.17e-38, 3.4e38, -3.4e38])
    neighbours = [np.nextafter(ties, np.float32(end)) for end in (np.inf, -np.inf)]
    return torch.from_numpy(np.concatenate([ties, *neighbours, huge]))


# From the smallest normal float32 to one at which 301 steps nearly overflow.
@pytest.mark.parametrize("scale", [1.1754944e-38, 1e-5, 0.1, 0.125, 1 / 3, 7.0, 1e36], ids=str)
@pytest.mark.parametrize(
    ("spec", "zero_point"),
    [(INT8, 0), (NARROW, 0), (UINT8, 0), (UINT8, 100), (UINT8, 255), (INT8_AFFINE, -100)],
    ids=["int8", "narrow", "uint8-low", "uint8-middle", "uint8-high", "int8-affine"],
)
def test_codes_of_adversarial_values_are_onnxruntimes(scale, spec, zero_point) -> None:
    chosen = QuantizationParameters(
        scale=torch.tensor(scale), zero_point=torch.tensor(zero_point, dtype=torch.int32)
    )
    assert_as_onnxruntime(adversarial(scale), chosen, spec)


@settings(max_examples=150)
@given(st.data(), specs)
def test_codes_are_onnxruntimes(data, spec) -> None:
    shape = data.draw(hnp.array_shapes(max_dims=4, max_side=5))
    axis = data.draw(st.none() | st.integers(0, len(shape) - 1))
    spec = TensorSpec(**{**vars(spec), "axis": axis})
    x = data.draw(hnp.arrays(np.float32, shape, elements=values))
    channels = () if axis is None else (shape[axis],)
    low, high = (
        torch.from_numpy(data.draw(hnp.arrays(np.float32, channels, elements=ends)))
        for _ in range(2)
    )
    assert_as_onnxruntime(torch.from_numpy(x), parameters(spec, -low, high), spec)


# Oracle: float64


@given(specs, ends, ends)
def test_scale_and_zero_point_are_those_of_float64(spec, low, high) -> None:
    span = max(low, high) if spec.symmetric else low + high
    assume(span > 0)
    chosen = parameters(spec, torch.tensor(-low), torch.tensor(high))
    codes = spec.qmax if spec.symmetric else spec.qmax - spec.qmin
    # Two float32 roundings, of the sum and of the quotient: 2 * 2^-24.
    np.testing.assert_allclose(chosen.scale.item(), span / codes, rtol=1.2e-7)
    zero_point = 0.0 if spec.symmetric else spec.qmin + low * codes / span
    assert abs(chosen.zero_point.item() - zero_point) <= 0.5 + ROUNDING
    assert chosen.scale.dtype == torch.float32
    assert chosen.zero_point.dtype == torch.int32


# Laws


@given(specs, ends, ends)
def test_zero_is_exact(spec, low, high) -> None:
    chosen = parameters(spec, torch.tensor(-low), torch.tensor(high))
    zero = torch.zeros(())
    assert quantize(zero, chosen, spec).item() == chosen.zero_point.item()
    assert spec.qmin <= chosen.zero_point.item() <= spec.qmax
    assert fake_quantize(zero, chosen, spec).item() == 0.0


@given(specs, ends, ends, hnp.arrays(np.float32, 20, elements=st.floats(0, 1, width=32)))
def test_round_trip_is_within_half_a_step_inside_the_range(spec, low, high, shares) -> None:
    if spec.symmetric:  # amax to either side; unsigned codes have no negative side
        high = max(low, high)
        low = high if spec.signed else 0.0
    low, high = (np.float32(end) for end in (low, high))
    x = torch.from_numpy((np.float64(-low) + shares * (np.float64(low) + high)).astype(np.float32))
    chosen = parameters(spec, torch.tensor(-low), torch.tensor(high))
    error = (fake_quantize(x, chosen, spec).double() - x.double()).abs()
    assert error.max() <= (0.5 + ROUNDING) * chosen.scale.double()


@given(specs, ends, ends, hnp.arrays(np.float32, 20, elements=values))
def test_quantizing_twice_changes_nothing(spec, low, high, x) -> None:
    chosen = parameters(spec, torch.tensor(-low), torch.tensor(high))
    once = fake_quantize(torch.from_numpy(x), chosen, spec)
    assert torch.equal(fake_quantize(once, chosen, spec), once)


@pytest.mark.parametrize("nothing", [0.0, 1e-45, 1e-40, 1e-37], ids=str)
def test_channel_of_nothing_has_a_usable_scale(nothing) -> None:
    # 1e-37 / 127 is denormal: its reciprocal overflows.
    weight = torch.tensor([[nothing, -nothing, 0.0], [1.0, -2.0, 0.5]])
    chosen = weight_parameters(weight, WEIGHT)
    assert chosen.scale[0].item() == 1.0
    assert chosen.scale[1].item() == np.float32(2) / np.float32(127)
    assert fake_quantize(weight, chosen, WEIGHT)[0].tolist() == [0.0, 0.0, 0.0]


def test_range_of_zero_width_gives_valid_affine_codes() -> None:
    chosen = affine_parameters(torch.zeros(()), torch.zeros(()), UINT8)
    assert (chosen.scale.item(), chosen.zero_point.item()) == (1.0, 0)


# Gradient and precision of fake quantization


@pytest.mark.parametrize(
    ("spec", "chosen", "inside"),
    [
        (
            NARROW,  # codes are x itself
            symmetric_parameters(torch.tensor(127.0), NARROW),
            [[1, 1, 1, 0], [0, 1, 0, 0]],
        ),
        (
            WEIGHT,  # steps of 1 and 2: the second row reaches to 254
            symmetric_parameters(torch.tensor([127.0, 254.0]), WEIGHT),
            [[1, 1, 1, 0], [1, 1, 1, 0]],
        ),
        (
            UINT8,  # [-100, 155] in steps of 1
            affine_parameters(torch.tensor(-100.0), torch.tensor(155.0), UINT8),
            [[1, 0, 1, 1], [0, 1, 0, 0]],
        ),
    ],
    ids=["per-tensor", "per-channel", "affine"],
)
def test_gradient_is_one_inside_and_zero_where_saturated(spec, chosen, inside) -> None:
    x = torch.tensor(
        [[0.0, -126.6, 127.4, 128.0], [-130.0, 100.3, 200.0, -300.0]], requires_grad=True
    )
    upstream = torch.arange(1.0, 9.0).view(2, 4)
    fake_quantize(x, chosen, spec).backward(upstream)
    assert x.grad is not None
    assert x.grad.tolist() == (upstream * torch.tensor(inside)).tolist()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("spec", [INT8, WEIGHT, UINT8], ids=["tensor", "channel", "affine"])
def test_half_precision_comes_back_as_it_went_in(dtype, spec) -> None:
    x = torch.randn(3, 50, generator=torch.Generator().manual_seed(0)).to(dtype)
    x.requires_grad_()
    shape = () if spec.axis is None else (3,)
    chosen = parameters(spec, torch.full(shape, -1.0), torch.full(shape, 1.5))
    y = fake_quantize(x, chosen, spec)
    assert y.dtype == dtype
    # Computed in float32: the only rounding to half precision is the last.
    assert torch.equal(y, fake_quantize(x.detach().float(), chosen, spec).to(dtype))
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.dtype == dtype


# Pair limit


def code_pairs(weight: Tensor, spec: TensorSpec) -> Tensor:
    return paired(quantize(weight, weight_parameters(weight, spec), spec))


def paired(codes: Tensor) -> Tensor:
    if codes.shape[1] % 2:
        codes = torch.nn.functional.pad(codes, (0, 1))
    return codes.view(codes.shape[0], -1, 2)


def leaves_int16(pairs: Tensor) -> bool:
    """Whether `u8 * s8 + u8 * s8` in 16 bits goes wrong for any activations: x86's vpmaddubsw.

    The sum is bilinear, so that its extremes are at activations of 0 and 255.
    """
    weights = pairs.numpy().astype(np.int32)
    for a in (0, 1, 128, 255):
        for b in (0, 1, 128, 255):
            exact = a * weights[..., 0] + b * weights[..., 1]
            if (exact.astype(np.int16) != exact).any():
                return True
    return False


ADVERSARIAL_WEIGHTS = {
    "all-equal": torch.ones(2, 8),
    "all-equal-negative": -torch.ones(2, 8),
    "alternate-signs": torch.tensor([1.0, -1.0]).repeat(2, 4),
    "odd-width": torch.ones(2, 7),
    "one-input": torch.ones(3, 1),
    "largest-in-different-pairs": torch.tensor([[1.0, 0.0, 1.0, 0.0]]),
    "ties": torch.tensor([[63.5, 63.5, 64.5, 63.5, 127.0, 1.5]]),
    "nothing": torch.zeros(2, 4),
    "denormal": torch.full((2, 4), 1e-40),
    "random": torch.randn(64, 129, generator=torch.Generator().manual_seed(0)),
}


@pytest.mark.parametrize("weight", ADVERSARIAL_WEIGHTS.values(), ids=ADVERSARIAL_WEIGHTS.keys())
def test_codes_under_the_pair_limit_stay_in_16_bits(weight) -> None:
    pairs = code_pairs(weight, PAIRED)
    assert pairs.sum(dim=2).abs().max() <= SAFE_ADJACENT_SUM_LIMIT
    assert not leaves_int16(pairs)


def test_codes_without_the_pair_limit_leave_16_bits() -> None:
    assert leaves_int16(code_pairs(torch.ones(2, 8), WEIGHT))


paired_weights = hnp.arrays(
    np.float32,
    st.tuples(st.integers(1, 3), st.integers(1, 9)),
    # Few distinct values make equal neighbours and ties likely.
    elements=st.sampled_from([0.0, 1.0, -1.0, 63.5, 64.0, 0.25])
    | st.floats(-(2.0**100), 2.0**100, width=32),
)
paired_specs = st.integers(2, 8).flatmap(
    lambda bits: st.builds(
        TensorSpec,
        bits=st.just(bits),
        narrow=st.booleans(),
        axis=st.sampled_from([0, None]),
        # From the least that a spec accepts to the most that two codes can sum to.
        adjacent_sum_limit=st.integers(max(2, 2 ** (bits - 1) - 1), 2**bits),
    )
)


@given(paired_weights, paired_specs)
def test_no_pair_of_neighboring_codes_sums_above_the_limit(weight, spec) -> None:
    weight = torch.from_numpy(weight)
    assume(weight.shape[1] % 2 == 0 or spec.axis == 0)  # one scale in all pairs across rows
    assert code_pairs(weight, spec).sum(dim=2).abs().max() <= spec.adjacent_sum_limit
    free = TensorSpec(**{**vars(spec), "adjacent_sum_limit": None})
    # A scale that is too small for float32 becomes 1, and that of `free` is the smaller one.
    assume(not ((weight != 0) & (weight.abs() < 1e-35)).any())
    assert (weight_parameters(weight, spec).scale >= weight_parameters(weight, free).scale).all()


def test_one_scale_in_all_keeps_the_limit_in_each_row_of_odd_width() -> None:
    spec = TensorSpec(bits=8, narrow=True, adjacent_sum_limit=SAFE_ADJACENT_SUM_LIMIT)
    # Neighbours are those of a row: (1, 1) of the second, not the (-1, 1) that runs across both.
    weight = torch.tensor([[0.0, 0.0, -1.0], [1.0, 1.0, 0.0]])
    assert code_pairs(weight, spec).sum(dim=2).abs().max() <= SAFE_ADJACENT_SUM_LIMIT


def test_pair_limit_costs_nothing_where_no_pair_reaches_it() -> None:
    weight = torch.tensor([[1.0, -1.0, 0.4, 0.5], [1.0, 1.0, 0.0, 0.0]])
    free, paired = (weight_parameters(weight, spec).scale for spec in (WEIGHT, PAIRED))
    assert paired[0] == free[0]
    assert paired[1] == 2 * free[1]


# A range that is given


FIXED_WEIGHT = torch.tensor([[2.0, -1.0, 0.3], [0.5, -8.0, 0.0], [0.1, 0.2, -0.05]])


@pytest.mark.parametrize("amax", [[1.0, 4.0, 3.0], [2.0, 8.0, 0.2], [0.0, 1e-3, 1e4]], ids=str)
def test_weights_beyond_a_given_range_are_clipped_by_channel(amax) -> None:
    chosen = weight_parameters(FIXED_WEIGHT, WEIGHT, amax=torch.tensor(amax))
    scale = np.float32(amax) / np.float32(127)
    scale[scale == 0] = 1  # a range of nothing has a step of 1
    np.testing.assert_array_equal(chosen.scale.numpy(), scale)
    expected = np.rint(FIXED_WEIGHT.numpy() / scale[:, None]).clip(-127, 127)
    np.testing.assert_array_equal(quantize(FIXED_WEIGHT, chosen, WEIGHT).numpy(), expected)


@pytest.mark.parametrize("amax", [1.0, 8.0, 50.0])
@pytest.mark.parametrize("shape", [(), (3,)], ids=str)
@pytest.mark.parametrize("spec", [NARROW, WEIGHT], ids=["tensor", "channel"])
def test_one_given_range_serves_all_channels(spec, shape, amax) -> None:
    chosen = weight_parameters(FIXED_WEIGHT, spec, amax=torch.full(shape, amax))
    step = np.float32(amax) / np.float32(127)
    assert chosen.scale.shape == (() if spec.axis is None else (3,))
    assert (chosen.scale.numpy() == step).all()
    expected = np.rint(FIXED_WEIGHT.numpy() / step).clip(-127, 127)
    np.testing.assert_array_equal(quantize(FIXED_WEIGHT, chosen, spec).numpy(), expected)


@given(paired_weights, st.data(), paired_specs)
def test_no_pair_sums_above_the_limit_whatever_range_is_given(weight, data, spec) -> None:
    shape = (len(weight),) if spec.axis == 0 and data.draw(st.booleans()) else ()
    amax = data.draw(
        hnp.arrays(
            np.float32,
            shape,
            elements=st.sampled_from([0.0, 1.0, 63.5, 0.25]) | st.floats(0, 2.0**60, width=32),
        )
    )
    weight, fixed = torch.from_numpy(weight), torch.from_numpy(np.asarray(amax))
    codes, _ = quantize_weight(weight, spec, fixed)
    assert paired(codes).sum(dim=2).abs().max() <= spec.adjacent_sum_limit


@pytest.mark.parametrize("axis", [0, 1, None], ids=str)
def test_clipped_weights_lie_within_a_given_range(axis) -> None:
    shape = () if axis is None else (FIXED_WEIGHT.shape[axis],)
    for amax in (torch.full(shape, 0.4), torch.linspace(0, 3, 3) if shape else torch.tensor(9.0)):
        broadcast = {0: amax[:, None] if shape else amax, 1: amax, None: amax}[axis].numpy()
        expected = np.clip(FIXED_WEIGHT.numpy(), -broadcast, broadcast)
        np.testing.assert_array_equal(clipped(FIXED_WEIGHT, amax, axis).numpy(), expected)
    assert torch.equal(clipped(FIXED_WEIGHT, None, axis), FIXED_WEIGHT)


# Refusals


@pytest.mark.parametrize(
    ("amax", "spec", "message"),
    [
        (1.0, UINT8, "A symmetric spec is needed, got uint8 affine per-tensor"),
        (-1.0, INT8, "`amax` must be finite and non-negative, got -1.0"),
        (float("nan"), INT8, "`amax` must be finite and non-negative, got nan"),
        (float("inf"), INT8, "`amax` must be finite and non-negative, got inf"),
    ],
    ids=["affine-spec", "negative", "nan", "infinite"],
)
def test_symmetric_parameters_refuse(amax, spec, message) -> None:
    with pytest.raises(ValueError, match=message):
        symmetric_parameters(torch.tensor(amax), spec)


@pytest.mark.parametrize(
    ("low", "high", "spec", "message"),
    [
        (-1.0, 1.0, INT8, "An affine spec is needed, got int8 symmetric per-tensor"),
        (float("nan"), 1.0, UINT8, r"The range must be finite, got nan \.\. 1"),
        (-1.0, float("inf"), UINT8, r"The range must be finite, got -1.0 \.\. inf"),
        (0.5, 1.0, UINT8, r"The range must contain 0, got 0.5 \.\. 1"),
        (-1.0, -0.5, UINT8, r"The range must contain 0, got -1.0 \.\. -0.5"),
    ],
    ids=["symmetric-spec", "nan", "infinite", "above-zero", "below-zero"],
)
def test_affine_parameters_refuse(low, high, spec, message) -> None:
    with pytest.raises(ValueError, match=message):
        affine_parameters(torch.tensor(low), torch.tensor(high), spec)


def test_one_bad_channel_is_refused() -> None:
    with pytest.raises(ValueError, match=r"got \[1.0, -2.0\]"):
        symmetric_parameters(torch.tensor([1.0, -2.0]), WEIGHT)


# Round trip


HALVES = [torch.float16, torch.bfloat16]


def round_trip_reference(
    x: Tensor, scale: np.ndarray, qmin: int, qmax: int, zero_point: np.ndarray | int = 0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Ratios, saturated codes and reals, in float64."""
    ratio = x.detach().cpu().double().numpy() / scale
    codes = (np.rint(ratio) + zero_point).clip(qmin, qmax)
    return ratio, codes, (codes - zero_point) * scale


@pytest.mark.parametrize("dtype", [torch.float32, *HALVES, torch.float64], ids=str)
@pytest.mark.parametrize("has_zero_point", [False, True], ids=["symmetric", "affine"])
@pytest.mark.parametrize("shape", [(), (4, 1), (1, 50)], ids=str)
def test_round_trip_is_float64s(device, dtype, has_zero_point, shape) -> None:
    generator = torch.Generator().manual_seed(0)
    x = (torch.randn(4, 50, generator=generator) * 3).to(dtype)
    scale = torch.rand(shape, generator=generator) * 0.1 + 0.01
    zero_point = torch.randint(-20, 20, shape, generator=generator) if has_zero_point else None
    reals = round_trip(
        x.to(device),
        scale.to(device),
        -100,
        90,
        zero_point=None if zero_point is None else zero_point.to(device),
    )
    zero = 0 if zero_point is None else zero_point.numpy()
    ratio, _, expected = round_trip_reference(x, scale.double().numpy(), -100, 90, zero)
    is_clear = np.abs(ratio - np.floor(ratio) - 0.5) > 1e-4
    assert reals.dtype == dtype
    np.testing.assert_allclose(
        reals.cpu().double().numpy()[is_clear],
        expected[is_clear],
        rtol=max(2.0**-22, torch.finfo(dtype).eps),
    )


def test_round_trip_goes_back_by_a_division_where_an_inverse_is_given() -> None:
    x = torch.randn(10_000, generator=torch.Generator().manual_seed(0))
    amax = np.float32(2.9)
    scale, inverse = amax / np.float32(127), np.float32(127) / amax
    codes = np.rint(x.numpy() / scale).clip(-127, 127)
    by_product = round_trip(x, torch.tensor(scale), -127, 127)
    by_division = round_trip(x, torch.tensor(scale), -127, 127, inverse=torch.tensor(inverse))
    np.testing.assert_array_equal(by_product.numpy(), codes * scale)
    np.testing.assert_array_equal(by_division.numpy(), codes / inverse)
    assert not torch.equal(by_product, by_division)  # which is what the argument is for


@pytest.mark.parametrize("dtype", [torch.float32, *HALVES], ids=str)
def test_round_trips_gradient_passes_between_low_and_high(device, dtype) -> None:
    x = torch.tensor([-3.0, -2.0, -1.5, 0.0, 0.75, 1.0, 1.25], dtype=dtype, device=device)
    x.requires_grad_()
    upstream = torch.arange(1, 8, dtype=dtype, device=device)
    scale, low, high = (torch.tensor(end, device=device) for end in (0.25, -2.0, 1.0))
    # Codes reach from -32 to 31.75: none saturates.
    round_trip(x, scale, -128, 127, low=low, high=high).backward(upstream)
    assert x.grad is not None
    assert x.grad.tolist() == [0, 2, 3, 4, 5, 6, 0]


def test_round_trips_gradient_passes_where_codes_do_not_saturate() -> None:
    x = torch.tensor([-1.6, -1.4, 0.0, 1.4, 1.6], requires_grad=True)
    round_trip(x, torch.tensor(1.0), -1, 1).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [0, 1, 1, 1, 0]


def test_round_trip_gives_gradients_only_to_the_tensor() -> None:
    x = torch.ones(3, requires_grad=True)
    others = [torch.tensor(value, requires_grad=True) for value in (0.5, 2.0, -1.0, 1.0)]
    scale, inverse, low, high = others
    round_trip(x, scale, -8, 7, inverse=inverse, low=low, high=high).sum().backward()
    assert x.grad is not None
    assert [other.grad for other in others] == [None] * 4


# Largest magnitudes


@pytest.mark.parametrize("dtype", [torch.float32, *HALVES, torch.float64], ids=str)
@pytest.mark.parametrize("keepdims", [True, False], ids=["kept", "dropped"])
@pytest.mark.parametrize("axis", [0, 1, -1, (0, 2), [1], (-1, 0), (0, 1, 2)], ids=str)
def test_reduce_amax_is_numpys(device, dtype, keepdims, axis) -> None:
    x = torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(0)).to(dtype)
    axes = tuple(axis) if isinstance(axis, list) else axis
    expected = np.abs(x.double().numpy()).max(axis=axes, keepdims=keepdims)
    amax = reduce_amax(x.to(device), axis=axis, keepdims=keepdims)
    expected = expected.squeeze() if expected.size == 1 else expected
    assert amax.dtype == dtype
    np.testing.assert_array_equal(amax.cpu().double().numpy(), expected, strict=True)


@pytest.mark.parametrize("keepdims", [True, False], ids=["kept", "dropped"])
@pytest.mark.parametrize("shape", [(), (7,), (1, 1), (2, 3, 4)], ids=str)
def test_reduce_amax_over_all_axes_is_a_scalar(shape, keepdims) -> None:
    x = -torch.rand(shape, generator=torch.Generator().manual_seed(0)) - 1
    amax = reduce_amax(x, keepdims=keepdims)
    assert amax.shape == ()
    assert amax.item() == np.abs(x.numpy()).max()


def test_reduce_amax_over_no_axes_is_all_magnitudes() -> None:
    assert reduce_amax(torch.tensor([-1.0, 2.0]), axis=()).tolist() == [1, 2]


@pytest.mark.parametrize("axis", [(0, 1, 2), [0, 1, 2]], ids=["tuple", "list"])
def test_reduce_amax_refuses_more_axes_than_there_are(axis) -> None:
    with pytest.raises(ValueError, match=r"^Cannot reduce more axes than tensor's dim\.$"):
        reduce_amax(torch.ones(2, 3), axis=axis)


@settings(max_examples=50)
@given(
    x=hnp.arrays(np.float32, hnp.array_shapes(max_dims=3), elements=st.floats(-1e6, 1e6, width=32))
)
@example(x=np.array([1e-45], np.float32))
def test_parameters_of_a_tensor_itself_are_those_of_onnx(x) -> None:
    graph = helper.make_graph(
        [helper.make_node("DynamicQuantizeLinear", ["x"], ["codes", "scale", "zero_point"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)],
        [
            helper.make_tensor_value_info("scale", TensorProto.FLOAT, ()),
            helper.make_tensor_value_info("zero_point", TensorProto.UINT8, ()),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)])
    # Its scale of the smallest numbers is 0.
    with np.errstate(invalid="ignore", divide="ignore"):
        scale, zero_point = ReferenceEvaluator(model).run(None, {"x": x})
    parameters = dynamic_parameters(torch.from_numpy(x), UINT8)
    if not x.any() or np.ptp([*x.flat, 0.0]) < 1e-30:
        return  # nothing to tell apart: any scale gives zeros
    np.testing.assert_allclose(float(parameters.scale), scale, rtol=3e-7)
    # A zero point halfway between two codes may go either way with the last bit of the scale.
    assert abs(int(parameters.zero_point) - int(zero_point)) <= 1
    codes = quantize(torch.from_numpy(x), parameters, UINT8)
    error = dequantize(codes, parameters, UINT8).numpy() - x
    assert np.abs(error).max() <= scale * (1 + ROUNDING)
