"""What is printed of a report."""

from __future__ import annotations

import dataclasses

import pytest

from qdqbert.evidence.reporting.document import Cell, Document, Section, Table
from qdqbert.evidence.reporting.report import Report
from qdqbert.evidence.reporting.train import TrainReport
from qdqbert.tasks.task import Metric

METRIC = Metric(name="accuracy", value=50.0, examples=1)
TRAINED = TrainReport(
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
    notices=("Check the data.",),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Hostile(Report):
    """A report whose names are markup of rich."""

    notices: tuple[str, ...] = ("Column '[/red]' is left out.",)

    def document(self) -> Document:
        rows = [("[bold]", 1.25), (Cell(text=":smile:", level="bad"), None)]
        table = Table("[x] | ms {:.1f}", rows)
        sections = [
            Section("How to run it", code="x" * 300),
            Section("[y]", table=table),
            Section("a detail", table=table, is_detail=True),
            Section("a fold", table=table, is_folded=True),
        ]
        return Document(title="[title]", sections=sections)


def test_names_are_text_details_are_left_out_and_code_comes_last() -> None:
    assert str(Hostile()).splitlines() == [
        "[title]",
        "",
        "[y]",
        "┏━━━━━━━━━┳━━━━━┓",
        "┃ [x]     ┃  ms ┃",
        "┡━━━━━━━━━╇━━━━━┩",
        "│ [bold]  │ 1.2 │",
        "│ :smile: │     │",
        "└─────────┴─────┘",
        "Note: Column '[/red]' is left out.",
        "",
        "How to run it",
        "",
        "    " + "x" * 300,
    ]


def test_training_without_evaluation_data_has_a_hint_on_metrics() -> None:
    text = str(TRAINED)
    assert "model: float training" in text
    assert "16 examples in 12 steps. Pass `eval_data` to see metrics." in text
    assert "before" not in text
    assert text.splitlines()[-2:] == ["Note: Check the data.", "Written to out"]


@pytest.mark.parametrize("quantizers", [0, 20])
def test_metrics_are_shown_before_and_after_training(quantizers) -> None:
    after = dataclasses.replace(METRIC, value=87.5)
    report = dataclasses.replace(TRAINED, quantizers=quantizers, before=(METRIC,), after=(after,))
    text = str(report)
    assert ("QAT with 20 quantizers" in text) == bool(quantizers)
    assert ("calibrated, before training" in text) == bool(quantizers)
    (cells,) = (line.split("│") for line in text.splitlines() if "accuracy" in line)
    assert [each.strip() for each in cells[2:4]] == ["50.00", "87.50"]
    assert "eval_data" not in text


def test_the_report_of_quantize_begins_with_the_verdict(quantize_report) -> None:
    report = dataclasses.replace(quantize_report, call='model("A film.")')
    lines = str(report).splitlines()
    assert lines[0] == "my-model in INT8"
    assert lines[3].startswith("INT8 is close to float: 2.4 times as fast on onnxruntime, 1.50 %")
    assert lines[-1] == "    qdqbert serve out/my-int8"
    titles = ("Is it as good", "How fast and how large", "Note: Pass", "Written to", "How to run")
    places = [next(i for i, line in enumerate(lines) if line.startswith(x)) for x in titles]
    assert places == sorted(places)
    # Jargon is on the page only.
    assert "fake quantization" not in str(report)
