"""Rows of the embedding tables."""

from __future__ import annotations

import numpy as np
import pytest

from native_kernels import norm_record
from native_references import layer_norm, product
from qdqbert.engines.native.kernels.product import pack_floats
from qdqbert.engines.native.records import FLOAT_LINEAR, JOB, MODEL, THREAD

# Channels of the tables, with padding and without, and of projected hidden states.
HIDDEN, WIDTH, PROJECTED = 128, 72, 192
TOKENS = 11


@pytest.mark.parametrize("is_projected", [False, True])
@pytest.mark.parametrize("int8", [True, False])
def test_rows_are_summed_and_normalized(kernels, int8, is_projected) -> None:
    rng = np.random.default_rng(0)

    def padded_rows(rows: int, dtype=np.float32):
        found = np.zeros((rows, HIDDEN), dtype)
        values = rng.standard_normal((rows, WIDTH)) * (40 if dtype == np.int8 else 1)
        found[:, :WIDTH] = np.clip(values, -127, 127)
        return found

    words = padded_rows(30, np.int8 if int8 else np.float32)
    scale = np.abs(padded_rows(1)[0]) / 40
    positions, types = padded_rows(20), padded_rows(2)
    weight, bias = padded_rows(2)
    ids, places, kinds = (rng.integers(0, n, TOKENS).astype(np.int32) for n in (30, 20, 2))
    norm = norm_record(weight, bias, 1e-12, WIDTH)
    matrix = rng.standard_normal((PROJECTED, HIDDEN)).astype(np.float32)
    shift = rng.standard_normal(PROJECTED).astype(np.float32)
    panels = pack_floats(matrix, HIDDEN)
    projection = FLOAT_LINEAR.make(
        weights=panels,
        panel=panels.strides[0],
        panels=len(panels),
        depth=HIDDEN,
        bias=shift,
    )
    hidden = PROJECTED if is_projected else HIDDEN
    model = MODEL.make(
        hidden=hidden,
        embedding_width=HIDDEN,
        projection=projection if is_projected else 0,
        words=words,
        word_scale=scale if int8 else 0,
        positions=positions,
        token_types=types,
        embedding_norm=norm,
    )
    x = np.full((TOKENS, hidden), 7, np.float32)
    job = JOB.make(
        ids=ids,
        positions=places,
        token_types=kinds,
        x=x,
    )
    embedded = np.full((7, HIDDEN), 99, np.float32)
    thread = THREAD.make(embedded=embedded)
    kernels("embed", model, job, thread, 2, 7)
    values = words[ids] * (scale if int8 else np.float32(1))
    total = (values + positions[places] + types[kinds])[2:9, :WIDTH]
    expected = layer_norm(total, weight[:WIDTH], bias[:WIDTH], 1e-12)
    expected = np.pad(expected, ((0, 0), (0, HIDDEN - WIDTH)))
    if is_projected:
        expected = product(expected, matrix, shift)
    np.testing.assert_allclose(x[2:9], expected, atol=2e-5)
    assert (x[:2] == 7).all()
    assert (x[9:] == 7).all()
