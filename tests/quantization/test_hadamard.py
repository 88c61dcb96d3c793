"""Tests of the matrices that spread channels."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from native_references import spread
from qdqbert.quantization.hadamard import Hadamard, hadamard_of

WIDTHS = (32, 35, 36, 64, 312, 384, 576, 640, 768, 1024, 1152, 1536, 2304, 3072, 4096, 4304)


@pytest.mark.parametrize("channels", WIDTHS)
def test_products_of_spread_inputs_and_weights_are_the_same(channels) -> None:
    matrix = hadamard_of(channels)
    rng = np.random.default_rng(0)
    x, weight = rng.standard_normal((3, channels)), rng.standard_normal((5, channels))
    made = matrix.spread(x) @ matrix.spread_weight(weight).T
    np.testing.assert_allclose(made, x @ weight.T, atol=1e-12 * channels)
    np.testing.assert_allclose(matrix.spread(x), spread(x, matrix), atol=1e-12 * channels)
    np.testing.assert_allclose(matrix.spread(matrix.spread_weight(x)), x, atol=1e-12)


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("channels", WIDTHS)
def test_kernels_can_add_vectors_of_members_and_lanes_of_blocks(channels, gated) -> None:
    matrix = hadamard_of(channels, gated=gated)
    assert matrix.order <= (128 if gated else 64)
    assert matrix.block <= 16
    assert channels % matrix.order == 0
    assert matrix.members == 1 or channels // matrix.members % 16 == 0


def test_widths_that_people_use_have_groups_of_64() -> None:
    assert {hadamard_of(each) for each in (384, 768, 1024, 1536, 3072)} == {
        Hadamard(members=8, block=8)
    }
    assert {hadamard_of(each, gated=True) for each in (1024, 1536, 3072)} == {
        Hadamard(members=8, block=16)
    }
    # 576 = 4 * 9 * 16; 312 = 8 * 39.
    assert (hadamard_of(576).order, hadamard_of(312).order, hadamard_of(35).order) == (64, 8, 1)


@pytest.mark.parametrize("matrix", [Hadamard(members=4, block=8), Hadamard(block=16), Hadamard()])
def test_torch_has_the_bits_of_numpy(matrix) -> None:
    x = np.random.default_rng(0).standard_normal((2, 3, 64)).astype(np.float32)
    found = matrix.spread(torch.from_numpy(x))
    assert found.dtype == torch.float32
    np.testing.assert_array_equal(found.numpy(), matrix.spread(x))
