"""What the report of `quantize` says."""

from __future__ import annotations

import dataclasses
import math

import pytest

from qdqbert.evidence.fidelity import EntityAgreement
from qdqbert.evidence.intervals import Interval
from qdqbert.evidence.predictions import ChangedExample
from qdqbert.evidence.reporting.candidates import reason_of
from qdqbert.evidence.reporting.document import span
from qdqbert.evidence.reporting.graphs import by_speed
from qdqbert.evidence.reports import CandidateReport, LatencyReport
from qdqbert.evidence.vector_recall import VectorRecall

FAST = "How fast and how large is it?"


def section(report, title: str):
    """Return the section of a title; `None` if the report has none."""
    found = [each for each in report.document().sections if each.title == title]
    return found[0] if found else None


def rows(report, title: str) -> dict[str, list[str]]:
    """Return the cells of a section's table, by the first one of each row."""
    cells = section(report, title).table.cells
    return {row[0].text: [cell.text for cell in row[1:]] for row in cells}


@pytest.fixture
def with_limits(quantize_report, check):
    """Return a report with one limit of each of these verdicts."""

    def make(*verdicts: str):
        limits = tuple(
            dataclasses.replace(check, verdict=each, examples_needed=1200) for each in verdicts
        )
        target = dataclasses.replace(quantize_report.targets[0], limits=limits)
        return dataclasses.replace(quantize_report, targets=(target,))

    return make


def test_a_model_without_warnings_is_close_to_float(quantize_report) -> None:
    document = quantize_report.document()
    assert (document.level, document.verdict) == ("good", "INT8 is close to float")
    assert document.facts == [
        "2.4 times as fast on onnxruntime",
        "1.50 % of the predictions changed",
        "25 % of the size",
    ]


def test_other_codes_than_int8_are_named(quantize_report) -> None:
    (target,) = quantize_report.targets
    targets = [dataclasses.replace(target, codes="W4A8"), dataclasses.replace(target, target="x")]
    for count, name in ((1, "W4A8"), (2, "W4A8 and INT8")):
        report = dataclasses.replace(quantize_report, targets=tuple(targets[:count]))
        document = report.document()
        assert document.title.endswith(f" in {name}")
        assert f"was quantized to {name}. Its" in document.summary
        assert document.verdict == f"{name} is close to float"


def test_few_texts_do_not_show_that_a_model_is_close_to_float(quantize_report) -> None:
    target = quantize_report.targets[0]
    verdicts = []
    # 5 % is the end of the interval of 0 of 72.
    for count in (71, 72):
        few = dataclasses.replace(
            target, fidelity=dataclasses.replace(target.fidelity, decisions=count)
        )
        document = dataclasses.replace(quantize_report, targets=(few,)).document()
        verdicts.append((document.level, document.verdict))
    assert verdicts == [
        ("doubtful", "Too few texts to tell whether INT8 is close to float"),
        ("good", "INT8 is close to float"),
    ]


@pytest.mark.parametrize(
    ("verdicts", "level", "judgement"),
    [
        (["met"], "good", "All limits are met"),
        (
            ["met", "missed"],
            "bad",
            "Nothing was written: changed predictions of at most 5 % is missed: "
            "1.50 % (0.25 to 4.00)",
        ),
        (
            ["not shown"],
            "bad",
            "Nothing was written: too few examples to show changed predictions of at most 5 %: "
            "1.50 % (0.25 to 4.00), about 1,200 examples would",
        ),
        # What is missed is worse than what is not shown.
        (
            ["not shown", "missed"],
            "bad",
            "Nothing was written: changed predictions of at most 5 % is missed: "
            "1.50 % (0.25 to 4.00)",
        ),
    ],
)
def test_limits_decide_if_there_are_some(with_limits, verdicts, level, judgement) -> None:
    document = with_limits(*verdicts).document()
    assert (document.level, document.verdict) == (level, judgement)


