from __future__ import annotations

import dataclasses

import pytest
from rich.console import Console

from qdqbert.cli._tables import train_table
from qdqbert.evidence.reports import TrainReport
from qdqbert.tasks.task import Metric

REPORT = TrainReport(
    directory="out",
    checkpoint="model",
    task="text-classification",
    training_examples=16,
    evaluation_examples=0,
    quantizers=0,
    steps=12,
    resumed_at=None,
    before=(),
    after=(),
    notices=("Mind the gap.",),
)


def shown(report: TrainReport) -> str:
    console = Console(width=100)
    with console.capture() as capture:
        console.print(train_table(report))
    return capture.get()


def test_training_without_evaluation_data_says_how_to_see_metrics() -> None:
    text = shown(REPORT)
    assert "float training, 12 steps" in text
    assert "Trained on 16 examples. Pass `--eval-data` to see metrics." in text
    assert "before" not in text


@pytest.mark.parametrize("quantizers", [0, 20])
def test_metrics_are_shown_before_and_after(quantizers) -> None:
    before, after = ((Metric(name="accuracy", value=value, examples=8),) for value in (50.0, 87.5))
    report = dataclasses.replace(REPORT, quantizers=quantizers, before=before, after=after)
    text = shown(report)
    assert ("QAT with 20 quantizers" in text) == bool(quantizers)
    cells = [line for line in text.splitlines() if "accuracy" in line]
    assert len(cells) == 1
    assert "50.00" in cells[0]
    assert "87.50" in cells[0]
    assert "before" in text
    assert "--eval-data" not in text
