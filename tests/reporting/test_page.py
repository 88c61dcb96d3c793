"""The HTML page: form, content, and what cannot get into it."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from html.parser import HTMLParser

import pytest

from qdqbert.evidence.reports import ChangedExample
from qdqbert.reporting.page import evaluate_page, quantize_page

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
def made(request, quantize_report, evaluate_report):
    """A report, and what makes a page of it."""
    if request.param == "quantize":
        return quantize_report, quantize_page
    return evaluate_report, evaluate_page


def test_tags_are_closed_in_order_and_nothing_is_loaded(made) -> None:
    report, page = made
    text = page(report)
    parsed = parse(text)
    assert parsed.tags["html"] == parsed.tags["title"] - parsed.tags["g"] == parsed.tags["h1"] == 1
    assert not {"script", "link", "img", "iframe", "object"} & set(parsed.tags)
    names = {name for name, _ in parsed.attributes}
    assert not names & {"src", "href", "xlink:href", "style"}
    assert not re.search(r"url\(|@import|https?:", text)
    policy = dict(parsed.attributes)["content"]
    assert policy == "default-src 'none'; style-src 'unsafe-inline'"
    assert len(text.encode()) < 100_000


def test_hostile_names_are_text(made) -> None:
    report, page = made
    parsed = parse(page(named(report, HOSTILE)))
    assert not {"script", "img"} & set(parsed.tags)
    assert not [name for name, _ in parsed.attributes if name.startswith("on")]
    heading = next(text for tag, text in parsed.texts if tag == "h1")
    assert heading.startswith(HOSTILE)
    assert dict(reversed(parsed.texts))["pre"] == HOSTILE
    # A template in a name is not run.
    assert not [text for _, text in parsed.texts if "49" in text]


def test_the_head_of_the_page_has_the_verdict_and_the_most_important_numbers(
    quantize_report,
) -> None:
    text = " ".join(text for _, text in parse(quantize_page(quantize_report)).texts)
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


def test_the_page_has_everything_that_was_measured(quantize_report) -> None:
    parsed = parse(quantize_page(quantize_report))
    text = " ".join(text for _, text in parsed.texts)
    for expected in (
        # Layers, lengths, batches, saturation, CPU, versions, command, notices.
        "layer.0: 30.0 dB",
        "3 to 40 tokens, and a median of 6.5",
        "3 of 64 1e-06 0",
        "layer.0.dense_input_quantizer: 0.125 % of the sums",
        "avx2, avx512_vnni",
        "onnxruntime 1.23.0",
        "qdqbert quantize ./my-model",
        "Pass calibration_data .",
    ):
        assert expected in text
    assert ("code", "calibration_data") in parsed.texts
    # 8 texts in 30 and in 90 ms.
    assert "portable on onnxruntime, INT8: 267 texts/s" in text
    assert "float on onnxruntime: 89 texts/s" in text
    assert "encoder.layer.1: 28.5 dB" in text
    # Accuracy, changed predictions, SQNR, two shapes, throughput, sizes, layers, their sensitivity,
    # lengths.
    assert parsed.tags["svg"] == parsed.tags["figure"] == 10


def test_the_choice_of_auto_is_shown_with_all_candidates(quantize_report, candidates) -> None:
    report = dataclasses.replace(quantize_report, candidates=candidates, reason="It is fast.")
    parsed = parse(quantize_page(report))
    text = " ".join(text for _, text in parsed.texts)
    for expected in (
        "What was it chosen from? It is fast.",
        "native, INT8 linear native 1.00 chosen",
        "openvino, bf16 float 1.25 rejected SQNR of 20.0 dB",
        "native, INT8 linear: 1.50 ms",
        "openvino, bf16: 800 texts/s",
    ):
        assert expected in text
    assert "chosen from" not in quantize_page(quantize_report)


def test_titles_are_short_where_the_model_is_a_long_path(quantize_report, evaluate_report) -> None:
    path = "/data/models/2026/my-model"
    for page, title in (
        (
            quantize_page(dataclasses.replace(quantize_report, checkpoint=path)),
            "2026/my-model in INT8",
        ),
        (
            evaluate_page(dataclasses.replace(evaluate_report, model=path)),
            "2026/my-model: evaluation",
        ),
    ):
        assert ("h1", title) in parse(page).texts
        assert path in page


def test_limits_are_in_a_table_and_in_the_plot(quantize_report, check) -> None:
    target = dataclasses.replace(quantize_report.targets[0], limits=(check,))
    text = quantize_page(dataclasses.replace(quantize_report, targets=(target,)))
    parsed = parse(text)
    cells = [text for tag, text in parsed.texts if tag == "td"]
    start = cells.index("changed predictions of at most 5 %")
    assert cells[start : start + 3] == [
        "changed predictions of at most 5 %",
        "1.5 (0.25 to 4)",
        "met",
    ]
    assert text.count('class="limit"') == 1
    assert "Limits" not in [text for tag, text in parse(quantize_page(quantize_report)).texts]


def test_targets_with_the_same_arithmetic_share_the_plot_of_their_layers(quantize_report) -> None:
    (target,) = quantize_report.targets
    others = [dataclasses.replace(target, target=name) for name in ("onnxruntime", "openvino")]
    page = quantize_page(dataclasses.replace(quantize_report, targets=(target, *others)))
    captions = [text for tag, text in parse(page).texts if tag == "figcaption"]
    assert [text for text in captions if "after each layer" in text] == [
        "SQNR to float after each layer, in dB: portable, onnxruntime, openvino"
    ]


def test_what_was_not_measured_is_left_out(quantize_report, evaluate_report) -> None:
    nothing = dataclasses.replace(quantize_report, targets=(), calibration_lengths=None)
    parsed = parse(quantize_page(nothing))
    assert parsed.tags["svg"] == 0
    assert "Nothing was measured" in [text for tag, text in parsed.texts if tag == "strong"]
    alone = dataclasses.replace(
        evaluate_report, reference=None, reference_metrics=(), differences=(), fidelity=None
    )
    parsed = parse(evaluate_page(alone))
    assert parsed.tags["svg"] == 0
    headers = [text for tag, text in parsed.texts if tag == "th"]
    assert headers[:2] == ["model", "accuracy"]


def test_changed_predictions_are_shown_with_their_texts(quantize_report) -> None:
    (target,) = quantize_report.targets
    changed = (ChangedExample(text="a <dull> film", before="Negative", after="Positive"),)
    target = dataclasses.replace(target, changed=changed)
    page = quantize_page(dataclasses.replace(quantize_report, targets=(target,)))
    text = " ".join(text for _, text in parse(page).texts)
    assert "example float INT8 a <dull> film Negative Positive" in text
    assert "Which predictions changed?" not in quantize_page(quantize_report)
