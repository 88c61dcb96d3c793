"""Attention in int8: codes of heads, and the context of each text and head."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from native_kernels import bytes_of_row, check_codes, codes_record, few, forget_arrays
from qdqbert.engines.native.kernels.attention import attention, token_codes
from qdqbert.engines.native.kernels.forward import SPARE_ROWS
from qdqbert.engines.native.packed import padded
from qdqbert.engines.native.records import JOB, LAYER, MODEL, THREAD

LIMIT = 80
# Weights are within 5e-5, and contexts in 8 bits.
_ROUNDING = 0.01
_ZERO_POINT = 121


@dataclasses.dataclass(frozen=True)
class Texts:
    """Queries, keys and values `(tokens, heads, head size)`, and what the kernels make of them."""

    floats: tuple[Any, Any, Any]
    codes: tuple[Any, Any, Any]
    scales: tuple[Any, Any, Any]
    starts: Any


def quantize_heads(kernels, x: Any, width: int, zero: int) -> tuple[Any, Any]:
    """Return codes `(tokens, width)` and scales `(heads, tokens + 32)`."""
    tokens, heads, size = x.shape
    wide = np.zeros((tokens, 3 * width), np.float32)
    wide[:, : heads * size] = x.reshape(tokens, -1)
    out = np.zeros((tokens + 1, width), np.uint8)
    scales = np.full((heads, tokens + SPARE_ROWS), np.nan, np.float32)
    kernels(
        "quantize_heads",
        wide[:, : heads * size],
        bytes_of_row(wide),
        tokens,
        heads,
        size,
        out[:tokens, : heads * size],
        bytes_of_row(out),
        scales[:, :tokens],
        bytes_of_row(scales),
        zero,
    )
    assert not out[tokens].any()
    assert np.isnan(scales[:, tokens:]).all()
    return out[:tokens], scales


def make_texts(kernels, lengths: tuple[int, ...], heads: int, size: int, seed: int) -> Texts:
    forget_arrays()
    rng = np.random.default_rng(seed)
    tokens, width = sum(lengths), padded(heads * size)
    # Tokens differ in size, as they do in real models. All values are near codes, so that none is
    # in the middle of two.
    spread = np.exp(0.5 * rng.standard_normal((3, tokens, heads, 1)))
    values = np.clip(np.rint(40 * rng.standard_normal((3, tokens, heads, size))), -127, 127)
    values[..., 0] = 127
    floats = (values * spread / 40).astype(np.float32)
    made = [
        quantize_heads(kernels, x, width, zero) for x, zero in zip(floats, (128, 0, 0), strict=True)
    ]
    codes, scales = zip(*made, strict=True)
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return Texts(tuple(floats), codes, scales, starts)


def run_attention(
    kernels,
    texts: Texts,
    *,
    bias: Any = None,
    causal: bool = False,
    multiplier: Any,
    dynamic: bool = False,
) -> Any:
    """Return the codes of the context `(tokens, width)`, in float32 if scales are dynamic."""
    tokens, heads, size = texts.floats[0].shape
    width, limit = padded(heads * size), padded(LIMIT, 16)
    rows = kernels.isa.rows[0]
    context = np.full((tokens, width), 77, np.float32 if dynamic else np.uint8)
    codes = codes_record(multiplier, _ZERO_POINT)
    stored = 0
    if bias is not None:
        stored = np.zeros(padded(bias.size + 16, 16), np.float32)
        stored[: bias.size] = bias.ravel() * np.float32(math.log2(math.e))
    layer = LAYER.make(
        {**dict.fromkeys(LAYER.fields, 0), "context_codes": codes, "position_bias": stored}
    )
    model = MODEL.make(
        {
            **dict.fromkeys(MODEL.fields, 0),
            "heads": heads,
            "head_size": size,
            "width": width,
            "score_scale": math.log2(math.e) / math.sqrt(size),
            "limit": LIMIT,
            "causal": int(causal),
        }
    )
    names = ("queries", "keys", "values"), ("query_scale", "key_scale", "value_scale")
    job = JOB.make(
        {
            **dict.fromkeys(JOB.fields, 0),
            **dict(zip(names[0], texts.codes, strict=True)),
            **dict(zip(names[1], texts.scales, strict=True)),
            "scale_stride": bytes_of_row(texts.scales[0]),
            "starts": texts.starts,
            "context": context,
        }
    )
    buffers = {
        "keys": np.full(limit * size, 99, np.int8),
        "values": np.full(limit * size, 99, np.int8),
        "start": np.full(limit, 99, np.int32),
        **{name: np.full(limit, 99, np.float32) for name in ("value_log", "value_inverse")},
        "sums": np.full((rows, limit), 99, np.int32),
        "probabilities": np.full((2 * rows, limit), 99, np.uint8),
        "inverse": np.zeros(rows, np.float32),
        "sums_of_values": np.zeros((2 * rows, size), np.int32),
    }
    thread = THREAD.make({**dict.fromkeys(THREAD.fields, 0), **buffers})
    items = range((len(texts.starts) - 1) * heads)
    kernels.for_each("attention", model, layer, job, thread, last=items)
    return context


def check_attention(kernels, lengths, heads, size, *, bias=None, causal=False, seed=0) -> None:
    texts = make_texts(kernels, lengths, heads, size, seed)
    multiplier = np.full(padded(heads * size), 8, np.float32)
    found = run_attention(kernels, texts, bias=bias, causal=causal, multiplier=multiplier)
    for text, (start, end) in enumerate(zip(texts.starts[:-1], texts.starts[1:], strict=True)):
        length = lengths[text]
        distance = np.arange(length) - np.arange(length)[:, None] + LIMIT - 1
        for head in range(heads):
            expected = attention(
                *(each[start:end, head] for each in texts.floats),
                1 / math.sqrt(size),
                bias=None if bias is None else bias[head, distance],
                causal=causal,
            )
            own = found[start:end, head * size : (head + 1) * size]
            check_codes(own, expected * 8, _ZERO_POINT, _ROUNDING)
    assert (found[:, heads * size :] == 77).all()


@few
@given(
    rows=st.integers(1, 9),
    heads=st.integers(1, 4),
    size=st.sampled_from((16, 32, 48, 64)),
    zero=st.sampled_from((0, 128)),
    seed=st.integers(0, 2**32),
)
def test_each_row_of_a_head_has_a_scale(kernels, rows, heads, size, zero, seed) -> None:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, heads, size)) * 10.0 ** rng.integers(-3, 4, (rows, heads, 1))
    x = x.astype(np.float32)
    codes, scales = quantize_heads(kernels, x, padded(heads * size), zero)
    for head in range(heads):
        expected, scale = token_codes(x[:, head])
        found = codes[:, head * size : (head + 1) * size]
        signed = found.astype(int) - 128 if zero else found.view(np.int8).astype(int)
        np.testing.assert_allclose(scales[head, :rows], scale, rtol=1e-6)
        assert np.abs(signed - x[:, head] / scale[:, None].astype(np.float64)).max() <= 0.501
        assert np.abs(signed - expected).max() <= 1


def test_a_row_of_zeros_has_codes_of_zero(kernels) -> None:
    codes, scales = quantize_heads(kernels, np.zeros((2, 1, 16), np.float32), 64, 128)
    assert (codes[:, :16] == 128).all()
    assert (scales[:, :2] > 0).all()


@pytest.mark.parametrize("size", [16, 32, 48, 64])
def test_texts_of_each_length_have_the_context_of_numpy(kernels, size) -> None:
    # Each length occurs with and without a position bias, and causal or not.
    rng = np.random.default_rng(size)
    bias = rng.standard_normal((2, 2 * LIMIT - 1)).astype(np.float32)
    lengths = tuple(int(each) for each in rng.permutation(np.arange(1, 71)))
    for part in range(4):
        own = lengths[part * 18 : (part + 1) * 18]
        for is_causal, has_bias in ((False, False), (False, True), (True, False), (True, True)):
            check_attention(
                kernels, own, 2, size, bias=bias if has_bias else None, causal=is_causal, seed=part
            )


@few
@given(
    lengths=st.lists(
        st.sampled_from((1, 2, 15, 16, 17, 31, 32, 33, 64, 79, 80)), min_size=1, max_size=4
    ),
    heads=st.integers(1, 5),
    size=st.sampled_from((16, 32, 48, 64)),
    causal=st.booleans(),
    has_bias=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_lengths_around_panels_have_the_context_of_numpy(
    kernels, lengths, heads, size, causal, has_bias, seed
) -> None:
    rng = np.random.default_rng(seed)
    bias = 3 * rng.standard_normal((heads, 2 * LIMIT - 1)) if has_bias else None
    bias = None if bias is None else bias.astype(np.float32)
    check_attention(kernels, tuple(lengths), heads, size, bias=bias, causal=causal, seed=seed)


@pytest.mark.parametrize("causal", [False, True])
def test_keys_and_values_with_extreme_codes_do_not_saturate(kernels, causal) -> None:
    texts = make_texts(kernels, (40,), 1, 64, 0)
    rng = np.random.default_rng(0)
    signs = rng.choice(np.array([-1, 1], np.float32), (3, 40, 1, 64)) * np.float32(0.1)
    signs[:, ::3] = np.abs(signs[:, ::3])
    made = [
        quantize_heads(kernels, x, 64, zero) for x, zero in zip(signs, (128, 0, 0), strict=True)
    ]
    codes, scales = zip(*made, strict=True)
    texts = dataclasses.replace(texts, floats=tuple(signs), codes=codes, scales=scales)
    multiplier = np.full(64, 1000, np.float32)
    found = run_attention(kernels, texts, causal=causal, multiplier=multiplier)
    expected = attention(*signs[:, :, 0], 1 / 8, causal=causal)
    check_codes(found, expected * 1000, _ZERO_POINT, _ROUNDING)


def test_masked_scores_of_any_size_leave_finite_contexts(kernels) -> None:
    texts = make_texts(kernels, (33,), 1, 16, 0)
    bias = np.full((1, 2 * LIMIT - 1), -1e4, np.float32)
    bias[0, LIMIT - 1] = 1e4
    multiplier = np.full(64, 40, np.float32)
    found = run_attention(kernels, texts, bias=bias, multiplier=multiplier)
    # Each token attends to itself alone.
    check_codes(found[:, :16], texts.floats[2][:, 0] * 40.0, _ZERO_POINT, 1.5)


def test_contexts_are_in_float_if_scales_are_dynamic(dynamic_kernels) -> None:
    texts = make_texts(dynamic_kernels, (5, 33), 3, 32, 0)
    found = run_attention(dynamic_kernels, texts, multiplier=np.zeros(128), dynamic=True)
    for start, end in ((0, 5), (5, 38)):
        for head in range(3):
            expected = attention(*(x[start:end, head] for x in texts.floats), 1 / math.sqrt(32))
            own = found[start:end, 32 * head : 32 * (head + 1)]
            np.testing.assert_allclose(own, expected, atol=0.01)
    assert (found[:, 96:] == 77).all()


def test_tokens_with_small_values_keep_their_probability(dynamic_kernels) -> None:
    # As separators have in trained models: most of the probability, and hardly any values.
    texts = make_texts(dynamic_kernels, (40,), 1, 16, 0)
    query, key, value = (each[:, 0].copy() for each in texts.floats)
    value[3] *= 1e-3
    value[5] = 0
    query[:], key[:] = 0, 0
    query[:, 0] = 4
    key[3, 0] = key[5, 0] = 3
    made = [
        quantize_heads(dynamic_kernels, x[:, None], 64, zero)
        for x, zero in zip((query, key, value), (128, 0, 0), strict=True)
    ]
    codes, scales = zip(*made, strict=True)
    texts = dataclasses.replace(texts, codes=codes, scales=scales)
    found = run_attention(dynamic_kernels, texts, multiplier=np.zeros(64), dynamic=True)
    scores = np.exp(query @ key.T / 4.0)
    expected = scores / scores.sum(axis=1, keepdims=True) @ value
    np.testing.assert_allclose(found[:, :16], expected, atol=0.01 * np.abs(expected).max())
