"""The target `auto` from a checkpoint to a folder, with times that are given."""

from __future__ import annotations

import collections
import contextlib
import json
from pathlib import Path

import numpy as np
import pytest

import flat
import qdqbert
from qdqbert.cli.app import main
from qdqbert.common.machine import cpu_features
from qdqbert.common.progress import Silent
from qdqbert.loading.engine_choice import choose_engine
from qdqbert.pipeline.auto import candidates, choice
from qdqbert.pipeline.auto.choice import TOO_SLOW
from qdqbert.pipeline.auto.ranking import Sample, turns
from qdqbert.pipeline.auto.worker import answers, write_features
from qdqbert.runtime.artifact import open_artifact
from qdqbert.runtime.options import EngineOptions

ENGINES = ("onnxruntime", "native")


class FakeTimer:
    precision = "float32"

    def __init__(self, time_ms: float) -> None:
        self.time_ms = time_ms

    def __call__(self, *, single: int, bulk: int) -> Sample:
        return Sample(single_ms=self.time_ms, bulk_ms=self.time_ms / 2)


@pytest.fixture
def times(monkeypatch):
    """Set the time of each candidate by its target and recipe; 100 ms if it is not listed."""
    given: dict[tuple[str, str], float] = {}

    @contextlib.contextmanager
    def open_timers(folders, features):
        assert json.loads(features.read_text())
        timers = []
        for folder, engine in folders:
            # Every candidate is a folder that `load` opens.
            [(name, entry)] = open_artifact(folder).targets.items()
            assert engine in entry["engines"]
            timers.append(FakeTimer(given.get((name, entry["recipe"]["name"]), 100.0)))
        yield timers

    monkeypatch.setattr(choice, "open_timers", open_timers)
    monkeypatch.setattr(candidates, "is_installed", lambda engine: engine in ENGINES)
    return given


class Stages(Silent):
    """Counts the steps of each stage."""

    def __init__(self) -> None:
        self.steps: collections.Counter[str] = collections.Counter()

    @contextlib.contextmanager
    def stage(self, title, total=None):
        yield lambda: self.steps.update([title])


def quantize(made, output: Path, **options):
    return flat.quantize(
        made.checkpoint,
        output,
        targets=["auto"],
        **{"calibration_data": made.data, "calibration_samples": 24, **options},
    )


def test_the_fastest_candidate_is_written_alone(quantized, times, tmp_path) -> None:
    times.update({("onnxruntime", "linear+qk"): 5.0, ("native", "linear"): 8.0})
    made = quantized("classifier")
    report = quantize(made, tmp_path / "int8")
    assert report.meets_limits
    assert {(each.target, each.recipe) for each in report.candidates} == {
        ("native", "linear"),
        ("native-dynamic", "linear"),
        ("onnxruntime", "linear"),
        ("onnxruntime", "linear+qk"),
        ("float", "float"),
    }
    chosen, second = report.candidates[:2]
    assert (chosen.target, chosen.recipe, chosen.verdict) == ("onnxruntime", "linear+qk", "chosen")
    assert (chosen.single_ms, chosen.texts_per_second) == pytest.approx((5.0, 400.0))
    assert (second.target, second.verdict, second.relative_time) == ("native", "slower", 1.6)
    assert "INT8 (linear+qk) on onnxruntime is the fastest of 5 candidates." in report.reason
    assert [each.target for each in report.targets] == ["onnxruntime"]
    folder = tmp_path / "int8"
    names = {path.name for path in folder.iterdir()}
    assert names == {path.name for path in made.directory.iterdir()}
    stored = json.loads((folder / "report.json").read_text())
    assert stored["reason"] == report.reason
    assert [each["verdict"] for each in stored["candidates"]] == ["chosen", *["slower"] * 4]
    assert "--target auto" in json.loads((folder / "quantization.json").read_text())["command"]
    # The same graph as without `auto`.
    flat.quantize(
        made.checkpoint,
        tmp_path / "named",
        targets=["onnxruntime"],
        recipe="linear+qk",
        calibration_data=made.data,
        calibration_samples=24,
        benchmark=False,
    )
    graphs = [tmp_path / name / "model.onnx" for name in ("int8", "named")]
    assert graphs[0].read_bytes() == graphs[1].read_bytes()


def test_loading_uses_the_chosen_engine_on_a_cpu_like_this_one(quantized, times, tmp_path) -> None:
    times["float", "float"] = 1.0
    made = quantized("classifier")
    report = quantize(made, tmp_path / "int8")
    assert report.reason == "float32 on onnxruntime is faster here than any INT8 graph."
    artifact = open_artifact(tmp_path / "int8")
    # The graph runs on both engines, also where only one of them was installed.
    assert artifact.engines == ("onnxruntime", "openvino")
    assert artifact.choice == {
        "engine": "onnxruntime",
        "cpu_features": list(cpu_features()),
    }
    assert choose_engine(artifact, EngineOptions())[0] == "onnxruntime"
    with qdqbert.load(tmp_path / "int8", engine="onnxruntime") as model:
        assert model.target == "float"
        assert model("the cat sat")


def test_a_candidate_that_misses_a_limit_is_rejected(quantized, times, tmp_path) -> None:
    times.update({("native", "linear"): 1.0, ("float", "float"): 2.0})
    report = quantize(quantized("classifier"), tmp_path / "int8", min_sqnr=100)
    assert report.meets_limits
    first, second = report.candidates[:2]
    assert (first.target, first.verdict) == ("native", "rejected")
    assert first.reason.startswith("SQNR of at least 100 dB is missed: ")
    assert (second.target, second.verdict, second.reason) == ("float", "chosen", "")
    assert "that is close enough to float" in report.reason
    assert (tmp_path / "int8" / "model.onnx").is_file()


