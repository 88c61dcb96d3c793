"""How the numbers of metrics are written."""

from __future__ import annotations

import dataclasses

import pytest

from qdqbert.evidence.intervals import Interval
from qdqbert.evidence.limits import MetricDifference
from qdqbert.evidence.reporting.comparison import difference_text, metric_text
from qdqbert.tasks.task import Metric


@pytest.mark.parametrize(
    ("value", "is_error", "text"),
    [
        # Percentages.
        (90.5, False, "90.50"),
        (0.25, False, "0.25"),
        # Errors in the unit of the labels: at least three significant digits.
        (0.15234, True, "0.152"),
        (0.015234, True, "0.0152"),
        (0.00101, True, "0.00101"),
        (3.14159, True, "3.14"),
        (1234.5, True, "1234.50"),
        (0.0, True, "0.00"),
        (float("inf"), True, "inf"),
    ],
)
def test_errors_have_three_significant_digits(value, is_error, text) -> None:
    assert metric_text(Metric(name="m", value=value, examples=9, is_error=is_error)) == text


def test_a_difference_and_its_interval_have_the_same_digits() -> None:
    interval = Interval(low=-0.001, high=0.0052)
    found = MetricDifference(name="rmse", value=0.0021, interval=interval, is_error=True)
    assert difference_text(found) == "+0.00210 (-0.00100 to +0.00520)"
    percent = dataclasses.replace(found, is_error=False)
    assert difference_text(percent) == "+0.00 (-0.00 to +0.01)"
