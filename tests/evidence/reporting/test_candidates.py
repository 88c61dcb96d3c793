"""How the report explains the choice of the target `auto`."""

from __future__ import annotations

import dataclasses
import re

import pytest

from qdqbert.evidence.reporting.candidates import candidate_name, candidate_sections, reason_of
from qdqbert.evidence.reports import CandidateReport


def candidate(engine: str, time: float, verdict: str, **changes) -> CandidateReport:
    values = {
        "target": engine,
        "engine": engine,
        "precision": "float32",
        "recipe": "linear",
        "codes": "INT8",
        "single_ms": time,
        "texts_per_second": 1 / time,
        "relative_time": time,
        "verdict": verdict,
        "reason": "far from float" if verdict == "rejected" else "",
    }
    return CandidateReport(**(values | changes))


BF16 = {"target": "float", "precision": "bf16", "recipe": "float"}
FLOAT = {"target": "float", "recipe": "float"}


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (
            [candidate("native", 1.0, "chosen"), candidate("openvino", 2.5, "slower", **BF16)],
            "INT8 (linear) on native is the fastest of 2 candidates. It is 2.50 times as fast as "
            "bf16 on openvino.",
        ),
        (
            [candidate("openvino", 1.0, "chosen", **BF16), candidate("native", 1.5, "slower")],
            "bf16 on openvino is faster here than any INT8 graph.",
        ),
        (
            [
                candidate("openvino", 1.0, "chosen", **BF16),
                candidate("native", 1.5, "slower", codes="W4A8"),
            ],
            "bf16 on openvino is faster here than any W4A8 graph.",
        ),
        (
            [candidate("native", 1.0, "rejected"), candidate("openvino", 1.5, "chosen", **BF16)],
            "bf16 on openvino is the fastest of 2 candidates that is close enough to float. "
            "INT8 (linear) on native is 1.50 times as fast, and was rejected: far from float.",
        ),
        (
            [
                candidate("native", 1.0, "rejected", reason="too few examples, 930 would do"),
                candidate("native", 1.25, "chosen", target="native-dynamic", codes="W4A8"),
                # It is not what the choice is compared with.
                candidate("openvino", 1.5, "rejected", **BF16),
                candidate("onnxruntime", 2.5, "slower", **FLOAT),
            ],
            "W4A8 (linear) on native (native-dynamic) is the fastest of 4 candidates that is close "
            "enough to float. It is 2.00 times as fast as float32 on onnxruntime. INT8 (linear) on "
            "native is 1.25 times as fast, and was rejected: too few examples, 930 would do.",
        ),
        ([candidate("native", 1.0, "rejected")], "No candidate is close enough to float."),
    ],
)
def test_the_reason_is_given_in_words(found, reason) -> None:
    assert reason_of(found) == reason


def test_the_headline_and_the_tiles_are_of_the_numbers_in_the_table(quantize_report) -> None:
    found = (
        candidate("native", 1.0, "rejected"),
        candidate("openvino", 1.84, "chosen"),
        candidate("onnxruntime", 3.95, "slower", **FLOAT),
    )
    report = dataclasses.replace(
        quantize_report, candidates=found, reason=reason_of(found), call="model('')"
    )
    [section] = candidate_sections(found, report.reason)
    times = {row[0].text: float(row[3].text) for row in section.table.cells}
    ratio = times["float32 on onnxruntime"] / times[candidate_name(found[1])]
    document = report.document()
    headline = re.findall(r"([\d.]+) times as fast as float32 on onnxruntime", report.reason)
    facts = re.findall(r"([\d.]+) times as fast on openvino", " ".join(document.facts))
    tiles = [value.removesuffix(" x") for title, value, _ in document.tiles if "openvino" in title]
    assert [float(each) for each in headline] == pytest.approx([ratio], abs=0.01)
    assert [float(each) for each in (*facts, *tiles)] == pytest.approx([ratio] * 2, abs=0.05)
    # A faster one was rejected.
    assert any(title == "chosen: openvino" for title, *_ in document.tiles)


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({}, "INT8 (linear) on openvino"),
        ({"codes": "W4A8"}, "W4A8 (linear) on openvino"),
        ({"precision": "bf16"}, "INT8 (linear, bf16) on openvino"),
        ({"target": "portable"}, "INT8 (linear) on openvino (portable)"),
        (BF16, "bf16 on openvino"),
    ],
)
def test_a_name_has_the_widths_of_the_codes(changes, name) -> None:
    assert candidate_name(candidate("openvino", 1.0, "slower", **changes)) == name
