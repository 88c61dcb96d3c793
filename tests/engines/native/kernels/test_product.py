"""Linear layers in float32, against numpy in float64."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from native_kernels import bytes_of_row, few
from native_references import product
from qdqbert.encoders.shared_table import joined
from qdqbert.engines.native.kernels.dot import PANEL
from qdqbert.engines.native.kernels.product import pack_floats, pack_table
from qdqbert.engines.native.records import FLOAT_LINEAR


@few
@given(
    rows=st.integers(1, 40),
    columns=st.integers(1, 100),
    depth=st.integers(1, 150),
    seed=st.integers(0, 2**32),
)
def test_rows_have_the_values_of_numpy_in_any_company(kernels, rows, columns, depth, seed) -> None:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, depth + 3)).astype(np.float32)
    weights = rng.standard_normal((columns, depth)).astype(np.float32)
    packed = pack_floats(weights, depth)
    bias = np.zeros(len(packed) * PANEL, np.float32)
    bias[:columns] = rng.standard_normal(columns)
    record = FLOAT_LINEAR.make(
        weights=packed,
        panel=bytes_of_row(packed),
        panels=len(packed),
        depth=depth,
        bias=bias,
    )

    def run(first: int):
        out = np.full((rows - first + 1, len(bias) + 2), np.nan, np.float32)
        own, inner = x[first:, :depth], out[:-1, :-2]
        kernels("float_linear", record, own, bytes_of_row(x), len(own), inner, bytes_of_row(out))
        assert np.isnan(out[-1]).all()
        assert np.isnan(out[:, -2:]).all()
        return out[:-1, :-2]

    found = run(0)
    expected = product(x[:, :depth], weights, bias[:columns])
    np.testing.assert_allclose(found[:, :columns], expected, atol=1e-5 * np.sqrt(depth))
    assert not found[:, columns:].any()
    np.testing.assert_array_equal(run(rows - 1), found[-1:])


@pytest.mark.parametrize("rows", [1, 16, 4100])
@pytest.mark.parametrize("is_float", [False, True])
def test_a_table_is_packed_as_its_values_are(rows, is_float) -> None:
    rng = np.random.default_rng(0)
    codes = rng.integers(-127, 128, (rows, 64)).astype(np.int8)
    rest = rng.integers(-128, 128, (rows, 64)).astype(np.int8)
    scale = rng.uniform(0.1, 1, 64).astype(np.float32)
    values = codes.astype(np.float32) if is_float else joined(codes, rest, scale)
    parts = (values, None, None) if is_float else (codes, rest, scale)
    np.testing.assert_array_equal(pack_table(*parts), pack_floats(values, 64))