def test_limits_that_only_a_float_model_meets_are_not_met(with_limits) -> None:
    report = with_limits("met")
    (target,) = report.targets
    units = ("layer.0.dense", "layer.1.dense")
    for percent, is_met in ((10.0, True), (9.9, False), (0.0, False)):
        made = dataclasses.replace(target, units_in_float=units, int8_percent=percent)
        found = dataclasses.replace(report, targets=(made,))
        assert found.meets_limits is is_met
    assert found.document().verdict == (
        "Nothing was written: INT8 cannot meet changed predictions of at most 5 %: only 0 % of the "
        "multiplications would stay in INT8"
    )
    # Options of the user may leave everything in float.
    chosen = dataclasses.replace(report, targets=(dataclasses.replace(target, int8_percent=0.0),))
    assert chosen.meets_limits


def test_without_limits_the_target_auto_says_why_nothing_was_written(quantize_report) -> None:
    candidate = CandidateReport(
        target="portable",
        engine="onnxruntime",
        precision="float32",
        recipe="linear",
        codes="INT8",
        single_ms=1.0,
        texts_per_second=1.0,
        relative_time=1.0,
        verdict="rejected",
        reason="far from float: 1.0 dB SQNR",
    )
    report = dataclasses.replace(
        quantize_report, candidates=(candidate,), reason=reason_of([candidate])
    )
    document = report.document()
    assert (document.level, document.verdict) == (
        "bad",
        "No candidate is close enough to float, so nothing was written",
    )


def test_warnings_make_a_model_doubtful(quantize_report, with_limits) -> None:
    warned = dataclasses.replace(with_limits("met"), warnings=("Far from float.",))
    assert warned.document().level == "doubtful"
    (target,) = quantize_report.targets
    lowering = dataclasses.replace(target.lowering, worst_layer_db=5.0)
    inexact = dataclasses.replace(target, lowering=lowering)
    report = dataclasses.replace(quantize_report, targets=(inexact,))
    assert report.document().level == "doubtful"


def test_without_an_engine_nothing_is_judged(quantize_report) -> None:
    document = dataclasses.replace(quantize_report, targets=()).document()
    assert (document.level, document.verdict) == ("doubtful", "Nothing was measured")
    assert document.facts == []


def test_embedders_are_judged_by_cosines(quantize_report) -> None:
    (target,) = quantize_report.targets
    fidelity = dataclasses.replace(
        target.fidelity, flips_percent=None, cosine_mean=0.99, cosine_min=0.9
    )
    report = dataclasses.replace(
        quantize_report, targets=(dataclasses.replace(target, fidelity=fidelity),)
    )
    assert report.document().facts[1] == "mean cosine to float 0.9900"


def test_embedders_show_what_small_vectors_cost(quantize_report) -> None:
    title = "What do small vectors cost?"
    assert section(quantize_report, title) is None
    (target,) = quantize_report.targets
    recall = VectorRecall(
        texts=120,
        dimensions=20,
        float32=99.5,
        int8=99.0,
        int8_per_dimension=90.25,
        int8_restored=98.0,
        binary=70.0,
    )
    measured = dataclasses.replace(target, recall=recall)
    report = dataclasses.replace(quantize_report, targets=(measured,))
    assert "on 120 held-out texts" in section(report, title).text
    assert rows(report, title) == {
        "float32": ["80", "99.5 %"],
        "int8": ["20", "99.0 %"],
        "int8, a range for each dimension": ["20", "90.2 %"],
        "the same, values restored from the codes": ["20", "98.0 %"],
        "binary": ["3", "70.0 %"],
    }


def timed(target, engine: str, float_ms: float, int8_ms: float):
    latency = [
        LatencyReport(
            batch=batch,
            sequence=32,
            float_ms=factor * float_ms,
            int8_ms=factor * int8_ms,
            speedup=float_ms / int8_ms,
        )
        for batch, factor in ((1, 1.0), (8, 4.0))
    ]
    return dataclasses.replace(target, target=engine, engine=engine, latency=tuple(latency))


