from __future__ import annotations

import numpy as np

from qdqbert.evidence.batch_invariance import compare_alone


def test_equal_predictions_are_exact() -> None:
    together = [np.array([1, 2], np.float32), np.array([3, 4], np.float32)]
    found = compare_alone(together, {1: together[1].copy()}, ([(0,), (1,)], [(0,), (1,)]))
    assert found.is_exact
    assert (found.texts, found.differing, found.largest_difference) == (1, 0, 0)
    assert found.changed_decisions == 0


def test_differences_and_changed_decisions_are_counted() -> None:
    together = [np.array([1.0, 2.0]), np.array([3.0, 4.0]), np.array([5.0, 6.0])]
    alone = {0: np.array([1.0, 2.5]), 1: np.array([4.75, 4.0]), 2: together[2]}
    found = compare_alone(together, alone, ([(1, 1), (1,)], [(1, 0), (1,)]))
    assert not found.is_exact
    assert (found.texts, found.differing, found.largest_difference) == (3, 2, 1.75)
    assert found.changed_decisions == 1


def test_tasks_without_decisions_have_none_that_changed() -> None:
    assert compare_alone([np.zeros(2)], {0: np.ones(2)}, None).changed_decisions is None
