from __future__ import annotations

import collections
import contextlib
import dataclasses
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import onnx
import pytest
from huggingface_hub import ModelCard

import flat
from conftest import WORDS
from qdqbert.common.errors import UserInputError
from qdqbert.common.progress import Silent
from qdqbert.evidence.reporting.page import page
from qdqbert.runtime.artifact import open_artifact

LABELS = ("Negative", "Neutral", "Positive")
# Texts that no calibration has seen.
LABELED = [f"the {word} was very good" for word in WORDS[:40]]


@pytest.fixture
def labeled(tmp_path: Path) -> Path:
    path = tmp_path / "labeled.csv"
    rows = [f'"{text}",{LABELS[index % 3]}' for index, text in enumerate(LABELED)]
    path.write_text("\n".join(["text,label", *rows]))
    return path


class Stages(Silent):
    """Counts the steps of each stage."""

    def __init__(self) -> None:
        self.steps: collections.Counter[str] = collections.Counter()

    @contextlib.contextmanager
    def stage(self, title: str, total: int | None = None) -> Iterator[Callable[[], None]]:
        yield lambda: self.steps.update([title])


def quantize(made, output: Path, **options):
    return flat.quantize(
        str(made.checkpoint),
        output,
        **{
            "calibration_data": made.data,
            "calibration_samples": 24,
            "targets": ["onnxruntime"],
            "benchmark": False,
            **options,
        },
    )


def int8_weights(graph: Path) -> int:
    return sum(node.op_type == "DequantizeLinear" for node in onnx.load(graph).graph.node)


def test_sensitive_layers_stay_in_float_until_a_limit_is_met(quantized, tmp_path) -> None:
    made = quantized("classifier")
    [before] = [each for each in made.report.targets if each.engine == "onnxruntime"]
    assert before.units_in_float == ()
    wanted = before.fidelity.sqnr_db + 4
    report = quantize(made, tmp_path / "int8", min_sqnr=wanted, targets=["onnxruntime"])
    assert report.meets_limits
    [target] = report.targets
    [limit] = target.limits
    assert (limit.option, limit.verdict) == ("min_sqnr", "met")
    assert limit.interval.low >= wanted
    sites = open_artifact(tmp_path / "int8").targets["onnxruntime"]["sites"]
    layers = {site.rpartition(".")[0] for site in sites if site.endswith("_weight_quantizer")}
    assert 0 < len(target.units_in_float) < 12
    assert not layers & set(target.units_in_float)
    assert int8_weights(tmp_path / "int8" / "model.onnx") < int8_weights(
        made.directory / "model.onnx"
    )


@pytest.mark.slow
def test_a_limit_that_is_met_anyway_changes_nothing(quantized, tmp_path) -> None:
    made = quantized("classifier")
    progress = Stages()
    report = quantize(
        made,
        tmp_path / "int8",
        targets=["portable"],
        min_sqnr=0,
        max_flips=100,
        progress=progress,
    )
    assert report.meets_limits
    # All examples run once more, and no layer is measured.
    assert progress.steps["Meeting the limits for portable"] == 1
    assert all(each.units_in_float == () for each in report.targets)
    graphs = [folder / "model.onnx" for folder in (made.directory, tmp_path / "int8")]
    assert graphs[0].read_bytes() == graphs[1].read_bytes()


def test_without_enough_examples_nothing_is_written_but_the_report(quantized, tmp_path) -> None:
    made = quantized("classifier")
    path = tmp_path / "report.json"
    # With so few examples, even no changed prediction leaves 1 % possible.
    report = quantize(made, tmp_path / "int8", max_flips=0.5, report=path)
    assert not report.meets_limits
    assert report.directory is None
    assert not (tmp_path / "int8").exists()
    assert list(tmp_path.iterdir()) == [path]
    stored = json.loads(path.read_text())
    assert stored["directory"] is None
    verdicts = {check["verdict"] for each in stored["targets"] for check in each["limits"]}
    assert verdicts == {"not shown"}


def test_the_report_is_a_page_if_its_name_says_so(quantized, tmp_path) -> None:
    path = tmp_path / "missed.HTML"
    report = quantize(quantized("classifier"), tmp_path / "int8", min_sqnr=300, report=path)
    assert path.read_text() == page(report)
    assert "SQNR of at least 300\N{NO-BREAK SPACE}dB is missed: " in path.read_text()


@pytest.mark.slow
def test_targets_that_run_everything_in_int8_can_only_miss_a_limit(quantized, tmp_path) -> None:
    made = quantized("classifier")
    report = quantize(made, tmp_path / "int8", min_sqnr=100, targets=["native", "onnxruntime"])
    assert report.directory is None
    verdicts = {each.target: each.limits[0].verdict for each in report.targets}
    units = {each.target: each.units_in_float for each in report.targets}
    assert verdicts["native"] == "missed"
    assert units["native"] == ()
    assert units["onnxruntime"]


@pytest.mark.slow
def test_a_default_target_that_misses_a_limit_is_left_out(quantized, tmp_path) -> None:
    made = quantized("classifier")
    wanted = max(each.fidelity.sqnr_db for each in made.report.targets) + 4
    report = quantize(made, tmp_path / "int8", min_sqnr=wanted, targets=())
    assert report.meets_limits
    assert "native" not in {each.target for each in report.targets}
    start = f"Target native is left out: SQNR of at least {wanted:g} dB is missed: "
    assert any(each.startswith(start) for each in report.notices)
    assert not (tmp_path / "int8" / "native").exists()
    assert open_artifact(tmp_path / "int8").engines[0] == "onnxruntime"


