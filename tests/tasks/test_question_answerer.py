"""Answers to questions, compared with what `evaluate` scores."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest

import flat
import qdqbert
from qdqbert.common.errors import DataFileError, UserInputError
from qdqbert.data.tables.inputs import open_source
from qdqbert.integrations.ray import Predictor
from task_files import DOC_STRIDE, sentence

COUNT = 24


@pytest.fixture(scope="module")
def rows():
    """Questions, some on contexts of several windows, some with spaces before them."""
    rng = random.Random(0)
    rows = []
    for index in range(COUNT):
        context = " ".join(sentence(rng) for _ in range(rng.choice((1, 2, 12, 40))))
        question = "  " * (index % 2) + sentence(rng)
        rows.append({"id": str(index), "question": question, "context": context})
    return rows


@pytest.fixture(scope="module")
def folder(save_tiny, tmp_path_factory, rows):
    """A folder that was quantized with examples of which some have no answer."""
    import transformers

    root = tmp_path_factory.mktemp("answers")
    auto_class = transformers.AutoModelForQuestionAnswering
    checkpoint = save_tiny(root / "float", "bert", auto_class, num_hidden_layers=1)
    write(root / "train.jsonl", [{**row, "context": row["context"][:40]} for row in rows])
    flat.quantize(
        checkpoint,
        root / "int8",
        calibration_data=root / "train.jsonl",
        calibration_samples=8,
        targets=("onnxruntime",),
        doc_stride=DOC_STRIDE,
        quant_disable=True,
        benchmark=False,
    )
    return root / "int8"


def write(path, rows, *, answered=0) -> None:
    """Write questions, of which all but the first `answered` have no answer."""
    path.write_text(
        "\n".join(
            json.dumps({**row, "answers": first_word(row) if index < answered else NONE})
            for index, row in enumerate(rows)
        )
    )


NONE = {"text": [], "answer_start": []}


def first_word(row):
    return {"text": [row["context"].split()[0]], "answer_start": [0]}


@pytest.fixture(scope="module")
def model(folder):
    with qdqbert.load(folder) as model:
        yield model


@pytest.mark.parametrize("answered", [COUNT, COUNT - 1], ids=["v1", "v2"])
@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({}, {}),
        (
            {"max_answer_length": 2, "doc_stride": 4, "max_length": 48},
            {"max_answer_len": 2, "doc_stride": 4, "max_seq_len": 48, "max_question_len": 64},
        ),
    ],
    ids=["stored-settings", "settings"],
)
def test_answers_are_those_that_evaluate_scores(
    folder, model, rows, tmp_path, answered, options, names
) -> None:
    write(tmp_path / "dev.jsonl", rows, answered=answered)
    flat.evaluate(folder, tmp_path / "dev.jsonl", output=tmp_path, allow_leakage=True, **options)
    expected = json.loads((tmp_path / "predictions.json").read_text())
    found = model(rows, handle_impossible_answer=answered < COUNT, **names)
    assert [each["answer"] for each in found] == [expected[row["id"]] for row in rows]
    assert len({each["answer"] for each in found}) > 3
    assert ("" in expected.values()) == (answered < COUNT)
    for row, each in zip(rows, found, strict=True):
        assert row["context"][each["start"] : each["end"]] == each["answer"]
        assert 0 < each["score"] <= 1


def test_no_answer_is_possible_by_default_if_examples_had_none(model, rows) -> None:
    assert model(rows) == model(rows, handle_impossible_answer=True)
    assert model(rows) != model(rows, handle_impossible_answer=False)


def test_several_answers_begin_with_the_chosen_one(model, rows) -> None:
    found = model(rows, top_k=3)
    assert [each[0] for each in found] == model(rows)
    for row, each in zip(rows, found, strict=True):
        assert 1 <= len(each) <= 3
        for answer in each:
            assert row["context"][answer["start"] : answer["end"]] == answer["answer"]
    assert model(rows[0], top_k=3) == found[0]


def test_a_question_can_be_passed_in_several_ways(model, rows) -> None:
    first, second = rows[:2]
    expected = model(first)
    assert set(expected) == {"score", "start", "end", "answer"}
    assert model(question=first["question"], context=first["context"]) == expected
    questions = [first["question"], second["question"]]
    found = model(question=questions, context=first["context"])
    assert found[0] == expected
    assert len(found) == 2
    assert model([]) == []


def test_a_context_without_a_token_has_no_answer(model) -> None:
    for handles in (False, True):
        found = model(question="the cat", context="\0", handle_impossible_answer=handles)
        assert (found["answer"], found["start"], found["end"]) == ("", 0, 0)


@pytest.mark.parametrize("blank", ["", " \n"])
@pytest.mark.parametrize("field", ["question", "context"])
def test_a_blank_question_or_context_is_refused_by_name(model, rows, field, blank) -> None:
    asked = [{key: row[key] for key in ("question", "context")} for row in rows[:3]]
    asked[1][field] = blank
    with pytest.raises(UserInputError, match=f"The `{field}` of .* input 1, counted") as caught:
        model(asked)
    assert caught.value.argument == field


def test_cut_questions_are_reported(model, rows, caplog) -> None:
    model(rows[0], max_question_len=1)
    assert "1 of 1 question was longer than `max_question_len` and was cut." in caplog.text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"inputs": ["a"]}, "Each input has to be a question with its context"),
        ({"inputs": {"question": "a"}}, "Each input has to be a question with its context"),
        ({"inputs": [], "question": "a"}, "`inputs` was given together with"),
        ({"question": "a"}, "`context` is missing"),
        ({"question": ["a", "b"], "context": ["c"]}, "There are 2 questions and 1 context"),
        ({"question": "a", "context": "b", "top_k": 0}, "`top_k` must be at least 1, got 0"),
        ({"question": "a", "context": "b", "doc_stride": 99}, "must be smaller than that"),
        ({"question": "a", "context": "b", "doc_stride": -1}, "`doc_stride` must be at least 0"),
    ],
)
def test_unusable_arguments_are_refused(model, options, message) -> None:
    with pytest.raises(UserInputError, match=message):
        model(**options)


def test_a_question_and_its_context_can_be_two_texts(model) -> None:
    expected = model(question="where is the cat", context="the cat sat on the mat")
    assert model("where is the cat", "the cat sat on the mat") == expected


@pytest.mark.parametrize("top_k", [1, 3])
def test_run_writes_answers(model, folder, rows, tmp_path, top_k) -> None:
    write(tmp_path / "in.jsonl", rows)
    expected = model([{key: row[key] for key in ("question", "context")} for row in rows], top_k=3)
    for name in ("a.jsonl", "a.parquet"):
        output = tmp_path / name
        qdqbert.run(folder, tmp_path / "in.jsonl", output, engine=model.engine, top_k=top_k)
        for row, answers in zip(open_source(str(output)).rows(), expected, strict=True):
            if top_k == 1:
                found = [{key: row.values[key] for key in answers[0]}]
            else:
                # The data have a column "answers", too.
                found = row.values["predicted_answers"]
            scores = [each.pop("score") for each in found]
            assert scores == pytest.approx([each["score"] for each in answers[:top_k]], abs=1e-5)
            plain = [{**each} for each in answers[:top_k]]
            assert found == [{k: v for k, v in each.items() if k != "score"} for each in plain]


def test_a_question_that_leaves_no_room_concerns_its_row_only(
    model, folder, rows, tmp_path
) -> None:
    asked = [{key: row[key] for key in ("question", "context")} for row in rows[:4]]
    expected = model([asked[0], *asked[2:]])
    asked[1]["question"] = "who sat " * 40
    write(tmp_path / "in.jsonl", asked)
    reason = r"`max_seq_len=\d+` leaves 0 tokens .* or shorten the question"
    with pytest.raises(DataFileError, match=f"^Line 2 of `.*in.jsonl`: {reason}. Correct the row"):
        qdqbert.run(folder, tmp_path / "in.jsonl", tmp_path / "a.jsonl", engine=model.engine)
    report = qdqbert.run(
        folder, tmp_path / "in.jsonl", tmp_path / "a.jsonl", engine=model.engine, on_error="skip"
    )
    assert (report.rows, report.skipped) == (3, 1)
    found = [json.loads(line)["answer"] for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert found == [each["answer"] for each in expected]
    batch = {key: np.array([row[key] for row in asked], object) for key in asked[0]}
    with pytest.raises(DataFileError, match=f"^Row 2 of the batch: {reason}. Correct the row"):
        Predictor(folder, engine=model.engine)(batch)
