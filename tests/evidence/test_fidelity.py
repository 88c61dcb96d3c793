from __future__ import annotations

import math

import numpy as np
import pytest

from qdqbert.evidence.fidelity import compare, sqnr_db


def test_sqnr_by_hand() -> None:
    # Signal 3^2 + 4^2 = 25, noise 0.5^2 = 0.25: a ratio of 100.
    assert sqnr_db([3, 4], [3, 4.5]) == pytest.approx(20, abs=1e-12)  # float64 rounding
    assert sqnr_db([1, 2], [1, 2]) == math.inf
    assert sqnr_db([0, 0], [1, 0]) == -math.inf


def test_embeddings_are_compared_by_cosine() -> None:
    fidelity = compare([[1, 0], [3, 4]], [[2, 0], [4, 3]], kind="embedding")
    # Cosines 1 and 24 / 25.
    assert fidelity.texts == 2
    assert fidelity.cosine_mean == pytest.approx(0.98, abs=1e-12)  # float64 rounding
    assert fidelity.cosine_min == pytest.approx(0.96, abs=1e-12)
    assert fidelity.flips_percent is None
    # Signal 1 + 9 + 16 = 26, noise 1 + 1 + 1 = 3.
    assert fidelity.sqnr_db == pytest.approx(10 * math.log10(26 / 3), abs=1e-12)


def test_classes_are_compared_by_their_largest_entry() -> None:
    reference = [[0.1, 0.9], [0.8, 0.2], [0.3, 0.7], [0.6, 0.4]]
    candidate = [[0.4, 0.6], [0.4, 0.6], [0.3, 0.7], [0.9, 0.1]]
    fidelity = compare(reference, candidate, kind="classes")
    assert fidelity.flips_percent == 25
    assert fidelity.cosine_mean is None


def test_a_row_of_zeros_has_no_direction() -> None:
    fidelity = compare(np.zeros((1, 3)), np.ones((1, 3)), kind="embedding")
    assert fidelity.cosine_min == 0


@pytest.mark.parametrize(
    ("reference", "candidate"),
    [([[1, 2]], [[1, 2, 3]]), ([1, 2], [1, 2])],
    ids=["other-width", "no-rows"],
)
def test_rows_of_other_shapes_are_refused(reference, candidate) -> None:
    with pytest.raises(ValueError, match="equal shapes"):
        compare(reference, candidate, kind="embedding")
