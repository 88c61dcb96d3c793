"""`export`: folders, refusals, and the command line."""

from __future__ import annotations

import json
import sys
from typing import get_args

import pytest

import qdqbert
from qdqbert.cli import main
from qdqbert.common.choices import ENGINE_NAMES, ExportFormat
from qdqbert.common.errors import (
    CheckpointError,
    MissingExtraError,
    OutputExistsError,
    UserInputError,
)
from qdqbert.integrations.exporting.formats import format_named


@pytest.fixture
def classifier(quantized):
    return quantized("classifier").directory


def test_the_folder_is_named_after_the_format(classifier, tmp_path, monkeypatch) -> None:
    (tmp_path / "model").symlink_to(classifier)
    report = qdqbert.export(tmp_path / "model", to="triton")
    assert report.directory == str(tmp_path / "model-triton")
    assert (tmp_path / "model-triton" / "export.json").is_file()
    assert report.name == "model"
    assert report.size_bytes == sum(report.files.values()) > 0
    assert (report.outputs, report.task) == (("logits",), "text-classification")


def test_only_a_folder_of_this_package_is_replaced(classifier, tmp_path) -> None:
    output = tmp_path / "out"
    qdqbert.export(classifier, to="triton", output=output)
    before = (output / "export.json").read_bytes()
    with pytest.raises(OutputExistsError, match=r"already exists\. Pass `overwrite=True`"):
        qdqbert.export(classifier, to="triton", output=output)
    report = qdqbert.export(classifier, to="triton", output=output, overwrite=True, name="other")
    assert (output / "other").is_dir()
    assert not (output / "classifier").exists()
    assert (output / "export.json").read_bytes() != before
    assert report.name == "other"
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "letter.txt").write_text("dear")
    with pytest.raises(OutputExistsError, match="is not a model that this package wrote"):
        qdqbert.export(classifier, to="triton", output=mine, overwrite=True)
    assert (mine / "letter.txt").is_file()


@pytest.mark.parametrize(
    ("options", "argument", "message"),
    [
        ({"to": "tflite"}, "to", "Choose one of: openvino, transformers-js, triton"),
        ({"name": "my model"}, "name", "`name='my model'` is not a name"),
        ({"returns": "both"}, "returns", "applies to embedders"),
        ({"target": "native"}, "target", "contains graphs for"),
    ],
    ids=str,
)
def test_a_wrong_option_is_refused(classifier, tmp_path, options, argument, message) -> None:
    with pytest.raises(UserInputError, match=message) as caught:
        qdqbert.export(classifier, output=tmp_path / "out", **{"to": "triton", **options})
    assert caught.value.argument == argument
    assert list(tmp_path.iterdir()) == []


def test_tasks_that_a_format_has_no_place_for_are_refused(tiny_artifact, tmp_path) -> None:
    pytest.importorskip("openvino_genai")
    _, tagger = tiny_artifact("AutoModelForTokenClassification")
    with pytest.raises(UserInputError, match=r"task 'token-classification'\. .* in this format"):
        qdqbert.export(tagger, to="openvino", output=tmp_path / "out")
    _, fills = tiny_artifact("AutoModelForMaskedLM")
    with pytest.raises(UserInputError, match=r"task 'fill-mask'\. `export` writes models for"):
        qdqbert.export(fills, to="triton", output=tmp_path / "out")
    with pytest.raises(UserInputError, match=r"`pairs=True` applies to classifiers of texts"):
        qdqbert.export(tagger, to="triton", output=tmp_path / "out", pairs=True)


def test_a_folder_that_quantize_did_not_write_is_refused(tmp_path) -> None:
    with pytest.raises(CheckpointError, match="is not a quantized model"):
        qdqbert.export(tmp_path, to="triton")


def test_a_missing_package_names_the_extra(classifier, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "openvino_genai", None)
    found = qdqbert.common.extras.importlib.util.find_spec
    monkeypatch.setattr(
        qdqbert.common.extras.importlib.util,
        "find_spec",
        lambda name: None if name == "openvino_genai" else found(name),
    )
    with pytest.raises(MissingExtraError, match=r"openvino_genai.*'qdqbert\[export\]'"):
        qdqbert.export(classifier, to="openvino")


def test_each_format_has_an_engine() -> None:
    for name in get_args(ExportFormat):
        assert format_named(name).engine in ENGINE_NAMES


def test_a_failed_check_leaves_nothing(classifier, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("qdqbert.integrations.exporting.checks.LEAST_SQNR_DB", 1e9)
    monkeypatch.setattr(
        "qdqbert.integrations.exporting.checks.to_decibels", lambda signal, noise: 30.0
    )
    with pytest.raises(UserInputError, match="has an SQNR of 30"):
        qdqbert.export(classifier, to="triton", output=tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_the_command_prints_a_table_or_json(classifier, tmp_path, capsys) -> None:
    words = ["export", str(classifier), "--to", "triton", "-o", str(tmp_path / "out")]
    with pytest.raises(SystemExit, match="0"):
        main(words)
    shown = capsys.readouterr()
    assert "Does it return the same?" in shown.out
    assert "tritonserver --model-repository" in shown.out
    assert "Comparing tokens and results" in shown.err
    with pytest.raises(SystemExit, match="0"):
        main([*words, "--overwrite", "--json"])
    report = json.loads(capsys.readouterr().out)
    assert report["directory"] == str(tmp_path / "out")
    assert report["agreement"][0]["output"] == "logits"


@pytest.mark.slow
def test_a_flag_says_that_a_model_takes_pairs(quantized, tmp_path, capsys) -> None:
    folder = str(quantized("reranker").directory)
    words = ["export", folder, "--to", "triton", "-o", str(tmp_path / "out")]
    with pytest.raises(SystemExit, match="0"):
        main(words)
    shown = capsys.readouterr()
    assert "For pairs, pass `--pairs`." in " ".join((shown.out + shown.err).split())
    with pytest.raises(SystemExit, match="0"):
        main([*words, "--pairs", "--overwrite", "--json"])
    report = json.loads(capsys.readouterr().out)
    assert report["inputs"] == ["text", "text_pair"]
    assert not any("For pairs" in notice for notice in report["notices"])
