"""Round a float encoder to int8 without any data.

Weights are rounded to the nearest code, with one scale for each output channel. Inputs of linear
layers get their scale and zero point token by token while the model runs.
"""

from __future__ import annotations

import dataclasses
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from qdqbert.encoders.model import (
    Codes,
    EncoderModel,
    Floats,
    Layer,
    Linear,
    Table,
)

_LARGEST = 127
# Two adjacent codes may add up to this: 255 times it fits into 16 bits.
_MOST_OF_PAIR = 128


def round_encoder(
    model: EncoderModel, *, limits_pairs: bool = False, threads: int = 1
) -> EncoderModel:
    """Return a model whose linear layers and table of words are int8. Heads stay in float.

    Args:
        model: The model in float. It is not changed.
        limits_pairs: Whether sums of two adjacent codes are limited, so that AVX2's fast kernel is
            exact. It costs about 0.5 dB.
        threads: Number of layers that are rounded at the same time.
    """

    def rounded(layer: Layer) -> Layer:
        return _round_layer(layer, limits_pairs)

    words = model.embeddings.words
    with ThreadPoolExecutor(max(threads, 1)) as pool:
        table = pool.submit(_round_table, words)
        layers = tuple(pool.map(rounded, model.layers))
        embeddings = dataclasses.replace(model.embeddings, words=table.result())
    return dataclasses.replace(model, embeddings=embeddings, layers=layers)


def _round_layer(layer: Layer, limits_pairs: bool) -> Layer:
    def rounded(linear: Linear) -> Linear:
        return round_linear(linear, limits_pairs=limits_pairs)

    attention = layer.attention
    return dataclasses.replace(
        layer,
        attention=dataclasses.replace(
            attention,
            query=rounded(attention.query),
            key=rounded(attention.key),
            value=rounded(attention.value),
            output=rounded(attention.output),
        ),
        up=rounded(layer.up),
        gate=None if layer.gate is None else rounded(layer.gate),
        down=rounded(layer.down),
    )


def round_linear(linear: Linear, *, limits_pairs: bool = False) -> Linear:
    """Return a linear layer in int8, whose input gets a scale and a zero point for each row.

    Args:
        linear: The layer in float.
        limits_pairs: See `round_encoder`.
    """
    weight = np.asarray(linear.weight, np.float32)
    scale = _scales_of_rows(weight, limits_pairs)
    codes = np.rint(weight / scale[:, None]).clip(-_LARGEST, _LARGEST).astype(np.int8)
    inputs = Codes(
        scale=1.0,
        zero_point=128,
        multiplier=np.ones(weight.shape[1], np.float32),
        dynamic=True,
    )
    return dataclasses.replace(linear, weight=codes, weight_scale=scale, codes=inputs)


def _scales_of_rows(weight: Floats, limits_pairs: bool) -> Floats:
    """Return the scale `(out,)` of each row of a weight."""
    scale = _positive(np.abs(weight).max(axis=1, initial=0) / np.float32(_LARGEST))
    if not limits_pairs:
        return scale
    # The last channel of an odd number is next to padding.
    wide = np.pad(weight, [(0, 0), (0, weight.shape[1] % 2)])
    pairs = wide.reshape(len(wide), -1, 2)
    sums = np.abs(pairs[..., 0] + pairs[..., 1]).max(axis=1, initial=0)
    scale = np.maximum(scale, sums / np.float32(_MOST_OF_PAIR))
    left = np.arange(len(pairs))
    while left.size:
        codes = np.rint(pairs[left] / scale[left, None, None])
        most = np.abs(codes[..., 0] + codes[..., 1]).max(axis=1, initial=0)
        # Rounding can add one to a sum that fits.
        left = left[most > _MOST_OF_PAIR]
        scale[left] *= np.float32(1.01)
    return np.asarray(scale)


def _round_table(table: Table) -> Table:
    """Return a table with int8 codes and a scale for each channel."""
    rows = np.asarray(table.rows, np.float32)
    scale = _positive(np.abs(rows).max(axis=0, initial=0) / np.float32(_LARGEST))
    codes = np.empty(rows.shape, np.int8)
    # In blocks, because a vocabulary is the largest array of many models.
    for start in range(0, len(rows), 4096):
        block = rows[start : start + 4096]
        codes[start : start + 4096] = np.rint(block / scale).clip(-_LARGEST, _LARGEST)
    return dataclasses.replace(table, rows=codes, scale=scale)


def _positive(scale: Floats) -> Floats:
    """Return scales with 1 for those of rows of zeros."""
    return np.where(scale > 0, scale, np.float32(1))
