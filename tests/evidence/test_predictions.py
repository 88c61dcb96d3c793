"""Files of predictions: single rows by hand, and every task compared with its measurements."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flat
import qdqbert
from qdqbert.data.tables.outputs import write_objects
from qdqbert.evidence.predictions import changed_examples, changed_rows
from qdqbert.tasks.task import Answer
from task_files import HEADS, SENTIMENT, sentence, settings_of

# Tasks that are tested each time: one of texts, and one with several windows for each text.
FAST = {"text-classification", "question-answering"}


def answer(text: str, prediction: Any, *numbers: float) -> Answer:
    return Answer(
        given={"text": text},
        found={"prediction": prediction},
        numbers=np.array(numbers),
    )


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_changed_decisions_are_listed_the_largest_change_first() -> None:
    ours = [answer("a", 1, 0.4, 0.6), answer("b", 0, 0.9, 0.1), answer("c", 1, 0.1, 0.9)]
    theirs = [answer("a", 0, 0.55, 0.45), answer("b", 0, 0.5, 0.5), answer("c", 0, 0.75, 0.25)]
    assert changed_rows(ours, theirs, ([(0,), (0,), (0,)], [(1,), (0,), (1,)])) == [
        {
            "change": pytest.approx(0.65),
            "changed": 1,
            "text": "c",
            "prediction": 1,
            "reference": {"prediction": 0},
        },
        {
            "change": pytest.approx(0.15),
            "changed": 1,
            "text": "a",
            "prediction": 1,
            "reference": {"prediction": 0},
        },
    ]


def test_an_answer_can_have_any_number_of_decisions() -> None:
    answers = [answer(text, None, 0.0) for text in "abc"]
    rows = changed_rows(answers, answers, ([(1, 1), (), (1, 1, 1)], [(1, 2), (), (2, 1, 2)]))
    assert [(row["text"], row["changed"]) for row in rows] == [("a", 1), ("c", 2)]


def test_without_decisions_all_differing_numbers_are_listed() -> None:
    ours = [answer(text, 0, number) for text, number in (("a", 1), ("b", 2), ("c", 3))]
    theirs = [answer(text, 0, 1) for text in "abc"]
    rows = changed_rows(ours, theirs, None)
    assert [(row["text"], row["change"], "changed" in row) for row in rows] == [
        ("c", 2, False),
        ("b", 1, False),
    ]


def test_answers_without_numbers_can_be_compared() -> None:
    # A sentence of words that have no token.
    empty = answer("a", [])
    assert changed_rows([empty], [empty], ([()], [()])) == []


@pytest.mark.parametrize(
    "task",
    [pytest.param(name, marks=[pytest.mark.slow] * (name not in FAST)) for name in HEADS],
)
@pytest.mark.usual("question-answering")
def test_predictions_agree_with_what_was_measured(tiny_artifact, write_file, task) -> None:
    head = HEADS[task]
    checkpoint, folder = tiny_artifact(head.auto_class, is_float=False, **head.changes)
    data = write_file(head.file, head.write(random.Random(7), 20))
    output = data.parent / "files"
    report = flat.evaluate(
        folder,
        data,
        reference=checkpoint,
        engine="onnxruntime",
        output=output,
        **settings_of(task),
        **({} if task != "feature-extraction" else {"pooling": "mean"}),
    )
    rows, changed = rows_of(output / "predictions.jsonl"), rows_of(output / "changed.jsonl")
    assert len(rows) == 20
    assert [row["change"] for row in changed] == sorted(
        (row["change"] for row in changed), reverse=True
    )
    by_content = {json.dumps(row) for row in rows}
    for row in changed:
        kept = {
            name: value
            for name, value in row.items()
            if name not in ("change", "changed", "reference")
        }
        assert json.dumps(kept) in by_content
        assert set(row["reference"]) <= set(row)
    fidelity = report.fidelity
    if fidelity.decisions is None:
        assert len(changed) == 20
        assert report.changed == ()
    else:
        assert report.changed == changed_examples(changed)
        flips = round(fidelity.flips_percent * fidelity.decisions / 100)
        assert sum(row["changed"] for row in changed) == flips


@pytest.mark.slow
def test_classes_are_those_that_the_folder_returns(tiny_artifact, write_file) -> None:
    _, folder = tiny_artifact("AutoModelForSequenceClassification", is_float=False, **SENTIMENT)
    data = write_file("dev.tsv", HEADS["text-classification"].write(random.Random(7), 20))
    output = data.parent / "files"
    flat.evaluate(folder, data, engine="onnxruntime", output=output)
    rows = rows_of(output / "predictions.jsonl")
    lines = [line.split("\t") for line in data.read_text().splitlines()[1:]]
    assert [[row["text"], row["label"]] for row in rows] == lines
    with qdqbert.load(folder, engine="onnxruntime") as model:
        answers = model([row["text"] for row in rows])
    for row, expected in zip(rows, answers, strict=True):
        assert row["prediction"] == expected["label"]
        # Padding changes the order of float32 sums.
        assert row["score"] == pytest.approx(expected["score"], rel=1e-4)


def test_a_reranker_has_a_row_for_each_query(quantized, checkpoints, tmp_path) -> None:
    rng = random.Random(3)
    pairs = [
        {"query_id": query, "query": sentence(rng), "document": sentence(rng), "label": rank % 2}
        for query in range(4)
        for rank in range(3)
    ]
    for pair in pairs:
        pair["query"] = f"the {pair['query_id']}"
    data = tmp_path / "pairs.jsonl"
    data.write_bytes(write_objects(pairs))
    folder = checkpoints("reranker")
    flat.evaluate(folder, data, task="reranking", output=tmp_path / "files")
    rows = rows_of(tmp_path / "files" / "predictions.jsonl")
    assert [row["query"] for row in rows] == ["the 0", "the 1", "the 2", "the 3"]
    for number, row in enumerate(rows):
        own = pairs[3 * number : 3 * number + 3]
        assert row["documents"] == [pair["document"] for pair in own]
        assert row["labels"] == [str(pair["label"]) for pair in own]
        assert row["prediction"] == row["documents"][int(np.argmax(row["scores"]))]


def test_the_largest_changes_are_shown_with_their_texts() -> None:
    rows = [
        {
            "change": 0.5,
            "changed": 1,
            "row": index,
            "text": "a " * 200,
            "text_pair": "b",
            "label": "no",
            "prediction": "yes",
            "score": 0.6,
            "reference": {"prediction": "no", "score": 0.9},
        }
        for index in range(12)
    ]
    found = changed_examples(rows)
    assert len(found) == 10
    assert (found[0].before, found[0].after) == ("no", "yes")
    assert (len(found[0].text), found[0].text[-1]) == (300, "…")
    (short,) = changed_examples([{**rows[0], "text": "a"}])
    assert short.text == "a | b"
    assert short.label == "no"
    (unlabeled,) = changed_examples([{**rows[0], "label": None}])
    assert unlabeled.label is None


def test_of_predictions_for_each_word_only_those_that_differ_are_shown() -> None:
    row = {
        "change": 0.5,
        "changed": 2,
        "row": 3,
        "words": ["Ada", "in", "London"],
        "labels": ["B-PER", "O", "B-LOC"],
        "prediction": ["B-ORG", "O", "O"],
        "scores": [0.6, 0.9, 0.8],
        "reference": {"prediction": ["B-PER", "O", "B-LOC"], "scores": [0.6, 0.9, 0.8]},
    }
    (found,) = changed_examples([row])
    assert found.text == "Ada in London"
    assert (found.before, found.after) == ("Ada: B-PER\nLondon: B-LOC", "Ada: B-ORG\nLondon: O")
    assert found.label == found.before
    # Tokens of masks have no words.
    masked = {"text": "a [MASK] b", "labels": ["x"], "prediction": ["y"], "changed": 1}
    (found,) = changed_examples([{**masked, "reference": {"prediction": ["z"]}}])
    assert (found.text, found.before, found.after, found.label) == ("a [MASK] b", "z", "y", "x")


def test_several_right_answers_are_the_label_and_no_text() -> None:
    row = {"question": "who?", "labels": ["a", "b"], "prediction": "c"}
    (found,) = changed_examples([{**row, "reference": {"prediction": "a"}}])
    assert (found.text, found.label) == ("who?", "a | b")
    (found,) = changed_examples([{**row, "labels": [], "reference": {"prediction": "a"}}])
    assert found.label is None
    ranked = {"rows": [1, 2], "query": "q", "documents": ["x", "y"], "labels": [1.0, 0.0]}
    (found,) = changed_examples([{**ranked, "prediction": "x", "reference": {"prediction": "y"}}])
    assert (found.text, found.label) == ("q | x | y", None)