@pytest.mark.slow
def test_a_slow_candidate_is_chosen_if_the_others_are_rejected(quantized, times, tmp_path) -> None:
    times.update({("native", "linear"): 1.0, ("native-dynamic", "linear"): 2.0})
    times.update({("onnxruntime", "linear"): 3.0, ("onnxruntime", "linear+qk"): 4.0})
    progress = Stages()
    # Two bits are too few.
    report = quantize(quantized("classifier"), tmp_path / "int8", wprec=2, progress=progress)
    assert [each.verdict for each in report.candidates] == [*["rejected"] * 4, "chosen"]
    assert [each.relative_time for each in report.candidates] == pytest.approx([1, 2, 3, 4, 100])
    titles = {title: steps for title, steps in progress.steps.items() if "Timing" in title}
    assert titles == {"Timing 5 candidates": turns(5)}
    assert (tmp_path / "int8" / "model.onnx").is_file()


@pytest.mark.slow
def test_a_candidate_that_misses_a_limit_is_timed_again_with_layers_in_float(
    quantized, times, tmp_path
) -> None:
    times["onnxruntime", "linear"] = 1.0
    made = quantized("classifier")
    [before] = [each for each in made.report.targets if each.engine == "onnxruntime"]
    wanted = before.fidelity.sqnr_db + 4
    progress = Stages()
    report = quantize(made, tmp_path / "int8", min_sqnr=wanted, progress=progress)
    # It is timed with the candidate that would be chosen otherwise.
    assert "Timing 2 candidates again" in progress.steps
    assert "Meeting the limits for onnxruntime" in progress.steps
    [target] = report.targets
    assert (target.target, target.recipe) == ("onnxruntime", "linear")
    assert target.units_in_float
    assert target.limits[0].verdict == "met"


def test_limits_are_not_met_for_a_candidate_that_would_be_slower(
    quantized, times, tmp_path
) -> None:
    # It is faster than the float model, but not with any of its layers in float.
    times.update({("onnxruntime", "linear"): 9.52, ("float", "float"): 10.0})
    progress = Stages()
    report = quantize(quantized("classifier"), tmp_path / "int8", min_sqnr=90, progress=progress)
    first, second = report.candidates[:2]
    assert (first.target, first.verdict) == ("onnxruntime", "rejected")
    assert first.reason.endswith(TOO_SLOW)
    assert (second.target, second.verdict) == ("float", "chosen")
    assert first.reason in report.reason
    # No linear layer is tried, only the three tables: gains, and none to three of them in float.
    assert progress.steps["Meeting the limits for onnxruntime"] == 7


@pytest.mark.slow
def test_nothing_is_written_if_no_candidate_is_close_enough(
    quantized, times, tmp_path, capsys
) -> None:
    made = quantized("classifier")
    # With so few examples, even no changed prediction leaves 1 % possible.
    path = tmp_path / "report.json"
    words = [str(made.checkpoint), "-o", str(tmp_path / "int8"), "--target", "auto"]
    words += ["--calibration-data", str(made.data), "--calibration-samples", "24"]
    with pytest.raises(SystemExit) as ended:
        main(["quantize", *words, "--max-flips", "0.5", "--report", str(path)])
    assert ended.value.code == 3
    assert list(tmp_path.iterdir()) == [path]
    stored = json.loads(path.read_text())
    assert {each["verdict"] for each in stored["candidates"]} == {"rejected"}
    assert len(stored["targets"]) == len(stored["candidates"])
    printed = capsys.readouterr().out
    assert "Nothing was written: too few examples to show changed predictions" in printed
    assert "float32 on onnxruntime" in printed
    assert "rejected" in printed


def test_a_model_far_from_float_is_rejected_without_limits(quantized, times, tmp_path) -> None:
    times["onnxruntime", "linear"] = 1.0
    made = quantized("classifier")
    # Two bits are too few.
    report = quantize(made, tmp_path / "int8", wprec=2)
    rejected = [each for each in report.candidates if each.verdict == "rejected"]
    assert rejected
    assert rejected[0].reason.startswith("far from float: ")
    [chosen] = [each for each in report.candidates if each.verdict == "chosen"]
    assert chosen.target == "float"


def test_targets_that_do_not_run_the_model_are_named(quantized, times, tmp_path) -> None:
    times["onnxruntime", "linear"] = 1.0
    report = quantize(quantized("classifier"), tmp_path / "int8", aprec=7)
    assert not any(each.engine == "native" for each in report.candidates)
    assert any(
        each.startswith("Target native is no candidate. ") and "7 bits" in each
        for each in report.notices
    )


def test_a_worker_runs_inputs_through_the_batches_of_load(quantized, tmp_path) -> None:
    lengths = (3, 9, 5)
    features = [
        {
            "input_ids": np.arange(5, 5 + length, dtype=np.int32),
            "attention_mask": np.ones(length, np.int32),
            "token_type_ids": np.zeros(length, np.int32),
        }
        for length in lengths
    ]
    write_features(features, tmp_path / "features.json")
    folder = str(quantized("classifier").directory)
    requests = [
        {"folder": folder, "engine": "onnxruntime", "features": str(tmp_path / "features.json")},
        {"single": 4, "bulk": 100},
        {"single": 1, "bulk": 1},
    ]
    loaded, *timed = answers(iter(requests))
    assert loaded == {"precision": "float32"}
    assert len(timed) == 2
    assert all(each["single_ms"] > 0 and each["bulk_ms"] > 0 for each in timed)
