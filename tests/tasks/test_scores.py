from __future__ import annotations

import pytest

from qdqbert.errors import DataFileError
from qdqbert.tasks.data import Example
from qdqbert.tasks.scores import correlations


def examples(*labels: str) -> list[Example]:
    return [Example(text="a", text_pair="b", label=label) for label in labels]


def test_correlations_of_equal_orders_are_100() -> None:
    metrics = correlations([0.1, 0.2, 0.4], examples("1", "2", "4"))
    assert [(metric.name, metric.examples) for metric in metrics] == [
        ("spearman", 3),
        ("pearson", 3),
    ]
    # float64 sums of three terms.
    assert [metric.value for metric in metrics] == pytest.approx([100, 100], abs=1e-9)


@pytest.mark.parametrize(
    ("values", "labels"),
    [([0.1, 0.2], ("3", "3")), ([0.1], ("3",)), ([0.1, float("nan")], ("1", "2"))],
    ids=["equal-labels", "one-example", "nan"],
)
def test_undefined_correlations_are_data_file_errors(values, labels) -> None:
    with pytest.raises(DataFileError, match="cannot be correlated"):
        correlations(values, examples(*labels))
