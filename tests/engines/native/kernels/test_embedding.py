"""Rows of the embedding tables."""

from __future__ import annotations

import numpy as np
import pytest

from qdqbert.engines.native.kernels.norm import layer_norm
from qdqbert.engines.native.records import JOB, MODEL, NORM

HIDDEN, WIDTH = 128, 72
TOKENS = 11


@pytest.mark.parametrize("int8", [True, False])
def test_rows_are_summed_and_normalized(kernels, int8) -> None:
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
    norm = NORM.make({"weight": weight, "bias": bias, "epsilon": 1e-12, "width": WIDTH})
    model = MODEL.make(
        {
            **dict.fromkeys(MODEL.fields, 0),
            "hidden": HIDDEN,
            "words": words,
            "word_scale": scale if int8 else 0,
            "positions": positions,
            "token_types": types,
            "embedding_norm": norm,
        }
    )
    x = np.full((TOKENS, HIDDEN), 7, np.float32)
    job = JOB.make(
        {
            **dict.fromkeys(JOB.fields, 0),
            "ids": ids,
            "positions": places,
            "token_types": kinds,
            "x": x,
        }
    )
    kernels("embed", model, job, 2, 9)
    values = words[ids] * (scale if int8 else np.float32(1))
    total = (values + positions[places] + types[kinds])[2:9, :WIDTH]
    expected = layer_norm(total, weight[:WIDTH], bias[:WIDTH], 1e-12)
    np.testing.assert_allclose(x[2:9, :WIDTH], expected, atol=1e-5)
    assert not x[2:9, WIDTH:].any()
    assert (x[:2] == 7).all()
    assert (x[9:] == 7).all()