@pytest.fixture
def three(quantize_report):
    """Three engines, the native one the fastest, and OpenVINO the best one in float."""
    (target,) = quantize_report.targets
    targets = [
        timed(target, "onnxruntime", 12.0, 6.0),
        timed(target, "openvino", 6.0, 4.0),
        timed(target, "native", 12.0, 2.0),
    ]
    return dataclasses.replace(quantize_report, targets=tuple(targets), call='model("A film.")')


def test_the_winner_is_compared_with_float_on_its_best_engine(three) -> None:
    best = three.winner
    assert (best.name, best.reference) == ("native", "openvino")
    assert math.isclose(best.ratio, 3.0)
    assert [each.engine for each in by_speed(three.targets)] == [
        "native",
        "openvino",
        "onnxruntime",
    ]
    assert usage(three)[0].startswith(
        "The fastest here is native: 3.00 x as fast as the float model on its best engine, "
        "openvino."
    )


def test_the_choice_of_auto_is_the_winner(quantize_report, candidates) -> None:
    chosen, bf16 = candidates
    candidates = (chosen, dataclasses.replace(bf16, verdict="slower", reason=""))
    report = dataclasses.replace(
        quantize_report, candidates=candidates, reason="It is fast.", call="model('')"
    )
    best = report.winner
    assert (best.name, best.reference, best.ratio) == ("native", "openvino", 1.25)
    assert usage(report)[0].startswith("It is fast. ")


def usage(report) -> tuple[str, list[str]]:
    """Return the text and the code that say how to run a folder."""
    found = section(report, "How to run it")
    return found.text, found.code.splitlines()


def test_the_lines_run_the_folder(three) -> None:
    assert usage(three)[1] == [
        "pip install 'qdqbert[serve]'",
        "",
        "import qdqbert",
        "model = qdqbert.load('out/my-int8')",
        'print(model("A film."))',
        "",
        "qdqbert serve out/my-int8",
    ]


def test_the_extra_is_that_of_the_fastest_engine(three) -> None:
    target = three.targets[1]
    only = dataclasses.replace(three, targets=(target, timed(target, "onnxruntime", 9.0, 8.0)))
    assert usage(only)[1][0] == "pip install 'qdqbert[openvino,serve]'"


def test_without_timings_the_report_says_how_to_measure(three) -> None:
    targets = tuple(dataclasses.replace(each, latency=()) for each in three.targets)
    untimed = dataclasses.replace(three, targets=targets)
    assert untimed.winner is None
    assert usage(untimed)[0].startswith(
        "No speed was measured. To measure it: `qdqbert benchmark out/my-int8`."
    )
    assert list(rows(untimed, "How large is it?")) == [
        "size",
        "recipe",
        "multiplications in INT8",
    ]


def test_a_folder_that_was_not_written_or_that_load_does_not_run_is_not_run(three) -> None:
    for changes in ({"directory": None}, {"call": None}):
        assert section(dataclasses.replace(three, **changes), "How to run it") is None


def test_the_float_model_and_the_target_float_have_names_of_their_own(three) -> None:
    target = dataclasses.replace(three.targets[1], target="float")
    table = section(dataclasses.replace(three, targets=(*three.targets, target)), FAST).table
    names = [name for name, _ in table.formats]
    assert {"float model on openvino", "float on openvino"} < set(names)
    assert len(set(names)) == len(names)


def test_graphs_are_compared_with_float_the_fastest_one_first(three) -> None:
    table = section(three, FAST).table
    assert [name for name, _ in table.formats] == [
        "",
        "float model on openvino",
        "native",
        "openvino",
        "onnxruntime",
    ]
    # 8 texts in 24 and in 8 ms.
    assert rows(three, FAST) == {
        "1 text of 32 tokens": ["6.0 ms", "2.0 ms (3.00 x)", "4.0 ms (1.50 x)", "6.0 ms (1.00 x)"],
        "8 texts of 32 tokens": [
            "24.0 ms",
            "8.0 ms (3.00 x)",
            "16.0 ms (1.50 x)",
            "24.0 ms (1.00 x)",
        ],
        "the same, in texts per second": ["333/s", "1,000/s", "500/s", "333/s"],
        "size": ["100.0 MB", *["25.0 MB (0.25)"] * 3],
        "recipe": ["", *["linear"] * 3],
        "multiplications in INT8": ["", *["95 %"] * 3],
    }


