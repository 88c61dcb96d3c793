"""Recall of small vectors, compared with a search text by text."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from qdqbert.evidence.vector_recall import max_sim_recall, vector_recall
from qdqbert.tasks.small_vectors import VectorRanges

rng = np.random.default_rng(0)
# Directions that differ in their means and in their widths, as those of embeddings.
FLOATS = (rng.normal(size=(60, 32)) * rng.uniform(0.2, 2, 32) + rng.normal(size=32)).astype("f4")
RANGES = VectorRanges.of(FLOATS[:30])


def nearest(distances, text):
    order = [other for other in np.argsort(distances[text], kind="stable") if other != text]
    return set(order[:10])


def recall(wanted, found):
    shares = [len(nearest(wanted, i) & nearest(found, i)) / 10 for i in range(len(wanted))]
    return 100 * np.mean(shares)


def angles(vectors):
    scaled = vectors.astype(np.float64)
    scaled /= np.linalg.norm(scaled, axis=1, keepdims=True)
    return -scaled @ scaled.T


def test_recall_is_that_of_a_search_of_each_text() -> None:
    util = pytest.importorskip("sentence_transformers.util")
    ours = FLOATS + rng.normal(size=FLOATS.shape).astype("f4") * 0.2
    found = vector_recall(list(FLOATS), list(ours), RANGES)
    low, high = ranges = np.stack([RANGES.low, RANGES.high])
    codes = util.quantize_embeddings(ours, "int8", ranges=ranges).astype(np.float64)
    shared = np.clip(np.round(ours * 127 / np.abs(ranges).max()), -128, 127)
    bits = np.unpackbits(util.quantize_embeddings(ours, "ubinary"), axis=1)
    differing = (bits[:, None] != bits[None]).sum(axis=-1)
    wanted = angles(FLOATS)
    assert (found.texts, found.dimensions) == (60, 32)
    assert found.float32 == pytest.approx(recall(wanted, angles(ours)))
    assert found.int8_per_dimension == pytest.approx(recall(wanted, angles(codes)))
    restored = low + (codes + 128.5) * (high - low) / 255
    assert found.int8_restored == pytest.approx(recall(wanted, angles(restored)))
    assert found.int8 == pytest.approx(recall(wanted, angles(shared)))
    assert found.binary == pytest.approx(recall(wanted, differing))
    # Codes of each dimension's own range weigh the dimensions otherwise.
    assert found.binary < found.int8_per_dimension < found.int8 < 100


def test_the_same_vectors_are_found_by_all_but_codes() -> None:
    found = vector_recall(list(FLOATS), list(FLOATS), RANGES)
    assert found.float32 == 100
    assert min(found.int8, found.int8_restored) > 90


def test_few_texts_say_nothing_and_many_are_cut() -> None:
    assert vector_recall(list(FLOATS[:49]), list(FLOATS[:49]), RANGES) is None
    many = list(np.tile(FLOATS, (20, 1)))
    assert vector_recall(many, many, RANGES).texts == 1000
    assert all(value > 0 for value in dataclasses.astuple(vector_recall(many, many, RANGES)))


@pytest.mark.parametrize(("texts", "tokens", "used"), [(49, 3, 0), (60, 3, 60), (60, 350, 57)])
def test_recall_by_max_sim_is_that_of_numpy(texts, tokens, used) -> None:
    rng = np.random.default_rng(0)
    wanted = [rng.standard_normal((tokens, 4)).astype(np.float32) for _ in range(texts)]
    found = [(each + 0.5 * rng.standard_normal(each.shape)).astype(np.float32) for each in wanted]
    if not used:
        assert max_sim_recall(wanted, found) is None
        return
    nearest = []
    for side in (wanted[:used], found[:used]):
        scores = np.array([[(a @ b.T).max(axis=1).sum() for b in side] for a in side])
        np.fill_diagonal(scores, -np.inf)
        nearest.append(np.argsort(-scores, axis=1)[:, :10])
    shared = [len({*a} & {*b}) for a, b in zip(*nearest, strict=True)]
    assert max_sim_recall(wanted, found) == pytest.approx(10 * np.mean(shared))
