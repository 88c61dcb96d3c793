"""Other tools next to the graphs of a call."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import transformers

import qdqbert
from qdqbert.evidence.rivals import RIVALS, Rival
from qdqbert.verbs.quantize import rivals
from qdqbert.verbs.quantize.pytorch_worker import answers


@pytest.fixture
def only_dynamic(monkeypatch) -> Rival:
    """ONNX Runtime's dynamic quantizer as the only other tool, as others may not be installed."""
    name = "ONNX Runtime quantize_dynamic"
    monkeypatch.setattr(rivals, "RIVALS", {name: RIVALS[name]})
    return RIVALS[name]


def test_other_tools_are_compared_on_the_same_texts(save_tiny, tmp_path, only_dynamic) -> None:
    checkpoint = save_tiny(
        tmp_path / "bert", "bert", transformers.AutoModelForSequenceClassification
    )
    report = qdqbert.quantize(
        checkpoint,
        tmp_path / "int8",
        targets=("onnxruntime",),
        benchmark=False,
        rivals=True,
        calibration_samples=16,
    )
    # PyTorch has only a latency, and nothing was timed.
    (dynamic,) = report.rivals
    assert (dynamic.name, dynamic.engine) == (only_dynamic.name, "onnxruntime")
    assert dynamic.fidelity.texts == report.targets[0].fidelity.texts == report.heldout_texts
    assert 10 < dynamic.fidelity.sqnr_db < 80
    assert 0 < dynamic.size_bytes < report.float_size_bytes
    assert dynamic.latency_ms == {}


def test_a_tool_that_is_missing_is_named(tmp_path, monkeypatch, save_tiny, only_dynamic) -> None:
    missing = dataclasses.replace(only_dynamic, name="Nothing", packages=("no_such_package",))
    monkeypatch.setattr(rivals, "RIVALS", {"Nothing": missing})
    report = qdqbert.quantize(
        save_tiny(tmp_path / "bert", "bert"),
        tmp_path / "int8",
        targets=("onnxruntime",),
        benchmark=False,
        rivals=True,
        calibration_samples=16,
    )
    assert report.rivals == ()
    (notice,) = [each for each in report.notices if "Nothing" in each]
    assert "pip install no_such_package" in notice


def test_without_the_option_nothing_else_is_measured(quantized) -> None:
    assert quantized("sentence").report.rivals == ()


def test_a_checkpoint_runs_in_pytorch(save_tiny, tmp_path) -> None:
    checkpoint = save_tiny(tmp_path / "bert", "bert")
    load = {
        "model": str(checkpoint),
        "threads": None,
        "vocab_size": 20,
        "choices": None,
        "task": "feature-extraction",
        "pooling": "mean",
    }
    request = {"batch": 2, "sequence": 8, "seconds": 0}
    loaded, timed = answers(iter([load, request]))
    assert loaded == {"precision": "float32"}
    assert len(timed["times_ms"]) >= 3
    assert np.all(np.array(timed["times_ms"]) > 0)
