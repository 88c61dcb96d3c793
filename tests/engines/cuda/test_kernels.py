"""Each kernel in Triton's interpreter, compared with numpy in float64.

Outputs are NaN, or codes that no row has, before a kernel writes them.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.special import erf

from qdqbert.engines.cuda import kernels
from qdqbert.engines.cuda.program import linear_launch, rows_launch
from qdqbert.engines.cuda.tiles import QUERIES, Tile, attention_of
from qdqbert.engines.cuda.weights import Linear, Norm, spread_of
from qdqbert.quantization.hadamard import Hadamard, hadamard_of

CPU = torch.device("cpu")
TILE = Tile(rows=16, columns=32, step=32, warps=4, stages=1)
FUNCTIONS = {
    "": lambda x: x,
    "gelu": lambda x: x * (1 + erf(x / np.sqrt(2))) / 2,
    "gelu_tanh": lambda x: x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))) / 2,
    "relu": lambda x: np.maximum(x, 0),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "tanh": np.tanh,
}


def tensor(values: Any, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(values)).to(dtype)


def poisoned(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.full(shape, torch.nan if dtype.is_floating_point else 99, dtype=dtype)


def count_of(number: int) -> torch.Tensor:
    return torch.tensor([number], dtype=torch.int32)


def close(found: torch.Tensor, wanted: NDArray[Any], tolerance: float = 1e-3) -> bool:
    error = np.linalg.norm(found.double().numpy() - wanted)
    return bool(error <= tolerance * np.linalg.norm(wanted))


def linear_of(
    weights: NDArray[Any],
    bias: NDArray[Any],
    factors: NDArray[Any],
    dtype: torch.dtype,
    columns: int,
) -> Linear:
    return Linear(
        weights=tensor(weights, dtype), bias=tensor(bias), columns=columns, factors=tensor(factors)
    )


@pytest.mark.parametrize("depth", [64, 80])
@pytest.mark.parametrize("columns", [1, 31, 32, 33])
@pytest.mark.parametrize("rows", [1, 15, 16, 17])
def test_sums_of_codes_are_exact(rows, columns, depth) -> None:
    rng = np.random.default_rng(rows)
    codes, weights = (rng.integers(-127, 128, (n, depth)) for n in (rows + 2, columns))
    layer = linear_of(weights, np.zeros(columns), np.ones(columns), torch.int8, columns)
    out = poisoned(rows + 2, columns)
    linear_launch(
        layer,
        tensor(codes, torch.int8),
        out,
        count=count_of(rows),
        scales=torch.ones(rows + 2),
        tile=TILE,
    )()
    # Sums of so few products are exact in float32.
    np.testing.assert_array_equal(out[:rows].numpy(), codes[:rows] @ weights.T)
    assert out[rows:].isnan().all()


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("dtype", [torch.int8, torch.float16, torch.float32])
@pytest.mark.parametrize("activation", FUNCTIONS)
def test_linear_layers_with_an_activation_and_a_gate(activation, dtype, gated) -> None:
    rng = np.random.default_rng(0)
    rows, columns, depth = 17, 33, 64
    is_int8 = dtype == torch.int8
    size = (columns * (2 if gated else 1), depth)
    x, w = (
        rng.integers(-127, 128, each) if is_int8 else rng.normal(size=each)
        for each in ((rows, depth), size)
    )
    x, w = (tensor(each, dtype) for each in (x, w))
    scales = rng.uniform(0.001, 0.01, rows) if is_int8 else np.ones(rows)
    factors = rng.uniform(0.001, 0.01, size[0]) if is_int8 else np.ones(size[0])
    bias = rng.normal(size=size[0])
    layer = linear_of(w.double().numpy(), bias, factors, dtype, columns)
    out = poisoned(rows, columns, dtype=torch.float16)
    linear_launch(
        layer,
        x,
        out,
        count=count_of(rows),
        scales=tensor(scales) if is_int8 else None,
        tile=TILE,
        activation=activation,
    )()
    sums = x.double().numpy() @ w.double().numpy().T * scales[:, None] * factors + bias
    wanted = FUNCTIONS[activation](sums[:, :columns])
    wanted = wanted * sums[:, columns:] if gated else wanted
    assert close(out, wanted)


def test_float16_takes_its_largest_value_instead_of_infinity() -> None:
    x = tensor([[1000.0] * 32], torch.float16)
    layer = linear_of(np.full((2, 32), 1000.0), np.zeros(2), np.ones(2), torch.float16, 2)
    out = poisoned(1, 2, dtype=torch.float16)
    linear_launch(layer, x, out, count=count_of(1), tile=TILE)()
    assert out.tolist() == [[65504.0, 65504.0]]


@pytest.mark.parametrize(
    ("width", "matrix"),
    [
        (24, None),
        (60, None),
        (64, None),
        (20, Hadamard(members=1, block=4)),
        (64, hadamard_of(64)),
        (72, hadamard_of(72)),
        (256, hadamard_of(256, gated=True)),
        (192, hadamard_of(192)),
        (320, Hadamard(members=2, block=8)),
    ],
    ids=str,
)
def test_codes_of_rows_are_those_of_spread_channels(width, matrix) -> None:
    rng = np.random.default_rng(0)
    stride = width + 4
    x = rng.normal(size=(3, stride)) * rng.uniform(0.1, 5, stride)
    # A row of zeros has a scale, too.
    x[1] = 0
    rows = tensor(x, torch.float16)
    multiplier = rng.uniform(0.5, 2, width).astype(np.float32)
    codes, scales = poisoned(3, stride, dtype=torch.int8), poisoned(3)
    rows_launch(
        rows,
        spread_of(width, matrix, CPU),
        count=count_of(2),
        codes=codes,
        scales=scales,
        multiplier=tensor(multiplier),
    )()
    wanted = rows[:2, :width].double().numpy() * multiplier
    wanted = wanted if matrix is None else matrix.spread(wanted)
    amax = np.abs(wanted).max(axis=1)
    np.testing.assert_allclose(scales[:2], np.maximum(amax, 1e-30) / 127, rtol=2e-3)
    steps = scales[:2].double().numpy()[:, None]
    # Half a step, and what float16 changes before.
    assert np.abs(codes[:2, :width].double().numpy() * steps - wanted).max() <= 0.56 * steps.max()
    assert (codes[:, width:] == 99).all()
    assert (codes[2] == 99).all()


def test_channels_that_a_factor_takes_beyond_float16_have_codes() -> None:
    # Ones and minus ones of a Hadamard matrix would make infinity minus infinity.
    rows = tensor([[60000.0, -60000.0] * 32], torch.float16)
    codes, scales = poisoned(1, 64, dtype=torch.int8), poisoned(1)
    rows_launch(
        rows,
        spread_of(64, hadamard_of(64), CPU),
        count=count_of(1),
        codes=codes,
        scales=scales,
        multiplier=torch.full((64,), 2.0),
    )()
    assert scales.isfinite().all()
    assert sorted(codes.abs().unique().tolist()) == [0, 127]


def normed(x: NDArray[Any], weight: Any, bias: Any, epsilon: float, *, centers: bool) -> Any:
    x = x - x.mean(axis=1, keepdims=True) * centers
    return x / np.sqrt((x**2).mean(axis=1, keepdims=True) + epsilon) * weight + bias


@pytest.mark.parametrize("centers", [False, True])
@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("keeps_sum", [False, True])
@pytest.mark.parametrize(("width", "norms_local"), [(40, False), (63, False), (63, True)])
def test_states_are_added_and_normalized(width, norms_local, keeps_sum, again, centers) -> None:
    rng = np.random.default_rng(0)
    states, local = (rng.normal(size=(2, 64)).astype(np.float32) for _ in range(2))
    parts = [rng.normal(size=(2, width)).astype(np.float32) for _ in range(3)]
    epsilons = (0.1, 0.2, 0.3)
    norm, repeated, own = (
        Norm(
            values=tensor(np.pad([*part, np.full(width, epsilon)], [(0, 0), (0, 64 - width)])),
            subtracts_mean=centers,
        )
        for part, epsilon in zip(parts, epsilons, strict=True)
    )
    sums, codes = poisoned(2, 64), poisoned(2, 64, dtype=torch.float16)
    rows_launch(
        tensor(states),
        spread_of(width, None, CPU),
        count=count_of(2),
        local=tensor(local),
        local_norm=own if norms_local else None,
        norm=norm,
        again=repeated if again else None,
        sums=sums,
        keeps_sum=keeps_sum,
        codes=codes,
    )()
    x, y = (each[:, :width].astype(np.float64) for each in (states, local))
    y = normed(y, *parts[2], 0.3, centers=centers) if norms_local else y
    wanted = normed(x + y, *parts[0], 0.1, centers=centers)
    wanted = normed(wanted + x, *parts[1], 0.2, centers=centers) if again else wanted
    assert close(codes[:, :width], wanted)
    assert close(sums[:, :width], x + y if keeps_sum else wanted, 1e-5)
    assert sums[:, width:].isnan().all()


KEYS = attention_of(24)["keys"]


@pytest.mark.parametrize(
    ("length", "options"),
    [
        *itertools.product(
            (1, KEYS - 1, KEYS, KEYS + 1), ("plain", "causal", "windowed", "biased", "all")
        ),
        # The last queries see no key of the first block.
        (2 * KEYS + 1, "windowed"),
        (2 * KEYS + 1, "all"),
    ],
)
def test_attention_of_a_text_ignores_the_texts_around_it(length, options) -> None:
    rng = np.random.default_rng(length)
    heads, size, window, limit = 2, 24, 5, 2 * KEYS + 1
    has = {each: options in (each, "all") for each in ("causal", "windowed", "biased")}
    lengths = [3, length, 2]
    starts = np.append(0, np.cumsum(lengths))
    states = rng.normal(size=(starts[-1], 3 * heads * size)).astype(np.float16)
    bias = rng.normal(size=(heads, 2 * limit - 1)).astype(np.float32)
    blocks = [
        (first, end, end, place)
        for first, end in itertools.pairwise(starts)
        for place in range(0, end - first, QUERIES)
    ]
    # One that is not there.
    blocks.append((0, 0, 0, 0))
    out = poisoned(int(starts[-1]), heads * size, dtype=torch.float16)
    kernels.attention[(len(blocks), heads)](
        tensor(states, torch.float16),
        tensor(blocks, torch.int32),
        tensor(bias.ravel()) if has["biased"] else None,
        out,
        scale=0.25,
        width=heads * size,
        limit=limit,
        window=window if has["windowed"] else None,
        size=size,
        wide=32,
        causal=has["causal"],
        queries=QUERIES,
        keys=KEYS,
    )
    for first, end in itertools.pairwise(starts):
        own = states[first:end].astype(np.float64).reshape(-1, 3, heads, size)
        query, key, value = own.transpose(1, 2, 0, 3)
        scores = query @ key.transpose(0, 2, 1) * 0.25
        distance = np.arange(end - first)[None] - np.arange(end - first)[:, None]
        if has["biased"]:
            scores = scores + bias[:, distance + limit - 1]
        if has["causal"]:
            scores = np.where(distance <= 0, scores, -np.inf)
        if has["windowed"]:
            scores = np.where(np.abs(distance) <= window, scores, -np.inf)
        p = np.exp2(scores - scores.max(axis=-1, keepdims=True))
        wanted = (p / p.sum(axis=-1, keepdims=True) @ value).transpose(1, 0, 2)
        assert close(out[first:end], wanted.reshape(end - first, -1))


@pytest.mark.parametrize(
    "pooling", ["first", "last", "max", "sum", "mean", "mean_sqrt_len_tokens", "weightedmean"]
)
def test_rows_of_texts_are_pooled(pooling) -> None:
    rng = np.random.default_rng(0)
    starts = np.array([0, 1, 6, 9])
    x = rng.normal(size=(9, 40)).astype(np.float32)
    out = poisoned(3, 40)
    kernels.pool[(3, 2)](
        tensor(x), tensor(starts, torch.int32), out, 39, 40, 40, pooling=pooling, size=32
    )
    for text, (first, end) in enumerate(itertools.pairwise(starts)):
        rows = x[first:end, :39].astype(np.float64)
        weights = {
            "mean": 1 / len(rows),
            "mean_sqrt_len_tokens": 1 / np.sqrt(len(rows)),
            "weightedmean": 2 * np.arange(1, len(rows) + 1)[:, None] / len(rows) / (len(rows) + 1),
        }.get(pooling, 1.0)
        chosen = {"first": rows[0], "last": rows[-1], "max": rows.max(axis=0)}
        wanted = chosen.get(pooling, (rows * weights).sum(axis=0))
        assert close(out[text, :39], wanted, 1e-6)
        assert out[text, 39].isnan()
