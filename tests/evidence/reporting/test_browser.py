"""Reports in headless Chromium: they fit, load nothing, are dark, and can be read by all."""

from __future__ import annotations

import dataclasses
import re

import pytest

from browsers import PHONE
from qdqbert.evidence.reporting.document import Document, Section, Table, bar
from qdqbert.evidence.reporting.page import page
from qdqbert.evidence.reporting.report import Report

pytestmark = pytest.mark.slow


@pytest.fixture(params=["quantize", "evaluate"])
def shown(request, quantize_report, evaluate_report, candidates, check) -> str:
    """A report with all of its parts, and with long names."""
    if request.param == "evaluate":
        return page(dataclasses.replace(evaluate_report, limits=(check,)))
    name = "organization/a-model-with-a-very-long-name-" + "x" * 60
    target = dataclasses.replace(quantize_report.targets[0], limits=(check,))
    return page(
        dataclasses.replace(
            quantize_report,
            checkpoint=name,
            command=f"qdqbert quantize {name}",
            targets=(target, dataclasses.replace(target, target="onnxruntime")),
            candidates=candidates,
            reason="It is the fastest.",
        )
    )


@pytest.mark.parametrize("width", [PHONE, 1280])
def test_pages_fit_the_window_and_load_nothing(chromium, shown, width, tmp_path) -> None:
    found = chromium.view(shown, tmp_path, width=width)
    assert found["width"] == width
    assert found["content"] <= width
    assert found["scrolled"] == 0
    assert found["loaded"] == 0
    assert found["console"] == []


@pytest.mark.parametrize("width", [PHONE, 1280])
def test_pages_have_no_faults_of_accessibility(chromium, shown, width, tmp_path) -> None:
    for dark in (False, True):
        assert chromium.faults(shown, tmp_path, dark=dark, width=width) == []


@dataclasses.dataclass(frozen=True, kw_only=True)
class Compared(Report):
    """A report that compares graphs in a row of bars."""

    graphs: int

    def document(self) -> Document:
        names = [f"a{'n engine with a long name' * (index % 2)}" for index in range(self.graphs)]
        cells = [bar(index + 1, "{} ms") for index in range(self.graphs)]
        columns = " | ".join(f"{name} {{}}" for name in names)
        table = Table(f" | {columns}", [("latency", *cells)], compares_rows=True)
        return Document(title="title", sections=[Section("section", table=table)])


@pytest.mark.parametrize("width", [PHONE, 1280])
@pytest.mark.parametrize("graphs", [4, 12])
def test_bars_that_are_compared_have_one_scale(chromium, graphs, width, tmp_path) -> None:
    found = chromium.view(page(Compared(graphs=graphs)), tmp_path, width=width)
    assert len(found["axes"]) == graphs
    assert len(set(found["axes"])) == 1
    # Rounded to pixels, as are the numbers in the page to two digits.
    expected = [found["bars"][-1] * (index + 1) / graphs for index in range(graphs)]
    assert found["bars"] == pytest.approx(expected, abs=0.5)
    assert found["scrolled"] == 0


def test_pages_are_dark_where_the_reader_prefers_it(chromium, shown, tmp_path) -> None:
    light, dark = chromium.view(shown, tmp_path), chromium.view(shown, tmp_path, dark=True)
    assert light["background"] == "rgb(255, 255, 255)"
    assert sum(map(int, re.findall(r"\d+", dark["background"]))) < 150
    assert sum(map(int, re.findall(r"\d+", dark["color"]))) > 600


def test_faults_of_a_page_are_seen(chromium, tmp_path) -> None:
    faulty = (
        "<!DOCTYPE html><body><div style='width: 900px'>wide</div>"
        "<img src='missing.png'><script>console.error('broken')</script></body>"
    )
    found = chromium.view(faulty, tmp_path)
    assert found["content"] >= 900
    assert found["loaded"] == 1
    assert any("broken" in line for line in found["console"])
    pale = "<!DOCTYPE html><body><p style='color: #ccc; background: #fff'>pale</p></body>"
    faults = chromium.faults(pale, tmp_path, dark=False, width=PHONE)
    assert any("color-contrast: p" in fault for fault in faults)