def test_quality_is_compared_with_float(quantize_report) -> None:
    assert rows(quantize_report, "Is it as good as the float model?") == {
        "accuracy": ["91.00", "90.50"],
        "accuracy, difference (95 %)": ["", "-0.50 (-1.25 to +0.25)"],
        "changed predictions, 200 texts": ["", "1.50 % (0.25 to 4.00)"],
        "SQNR to float": ["", "25.5 dB (24.5 to 26.2), close"],
    }


def test_checks_lengths_layers_and_the_machine_are_shown(quantize_report) -> None:
    assert rows(quantize_report, "Does it compute what it should?") == {
        "portable on onnxruntime": [
            "60.0 dB",
            "3 of 64, by up to 1e-06",
            "no (60.0 dB)",
            "layer.0.dense_input_quantizer: 0.125 % of the sums",
        ]
    }
    layers = rows(quantize_report, "Where does it differ? (portable)")
    assert layers["after layer.0"] == ["30.0 dB"]
    assert layers["only encoder.layer.1 in INT8"] == ["28.5 dB"]
    lengths = section(quantize_report, "What was it calibrated on?")
    assert "3 to 40 tokens, and a median of 6.5" in lengths.text
    assert sum(int(row[1].text) for row in lengths.table.cells) == 6
    machine = rows(quantize_report, "Where was it measured?")
    assert machine["its features for INT8"] == ["avx2, avx512_vnni"]
    assert machine["onnxruntime"] == ["1.23.0"]


def test_targets_with_the_same_arithmetic_share_the_table_of_their_layers(quantize_report) -> None:
    (target,) = quantize_report.targets
    others = [dataclasses.replace(target, target=name) for name in ("onnxruntime", "openvino")]
    report = dataclasses.replace(quantize_report, targets=(target, *others))
    titles = [each.title for each in report.document().sections]
    assert [each for each in titles if "differ" in each] == [
        "Where does it differ? (portable, onnxruntime, openvino)"
    ]


def test_the_choice_of_auto_is_shown_with_all_candidates(quantize_report, candidates) -> None:
    report = dataclasses.replace(quantize_report, candidates=candidates, reason="It is fast.")
    title = "What was it chosen from?"
    assert section(report, title).text.startswith("It is fast. Relative time is")
    assert rows(report, title) == {
        "INT8 (linear) on native": ["1.50 ms", "1,000/s", "1.00", "chosen", ""],
        "bf16 on openvino": ["2.00 ms", "800/s", "1.25", "rejected", "SQNR of 20.0 dB"],
    }
    assert section(quantize_report, title) is None
    # Without a reason, the column is left out.
    chosen = dataclasses.replace(report, candidates=candidates[:1])
    assert rows(chosen, title)["INT8 (linear) on native"][-1] == "chosen"


def test_limits_are_in_a_table_with_their_verdicts(quantize_report, check) -> None:
    drop = dataclasses.replace(check, option="max_drop", limit=0.5, value=0.5, verdict="not shown")
    target = dataclasses.replace(quantize_report.targets[0], limits=(check, drop))
    report = dataclasses.replace(quantize_report, targets=(target,))
    cells = section(report, "Limits").table.cells
    assert [[cell.text for cell in row[1:]] for row in cells] == [
        ["changed predictions of at most 5 %", "1.50 % (0.25 to 4.00)", "met", ""],
        # The sign is that of the difference, as everywhere.
        [
            "loss of accuracy of at most 0.5",
            "-0.50 (-1.25 to +0.25)",
            "not shown",
            "no number of examples",
        ],
    ]
    assert [row[3].level for row in cells] == ["good", "bad"]
    assert section(quantize_report, "Limits") is None


