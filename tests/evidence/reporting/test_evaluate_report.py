"""What the report of `evaluate` says."""

from __future__ import annotations

import dataclasses
from typing import get_args

from qdqbert.evidence.findings import Finding, FindingKind, Storage
from qdqbert.evidence.predictions import ChangedExample


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


def test_examples_whose_prediction_is_not_the_references_are_shown(evaluate_report) -> None:
    title = "Which predictions changed?"
    assert title not in [each.title for each in evaluate_report.document().sections]
    changed = (ChangedExample(text="a film", before="Negative", after="Positive"),)
    document = dataclasses.replace(evaluate_report, changed=changed).document()
    (section,) = [each for each in document.sections if each.title == title]
    assert section.table.columns == "example | reference | model"
    assert section.table.rows == [("a film", "Negative", "Positive")]


def test_leaked_examples_make_an_evaluation_doubtful(evaluate_report) -> None:
    document = dataclasses.replace(evaluate_report, leaked_examples=1).document()
    assert document.level == "doubtful"
    assert "calibrated or trained on 1 example" in document.verdict


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


STORAGE = Storage(
    linear_layers=38,
    int8_percent=97.5,
    findings=tuple(
        Finding(
            kind=kind,
            count=1,
            total=38,
            worst="bert.encoder.layer.3.output.dense",
            amount=None if kind == "attention products in INT8" else 1.5e6,
        )
        for kind in get_args(FindingKind)
    ),
)


def test_each_finding_is_a_line_in_words(evaluate_report) -> None:
    document = dataclasses.replace(evaluate_report, storage=STORAGE).document()
    assert document.facts[-1] == f"{len(STORAGE.findings)} findings"
    (section,) = [each for each in document.sections if "wrong" in each.title]
    assert "38 linear layers, 97.5 % of whose weights" in section.text
    assert "This CPU has VNNI" in section.text
    assert section.table is not None
    lines = [[cell.text for cell in row] for row in section.table.cells]
    assert len(lines) == len(STORAGE.findings)
    assert all(problem and advice for problem, _, _, advice in lines)
    assert lines[-1] == [
        "Tables of embeddings are left in float",
        "1 of 38 tables",
        "layer.3.output.dense: 1.5 MB in all",
        "quantize them (`Gather`)",
    ]


def test_a_file_without_findings_is_said_to_have_none(evaluate_report) -> None:
    storage = dataclasses.replace(STORAGE, findings=())
    changed = {"storage": storage, "cpu_features": ("avx2",)}
    document = dataclasses.replace(evaluate_report, **changed).document()
    (section,) = [each for each in document.sections if "wrong" in each.title]
    assert section.text.startswith("Nothing was found. 38 linear layers")
    assert "VNNI" not in section.text
    assert section.table is None


def test_sizes_are_compared_with_the_reference(evaluate_report) -> None:
    sizes = {"size_bytes": 23_000_000, "reference_bytes": 92_000_000}
    document = dataclasses.replace(evaluate_report, **sizes).document()
    row = document.sections[0].table.cells[-1]
    assert [cell.text for cell in row] == ["size", "92.0 MB", "23.0 MB (0.25)"]


def test_without_labels_predictions_are_what_is_compared(evaluate_report) -> None:
    unlabeled = {"metrics": (), "reference_metrics": (), "differences": ()}
    document = dataclasses.replace(evaluate_report, **unlabeled).document()
    assert document.summary.startswith("Predictions of text-classification on 200 examples")
    assert document.facts == ["1.50 % of the predictions changed"]


def test_what_saturated_on_the_texts_is_told(evaluate_report) -> None:
    finding = Finding(
        kind="saturating sums", count=2, total=38, worst="dense", amount=1.5, seen_percent=0.25
    )
    storage = dataclasses.replace(STORAGE, findings=(finding,))
    document = dataclasses.replace(evaluate_report, storage=storage).document()
    (section,) = [each for each in document.sections if "wrong" in each.title]
    assert section.table is not None
    assert section.table.cells[0][2].text == (
        "dense: 1.50 % of its pairs of weights can; on these texts, up to 0.250 % of a layer's "
        "sums did"
    )
