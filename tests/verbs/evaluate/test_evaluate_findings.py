"""The gate for quantized files of other tools: without data, without labels, with findings."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import flat
from qdqbert.cli import main
from qdqbert.common.errors import DataFileError, UserInputError
from qdqbert.engines.registry import open_runner
from qdqbert.evidence.latency import Candidate, Timing
from qdqbert.verbs.evaluate import speed
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


@pytest.mark.parametrize("name", ["qdq", "qoperator"])
def test_a_range_of_inputs_that_is_too_small_is_found(
    third_party, reference, tmp_path, name
) -> None:
    model = onnx.load(third_party(name))
    makers = {each.output[0]: each for each in model.graph.node}
    (layer,) = [
        each
        for each in model.graph.node
        if each.op_type in ("MatMul", "QLinearMatMul") and any(LOUD in x for x in each.input)
    ]
    maker = makers[layer.input[0]]
    maker = makers[maker.input[0]] if maker.op_type == "DequantizeLinear" else maker
    assert maker.op_type == "QuantizeLinear"
    for each in model.graph.initializer:
        if each.name == maker.input[1]:
            each.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(each) / 8, each.name))
    onnx.save(model, tmp_path / "narrow.onnx")
    report = flat.evaluate(tmp_path / "narrow.onnx", reference=reference, max_examples=4)
    (found,) = [each for each in report.storage.findings if each.kind == "clipped inputs"]
    assert found.worst == LOUD
    # An eighth of the range that was calibrated.
    assert found.amount > 50
    saturating = report.storage.findings[1]
    assert saturating.kind == "saturating sums"
    assert saturating.seen_percent > 0


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


@pytest.fixture
def timed(monkeypatch) -> list[Candidate]:
    """Run what would be timed once, and pretend that INT8 is three times as fast."""
    seen: list[Candidate] = []

    def run_once(candidates: Sequence[Candidate], shapes: Any, **_: Any) -> list[Timing]:
        seen.extend(candidates)
        inputs = {
            name: np.ones((1, 4), np.int64)
            for name in ("input_ids", "attention_mask", "token_type_ids")
        }
        for each in candidates:
            outputs = open_runner(each.engine, each.model).run(inputs)
            assert outputs["logits"].shape == (1, 3)
        return [
            Timing(
                name=each.name,
                engine=each.engine,
                batch=batch,
                sequence=sequence,
                median_ms=milliseconds,
                rounds_ms=(milliseconds,),
                precision="float32",
            )
            for batch, sequence in shapes
            for each, milliseconds in zip(candidates, (6.0, 2.0), strict=True)
        ]

    monkeypatch.setattr(speed, "time_candidates", run_once)
    return seen


@pytest.mark.parametrize("is_file", [False, True])
def test_both_are_timed_on_the_same_engine(third_party, reference, timed, is_file) -> None:
    float_model = third_party("float") if is_file else reference
    report = flat.evaluate(
        third_party("dynamic"),
        reference=float_model,
        tokenizer=reference,
        max_examples=4,
        benchmark=True,
    )
    assert [(each.engine, each.model.stem) for each in timed] == [
        ("onnxruntime", "float"),
        ("onnxruntime", "int8"),
    ]
    # The model reads 64 tokens.
    assert [
        (each.batch, each.sequence, each.float_ms, each.int8_ms, each.speedup)
        for each in report.latency
    ] == [(1, 32, 6.0, 2.0, 3.0), (8, 64, 6.0, 2.0, 3.0)]
    assert "3.00 times as fast" in report.document().facts


def test_only_files_and_their_float_models_are_timed(third_party, quantized, reference) -> None:
    folder = quantized("classifier").directory
    for model, other in ((reference, reference), (third_party("qdq"), folder)):
        with pytest.raises(UserInputError, match="Run `qdqbert benchmark`") as caught:
            flat.evaluate(model, reference=other, benchmark=True)
        assert caught.value.argument == "benchmark"


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
