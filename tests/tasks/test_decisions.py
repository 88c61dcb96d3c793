"""Multiple choice and next sentence prediction, compared with the decisions of `evaluate`."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest

import qdqbert
from qdqbert.common.errors import UserInputError
from qdqbert.data.tables.inputs import open_source
from task_files import HEADS, sentence

COUNT = 24


@pytest.fixture(scope="module")
def choices(tiny_artifact):
    _, folder = tiny_artifact("AutoModelForMultipleChoice")
    with qdqbert.load(folder) as model:
        yield folder, model


@pytest.fixture(scope="module")
def pairs(tiny_artifact):
    _, folder = tiny_artifact("AutoModelForNextSentencePrediction")
    with qdqbert.load(folder) as model:
        yield folder, model


def accuracy(folder, data) -> float:
    report = qdqbert.evaluate(folder, data, allow_leakage=True)
    assert report.metrics[0].name == "accuracy"
    return report.metrics[0].value


def test_choices_are_the_decisions_of_evaluate(choices, tmp_path) -> None:
    folder, model = choices
    rng = random.Random(1)
    data = tmp_path / HEADS["multiple-choice"].file
    rows = [
        {
            "sent1": sentence(rng),
            "sent2": sentence(rng) if index % 2 else "",
            # Longer than the model reads, sometimes.
            "endings": [sentence(rng) * rng.choice((1, 9)) for _ in range(3)],
        }
        for index in range(COUNT)
    ]
    items = [
        {"context": row["sent1"], "prompt": row["sent2"], "choices": row["endings"]} for row in rows
    ]
    answers = model(items)
    labels = [each["label"] for each in answers]
    assert len(set(labels)) > 1
    data.write_text(
        "\n".join(
            json.dumps({**row, "label": label}) for row, label in zip(rows, labels, strict=True)
        )
    )
    assert accuracy(folder, data) == 100
    for each in answers:
        assert each["score"] == each["scores"][each["label"]] == max(each["scores"])
        assert sum(each["scores"]) == pytest.approx(1)
    alone = model(**items[0])
    assert alone["label"] == labels[0]
    assert alone["scores"] == pytest.approx(answers[0]["scores"], abs=1e-5)


def test_questions_can_have_different_numbers_of_choices(choices) -> None:
    _, model = choices
    few = {"context": "the cat", "choices": ["a dog", "a river"]}
    many = {"context": "the cat", "choices": ["music", "a dog", "night", "a river"]}
    one = {"context": "the cat", "choices": ["a dog"]}
    found = model([few, many, one])
    assert [len(each["scores"]) for each in found] == [2, 4, 1]
    # The ratio of two choices does not depend on the rest.
    np.testing.assert_allclose(
        found[0]["scores"][0] / found[0]["scores"][1],
        found[1]["scores"][1] / found[1]["scores"][3],
        rtol=1e-4,
    )
    assert model([]) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"context": "a"}, "Each input has to be a text with choices"),
        ({"context": "a", "choices": []}, "Each input has to be a text with choices"),
        ({"context": "a", "choices": "bc"}, "Each input has to be a text with choices"),
        ({"inputs": ["a"]}, "Each input has to be a text with choices"),
        ({"inputs": [], "context": "a"}, "`inputs` was given together with"),
    ],
)
def test_malformed_questions_are_refused(choices, options, message) -> None:
    with pytest.raises(UserInputError, match=message):
        choices[1](**options)


def test_next_sentences_are_the_decisions_of_evaluate(pairs, tmp_path) -> None:
    folder, model = pairs
    rng = random.Random(1)
    texts = [(sentence(rng), sentence(rng) * rng.choice((1, 9))) for _ in range(COUNT)]
    answers = model(texts)
    assert {each["label"] for each in answers} == {"is_next", "not_next"}
    rows = [
        f"{first}\t{second}\t{each['label']}"
        for (first, second), each in zip(texts, answers, strict=True)
    ]
    data = tmp_path / HEADS["next-sentence-prediction"].file
    data.write_text("\n".join(["sentence1\tsentence2\tlabel", *rows]))
    assert accuracy(folder, data) == 100
    assert all(0.5 <= each["score"] <= 1 for each in answers)
    first, second = texts[0]
    for one in (texts[0], [first, second], {"text": first, "text_pair": second}):
        assert model(one) == pytest.approx(answers[0], abs=1e-6)
    assert model([]) == []


@pytest.mark.parametrize("inputs", [["a"], [("a",)], [{"text": "a"}], ["ab", ("a", "b")]])
def test_next_sentence_prediction_refuses_single_texts(pairs, inputs) -> None:
    with pytest.raises(UserInputError, match="Each input has to be a"):
        pairs[1](inputs)


def test_run_writes_choices(choices, tmp_path) -> None:
    folder, model = choices
    data = tmp_path / "in.csv"
    data.write_text("sent1,sent2,ending0,ending1,label\nthe cat,a,dog,river,1\nthe,a,,dog,0\n")
    output = tmp_path / "a.parquet"
    report = qdqbert.run(folder, data, output, engine=model.engine, on_error="skip")
    assert (report.rows, report.skipped) == (1, 1)
    (row,) = open_source(str(output)).rows()
    expected = model(context="the cat", prompt="a", choices=["dog", "river"])
    assert row.values["predicted_label"] == expected["label"]
    assert row.values["scores"] == pytest.approx(expected["scores"], abs=1e-5)
    reason = json.loads((tmp_path / "a.parquet.errors.jsonl").read_text())["reason"]
    assert reason.startswith("it must not have a blank context or ending")
    with pytest.raises(UserInputError, match="`text_column='sent1'` does not apply to a model for"):
        qdqbert.run(folder, data, output, text_column="sent1", overwrite=True)


def test_run_writes_whether_a_text_follows(pairs, tmp_path) -> None:
    folder, model = pairs
    data = tmp_path / "in.tsv"
    data.write_text("sentence1\tsentence2\nthe cat\ta dog\n")
    qdqbert.run(folder, data, tmp_path / "a.jsonl", engine=model.engine)
    found = json.loads((tmp_path / "a.jsonl").read_text())
    expected = model(("the cat", "a dog"))
    assert found["label"] == expected["label"]
    assert found["score"] == pytest.approx(expected["score"], abs=1e-5)