def test_changed_entities_are_shown_beside_changed_words(quantize_report) -> None:
    (target,) = quantize_report.targets
    interval = Interval(low=1.0, high=6.5)
    entities = EntityAgreement(
        entities=361,
        changed_percent=2.5,
        changed_interval=interval,
        texts_percent=3.0,
        texts_interval=interval,
        largest_difference=0.0471,
    )
    fidelity = dataclasses.replace(target.fidelity, entities=entities)
    report = dataclasses.replace(
        quantize_report,
        task="token-classification",
        targets=(dataclasses.replace(target, fidelity=fidelity),),
    )
    found = rows(report, "Is it as good as the float model?")
    assert found["changed predictions, 200 words"][1] == "1.50 % (0.25 to 4.00)"
    assert found["changed entities, 361 entities"][1] == "2.50 % (1.00 to 6.50)"
    assert found["texts with changed entities, 200 texts"][1] == "3.00 % (1.00 to 6.50)"
    assert found["probability of an entity, largest difference"][1] == "0.047"
    assert (
        "1.50 % of the predictions changed, and the entities of 3.00 % of the texts"
        in report.document().facts
    )


def test_changed_predictions_are_shown_with_their_texts(quantize_report) -> None:
    (target,) = quantize_report.targets
    changed = (ChangedExample(text="a <dull> film", before="Negative", after="Positive"),)
    target = dataclasses.replace(target, changed=changed)
    title = "Which predictions changed?"
    report = dataclasses.replace(quantize_report, targets=(target,))
    assert rows(report, title) == {"a <dull> film": ["Negative", "Positive"]}
    labeled = dataclasses.replace(
        target, changed=(dataclasses.replace(*changed, label="Negative"),)
    )
    report = dataclasses.replace(quantize_report, targets=(labeled,))
    assert rows(report, title) == {"a <dull> film": ["Negative", "Negative", "Positive"]}
    assert section(report, title).table.columns == "example | label | float | INT8"
    assert section(quantize_report, title) is None


def test_the_numbers_beside_the_fastest_graph_are_its_own(three) -> None:
    targets = [
        dataclasses.replace(
            each,
            metrics=(dataclasses.replace(each.metrics[0], value=90.0 + number),),
            fidelity=dataclasses.replace(each.fidelity, flips_percent=1.0 + number),
            size_bytes=25_000_000 + 1_000_000 * number,
            size_ratio=0.25 + 0.01 * number,
        )
        for number, each in enumerate(three.targets)
    ]
    document = dataclasses.replace(three, targets=tuple(targets)).document()
    values = [f"{value} {note}" for _, value, note in document.tiles]
    text = "\n".join([*values, *document.facts])
    for own in ("92.00", "3.00 %", "27 %", "27.0 MB"):
        assert own in text
    for other in ("90.00", "1.00 %", "2.00 %", "26.0 MB", "25 %"):
        assert other not in text


def test_what_was_not_measured_is_left_out(quantize_report) -> None:
    nothing = dataclasses.replace(quantize_report, targets=(), calibration_lengths=None)
    document = nothing.document()
    assert document.tiles == [("size in float", "100.0 MB", "")]
    assert [each.title for each in document.sections] == [
        "Where was it measured?",
        "What do the words mean?",
    ]


def test_the_title_is_short_where_the_model_is_a_long_path(quantize_report) -> None:
    path = "/data/models/2026/my-model"
    document = dataclasses.replace(quantize_report, checkpoint=path).document()
    assert document.title == "2026/my-model in INT8"
    assert path in document.summary


@pytest.mark.parametrize(("values", "text"), [([2.0], "2.0"), ([3.01, 1.5, 3.0], "1.5 to 3.0")])
def test_a_span_has_two_ends_unless_they_are_equal(values, text) -> None:
    assert span(values, ".1f") == text
