"""Folders that earlier versions wrote still load.

`data/format_1` is never written again. It was made by the code of its time: `float` is a tiny
checkpoint, `int8` was quantized from it with fused query, key and value, calibrated on 20 rows of
`texts.csv`, and `trained/training.json` is of a QAT run on the same rows.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import qdqbert
from qdqbert.artifact import open_artifact, read_training
from qdqbert.errors import CheckpointError, UserInputError

DATA = Path(__file__).parent / "data" / "format_1"


def test_a_folder_of_format_1_opens() -> None:
    opened = open_artifact(DATA / "int8")
    assert (opened.task, opened.max_length) == ("text-classification", 32)
    assert opened.engines == ("onnxruntime", "openvino")
    assert opened.model_for("onnxruntime") == DATA / "int8" / "model.onnx"
    assert opened.quantization["quantizer_options"]["fuse_qkv"] is True
    assert opened.targets["portable"]["is_proxy"] is False
    assert opened.task_options.doc_stride == 128
    assert len(opened.calibration_fingerprints) == 20


def test_engines_of_all_targets_of_format_1_are_known(tmp_path) -> None:
    folder = Path(shutil.copytree(DATA / "int8", tmp_path / "int8"))
    content = json.loads((folder / "quantization.json").read_text())
    entry = content["targets"]["portable"]
    names = ("onnxruntime", "onnxruntime-dynamic", "openvino", "tensorrt", "qordered")
    content["targets"] = dict.fromkeys(names, entry)
    (folder / "quantization.json").write_text(json.dumps(content))
    targets = open_artifact(folder).targets
    assert {name: tuple(each["engines"]) for name, each in targets.items()} == {
        "onnxruntime": ("onnxruntime",),
        "onnxruntime-dynamic": ("onnxruntime",),
        "openvino": ("openvino",),
        "tensorrt": ("onnxruntime",),
        "qordered": (),
    }
    assert [name for name, each in targets.items() if each["is_proxy"]] == ["tensorrt"]


def test_a_folder_of_format_1_is_evaluated() -> None:
    with pytest.raises(UserInputError, match="20 of 40 examples"):
        qdqbert.evaluate(DATA / "int8", DATA / "texts.csv")
    report = qdqbert.evaluate(
        DATA / "int8", DATA / "texts.csv", reference=DATA / "float", allow_leakage=True
    )
    assert (report.engine, report.target) == ("onnxruntime", "portable")
    assert (report.examples, report.leaked_examples) == (40, 20)
    assert report.fidelity.sqnr_db > 30


def test_ranges_of_format_1_are_refused(tmp_path) -> None:
    # Their weights cannot be compared with those of a checkpoint.
    with pytest.raises(UserInputError, match="written by an older version"):
        qdqbert.quantize(
            DATA / "float", tmp_path / "again", ranges_from=DATA / "int8", fuse_qkv=True
        )


def test_training_settings_of_format_1_are_read() -> None:
    trained = read_training(DATA / "trained")
    assert trained["max_length"] == 24
    assert trained["task_options"]["n_best_size"] == 20
    assert len(trained["calibration"]["fingerprints"]) == 20


@pytest.mark.parametrize("found", ["qdqbert-quantization/3", "other/1", None])
def test_an_unknown_format_is_refused(tmp_path, found) -> None:
    content = json.loads((DATA / "int8" / "quantization.json").read_text())
    (tmp_path / "quantization.json").write_text(json.dumps({**content, "format": found}))
    message = "format is .*, expected qdqbert-quantization/1 or qdqbert-quantization/2; a newer"
    with pytest.raises(CheckpointError, match=message) as caught:
        open_artifact(tmp_path)
    assert repr(found) in str(caught.value)


def test_an_unknown_format_of_training_is_refused(tmp_path) -> None:
    content = json.loads((DATA / "trained" / "training.json").read_text())
    content["format"] = "qdqbert-training/3"
    (tmp_path / "training.json").write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match="its format is 'qdqbert-training/3', expected"):
        read_training(tmp_path)
