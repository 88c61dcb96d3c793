from __future__ import annotations

import math

import numpy as np
import pytest

from qdqbert.evidence.fidelity import compare, sqnr_db
from qdqbert.evidence.intervals import Interval, proportion_interval


def test_sqnr_by_hand() -> None:
    # Signal 3^2 + 4^2 = 25, noise 0.5^2 = 0.25: a ratio of 100.
    assert sqnr_db([3, 4], [3, 4.5]) == pytest.approx(20, abs=1e-12)  # float64 rounding
    assert sqnr_db([1, 2], [1, 2]) == math.inf
    assert sqnr_db([0, 0], [1, 0]) == -math.inf
    assert sqnr_db([1, 2], [1, math.nan]) == sqnr_db([1, 2], [1, math.inf]) == -math.inf


def test_embeddings_are_compared_by_cosine() -> None:
    fidelity = compare([[1, 0], [3, 4]], [[2, 0], [4, 3]], vectors="sentence")
    # Cosines 1 and 24 / 25.
    assert fidelity.texts == 2
    assert fidelity.cosine_mean == pytest.approx(0.98, abs=1e-12)  # float64 rounding
    assert fidelity.cosine_min == pytest.approx(0.96, abs=1e-12)
    assert (fidelity.flips_percent, fidelity.decisions) == (None, None)
    # Signal 1 + 9 + 16 = 26, noise 1 + 1 + 1 = 3.
    assert fidelity.sqnr_db == pytest.approx(10 * math.log10(26 / 3), abs=1e-12)


def test_vectors_of_tokens_are_compared_one_by_one() -> None:
    left, right = ([[[1, 0], [3, 4]], [[5, 0]]], [[[2, 0], [4, 3]], [[0, 1]]])
    fidelity = compare([*map(np.array, left)], [*map(np.array, right)], vectors="tokens")
    # Cosines 1, 24 / 25 and 0.
    assert (fidelity.texts, fidelity.cosine_min, fidelity.max_sim_recall) == (2, 0, None)
    assert fidelity.cosine_mean == pytest.approx(1.96 / 3, abs=1e-12)


def test_decisions_that_differ_are_counted() -> None:
    # There may be more decisions than texts: here the classes of four words in two texts.
    answers = [(1, 0), (1, 0)], [(1, 1), (1, 0)]
    fidelity = compare([[1, 0], [3, 4]], [[2, 0], [4, 3]], decisions=answers)
    assert fidelity.texts == 2
    assert (fidelity.flips_percent, fidelity.decisions) == (25, 4)
    assert fidelity.cosine_mean is None
    assert fidelity.cosine_min is None


def test_entities_that_one_model_does_not_find_are_counted() -> None:
    theirs = [{("PER", 0, 1), ("LOC", 3, 3)}, set(), {("ORG", 0, 0)}, {("PER", 1, 1)}]
    ours = [{("PER", 0, 2), ("LOC", 3, 3)}, set(), {("ORG", 0, 0)}, set()]
    fidelity = compare([[1, 2]] * 4, [[1, 2]] * 4, entities=(theirs, ours))
    found = fidelity.entities
    # Of PER 0 to 1, PER 0 to 2, LOC, ORG and the last PER, two are found by both.
    assert (found.entities, found.changed_percent, found.texts_percent) == (5, 60, 50)
    assert found.changed_interval.low < 60 < found.changed_interval.high
    expected = proportion_interval(2, 4)
    assert found.texts_interval == Interval(low=100 * expected.low, high=100 * expected.high)
    assert compare([[1, 2]], [[1, 2]]).entities is None
    assert found.largest_difference is None


def test_probabilities_of_spans_are_compared() -> None:
    entities = [{("a", 0, 0)}], [{("a", 0, 0)}]
    fidelity = compare(
        [[[0, 0, -50]]], [[[0, math.log(3), -40]]], vectors="spans", entities=entities
    )
    # 3 / (1 + 3) instead of 1 / 2. Logits far below 0 differ by more, and mean the same.
    assert fidelity.entities.largest_difference == pytest.approx(0.25)
    assert fidelity.cosine_mean is None


def test_different_numbers_of_decisions_are_refused() -> None:
    with pytest.raises(ValueError, match="Got 2 and 1 decisions"):
        compare([[1, 0]], [[2, 0]], decisions=([(1,), (2,)], [(1,)]))


def test_predictions_may_differ_in_their_number_of_positions() -> None:
    reference = [[[1, 2], [3, 4]], [[5, 6]]]
    candidate = [[[1, 2], [3, 5]], [[5, 7]]]
    # Signal 1 + 4 + 9 + 16 + 25 + 36 = 91, noise 1 + 1.
    expected = pytest.approx(10 * math.log10(91 / 2), abs=1e-12)  # float64 rounding
    assert compare(reference, candidate).sqnr_db == expected


def test_sqnr_is_computed_from_the_signal_of_a_prediction() -> None:
    fidelity = compare([[3, 4, 0]], [[3, 4.5, 9]], signal=lambda row: row[:2])
    assert fidelity.sqnr_db == pytest.approx(20, abs=1e-12)  # float64 rounding


def test_the_cosine_to_a_prediction_of_zeros_is_zero() -> None:
    fidelity = compare(np.zeros((1, 3)), np.ones((1, 3)), vectors="sentence")
    assert fidelity.cosine_min == 0


@pytest.mark.parametrize(
    ("reference", "candidate"),
    [([[1, 2]], [[1, 2, 3]]), ([[1, 2]], [[1, 2]] * 2), ([], []), ([1, 2], [1, 2])],
    ids=["width", "number", "none", "scalars"],
)
def test_predictions_of_different_shapes_are_refused(reference, candidate) -> None:
    with pytest.raises(ValueError, match="equal shapes"):
        compare(reference, candidate, vectors="sentence")
