"""What the report of `evaluate` says."""

from __future__ import annotations

import dataclasses


def test_an_evaluation_is_judged_by_its_limits_only(evaluate_report, check) -> None:
    document = evaluate_report.document()
    assert (document.level, document.verdict) == ("plain", "Measured on 200 examples")
    assert document.facts == [
        "accuracy 90.50",
        "-0.50 compared with the reference",
        "1.50 % of the predictions changed",
    ]
    for verdict, level in (("met", "good"), ("missed", "bad"), ("not shown", "bad")):
        limits = (dataclasses.replace(check, verdict=verdict),)
        assert dataclasses.replace(evaluate_report, limits=limits).document().level == level


def test_leaked_examples_make_an_evaluation_doubtful(evaluate_report) -> None:
    document = dataclasses.replace(evaluate_report, leaked_examples=1).document()
    assert document.level == "doubtful"
    assert "calibrated on 1 example" in document.verdict


def test_the_evaluation_names_its_graph_and_its_reference(evaluate_report) -> None:
    path = "/data/models/2026/my-model"
    document = dataclasses.replace(evaluate_report, model=path).document()
    assert document.title == "2026/my-model: evaluation"
    assert document.summary == (
        "The metrics of text-classification on 200 examples of dev.csv. "
        f"{path} ran on onnxruntime, graph for portable. It is compared with ./my-model."
    )
    (table, *_) = [each.table for each in document.sections]
    assert [name for name, _ in table.formats] == ["", "reference", "model"]


def test_without_a_reference_no_column_is_empty(evaluate_report) -> None:
    alone = dataclasses.replace(
        evaluate_report,
        reference=None,
        reference_metrics=(),
        differences=(),
        fidelity=None,
        target=None,
        examples=1,
    )
    document = alone.document()
    assert "on 1 example of" in document.summary
    assert [[cell.text for cell in row] for row in document.sections[0].table.cells] == [
        ["accuracy", "90.50"]
    ]
    assert document.tiles == [("accuracy", "90.50", "")]