def test_metrics_of_data_that_were_split_are_not_in_the_model_index(
    quantized, labeled, tmp_path
) -> None:
    options = {"calibration_data": labeled, "targets": ["native"], "benchmark": False}
    report = flat.quantize(quantized("classifier").checkpoint, tmp_path / "int8", **options)
    assert report.float_metrics
    card = ModelCard.load(tmp_path / "int8" / "README.md")
    assert card.data.eval_results is None
    assert any("rows of `calibration_data` that the model may" in each for each in report.notices)


@pytest.mark.slow
def test_a_limit_that_only_a_float_model_meets_is_not_met_by_int8(quantized, tmp_path) -> None:
    report = quantize(quantized("classifier"), tmp_path / "int8", min_sqnr=100, targets=())
    assert not report.meets_limits
    assert report.directory is None
    assert not (tmp_path / "int8").exists()
    shares = {each.target: each.int8_percent for each in report.targets}
    assert shares["native"] == 50
    assert shares["onnxruntime"] == 0
    # Of OpenVINO, even the float model misses it on CPUs where it computes in bfloat16.
    only = tuple(each for each in report.targets if each.target == "onnxruntime")
    missed = dataclasses.replace(report, targets=only)
    assert "INT8 cannot meet SQNR of at least 100 dB" in missed.document().verdict


def test_metrics_are_compared_on_labeled_data(quantized, labeled, tmp_path) -> None:
    made = quantized("classifier")
    report = quantize(made, tmp_path / "int8", eval_data=labeled, max_drop=100)
    assert report.heldout_texts == len(LABELED)
    results = ModelCard.load(tmp_path / "int8" / "README.md").data.eval_results
    assert {each.metric_type for each in results} == {each.name for each in report.float_metrics}
    for each in report.targets:
        assert [limit.option for limit in each.limits] == ["max_drop"]
        evaluated = flat.evaluate(
            tmp_path / "int8", labeled, reference=made.checkpoint, engine=each.engine
        )
        assert each.differences == evaluated.differences
        assert each.metrics == evaluated.metrics
        assert report.float_metrics == evaluated.reference_metrics


def test_a_few_examples_without_a_loss_show_no_limit(quantized, labeled, tmp_path, caplog) -> None:
    eight = tmp_path / "eight.csv"
    eight.write_text("\n".join(labeled.read_text().splitlines()[:9]))
    report = quantize(
        quantized("classifier"), tmp_path / "int8", eval_data=eight, max_drop=1, max_flips=1
    )
    assert not report.meets_limits
    [target] = report.targets
    drop, flips = target.limits
    assert (drop.verdict, flips.verdict) == ("not shown", "not shown")
    if target.fidelity.flips_percent == 0:
        assert drop.interval.high == pytest.approx(flips.interval.high, rel=0.05)
        assert drop.examples_needed == pytest.approx(flips.examples_needed, rel=0.05)
    # It was said before anything was calibrated.
    before = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert [each.partition(",")[0] for each in before] == [
        "Too few examples to show loss of accuracy of at most 1",
        "Too few examples to show changed predictions of at most 1 %",
    ]
    assert "About 370 examples would show it" in before[1]


@pytest.mark.slow
def test_examples_with_equal_texts_are_counted_once(quantized, labeled, tmp_path) -> None:
    tripled = tmp_path / "tripled.csv"
    header, *rows = labeled.read_text().splitlines()
    tripled.write_text("\n".join([header, *rows, *rows, *rows]))
    made, reports = quantized("classifier"), []
    for data in (labeled, tripled):
        reports.append(flat.evaluate(made.directory, data, reference=made.checkpoint, max_drop=9))
    once, three_times = reports
    assert three_times.fidelity.flips_interval == once.fidelity.flips_interval
    assert three_times.fidelity.sqnr_interval.low == pytest.approx(
        once.fidelity.sqnr_interval.low, abs=0.5
    )
    assert three_times.limits[0].interval.high == pytest.approx(
        once.limits[0].interval.high, rel=0.05
    )
    assert [each for each in three_times.notices if "repeat" in each] == [
        "80 of 120 examples repeat the text of an earlier one, or the tokens that the model reads "
        "of it. Intervals count each once."
    ]


def test_examples_to_evaluate_on_are_none_of_the_calibrated_ones(
    quantized, labeled, tmp_path
) -> None:
    made = quantized("classifier")
    with pytest.raises(UserInputError, match="contains only examples that ranges are") as caught:
        quantize(
            made,
            tmp_path / "int8",
            calibration_data=labeled,
            calibration_samples=1000,
            eval_data=labeled,
        )
    assert caught.value.argument == "eval_data"
    report = quantize(made, tmp_path / "int8", calibration_data=labeled, eval_data=labeled)
    assert report.heldout_texts == len(LABELED) - 24
    assert any("24 examples of `eval_data` are left out" in each for each in report.notices)


def test_a_loss_needs_labels(tmp_path) -> None:
    with pytest.raises(UserInputError, match="Pass labeled examples as `eval_data`") as caught:
        flat.quantize("./missing", tmp_path / "int8", max_drop=1)
    assert caught.value.argument == "max_drop"
    assert not (tmp_path / "int8").exists()


def test_a_limit_for_other_tasks_is_refused(quantized, tmp_path) -> None:
    with pytest.raises(UserInputError, match="applies to embedders only"):
        quantize(quantized("classifier"), tmp_path / "int8", min_cosine=0.9)
    assert not (tmp_path / "int8").exists()
