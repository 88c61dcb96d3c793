"""The HTML page: form, content, and what cannot get into it."""

from __future__ import annotations

import dataclasses
import math
import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import pytest

import qdqbert.evidence.reporting
from qdqbert.evidence.intervals import Interval
from qdqbert.evidence.reporting.document import Cell, Document, Section, Table, bar
from qdqbert.evidence.reporting.page import page
from qdqbert.evidence.reporting.report import Report

VOID = {"meta", "br", "link", "img", "input", "hr"}
HOSTILE = """</style></pre><script>alert("1")</script><img src=x onerror='alert(2)'>`{{ 7 * 7 }}"""


class Checked(HTMLParser):
    """A parser that fails at tags that are not closed in order, and keeps tags and texts."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: Counter[str] = Counter()
        self.attributes: list[tuple[str, str | None]] = []
        self.texts: list[tuple[str, str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.texts.append((self.open[-1], " ".join(data.split())))


def parse(page: str) -> Checked:
    parser = Checked()
    parser.feed(page)
    parser.close()
    assert parser.open == []
    return parser


def named(report, name: str):
    """Return a report in which everything that a user or a file can name has this name."""
    if hasattr(report, "data"):
        return dataclasses.replace(
            report, model=name, data=name, reference=name, command=name, notices=(name,), cpu=name
        )
    difference = dataclasses.replace(report.targets[0].differences[0], name=name)
    metric = dataclasses.replace(report.float_metrics[0], name=name)
    layer = dataclasses.replace(report.targets[0].layers[0], name=name)
    sensitivity = dataclasses.replace(report.targets[0].sensitivity[0], name=name)
    overflow = dataclasses.replace(report.targets[0].overflows[0], site=name)
    target = dataclasses.replace(
        report.targets[0],
        model=name,
        units_in_float=(name,),
        differences=(difference,),
        metrics=(metric,),
        layers=(layer,),
        sensitivity=(sensitivity,),
        overflows=(overflow,),
    )
    return dataclasses.replace(
        report,
        checkpoint=name,
        targets=(target,),
        float_metrics=(metric,),
        cpu=name,
        versions={name: name},
        command=name,
        warnings=(name,),
        notices=(name,),
    )


@pytest.fixture(params=["quantize", "evaluate"])
def report(request):
    return request.getfixturevalue(f"{request.param}_report")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shown(Report):
    """A report with one table."""

    table: Table

    def document(self) -> Document:
        return Document(title="title", sections=[Section("section", table=self.table)])


def texts_of(report: Report) -> str:
    return " ".join(text for _, text in parse(page(report)).texts)


def test_tags_are_closed_in_order_and_nothing_is_loaded(report) -> None:
    text = page(report)
    parsed = parse(text)
    assert parsed.tags["html"] == parsed.tags["title"] == parsed.tags["h1"] == 1
    assert not {"script", "link", "img", "iframe", "object"} & set(parsed.tags)
    names = {name for name, _ in parsed.attributes}
    assert not names & {"src", "href", "xlink:href", "style"}
    assert not re.search(r"url\(|@import|https?:", text)
    policy = dict(parsed.attributes)["content"]
    assert policy == "default-src 'none'; style-src 'unsafe-inline'"
    assert len(text.encode()) < 100_000


def test_hostile_names_are_text(report) -> None:
    parsed = parse(page(named(report, HOSTILE)))
    assert not {"script", "img"} & set(parsed.tags)
    assert not [name for name, _ in parsed.attributes if name.startswith("on")]
    heading = next(text for tag, text in parsed.texts if tag == "h1")
    assert heading.startswith(HOSTILE)
    assert dict(reversed(parsed.texts))["pre"] == HOSTILE


def test_the_styles_of_a_page_leave_a_notebook_around_it_as_it_is() -> None:
    styles = (Path(qdqbert.evidence.reporting.__file__).parent / "page.css").read_text()
    selectors = re.findall(r"([^{};]+)\{", re.sub(r"@\w+[^{]*\{", "", styles).replace("}", ";"))
    assert len(selectors) > 20
    parts = [part.strip() for each in selectors for part in each.split(",")]
    assert [part for part in parts if not part.startswith(".qdqbert")] == []


def test_the_head_of_the_page_has_the_verdict_and_the_most_important_numbers(
    quantize_report,
) -> None:
    text = texts_of(quantize_report)
    head = text[: text.index("Warnings and notes")]
    for expected in (
        "my-model in INT8",
        "INT8 is close to float : 2.4 times as fast on onnxruntime, 1.50 % of the predictions",
        "fastest: portable on onnxruntime 2.4 x as fast as float on onnxruntime, its best engine",
        "accuracy 90.50 float: 91.00",
        "of 200 texts; other texts may give 0.25 to 4.00 %",
        "25 % float 100.0 MB, INT8 25.0 MB",
    ):
        assert expected in head


def test_messages_name_options_as_code(quantize_report) -> None:
    parsed = parse(page(quantize_report))
    assert ("code", "calibration_data") in parsed.texts


def drawn(table: Table, name: str) -> list[dict[str, str]]:
    """Return the attributes of the shapes of a class."""
    shapes = re.findall(rf'<\w+ class="{name}"([^>]*)>', page(Shown(table=table)))
    return [dict(re.findall(r'(\w+)="([^"]*)"', each)) for each in shapes]


@pytest.mark.parametrize(
    ("compares_rows", "lengths"), [(False, [120, 120, 60, 60]), (True, [60, 120, 60, 120])]
)
def test_bars_of_a_column_or_a_row_share_an_axis(compares_rows, lengths) -> None:
    rows = [("a", bar(2.0, "{} ms"), bar(4, "{}")), ("b", bar(1.0, "{} ms"), bar(2, "{}"))]
    shapes = drawn(Table("name | x {} | y {}", rows, compares_rows=compares_rows), "bar")
    assert [float(each["x2"]) - float(each["x1"]) for each in shapes] == lengths


def test_intervals_are_drawn_around_their_points_and_cut_at_the_axis() -> None:
    ends = [(-1.0, 1.0), (-math.inf, 3.0)]
    cells = [Cell(text="", value=0.5, interval=Interval(low=x, high=y)) for x, y in ends]
    table = Table("name | x {}", [("a", cells[0]), ("b", cells[1])])
    # The axis is from -1 to 3 and has 120 units.
    lines = [(float(each["x1"]), float(each["x2"])) for each in drawn(table, "interval")]
    assert lines == [(0, 60), (0, 120)]
    assert [float(each["cx"]) for each in drawn(table, "point")] == [45, 45]
    assert [float(each["x1"]) for each in drawn(table, "zero")] == [30, 30]


def test_details_are_folded(quantize_report) -> None:
    folded = re.findall(r"<details>\s*<summary><h2>(.*?)</h2>", page(quantize_report))
    assert folded == [
        "Does it compute what it should?",
        "Where does it differ? (portable)",
        "What was it calibrated on?",
        "Where was it measured?",
        "What do the words mean?",
    ]


def test_cells_of_several_columns_have_the_name_of_theirs_where_rows_become_lines() -> None:
    text = page(Shown(table=Table(" | a & b | c", [("x", "y", None)])))
    assert '<table class="stacks">' in text
    assert (
        '<th scope="row">x</th>\n<td data-title="a &amp; b">y</td>\n<td data-title="c"></td>'
        in text
    )
    assert '<table class="stacks">' not in page(Shown(table=Table("a | b", [("x", "y")])))


def test_units_stay_on_the_line_of_their_numbers() -> None:
    table = Table("a | b", [("3 xs", "95 % (1.5 x, 20 ms)")])
    assert "3 xs" in page(Shown(table=table))
    assert "95\xa0% (1.5\xa0x, 20\xa0ms)" in page(Shown(table=table))


def test_columns_without_a_value_can_be_left_out() -> None:
    table = Table(" | a {:.1f} | b | c", [("x", 1.0, None, "z"), ("y", None, None, None)])
    found = table.without_empty_columns()
    assert found.formats == [("", ""), ("a", "{:.1f}"), ("c", "")]
    assert [[cell.text for cell in row] for row in found.cells] == [
        ["x", "1.0", "z"],
        ["y", "", ""],
    ]
