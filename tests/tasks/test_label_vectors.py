"""Vectors of labels are computed once, and the last ones are kept."""

from __future__ import annotations

import numpy as np

from qdqbert.tasks import label_vectors
from qdqbert.tasks.label_vectors import KeptLabels


def test_a_label_is_computed_once_until_many_others_were_used(monkeypatch) -> None:
    monkeypatch.setattr(label_vectors, "MOST_KEPT", 3)
    asked = []

    def embed(labels):
        asked.append(list(labels))
        return np.array([[len(each), ord(each[0])] for each in labels], np.float32)

    vectors = KeptLabels(embed)
    np.testing.assert_array_equal(vectors(["a", "bb", "a"]), [[1, 97], [2, 98], [1, 97]])
    np.testing.assert_array_equal(vectors(["bb", "ccc"]), [[2, 98], [3, 99]])
    assert asked == [["a", "bb"], ["ccc"]]
    vectors(["a"])
    # The one that was not used for longest is forgotten, and more than are kept can be asked for.
    vectors(["d"])
    assert len(vectors(["a", "bb", "ccc", "d", "e"])) == 5
    assert asked[2:] == [["d"], ["bb", "e"]]
