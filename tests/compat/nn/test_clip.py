from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch import Tensor, nn

from compat_tensors import draw
from qdqbert.compat.nn import Clip
from qdqbert.compat.nn.functional import ClipFunction, clip


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64], ids=str
)
@pytest.mark.parametrize(
    ("low", "high"),
    [(-1.0, 1.5), (torch.tensor(-1.0), torch.tensor(1.5))],
    ids=["numbers", "tensors"],
)
def test_values_are_clipped(device, dtype, low, high) -> None:
    x = draw(4, 5).to(dtype).to(device)
    low, high = (end.to(device) if isinstance(end, Tensor) else end for end in (low, high))
    result = clip(x, low, high)
    assert result.dtype == dtype
    np.testing.assert_array_equal(result.cpu().double(), x.cpu().double().numpy().clip(-1.0, 1.5))


def test_ends_broadcast() -> None:
    x = draw(3, 4)
    low, high = torch.tensor([[-0.5], [-1.0], [0.0]]), torch.tensor([1.0, 0.5, 0.25, 0.125])
    expected = np.clip(x.numpy(), low.numpy(), high.numpy())
    np.testing.assert_array_equal(clip(x, low, high).numpy(), expected)


@given(
    hnp.arrays(np.float64, 12, elements=st.integers(-4, 4).map(float)),
    hnp.arrays(np.float64, 12, elements=st.integers(-8, 8).map(float)),
    st.integers(-3, 0),
    st.integers(1, 3),
)
def test_gradients_are_those_written_out(x, upstream, low, high) -> None:
    given_x = torch.tensor(x, requires_grad=True)
    ends = [torch.tensor(float(end), requires_grad=True) for end in (low, high)]
    clip(given_x, *ends).backward(torch.tensor(upstream))
    inside = (x > low) & (x < high)
    assert given_x.grad.tolist() == (upstream * inside).tolist()
    assert ends[0].grad.item() == upstream[x <= low].sum()
    assert ends[1].grad.item() == upstream[x >= high].sum()


def test_gradient_of_an_end_has_its_shape_and_dtype() -> None:
    x = draw(9).half()
    low = torch.tensor([-1.0], requires_grad=True)
    high = torch.tensor([[1.0]], dtype=torch.float64, requires_grad=True)
    clip(x.requires_grad_(), low, high).sum().backward()
    assert (low.grad.shape, low.grad.dtype) == ((1,), torch.float32)
    assert (high.grad.shape, high.grad.dtype) == ((1, 1), torch.float64)
    assert x.grad.dtype == torch.float16


def test_ends_that_are_not_learned_get_no_gradient() -> None:
    x, low, high = draw(9).requires_grad_(), torch.tensor(-1.0), torch.tensor(1.0)
    clip(x, low, high).sum().backward()
    assert low.grad is None
    assert high.grad is None


def test_ends_of_several_values_cannot_be_learned() -> None:
    low = torch.zeros(3, requires_grad=True)
    result = clip(draw(3), low, torch.tensor(1.0))
    with pytest.raises(
        ValueError, match=r"^Learnable min/max can only be scalar, got size torch.Size\(\[3\]\) and"
    ):
        result.sum().backward()


def test_function_is_that_of_the_toolkit() -> None:
    x, low, high = draw(9), torch.tensor(-1.0), torch.tensor(1.0)
    assert torch.equal(ClipFunction.apply(x, low, high), clip(x, low, high))


@pytest.mark.parametrize(
    "value", [2.0, 2, np.float32(2.0), np.array(2.0), np.array([2.0])], ids=repr
)
def test_learned_ends_are_parameters(value) -> None:
    module = Clip(-1.0, value, learn_max=True)
    assert [name for name, _ in module.named_parameters()] == ["clip_value_max"]
    assert isinstance(module.clip_value_max, nn.Parameter)
    assert module.clip_value_max.item() == 2.0
    assert module.clip_value_min == -1.0
    assert module(torch.tensor([-3.0, 0.5, 3.0])).tolist() == [-1, 0.5, 2]


def test_ends_that_are_not_learned_may_be_tensors() -> None:
    module = Clip(torch.tensor([-1.0, -2.0]), 1.0)
    assert module(torch.tensor([-5.0, -5.0])).tolist() == [-1, -2]
    assert list(module.parameters()) == []


@pytest.mark.parametrize("wrong", [np.array([1.0, 2.0]), torch.tensor(1.0)], ids=repr)
@pytest.mark.parametrize("name", ["clip_value_min", "clip_value_max"])
def test_learned_end_has_to_be_one_number(name, wrong) -> None:
    values = {"clip_value_min": -1.0, "clip_value_max": 1.0, name: wrong}
    with pytest.raises(
        ValueError, match=rf"^{name} must be scalar for initilizing learnable range\.$"
    ):
        Clip(**values, learn_min=True, learn_max=True)
