"""The gate for quantized files of other tools: without data, without labels, with findings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import flat
from qdqbert.cli import main
from qdqbert.errors import DataFileError, UserInputError
from third_party import LOUD

TEXTS = "the cat sat on the book\nrain\na dog in the city\nme\n"


@pytest.fixture
def reference(checkpoints) -> str:
    return str(checkpoints("classifier"))


def test_a_file_is_compared_on_built_in_sentences_with_the_tokenizer_of_the_reference(
    third_party, reference
) -> None:
    report = flat.evaluate(third_party("dynamic"), reference=reference, max_examples=8)
    assert (report.data, report.examples) == ("built-in sentences", 8)
    assert report.metrics == report.differences == ()
    assert report.fidelity.texts == 8
    assert any("texts of your own" in each for each in report.notices)
    assert report.size_bytes == third_party("dynamic").stat().st_size
    assert report.reference_bytes == pytest.approx(third_party("float").stat().st_size, rel=0.3)
    assert [each.worst for each in report.storage.findings][-1] == LOUD


def test_texts_without_labels_are_compared(third_party, reference, write_file) -> None:
    texts = write_file("texts.txt", TEXTS)
    report = flat.evaluate(third_party("qoperator"), texts, reference=reference)
    assert report.examples == report.fidelity.decisions == 4
    assert report.metrics == ()
    with pytest.raises(DataFileError):
        flat.evaluate(third_party("qoperator"), texts, tokenizer=reference)


@pytest.mark.parametrize("name", ["4-bits", "dynamic-unsigned", "qdq"])
def test_each_kind_of_file_runs(third_party, reference, name) -> None:
    report = flat.evaluate(third_party(name), reference=reference, max_examples=4)
    assert report.fidelity.sqnr_db > 0
    assert report.storage.findings


def test_a_float_file_has_no_findings(third_party, reference) -> None:
    report = flat.evaluate(third_party("float"), reference=reference, max_examples=4)
    assert report.storage is None
    assert report.size_bytes == third_party("float").stat().st_size


def test_labels_are_needed_for_a_limit_on_a_metric(third_party, reference) -> None:
    with pytest.raises(UserInputError, match=r"`max_drop=1` compares metrics, which need labels"):
        flat.evaluate(third_party("dynamic"), reference=reference, max_drop=1)


def test_labels_that_are_wrong_are_no_missing_labels(third_party, reference, write_file) -> None:
    data = write_file("dev.csv", "text,label\nrain,unheard-of\n")
    with pytest.raises(DataFileError, match="unheard-of"):
        flat.evaluate(third_party("dynamic"), data, reference=reference)


def test_tasks_that_read_no_plain_texts_need_data(tiny_artifact) -> None:
    checkpoint, folder = tiny_artifact("AutoModelForTokenClassification")
    with pytest.raises(UserInputError, match="cannot be compared on the built-in sentences"):
        flat.evaluate(folder, reference=checkpoint)


def test_the_exit_status_and_the_page_tell_what_json_has(
    third_party, reference, capsys, tmp_path: Path
) -> None:
    arguments = [
        *("evaluate", str(third_party("qdq")), "--reference", reference, "--max-examples", "8"),
        *("--min-sqnr", "90", "-o", str(tmp_path), "--json"),
    ]
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 3
    found = json.loads(capsys.readouterr().out)
    kinds = [each["kind"] for each in found["storage"]["findings"]]
    assert kinds[-1] == "attention products in INT8"
    assert found["limits"][0]["verdict"] == "missed"
    page = (tmp_path / "report.html").read_text()
    assert "Products of attention are in INT8" in page
    assert (tmp_path / "changed.jsonl").is_file()
