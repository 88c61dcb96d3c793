"""What the verdict says about each result."""

from __future__ import annotations

import dataclasses

import pytest

from qdqbert.evidence.reports import CandidateReport
from qdqbert.reporting.page import quantize_page
from qdqbert.reporting.verdict import evaluate_verdict, quantize_verdict, span
from qdqbert.verbs.quantize.auto.candidates import reason_of


@pytest.fixture
def with_limits(quantize_report, check):
    """Return a report with one limit of each of these verdicts."""

    def make(*verdicts: str):
        limits = tuple(dataclasses.replace(check, verdict=each) for each in verdicts)
        target = dataclasses.replace(quantize_report.targets[0], limits=limits)
        return dataclasses.replace(quantize_report, targets=(target,))

    return make


def test_a_model_without_warnings_is_close_to_float(quantize_report) -> None:
    verdict = quantize_verdict(quantize_report)
    assert (verdict.level, verdict.judgement) == ("good", "INT8 is close to float")
    assert verdict.facts == (
        "2.4 times as fast on onnxruntime",
        "1.50 % of the predictions changed",
        "25 % of the size",
    )


@pytest.mark.parametrize(
    ("verdicts", "level", "judgement"),
    [
        (["met"], "good", "All limits are met"),
        (
            ["met", "missed"],
            "bad",
            "Nothing was written: changed predictions of at most 5 % is missed",
        ),
        (
            ["not shown"],
            "bad",
            "Nothing was written: too few examples to show changed predictions of at most 5 %",
        ),
        # What is missed is worse than what is not shown.
        (
            ["not shown", "missed"],
            "bad",
            "Nothing was written: changed predictions of at most 5 % is missed",
        ),
    ],
)
def test_limits_decide_if_there_are_some(with_limits, verdicts, level, judgement) -> None:
    verdict = quantize_verdict(with_limits(*verdicts))
    assert (verdict.level, verdict.judgement) == (level, judgement)


def test_without_limits_the_target_auto_says_why_nothing_was_written(quantize_report) -> None:
    candidate = CandidateReport(
        target="portable",
        engine="onnxruntime",
        precision="float32",
        recipe="linear",
        single_ms=1.0,
        texts_per_second=1.0,
        relative_time=1.0,
        verdict="rejected",
        reason="far from float: 1.0 dB SQNR",
    )
    report = dataclasses.replace(
        quantize_report, candidates=(candidate,), reason=reason_of([candidate])
    )
    verdict = quantize_verdict(report)
    assert (verdict.level, verdict.judgement) == (
        "bad",
        "No candidate is close enough to float, so nothing was written",
    )
    # Pages and cards print it, too.
    assert verdict.judgement in quantize_page(report)


def test_warnings_make_a_model_doubtful(quantize_report, with_limits) -> None:
    warned = dataclasses.replace(with_limits("met"), warnings=("Far from float.",))
    assert quantize_verdict(warned).level == "doubtful"
    (target,) = quantize_report.targets
    lowering = dataclasses.replace(target.lowering, worst_layer_db=5.0)
    inexact = dataclasses.replace(target, lowering=lowering)
    report = dataclasses.replace(quantize_report, targets=(inexact,))
    assert quantize_verdict(report).level == "doubtful"


def test_without_an_engine_nothing_is_judged(quantize_report) -> None:
    verdict = quantize_verdict(dataclasses.replace(quantize_report, targets=()))
    assert (verdict.level, verdict.judgement) == ("doubtful", "Nothing was measured")
    assert verdict.facts == ()


def test_embedders_are_judged_by_cosines(quantize_report) -> None:
    (target,) = quantize_report.targets
    fidelity = dataclasses.replace(
        target.fidelity, flips_percent=None, cosine_mean=0.99, cosine_min=0.9
    )
    report = dataclasses.replace(
        quantize_report, targets=(dataclasses.replace(target, fidelity=fidelity),)
    )
    assert quantize_verdict(report).facts[1] == "mean cosine to float 0.9900"


def test_an_evaluation_is_judged_by_its_limits_only(evaluate_report, check) -> None:
    verdict = evaluate_verdict(evaluate_report)
    assert (verdict.level, verdict.judgement) == ("plain", "Measured on 200 examples")
    assert verdict.facts == (
        "accuracy 90.50",
        "-0.50 compared with the reference",
        "1.50 % of the predictions changed",
    )
    levels = {
        each: evaluate_verdict(
            dataclasses.replace(evaluate_report, limits=(dataclasses.replace(check, verdict=each),))
        ).level
        for each in ("met", "missed", "not shown")
    }
    assert levels == {"met": "good", "missed": "bad", "not shown": "bad"}


def test_leaked_examples_make_an_evaluation_doubtful(evaluate_report) -> None:
    verdict = evaluate_verdict(dataclasses.replace(evaluate_report, leaked_examples=1))
    assert verdict.level == "doubtful"
    assert "calibrated on 1 example" in verdict.judgement


@pytest.mark.parametrize(("values", "text"), [([2.0], "2.0"), ([3.01, 1.5, 3.0], "1.5 to 3.0")])
def test_a_span_has_two_ends_unless_they_are_equal(values, text) -> None:
    assert span(values, ".1f") == text
