"""Linear layers in float32 outside of a model."""

from __future__ import annotations

import numpy as np
import pytest

from qdqbert.engines.native.float_layers import FloatLinear


@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (16, 64), (33, 100)])
@pytest.mark.parametrize("rows", [0, 1, 2, 7, 40])
def test_a_layer_is_that_of_float64(shape, rows) -> None:
    rng = np.random.default_rng(0)
    weight, bias = rng.normal(size=shape), rng.normal(size=shape[0])
    x = rng.normal(size=(rows, shape[1]))
    layer = FloatLinear(weight.astype(np.float32), bias.astype(np.float32))
    found = layer(x.astype(np.float32))
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, x @ weight.T + bias, atol=1e-4)
    without = FloatLinear(weight.astype(np.float32))
    np.testing.assert_allclose(without(x.astype(np.float32)), x @ weight.T, atol=1e-4)


def test_a_row_has_the_same_bits_whatever_the_other_rows_are() -> None:
    rng = np.random.default_rng(0)
    layer = FloatLinear(rng.normal(size=(40, 70)).astype(np.float32))
    x = rng.normal(size=(50, 70)).astype(np.float32)
    every = layer(x)
    assert all(np.array_equal(layer(x[each : each + 1])[0], every[each]) for each in range(50))
    # Columns of a wider array are no rows one after another.
    assert np.array_equal(layer(np.hstack([x, x])[:, :70]), every)


def test_rows_and_biases_of_another_width_are_refused() -> None:
    weight = np.ones((3, 5), np.float32)
    with pytest.raises(ValueError, match="for 5 inputs"):
        FloatLinear(weight)(np.ones((2, 4), np.float32))
    with pytest.raises(ValueError, match="for 3 outputs"):
        FloatLinear(weight, np.ones(1, np.float32))
