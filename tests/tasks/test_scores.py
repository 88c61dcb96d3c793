from __future__ import annotations

import pytest

from qdqbert.common.errors import DataFileError
from qdqbert.data.rows.data import Columns, Dataset, Example
from qdqbert.tasks.scores import check_scores_differ, correlations


def examples(*labels: str) -> list[Example]:
    return [Example(text="a", text_pair="b", label=label) for label in labels]


def test_correlations_of_equal_orders_are_100() -> None:
    scores = correlations([0.1, 0.2, 0.4], [1, 2, 4])
    metrics = [each.metric() for each in scores]
    assert [(metric.name, metric.examples) for metric in metrics] == [
        ("spearman", 3),
        ("pearson", 3),
    ]
    # float64 sums of three terms.
    assert [metric.value for metric in metrics] == pytest.approx([100, 100], abs=1e-9)


def test_equal_outputs_correlate_with_nothing() -> None:
    scores = correlations([0.5, 0.5, 0.5], [1, 2, 4])
    assert [each.metric().value for each in scores] == [0, 0]


def test_equal_scores_are_refused_before_a_model_runs() -> None:
    columns = Columns(text="a", text_pair="b", label="score")
    for labels, is_refused in (("3", "3.0"), True), (("3",), True), (("3", "4"), False):
        data = Dataset(path="a.csv", examples=tuple(examples(*labels)), columns=columns, notices=())
        if is_refused:
            with pytest.raises(DataFileError, match=r"All scores of `a.csv`, column 'score' are 3"):
                check_scores_differ(data)
        else:
            check_scores_differ(data)


@pytest.mark.parametrize(
    ("values", "labels"),
    [([0.1, 0.2], (3, 3)), ([0.1, float("nan")], (1, 2))],
    ids=["equal-labels", "nan"],
)
def test_undefined_correlations_are_data_file_errors(values, labels) -> None:
    with pytest.raises(DataFileError, match="cannot be correlated"):
        correlations(values, labels)
