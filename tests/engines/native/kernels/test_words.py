"""The largest scores of words, against numpy in float64."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from native_kernels import SAFE_CODE, Kernels, bytes_of_row, few
from qdqbert.encoders.shared_table import joined
from qdqbert.engines.native.instruction_sets import INSTRUCTION_SETS, usable_sets
from qdqbert.engines.native.ir import Module
from qdqbert.engines.native.kernels.dot import PANEL, first_sums, pack
from qdqbert.engines.native.kernels.forward import SPARE_ROWS
from qdqbert.engines.native.kernels.words import emit_words
from qdqbert.engines.native.records import LINEAR, THREAD, WORDS


@functools.cache
def kernels_of(name: str) -> Kernels:
    isa, module = INSTRUCTION_SETS[name], Module()
    isa.tiles.emit(module, isa)
    emit_words(module, isa)
    return Kernels(module, isa)


@few
@pytest.mark.parametrize("name", [each.name for each in usable_sets()])
@pytest.mark.parametrize("is_float", [False, True], ids=["codes", "floats"])
@given(
    lengths=st.lists(st.integers(1, 20), min_size=1, max_size=4),
    panels=st.integers(1, 9),
    together=st.integers(1, 4),
    depth=st.integers(1, 3).map(lambda each: 64 * each),
    seed=st.integers(0, 2**32),
)
def test_positive_scores_are_exact_and_others_are_zero(
    name, is_float, lengths, panels, together, depth, seed
) -> None:
    kernels, rng = kernels_of(name), np.random.default_rng(seed)
    tokens, columns = sum(lengths), panels * PANEL
    codes = rng.integers(0, 256, (tokens + SPARE_ROWS, depth + 64)).astype(np.uint8)
    weights = rng.integers(-SAFE_CODE, SAFE_CODE + 1, (columns, depth)).astype(np.int8)
    start = (-128 * weights.sum(axis=1)).astype(np.int32)
    packed = pack(weights, depth)
    factor = (rng.uniform(0.5, 2, columns) / 1000).astype(np.float32)
    bias = rng.standard_normal(columns).astype(np.float32)
    row_scales = rng.uniform(0.2, 1, tokens + SPARE_ROWS).astype(np.float32)
    # The float32 weights differ from the int8 weights: a score shows which of them made it.
    states = rng.standard_normal((tokens, depth)).astype(np.float32)
    table, rest = rng.integers(-128, 128, (2, columns, depth)).astype(np.int8)
    scale: Any = rng.uniform(0.001, 0.01, depth).astype(np.float32)
    exact = joined(table, rest, scale)
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    out = np.zeros((len(lengths), columns), np.float32)
    margin = rng.integers(0, 1000, columns).astype(np.int32)
    first = first_sums(packed, start, is_signed=kernels.isa.is_signed) + margin
    linear = LINEAR.make(
        weights=packed,
        panel=bytes_of_row(packed),
        panels=panels,
        steps=depth // 4,
        first_sums=first,
        factor=factor,
        bias=bias,
    )
    thread, row = np.zeros(THREAD.size // 8, np.int64), np.zeros(depth, np.float32)
    for begin, end in ((0, panels // 2), (panels // 2, panels)):
        job = WORDS.make(
            linear=linear,
            first=begin,
            end=end,
            together=together,
            table=exact if is_float else table,
            rest=0 if is_float else rest,
            scale=0 if is_float else scale,
            depth=depth,
            row=row,
            states=states,
            codes=codes,
            code_stride=bytes_of_row(codes),
            row_scales=row_scales,
            starts=starts,
            texts=len(lengths),
            out=out,
            out_stride=bytes_of_row(out),
        )
        kernels("score_words", 0, job, thread)
    assert thread[list(THREAD.fields).index("passes")] == 2
    sums = codes[:tokens, :depth].astype(np.float64) @ weights.T.astype(np.float64) + start + margin
    rough = sums * row_scales[:tokens, None].astype(np.float64) * factor + bias
    scores = states.astype(np.float64) @ exact.T.astype(np.float64) + bias
    for index, text in enumerate(np.split(np.arange(tokens), starts[1:-1])):
        largest = rough[text].max(axis=0)
        expected = np.where(largest > 0, np.maximum(scores[text].max(axis=0), 0), 0)
        # Rounding decides about scores next to 0.
        is_clear = np.abs(largest) > 1e-4
        np.testing.assert_allclose(out[index][is_clear], expected[is_clear], rtol=1e-4, atol=1e-4)
