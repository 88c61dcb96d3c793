"""Agreement of sparse embeddings on their words."""

from __future__ import annotations

import numpy as np
import pytest

from qdqbert.evidence.fidelity import compare
from qdqbert.evidence.word_agreement import word_agreement


def rows(*values: list[float]) -> list[np.ndarray]:
    return [np.array(each, np.float32) for each in values]


def test_the_largest_weights_and_the_numbers_of_words_are_compared() -> None:
    many = [*range(12, 0, -1), 0.0]
    # The two smallest of the ten largest weights change places with two words beyond them.
    moved = [*range(12, 4, -1), 1.0, 1.5, 3.5, 3.25, 0.0]
    found = word_agreement(rows(many, [0.0] * 13), rows(moved, [0.0] * 12 + [0.5]))
    assert found.top == 10
    # A text without a weight does not count.
    assert found.overlap_percent == pytest.approx(80)
    assert (found.float_active, found.active) == (6, 6.5)
    assert found.recall_percent is None


def test_texts_are_searched_by_products() -> None:
    rng = np.random.default_rng(0)
    texts = [np.maximum(rng.standard_normal(30), 0).astype(np.float32) for _ in range(60)]
    # Another length of all vectors changes no order.
    assert word_agreement(texts, [3 * each for each in texts]).recall_percent == 100
    scores = np.stack(texts) @ np.stack(texts).T
    others = [np.argsort(-row)[np.argsort(-row) != i][:10] for i, row in enumerate(scores)]
    noisy = [each + np.float32(0.3) * rng.random(30, np.float32) for each in texts]
    scores = np.stack(noisy) @ np.stack(noisy).T
    found = [np.argsort(-row)[np.argsort(-row) != i][:10] for i, row in enumerate(scores)]
    shared = [len({*a} & {*b}) for a, b in zip(others, found, strict=True)]
    assert word_agreement(texts, noisy).recall_percent == pytest.approx(10 * np.mean(shared))


def test_fidelity_has_cosines_also_of_texts_without_words() -> None:
    found = compare(rows([1, 0], [0, 0], [3, 4]), rows([1, 0], [0, 0], [3, 0]), vectors="sparse")
    assert found.words is not None
    assert found.cosine_min == pytest.approx(0.6)
    assert found.cosine_mean == pytest.approx(2.6 / 3)
    assert compare(rows([1, 0]), rows([1, 0]), vectors="sentence").words is None
