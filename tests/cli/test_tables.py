from __future__ import annotations

import dataclasses

import pytest
from rich.console import Console

from qdqbert.cli._output import print_report
from qdqbert.cli._tables import evaluate_table, quantize_table, train_table
from qdqbert.evidence.fidelity import Fidelity
from qdqbert.evidence.intervals import Interval
from qdqbert.evidence.limits import LimitCheck
from qdqbert.evidence.reports import EvaluateReport, QuantizeReport, TrainReport
from qdqbert.options import declared_options
from qdqbert.tasks.task import Metric
from qdqbert.verbs.quantize.options import QuantizeOptions

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
MACHINE = {
    "cpu": "Example CPU",
    "cpu_features": ("avx2",),
    "cores": 2,
    "versions": {"python": "3.11.0"},
    "command": "qdqbert",
}
EVALUATED = EvaluateReport(
    model="model",
    task="text-classification",
    engine="onnxruntime",
    target=None,
    reference=None,
    data="dev.csv",
    examples=1,
    metrics=(METRIC,),
    reference_metrics=(),
    differences=(),
    fidelity=None,
    limits=(),
    leaked_examples=0,
    **MACHINE,
    notices=(),
)
QUANTIZED = QuantizeReport(
    directory="out",
    checkpoint="model",
    task="text-classification",
    calibration_texts=1,
    calibration_lengths=None,
    heldout_texts=8,
    float_metrics=(),
    float_size_bytes=2_000_000,
    targets=(),
    **MACHINE,
    warnings=("Pass more `calibration_data`.",),
    notices=("Pass `overwrite=True`.",),
)


def shown(renderable: object) -> str:
    console = Console(width=100)
    with console.capture() as capture:
        console.print(renderable)
    return capture.get()


def test_training_without_evaluation_data_has_a_hint_on_metrics() -> None:
    text = shown(train_table(TRAINED))
    assert "float training, 12 steps" in text
    assert "Trained on 16 examples. Pass `--eval-data` to see metrics." in text
    assert "before" not in text


@pytest.mark.parametrize("quantizers", [0, 20])
def test_metrics_are_shown_before_and_after_training(quantizers) -> None:
    after = dataclasses.replace(METRIC, value=87.5)
    report = dataclasses.replace(TRAINED, quantizers=quantizers, before=(METRIC,), after=(after,))
    text = shown(train_table(report))
    assert ("QAT with 20 quantizers" in text) == bool(quantizers)
    (cells,) = (line for line in text.splitlines() if "accuracy" in line)
    assert "50.00" in cells
    assert "87.50" in cells
    assert ("calibrated, before training" in text) == bool(quantizers)
    assert "after training" in text


def test_one_example_is_counted_in_the_singular_and_no_column_is_empty() -> None:
    text = shown(evaluate_table(EVALUATED))
    assert "1 example " in text
    assert "reference" not in text
    (cells,) = (line for line in text.splitlines() if "accuracy" in line)
    assert cells.count("│") == 3


def test_the_evaluation_names_its_graph_its_reference_and_what_was_compared() -> None:
    fidelity = Fidelity(
        texts=2,
        sqnr_db=30,
        sqnr_interval=Interval(low=29, high=31),
        cosine_mean=None,
        cosine_min=None,
        flips_percent=1,
        flips_interval=Interval(low=0.5, high=1.75),
        decisions=1200,
    )
    changes = {"target": "portable", "reference": "float", "task": "token-classification"}
    text = shown(evaluate_table(dataclasses.replace(EVALUATED, fidelity=fidelity, **changes)))
    assert "model, graph for portable, on onnxruntime, compared with float" in text
    assert "changed predictions, 1,200 words" in text
    assert "(0.50 to 1.75)" in text


def test_limits_are_printed_with_their_verdicts() -> None:
    check = LimitCheck(
        option="max_flips",
        limit=2,
        value=1,
        interval=Interval(low=0.5, high=3),
        verdict="not shown",
    )
    text = shown(evaluate_table(dataclasses.replace(EVALUATED, limits=(check,))))
    assert "--max-flips 2: not shown, 1 (0.5 to 3)" in text


def test_a_report_without_measurements_has_a_note_instead_of_an_empty_table() -> None:
    text = shown(quantize_table(QUANTIZED))
    assert "Nothing was measured." in text
    assert "┃" not in text


def test_warnings_come_before_notes_and_both_name_flags(capsys) -> None:
    print_report(QUANTIZED, declared_options(QuantizeOptions), quantize_table, as_json=False)
    lines = capsys.readouterr().out.splitlines()
    assert lines[-3:] == [
        "WARNING: Pass more `--calibration-data`.",
        "Note: Pass `--overwrite`.",
        "Written to out",
    ]
