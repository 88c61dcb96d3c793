"""The head of a sparse embedder, in whole models."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from encoder_reference import run_head
from native_models import (
    HIDDEN_STATES,
    LIMIT,
    VOCABULARY,
    Shape,
    packed_model,
    random_batch,
    random_model,
)
from qdqbert.encoders.model import EncoderModel, Head, HeadOutput, Linear, Norm
from qdqbert.encoders.shared_table import joined, rest_of
from qdqbert.engines.native import words
from qdqbert.engines.native.instruction_sets import usable_sets
from qdqbert.engines.native.kernels.short_products import ShortProducts
from qdqbert.engines.native.packed import pack_model
from qdqbert.engines.native.runner import NativeRunner
from qdqbert.engines.native.storage import Packed, save_packed

SHAPE = Shape(hidden=40, heads=5, head=8, inner=72, layers=1)
LENGTHS = (LIMIT, 5, 1, 33, 16, 17)
# Largest part of the length of a weight that a missed score may have.
MISSED = 0.01


def decoder_of(kind: str) -> tuple[Shape, Any]:
    """Return the shape of a model and the weights of its decoder."""
    shape = dataclasses.replace(
        SHAPE, words_are_int8=kind != "tied to floats", dynamic=kind == "own"
    )
    table = random_model(shape).embeddings.words
    rng = np.random.default_rng(1)
    noise = rng.standard_normal(table.rows.shape).astype(np.float32)
    if kind == "own":
        return shape, noise
    if table.scale is None:
        return shape, table.rows
    weight = (table.rows + 0.2 * noise) * table.scale
    codes = table.rows.astype(np.int8)
    return shape, joined(codes, rest_of(weight, codes, table.scale), table.scale)


def model_of(kind: str) -> tuple[EncoderModel, Head]:
    shape, weight = decoder_of(kind)
    rng = np.random.default_rng(2)
    # A few words of a text have a weight.
    bias = (rng.standard_normal(VOCABULARY) - 2 * np.sqrt(shape.hidden)) * weight.std()
    norm = Norm(
        weight=1 + rng.standard_normal(shape.hidden).astype(np.float32) / 5,
        bias=np.zeros(shape.hidden, np.float32),
        epsilon=1e-5,
    )
    linear = Linear(weight=weight, bias=bias.astype(np.float32))
    head = Head(
        poolings=("max",),
        steps=(norm, linear, "relu", "log1p"),
        outputs=(HeadOutput(name="words"),),
        token_steps=2,
    )
    return random_model(shape, (HIDDEN_STATES, head)), head


def save(packed: Packed, folder: Path) -> Path:
    path = folder / "model.safetensors"
    save_packed(packed, path)
    return path


@pytest.mark.parametrize("kind", ["tied to codes", "tied to floats", "own"])
def test_words_have_the_weights_of_float32_in_any_company(tmp_path, kind) -> None:
    model, head = model_of(kind)
    path = save(pack_model(model), tmp_path)
    runner, alone = (NativeRunner(path, threads=threads) for threads in (2, 1))
    inputs = random_batch(LENGTHS)
    found = runner.run(inputs)
    length = np.linalg.norm(head.steps[1].weight, axis=1).mean()
    counts = []
    for index, tokens in enumerate(LENGTHS):
        states = found["last_hidden_state"][index, :tokens].astype(np.float64)
        expected, row = run_head(states, head)["words"], found["words"][index]
        has_weight = row > 0
        np.testing.assert_allclose(row[has_weight], expected[has_weight], rtol=1e-4, atol=1e-4)
        # 8-bit codes decide only which words have none.
        assert np.expm1(expected[~has_weight]).max(initial=0) < MISSED * length
        counts.append(has_weight.sum())
        one = alone.run({name: each[index : index + 1] for name, each in inputs.items()})
        assert one["words"].tobytes() == row.tobytes()
    assert 0 < np.mean(counts) < VOCABULARY / 2


@pytest.mark.parametrize("kind", ["tied to codes", "tied to floats", "own"])
@pytest.mark.slow
def test_words_have_the_same_bits_on_all_sets_with_the_same_products(tmp_path, kind) -> None:
    # So many texts that some score is next to 0.
    path, inputs = save(pack_model(model_of(kind)[0]), tmp_path), random_batch((17,) * 40)
    found = {
        NativeRunner(path, threads=1, kernel=each.name).run(inputs)["words"].tobytes()
        for each in usable_sets()
        if isinstance(each.products, ShortProducts)
    }
    assert len(found) <= 1


def test_logarithms_do_not_depend_on_the_cpu(tmp_path) -> None:
    # numpy has others for AVX-512 in float32.
    model, head = model_of("own")
    scores = dataclasses.replace(head, steps=head.steps[:-1])
    heads = (scores, dataclasses.replace(head, outputs=(HeadOutput(name="logarithms"),)))
    path = save(pack_model(dataclasses.replace(model, heads=heads)), tmp_path)
    found = NativeRunner(path, threads=1).run(random_batch(LENGTHS))
    expected = np.log1p(found["words"].astype(np.float64)).astype(np.float32)
    np.testing.assert_array_equal(found["logarithms"], expected)


def test_words_of_a_model_in_float_have_the_weights_of_float32(tmp_path) -> None:
    _, head = model_of("own")
    shape = dataclasses.replace(SHAPE, floats=True)
    runner = NativeRunner(save(packed_model(shape, (HIDDEN_STATES, head)), tmp_path), threads=2)
    found = runner.run(random_batch(LENGTHS))
    for index, tokens in enumerate(LENGTHS):
        states = found["last_hidden_state"][index, :tokens].astype(np.float64)
        expected = run_head(states, head)["words"]
        np.testing.assert_allclose(found["words"][index], expected, rtol=1e-4, atol=1e-5)


def test_scores_of_tokens_are_not_kept(tmp_path, monkeypatch) -> None:
    model, _ = model_of("own")
    runner = NativeRunner(save(pack_model(model), tmp_path), threads=1)
    shapes, zeros = [], words.zeros

    def recorded(shape: Any, dtype: Any) -> Any:
        shapes.append(shape)
        return zeros(shape, dtype)

    monkeypatch.setattr(words, "zeros", recorded)
    runner.run(random_batch(LENGTHS))
    assert (len(LENGTHS), 112) in shapes
    assert not [each for each in shapes if np.size(each) > 1 and min(each) > 64 and each[1] == 112]


def test_padding_has_no_score_whatever_a_file_says(tmp_path) -> None:
    model, _ = model_of("tied to codes")
    packed = pack_model(model)
    inputs = random_batch(LENGTHS)
    right = NativeRunner(save(packed, tmp_path), threads=1).run(inputs)
    bias = packed.arrays["heads.1.1.bias"]
    assert len(bias) > VOCABULARY
    # Kernels would read rows after the table.
    bias[VOCABULARY:] = 1e9
    found = NativeRunner(save(packed, tmp_path), threads=1).run(inputs)
    np.testing.assert_array_equal(found["words"], right["words"])
