"""Attention: the context of each text and head, against numpy in float64."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from native_kernels import (
    bytes_of_row,
    check_codes,
    codes_record,
    few,
    forget_arrays,
    kernels_of,
    round_trip_record,
)
from native_references import attention
from qdqbert.engines.native.buffers import attention_buffers
from qdqbert.engines.native.features import Features
from qdqbert.engines.native.instruction_sets import usable_sets
from qdqbert.engines.native.kernels.dot import PANEL
from qdqbert.engines.native.kernels.forward import SPARE_ROWS
from qdqbert.engines.native.kernels.short_products import ShortProducts
from qdqbert.engines.native.memory import padded
from qdqbert.engines.native.records import JOB, LAYER, MODEL, THREAD

LIMIT = 80
# Largest error of a context, relative to the largest value: products on AMX are within 2^-16, and
# the scores, whose errors change the weights, too.
_TOLERANCE = 5e-5
# Largest error of a score of 16-bit integers, relative to the product of the norms.
_SCORE_TOLERANCE = 2.0**-16
_ZERO_POINT = 121


@dataclasses.dataclass(frozen=True)
class Texts:
    """Queries, keys and values `(tokens, heads, head size)`, and where each text starts.

    `attended` is how many tokens at the start of each text are attended to.
    """

    parts: tuple[Any, Any, Any]
    starts: Any
    attended: Any


def make_texts(
    lengths: tuple[int, ...], heads: int, size: int, seed: int, *, attended: Any = None
) -> Texts:
    forget_arrays()
    rng = np.random.default_rng(seed)
    tokens = sum(lengths)
    # Tokens differ in size, as they do in real models.
    spread = np.exp(0.5 * rng.standard_normal((3, tokens, heads, 1)))
    parts = (spread * rng.standard_normal((3, tokens, heads, size))).astype(np.float32)
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return Texts(
        tuple(parts), starts, np.array(lengths if attended is None else attended, np.int64)
    )


def run_attention(
    kernels,
    texts: Texts,
    *,
    bias: Any = None,
    causal: bool = False,
    window: int | None = None,
    multiplier: Any = None,
    tokens_read: Any = None,
    rounding: Any = 0,
) -> Any:
    """Return the contexts `(tokens, width)`: float32, or codes if there is a multiplier.

    `tokens_read` are the only tokens that get a context, one of each text. `rounding` is the record
    that rounds weights.
    """
    tokens, heads, size = texts.parts[0].shape
    longest = max(LIMIT, int(np.diff(texts.starts).max()))
    width = padded(heads * size)
    context = np.full((tokens, width), 77, np.float32 if multiplier is None else np.uint8)
    stored = 0
    if bias is not None:
        stored = np.zeros(padded(bias.size + 16, 16), np.float32)
        stored[: bias.size] = bias.ravel() * np.float32(math.log2(math.e))
    codes = codes_record(np.zeros(width) if multiplier is None else multiplier, _ZERO_POINT)
    layer = LAYER.make(
        context_codes=codes,
        position_bias=stored,
        probability_rounding=rounding,
        window=longest if window is None else window,
    )
    model = MODEL.make(
        heads=heads,
        head_size=size,
        width=width,
        score_scale=math.log2(math.e) / math.sqrt(size),
        limit=longest,
        causal=int(causal),
    )
    # What kernels may read and must not use.
    rows = np.full((3, tokens + SPARE_ROWS, width), np.nan, np.float32)
    for own, part in zip(rows, texts.parts, strict=True):
        own[:tokens, : heads * size] = part.reshape(tokens, -1)
    given = {"starts": texts.starts, "attended": texts.attended, "tokens_read": tokens_read}
    job = JOB.make(**given)
    shapes = attention_buffers(kernels.isa.products.rows_together, longest, size)
    buffers = {name: np.full(shape, np.nan, np.float32) for name, shape in shapes.items()}
    thread = THREAD.make(**buffers)
    items = itertools.product(
        range(len(texts.starts) - 1), range(heads), [int(tokens_read is not None)]
    )
    places = (*rows, bytes_of_row(rows[0]), context)
    kernels.for_each("attention", model, layer, job, thread, 0, 0, *places, last=items)
    assert (context[:, heads * size :] == 77).all()
    return context[:, : heads * size].reshape(tokens, heads, size)


def contexts(
    texts: Texts, *, bias: Any = None, causal: bool = False, window: int | None = None
) -> Any:
    """Return the contexts `(tokens, heads, head size)` in float64."""
    _, heads, size = texts.parts[0].shape
    found = np.zeros(texts.parts[0].shape)
    for start, end, attended in zip(
        texts.starts[:-1], texts.starts[1:], texts.attended, strict=True
    ):
        distance = np.arange(end - start) - np.arange(end - start)[:, None] + LIMIT - 1
        for head in range(heads):
            found[start:end, head] = attention(
                *(each[start:end, head] for each in texts.parts),
                1 / math.sqrt(size),
                bias=None if bias is None else bias[head, distance],
                causal=causal,
                window=window,
                attended=attended,
            )
    return found


def check_attention(kernels, texts: Texts, **options: Any) -> None:
    found = run_attention(kernels, texts, **options)
    largest, tolerance = np.abs(texts.parts[2]).max(), _TOLERANCE
    if isinstance(kernels.isa.products, ShortProducts):
        norms = [np.linalg.norm(part, axis=-1).max() for part in texts.parts[:2]]
        tolerance += _SCORE_TOLERANCE * math.prod(norms) / math.sqrt(found.shape[-1])
    np.testing.assert_allclose(found, contexts(texts, **options), atol=tolerance * largest)


@pytest.mark.parametrize("size", [16, 32, 48, 64])
def test_texts_of_each_length_have_the_context_of_numpy(dynamic_kernels, size) -> None:
    # Each length occurs with and without a position bias, and causal or not.
    rng = np.random.default_rng(size)
    bias = rng.standard_normal((2, 2 * LIMIT - 1)).astype(np.float32)
    lengths = tuple(int(each) for each in rng.permutation(np.arange(1, 71)))
    for part in range(4):
        texts = make_texts(lengths[part * 18 : (part + 1) * 18], 2, size, part)
        for causal in (False, True):
            check_attention(dynamic_kernels, texts, causal=causal)
            check_attention(dynamic_kernels, texts, bias=bias, causal=causal)


@few
@given(
    lengths=st.lists(
        st.sampled_from((1, 2, 15, 16, 17, 31, 32, 33, 64, 79, 80)), min_size=1, max_size=4
    ),
    heads=st.integers(1, 5),
    size=st.sampled_from((16, 32, 48, 64, 80, 96, 112, 128)),
    causal=st.booleans(),
    has_bias=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_lengths_around_panels_have_the_context_of_numpy(
    dynamic_kernels, lengths, heads, size, causal, has_bias, seed
) -> None:
    rng = np.random.default_rng(seed)
    bias = 3 * rng.standard_normal((heads, 2 * LIMIT - 1)) if has_bias else None
    bias = None if bias is None else bias.astype(np.float32)
    texts = make_texts(tuple(lengths), heads, size, seed)
    check_attention(dynamic_kernels, texts, bias=bias, causal=causal)


@few
@given(
    lengths=st.lists(st.integers(1, LIMIT), min_size=1, max_size=4),
    size=st.sampled_from((16, 48, 64)),
    window=st.one_of(st.none(), st.sampled_from((0, 1, 7, 8, 15, 16, 17, 40, LIMIT - 1))),
    causal=st.booleans(),
    has_bias=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_tokens_attend_only_to_their_window(
    windowed_kernels, lengths, size, window, causal, has_bias, seed
) -> None:
    rng = np.random.default_rng(seed)
    bias = rng.standard_normal((2, 2 * LIMIT - 1)).astype(np.float32) if has_bias else None
    texts = make_texts(tuple(lengths), 2, size, seed)
    check_attention(windowed_kernels, texts, bias=bias, causal=causal, window=window)


@pytest.mark.parametrize("window", [None, 3, 20])
def test_only_the_first_tokens_are_attended_to(windowed_kernels, dynamic_kernels, window) -> None:
    # With a window of 3, the last tokens of most texts attend to none. Those of the last text start
    # where a block of keys does.
    lengths, attended = (5, 80, 33, 64, 17, 70, 130), (5, 1, 16, 17, 2, 33, 64)
    texts = make_texts(lengths, 2, 32, 0, attended=attended)
    check_attention(windowed_kernels, texts, window=window)
    if window is None:
        check_attention(dynamic_kernels, texts)


def test_contexts_are_codes_if_scales_are_static(kernels) -> None:
    texts = make_texts((5, 33), 3, 32, 0)
    multiplier = np.linspace(5, 20, 128).astype(np.float32)
    found = run_attention(kernels, texts, multiplier=multiplier)
    check_codes(found, contexts(texts) * multiplier[:96].reshape(3, 32), _ZERO_POINT, 0.01)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("place", [0, -1])
@pytest.mark.parametrize("window", [None, 9])
def test_a_token_of_each_text_may_be_computed_alone(
    windowed_kernels, window, place, causal
) -> None:
    texts = make_texts((5, 33, 1, 70), 2, 32, 0)
    every = run_attention(windowed_kernels, texts, window=window, causal=causal)
    read = texts.starts[:-1] if place == 0 else texts.starts[1:] - 1
    found = run_attention(windowed_kernels, texts, window=window, causal=causal, tokens_read=read)
    np.testing.assert_array_equal(found[read], every[read])
    # Nothing is written to the others.
    assert (np.delete(found, read, axis=0) == 77).all()


def test_masked_scores_of_any_size_leave_finite_contexts(dynamic_kernels) -> None:
    texts = make_texts((33,), 1, 16, 0)
    bias = np.full((1, 2 * LIMIT - 1), -1e4, np.float32)
    bias[0, LIMIT - 1] = 1e4
    found = run_attention(dynamic_kernels, texts, bias=bias)
    # Each token attends to itself alone. Values of 16 bits are within half a step.
    error = np.abs(found - texts.parts[2])
    assert (error <= 3e-5 * np.abs(texts.parts[2]).max(axis=0)).all()


@pytest.mark.parametrize("window", [None, 300])
def test_long_texts_have_the_context_of_numpy(windowed_kernels, window) -> None:
    for tokens in (256, 257, 600):
        texts = make_texts((tokens,), 1, 32, tokens)
        check_attention(windowed_kernels, texts, window=window)


@pytest.mark.parametrize("window", [None, 9])
@pytest.mark.parametrize("tokens", [1, 2, 79, 80, 257])
def test_the_largest_sums_of_weighted_values_fit(windowed_kernels, tokens, window) -> None:
    texts = make_texts((tokens,), 2, 32, 0)
    queries, _, values = texts.parts
    # All weights are equal, and all values of a channel are.
    queries[:] = 0
    values[:] = np.linspace(-3, 3, 32)
    # Equal weights are rounded in the same direction.
    tolerance = 3 * 5e-4
    found = run_attention(windowed_kernels, texts, window=window)
    np.testing.assert_allclose(found, contexts(texts, window=window), atol=tolerance)
    # Every other value has the other sign.
    values[::2] *= -1
    found = run_attention(windowed_kernels, texts, window=window)
    np.testing.assert_allclose(found, contexts(texts, window=window), atol=tolerance)


@pytest.mark.parametrize(("tokens", "step"), [(1, 0.65), (5, 0.3), (80, 0.02), (64, 1 / 128)])
def test_rounded_weights_may_be_above_one_and_so_may_their_sum(
    rounding_kernels, tokens, step
) -> None:
    texts = make_texts((tokens,), 1, 32, 0)
    texts.parts[0][:] = 0
    step_sizes = np.full(PANEL, step, np.float32)
    multipliers = 1 / step_sizes
    rounding = round_trip_record(multipliers, step_sizes, (0, 0, 255))
    multiplier = np.full(64, 9, np.float32)
    found = run_attention(rounding_kernels, texts, multiplier=multiplier, rounding=rounding)
    weights = np.full((tokens, tokens), np.rint(1 / tokens / step) * step)
    expected = np.einsum("qk,khc->qhc", weights, texts.parts[2])
    check_codes(found, expected * 9, _ZERO_POINT, 0.02)


def test_values_that_are_not_numbers_stay_in_their_channel(dynamic_kernels) -> None:
    texts = make_texts((33,), 1, 32, 0)
    expected = run_attention(dynamic_kernels, texts)
    texts.parts[2][7, 0, 5] = np.nan
    found = run_attention(dynamic_kernels, texts)
    assert np.isnan(found[:, 0, 5]).all()
    np.testing.assert_array_equal(np.delete(found, 5, axis=2), np.delete(expected, 5, axis=2))


@pytest.mark.parametrize("size", [16, 32, 48, 64, 80])
@pytest.mark.parametrize("window", [None, 7, 300])
@pytest.mark.slow
def test_contexts_have_the_same_bits_on_all_sets_with_the_same_products(size, window) -> None:
    lengths = (1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 255, 256, 257, 700)
    attended = [each - each // 3 for each in lengths]
    texts = make_texts(lengths, 2, size, size, attended=attended)
    # Values of all sizes.
    texts.parts[2][:] *= np.float32(10) ** np.arange(-8, size - 8, dtype=np.float32).clip(-8, 8)
    found = {
        each.name: run_attention(
            kernels_of(each.name, Features(activation="gelu", dynamic=True, has_windows=True)),
            texts,
            window=window,
        ).tobytes()
        for each in usable_sets()
        if isinstance(each.products, ShortProducts)
    }
    assert len(set(found.values())) <= 1
