"""Affine codes, and ranges that move or are learned while a model trains."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from compat_tensors import draw, saved_and_loaded, wide
from qdqbert.common.errors import UncalibratedError
from qdqbert.compat.nn import QuantLinear, TensorQuantizer
from qdqbert.compat.tensor_quant import QuantDescriptor
from qdqbert.quantization.spec import Site

SITE = Site(name="encoder.layer.0.x._input_quantizer", kind="activation")
DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64]
EACH_DTYPE = pytest.mark.parametrize("dtype", DTYPES, ids=str)
# Low and high end; the last two are far from a zero point in the middle, and from 1.
RANGES = [(-1.0, 2.0), (0.0, 1.5), (-3.0, 0.0), (-0.17, 20.0), (-1e-3, 1e-4), (-4e4, 7.0)]
EACH_RANGE = pytest.mark.parametrize("ends", RANGES, ids=str)


def affine(
    ends: tuple[float, float] | None = None, *, site: Site | None = None, bits: int = 8
) -> TensorQuantizer:
    made = TensorQuantizer(QuantDescriptor(num_bits=bits), site=site)
    made.symmetric = False
    if ends is not None:
        made.range = ends
    return made


def symmetric(amax: Any = None, *, axis: int | None = None, **desc: Any) -> TensorQuantizer:
    return TensorQuantizer(QuantDescriptor(amax=amax, axis=axis, **desc), site=SITE)


def affine_reference(
    x: Tensor, ends: tuple[float, float], bits: int = 8
) -> tuple[np.ndarray, np.ndarray]:
    """Codes times the step by float64, and which values are far from a tie."""
    low, high = np.float64(np.float32(ends[0])), np.float64(np.float32(ends[1]))
    top = 2**bits - 1
    step = (high - low) / top
    zero = np.rint(-low / step)
    ratio = wide(x) / step
    # 1e-3 of a step: three float32 roundings of at most 255 codes, 3 * 255 * 2^-24, many times.
    is_clear = np.abs(ratio - np.floor(ratio) - 0.5) > 1e-3
    return ((np.rint(ratio) + zero).clip(0, top) - zero) * step, is_clear


def assert_affine(result: Tensor, x: Tensor, ends: tuple[float, float], bits: int = 8) -> None:
    expected, is_clear = affine_reference(x, ends, bits)
    assert is_clear.mean() > 0.9
    # The step and the product are rounded to float32 once each; halves once more at the end, to
    # steps of one size where they are denormal.
    info = torch.finfo(result.dtype)
    rtol, atol = max(2.0**-21, info.eps), info.smallest_normal * info.eps
    np.testing.assert_allclose(wide(result)[is_clear], expected[is_clear], rtol=rtol, atol=atol)


# Affine codes


@EACH_DTYPE
@EACH_RANGE
@pytest.mark.parametrize("shape", [(300,), (3, 4, 25)], ids=str)
def test_affine_codes_are_float64s(device, dtype, ends, shape) -> None:
    # Below 4e4, that is: the largest float16 is 65504.
    x = (draw(*shape) * max(-ends[0], ends[1])).clamp(-4.2e4, 4.2e4).to(dtype).to(device)
    result = affine(ends).to(device)(x)
    assert (result.dtype, result.shape) == (dtype, x.shape)
    assert_affine(result, x, ends)


@pytest.mark.parametrize("bits", range(2, 9))
def test_affine_codes_have_the_bits_that_were_asked_for(bits) -> None:
    x = torch.linspace(-1.5, 3.0, 2000)
    result = affine((-1.0, 2.5), bits=bits)(x)
    assert_affine(result, x, (-1.0, 2.5), bits)
    assert len(result.unique()) == 2**bits


def test_scalars_and_empty_tensors_have_affine_codes() -> None:
    made = affine((-8.0, 55.75))
    assert made(torch.tensor(0.3)).item() == 0.25
    assert made(torch.empty(0, 4)).shape == (0, 4)


def test_affine_codes_without_a_range_are_refused_with_the_site() -> None:
    with pytest.raises(UncalibratedError, match=r"Calibrate first\. Quantizer: `encoder\.layer\.0"):
        affine(site=SITE)(draw(3))
    with pytest.raises(UncalibratedError, match=r"Calibrate first\.$"):
        affine()(draw(3))


@pytest.mark.parametrize(
    "value",
    [
        *((0.5, 1.0), (-1.0, -0.5), (float("nan"), 1.0), (-1.0, float("nan"))),
        *(torch.tensor(1.0), torch.zeros(3), torch.zeros(1, 2)),
    ],
    ids=str,
)
def test_range_that_does_not_hold_zero_is_refused_with_the_site(value) -> None:
    made = affine(site=SITE)
    with pytest.raises(ValueError, match=r"low end <= 0 and a high end >= 0.*encoder\.layer\.0"):
        made.range = value
    assert made.range is None


@pytest.mark.parametrize(
    "value",
    [(-1.0, 2.0), (-1, 2), np.array([-1.0, 2.0]), torch.tensor([-1, 2]), torch.tensor([-1.0, 2.0])],
    ids=lambda value: type(value).__name__,
)
def test_range_may_be_given_as_numbers_an_array_or_a_tensor(value) -> None:
    made = affine()
    made.range = value
    assert made.range.tolist() == [-1, 2]
    assert made.range.dtype == torch.float32
    assert made.amax is None


def test_range_that_is_given_is_a_copy_and_may_be_given_again() -> None:
    given = torch.tensor([-1.0, 2.0])
    made = affine()
    made.range = given
    given += 9
    assert made.range.tolist() == [-1, 2]
    kept = made.range
    made.range = (0.0, 3.0)
    assert kept.tolist() == [0, 3]  # in place, so that what holds the buffer sees it


def test_affine_tensor_is_scaled_before_it_is_rounded() -> None:
    x, scale = draw(50, 4), torch.tensor([0.5, 1.0, 2.0, 4.0])
    made = affine((-1.0, 2.0))
    made.pre_quant_scale = scale
    assert_affine(made(x), x * scale, (-1.0, 2.0))


# Ranges that move


def averaged(first: np.ndarray, batches: list[np.ndarray], share: float) -> np.ndarray:
    """`range <- (1 - share) * range + share * batch`, in float64."""
    now = np.asarray(first, dtype=np.float64)
    for batch in batches:
        now = (1 - share) * now + share * batch
    return now


# Each step rounds a difference, a product and a sum to float32.
MOVING_TOLERANCE = 1e-6
SHARES = pytest.mark.parametrize("share", [0.01, 0.3, 0.7, 1.0])
EACH_INPUT = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)


@SHARES
@EACH_INPUT
def test_affine_range_moves_towards_each_training_batch(device, share, dtype) -> None:
    batches = [(draw(6, 7, seed=seed) * (seed + 1)).to(dtype) for seed in range(5)]
    made = affine((-1.0, 2.0)).to(device)
    made.moving = share
    for batch in batches:
        made(batch.to(device))
    ends = [np.array([wide(x).min(), wide(x).max()]) for x in batches]
    expected = averaged([-1.0, 2.0], ends, share)
    np.testing.assert_allclose(wide(made.range), expected, rtol=MOVING_TOLERANCE)
    assert made.range.dtype == torch.float32


@SHARES
@EACH_INPUT
def test_symmetric_range_moves_towards_each_training_batch(device, share, dtype) -> None:
    batches = [(draw(6, 7, seed=seed) * (seed + 1)).to(dtype) for seed in range(5)]
    made = symmetric(1.5).to(device)
    made.moving = share
    for batch in batches:
        made(batch.to(device))
    expected = averaged(1.5, [np.abs(wide(x)).max() for x in batches], share)
    np.testing.assert_allclose(wide(made.amax), expected, rtol=MOVING_TOLERANCE)
    assert made.amax.shape == ()


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_each_channel_of_a_weight_moves_by_itself(axis) -> None:
    weights = [draw(3, 4, seed=seed) * (seed + 1) for seed in range(4)]
    rest = 1 if axis == 0 else 0
    first = np.abs(wide(weights[0])).max(axis=rest, keepdims=True)
    made = symmetric(first, axis=axis)
    made.moving = 0.25
    for weight in weights:
        made(weight)
    largest = [np.abs(wide(weight)).max(axis=rest, keepdims=True) for weight in weights]
    np.testing.assert_allclose(
        wide(made.amax), averaged(first, largest, 0.25), rtol=MOVING_TOLERANCE
    )
    assert made.amax.shape == first.shape


def test_moving_range_of_values_on_one_side_keeps_zero_in_it() -> None:
    made = affine((0.0, 1.0))
    made.moving = 1.0
    made(torch.tensor([3.0, 5.0]))
    assert made.range.tolist() == [0, 5]
    made(torch.tensor([-3.0, -5.0]))
    assert made.range.tolist() == [-5, 0]


@pytest.mark.parametrize("kind", ["affine", "symmetric"])
def test_moved_range_is_the_one_that_a_batch_is_rounded_by(kind) -> None:
    x = draw(400)
    made = affine((-1.0, 2.0)) if kind == "affine" else symmetric(1.0)
    made.moving = 0.5
    moved = made(x)
    fixed = affine(tuple(made.range.tolist())) if kind == "affine" else symmetric(made.amax.item())
    assert torch.equal(moved, fixed(x))


@pytest.mark.parametrize("kind", ["affine", "symmetric"])
@pytest.mark.parametrize("why", ["evaluation", "disabled", "no rounding"])
def test_range_moves_in_training_only_and_where_it_is_used(kind, why) -> None:
    made = affine((-1.0, 2.0)) if kind == "affine" else symmetric(1.5)
    made.moving = 0.5
    if why == "evaluation":
        made.eval()
    elif why == "disabled":
        made.disable()
    else:
        made.disable_quant()
    made(draw(50) * 9)
    assert made.range.tolist() == [-1, 2] if kind == "affine" else made.amax == 1.5


def test_moving_range_has_no_gradient_and_the_tensor_has() -> None:
    x = torch.linspace(-9, 9, 50).requires_grad_()
    made = affine((-1.0, 2.0))
    made.moving = 0.1
    made(x).sum().backward()
    assert x.grad is not None
    assert 0 < x.grad.sum() < 50
    assert not made.range.requires_grad


@pytest.mark.parametrize("kind", ["affine", "symmetric"])
def test_nothing_to_move_is_refused_with_the_site(kind) -> None:
    made = affine(site=SITE) if kind == "affine" else symmetric()
    made.moving = 0.1
    with pytest.raises(UncalibratedError, match=r"no range to move.*encoder\.layer\.0"):
        made(draw(3))


# Ranges that are learned


@EACH_RANGE
def test_learned_affine_range_starts_at_the_calibrated_one(ends) -> None:
    x = draw(200) * max(-ends[0], ends[1])
    made = affine(ends)
    before = made(x)
    made.learn_range()
    assert made.range.tolist() == [np.float32(end) for end in ends]
    assert torch.equal(made(x), before)
    assert {name for name, _ in made.named_parameters()} == {
        "clip.clip_value_min",
        "clip.clip_value_max",
    }


def test_learned_symmetric_range_starts_at_the_calibrated_one() -> None:
    x = draw(200)
    made = symmetric(1.5)
    before = made(x)
    made.learn_range()
    # Of -1.5 / (1.5 / 127) and the like; -128 codes are out of what a clip lets through.
    expected = before.clamp(-1.5, 1.5)
    torch.testing.assert_close(made(x), expected, rtol=1e-6, atol=0)


@EACH_DTYPE
@pytest.mark.parametrize("ends", [(-1.0, 2.0), (-0.5, 3.25), (-3.0, 0.7)], ids=str)
def test_ends_get_the_gradients_of_what_lies_beyond_them(device, dtype, ends) -> None:
    x = draw(500).to(dtype).to(device).requires_grad_()
    made = affine(ends).to(device)
    made.learn_range()
    upstream = torch.from_numpy(np.random.default_rng(1).integers(1, 9, 500)).to(x)
    made(x).backward(upstream)
    values, gradient = wide(x), wide(upstream)
    # On an end counts as beyond it, as in the toolkit.
    below, above = values <= np.float32(ends[0]), values >= np.float32(ends[1])
    assert below.any()
    assert above.any()
    low, high = made.clip.clip_value_min, made.clip.clip_value_max
    # Whole numbers below 2^12 are exact in float32; half precisions may round their sum.
    rtol = 4 * torch.finfo(dtype).eps
    np.testing.assert_allclose(low.grad.item(), gradient[below].sum(), rtol=rtol)
    np.testing.assert_allclose(high.grad.item(), gradient[above].sum(), rtol=rtol)
    assert x.grad is not None
    np.testing.assert_array_equal(wide(x.grad), gradient * ~(below | above))


@EACH_DTYPE
def test_both_ends_learn_whatever_range_and_precision_they_have(dtype) -> None:
    # Of +-h the ends lie between two codes; in half precision an end may be rounded past itself.
    rng = np.random.default_rng(0)
    ends = [(-h, h) for h in rng.uniform(0.01, 5, 40)] + [(0.0, 1.005)]
    ends += [(-low, high) for low, high in rng.uniform(0.01, 5, (40, 2))]
    for low, high in ends:
        made = affine((float(low), float(high)))
        made.learn_range()
        made(torch.tensor([-9.0, 9.0], dtype=dtype)).sum().backward()
        gradients = [each.grad.item() for each in made.parameters()]
        assert gradients == [1, 1], (low, high)


def test_learning_follows_the_loss() -> None:
    x = torch.linspace(-4, 4, 1001)
    made = affine((-1.0, 1.5), site=SITE)
    made.learn_range()
    optimizer = torch.optim.SGD(made.parameters(), lr=0.5)
    errors = []
    for _ in range(40):
        optimizer.zero_grad()
        error = ((made(x) - x) ** 2).mean()
        error.backward()
        optimizer.step()
        errors.append(error.item())
    assert errors[-1] < errors[0] / 100
    low, high = made.range.tolist()
    assert low < -3
    assert high > 3


def test_learned_range_holds_zero_whatever_its_ends_become() -> None:
    made = affine((-1.0, 2.0))
    made.learn_range()
    with torch.no_grad():
        made.clip.clip_value_min.fill_(0.5)
    assert made.range.tolist() == [0, 2]
    assert made(torch.zeros(2)).isfinite().all()
    made.fix_range()
    assert made.range.tolist() == [0, 2]


@EACH_RANGE
def test_fixed_again_it_is_a_plain_quantizer_with_that_range(ends) -> None:
    made = affine(ends)
    made.learn_range()
    with torch.no_grad():
        made.clip.clip_value_min.mul_(0.75)
        made.clip.clip_value_max.mul_(1.25)
    learned = made.range.tolist()
    made.fix_range()
    assert list(made.parameters()) == []
    assert list(made.state_dict()) == ["_range"]
    assert made.range.tolist() == learned
    x = draw(200) * max(-ends[0], ends[1])
    assert torch.equal(made(x), affine(tuple(learned))(x))
    assert not made(x).requires_grad


@pytest.mark.parametrize("ends", [(-1.0, 3.0), (-3.0, 1.0)], ids=str)
def test_symmetric_range_that_was_learned_becomes_the_wider_end(ends) -> None:
    made = symmetric(1.5)
    made.learn_range()
    with torch.no_grad():
        made.clip.clip_value_min.fill_(ends[0])
        made.clip.clip_value_max.fill_(ends[1])
    made.fix_range()
    assert made.amax == 3
    assert list(made.state_dict()) == ["_amax"]
    x = draw(200)
    assert torch.equal(made(x), symmetric(3.0)(x))


@pytest.mark.filterwarnings("error")
def test_fixing_warns_of_nothing() -> None:
    made = affine((-1.0, 2.0))
    made.learn_range()
    assert all(end.requires_grad for end in made.parameters())
    was_always = torch.is_warn_always_enabled()
    torch.set_warn_always(True)  # else torch warns once a process, maybe in another test
    try:
        made.fix_range()
    finally:
        torch.set_warn_always(was_always)


def test_fixing_ends_moving_and_leaves_the_range() -> None:
    for made in (affine((-1.0, 2.0)), symmetric(1.5)):
        made.moving = 0.5
        made(draw(50))
        before = copy.deepcopy(made.state_dict())
        made.fix_range()
        assert made.moving is None
        made(draw(50) * 9)
        assert all(torch.equal(value, before[name]) for name, value in made.state_dict().items())


@pytest.mark.parametrize("kind", ["affine", "symmetric"])
def test_nothing_to_learn_from_is_refused_with_the_site(kind) -> None:
    made = affine(site=SITE) if kind == "affine" else symmetric()
    with pytest.raises(UncalibratedError, match=r"no range to learn from.*encoder\.layer\.0"):
        made.learn_range()
    assert list(made.parameters()) == []
    made.fix_range()


# Precision and storage


HALVE = pytest.mark.parametrize(
    "convert",
    [lambda m: m.half(), lambda m: m.bfloat16(), lambda m: m.to(torch.float16)],
    ids=["half", "bfloat16", "to"],
)


@HALVE
def test_model_in_half_precision_has_its_affine_ranges_in_float32(convert) -> None:
    linear = QuantLinear(4, 3)
    made = linear._input_quantizer
    made.symmetric = False
    made.range = (-0.1, 2.3)
    x = draw(40)
    before = made(x)
    convert(linear)
    assert linear.weight.dtype.itemsize == 2
    assert made.range.dtype == torch.float32
    assert made.range.tolist() == [np.float32(-0.1), np.float32(2.3)]
    assert torch.equal(made(x), before)


STORAGE = pytest.mark.parametrize(
    "through", [lambda state: state, saved_and_loaded], ids=["memory", "file"]
)


@STORAGE
def test_state_holds_the_range_and_what_reads_it(through) -> None:
    model = nn.Sequential(affine((-1.0, 2.0)), symmetric(1.5))
    model[0].moving = 0.25
    state = model.state_dict()
    assert set(state) == {"0._range", "1._amax"}
    stored = through(state)
    other = nn.Sequential(TensorQuantizer(), TensorQuantizer())
    other.load_state_dict(stored)
    assert [each.symmetric for each in other] == [False, True]
    assert [each.moving for each in other] == [0.25, None]
    assert other[0].range.tolist() == [-1, 2]
    x = draw(100)
    model.eval()
    other.eval()
    assert torch.equal(other(x), model(x))
    assert other.state_dict()._metadata == state._metadata


def test_range_that_is_missing_from_a_state_is_an_error() -> None:
    with pytest.raises(RuntimeError, match=r"Missing key.*_range"):
        affine((-1.0, 2.0)).load_state_dict(affine().state_dict())


# Export
