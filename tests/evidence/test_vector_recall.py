"""Recall of small vectors, compared with a search text by text."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from qdqbert.evidence.vector_recall import vector_recall
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
    assert found.int8 == pytest.approx(recall(wanted, angles(codes)))
    restored = low + (codes + 128.5) * (high - low) / 255
    assert found.int8_restored == pytest.approx(recall(wanted, angles(restored)))
    assert found.int8_shared == pytest.approx(recall(wanted, angles(shared)))
    assert found.binary == pytest.approx(recall(wanted, differing))
    # Codes of each dimension's own range weigh the dimensions otherwise.
    assert found.binary < found.int8 < found.int8_shared < 100


def test_the_same_vectors_are_found_by_all_but_codes() -> None:
    found = vector_recall(list(FLOATS), list(FLOATS), RANGES)
    assert found.float32 == 100
    assert min(found.int8_shared, found.int8_restored) > 90


def test_few_texts_say_nothing_and_many_are_cut() -> None:
    assert vector_recall(list(FLOATS[:49]), list(FLOATS[:49]), RANGES) is None
    many = list(np.tile(FLOATS, (20, 1)))
    assert vector_recall(many, many, RANGES).texts == 1000
    assert all(value > 0 for value in dataclasses.astuple(vector_recall(many, many, RANGES)))
