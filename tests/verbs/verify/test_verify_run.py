"""Verification of folders that are as they were written, and of damaged ones."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
import transformers
from onnx import numpy_helper

import qdqbert
from python_process import run_python
from qdqbert.cli import main
from qdqbert.common.errors import CheckpointError
from qdqbert.data.texts import heldout_examples
from qdqbert.evidence.checksums import write_checksums
from qdqbert.evidence.verification import read_rows


@pytest.fixture
def folder(quantized, tmp_path: Path) -> Path:
    return shutil.copytree(quantized("sentence").directory, tmp_path / "int8")


def damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_a_folder_is_verified_where_it_was_written(quantized, folder) -> None:
    report = qdqbert.verify(folder)
    assert report.meets_limits
    assert report.notices == []
    assert {each.verdict for each in report.files} == {"intact"}
    names = {each.name for each in report.files}
    assert {"quantization.json", "tokenizer.json", "verification.npz"} <= names
    assert "README.md" not in names
    assert all(each.stored == each.installed for each in report.versions)
    measured = quantized("sentence").report.targets
    assert [(each.target, each.engine, each.stored_db) for each in report.fidelity] == [
        (each.target, each.engine, each.verification_db) for each in measured
    ]
    for each in report.fidelity:
        # Another session can have other numbers of threads.
        assert each.sqnr_db == pytest.approx(each.stored_db, abs=0.5)


@pytest.mark.slow
def test_torch_is_not_needed(folder) -> None:
    code = (
        "import sys; sys.modules['torch'] = None; sys.modules['transformers'] = None\n"
        f"import qdqbert; print(qdqbert.verify({str(folder)!r}).meets_limits)"
    )
    assert run_python("-c", code) == "True"


def test_a_damaged_graph_is_named_and_the_others_are_measured(folder) -> None:
    damage(folder / "openvino" / "model.onnx")
    report = qdqbert.verify(folder)
    assert not report.meets_limits
    broken = [each for each in report.files if each.verdict != "intact"]
    assert [(each.name, each.verdict) for each in broken] == [("openvino/model.onnx", "changed")]
    assert "openvino" not in {each.target for each in report.fidelity}
    assert "native" in {each.target for each in report.fidelity}
    assert any("as openvino/model.onnx is damaged" in each for each in report.notices)


@pytest.mark.parametrize("name", ["quantization.json", "report.json", "verification.npz"])
def test_without_the_file_fidelity_cannot_be_measured(folder, name) -> None:
    (folder / name).unlink()
    report = qdqbert.verify(folder)
    assert not report.meets_limits
    assert [each.name for each in report.files if each.verdict == "missing"] == [name]
    assert list(report.fidelity) == []
    assert report.notices == [f"Fidelity was not measured, as {name} is damaged."]


def test_a_graph_that_computes_something_else_is_found(folder) -> None:
    path = folder / "onnxruntime" / "model.onnx"
    model = onnx.load(path)
    for each in model.graph.initializer:
        if each.name.endswith("weight_scale"):
            changed = (numpy_helper.to_array(each) * np.float32(1.5)).astype(np.float32)
            each.CopyFrom(numpy_helper.from_array(changed, each.name))
    onnx.save(model, path)
    write_checksums(folder, leave_out={"README.md"})
    report = qdqbert.verify(folder)
    assert {each.verdict for each in report.files} == {"intact"}
    assert not report.meets_limits
    far = [each.target for each in report.fidelity if not each.is_close]
    assert far == ["onnxruntime"]


@pytest.mark.slow
def test_the_exit_code_is_3_and_the_damaged_file_is_printed(folder, capsys) -> None:
    with pytest.raises(SystemExit) as exited:
        main(["verify", str(folder)])
    assert exited.value.code == 0
    assert "Verified: all " in capsys.readouterr().out
    damage(folder / "tokenizer.json")
    with pytest.raises(SystemExit) as exited:
        main(["verify", str(folder)])
    assert exited.value.code == 3
    printed = capsys.readouterr().out
    assert "tokenizer.json changed" in " ".join(printed.replace("│", " ").split())
    assert "Not verified." in printed
    with pytest.raises(SystemExit):
        main(["verify", str(folder), "--json"])
    files = json.loads(capsys.readouterr().out)["files"]
    assert {"name": "tokenizer.json", "verdict": "changed"} in files


def test_a_folder_without_checksums_and_rows_says_what_is_missing(folder) -> None:
    (folder / "SHA256SUMS").unlink()
    (folder / "verification.npz").unlink()
    report = qdqbert.verify(folder)
    assert (report.meets_limits, report.has_checksums, report.fidelity) == (False, False, [])
    assert [each.partition(":")[0] for each in report.notices] == [
        "The folder has no SHA256SUMS",
        "Fidelity was not measured, as the folder has no rows with results in float "
        "(verification.npz). `quantize` stores them, unless `verification_data` is 'none'.",
    ]


@pytest.mark.parametrize("engine", ["openvino", "onnxruntime"])
def test_an_engine_that_is_not_installed_is_a_notice(folder, monkeypatch, engine) -> None:
    monkeypatch.setattr("qdqbert.verbs.verify.run.is_installed", lambda name: name != engine)
    report = qdqbert.verify(folder)
    assert report.meets_limits
    assert engine not in {each.engine for each in report.fidelity}
    assert any(f"pip install 'qdqbert[{engine}]'" in each for each in report.notices)


def test_another_folder_is_refused(tmp_path) -> None:
    with pytest.raises(CheckpointError, match=r"it has no quantization\.json"):
        qdqbert.verify(tmp_path)


def quantize(made, output: Path, **options) -> Path:
    qdqbert.quantize(
        made.checkpoint,
        output,
        calibration_data=made.data,
        calibration=qdqbert.Calibration(samples=8),
        targets=["onnxruntime"],
        benchmark=False,
        **options,
    )
    return output


def test_rows_are_texts_of_the_package_by_default(quantized) -> None:
    made = quantized("classifier")
    tokenizer = transformers.AutoTokenizer.from_pretrained(made.checkpoint)
    rows = read_rows(made.directory / "verification.npz")
    expected = [
        tokenizer(each.text, truncation=True, max_length=row.inputs["input_ids"].size)["input_ids"]
        for each, row in zip(heldout_examples(), rows, strict=False)
    ]
    assert [row.inputs["input_ids"][0].tolist() for row in rows] == expected


def test_rows_can_be_held_out_examples(quantized, tmp_path) -> None:
    made = quantized("classifier")
    folder = quantize(made, tmp_path / "int8", verification_data="held-out")
    tokenizer = transformers.AutoTokenizer.from_pretrained(made.checkpoint)
    texts = set(made.data.read_text().splitlines())
    known = {tuple(tokenizer(text)["input_ids"]) for text in texts}
    rows = read_rows(folder / "verification.npz")
    assert {tuple(row.inputs["input_ids"][0].tolist()) for row in rows} <= known
    assert 0 < len(rows) <= 16


def test_without_rows_the_files_are_checked(quantized, tmp_path) -> None:
    folder = quantize(quantized("classifier"), tmp_path / "int8", verification_data="none")
    assert not (folder / "verification.npz").exists()
    report = qdqbert.verify(folder)
    assert report.meets_limits
    assert list(report.fidelity) == []
    assert len(report.notices) == 1
