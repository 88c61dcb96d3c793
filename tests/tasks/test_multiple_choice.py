from __future__ import annotations

import json

import numpy as np
import pytest

from qdqbert.common.errors import DataFileError
from qdqbert.data.rows.data import Columns, Dataset, Example
from qdqbert.data.tokenizing.encoding import Encoded, make_batches
from qdqbert.tasks.multiple_choice import MULTIPLE_CHOICE as TASK
from qdqbert.tasks.multiple_choice import ChoiceExample
from qdqbert.tasks.task import Features, Outcome
from task_features import NAMES, features_of

SWAG = (
    ",video-id,fold-ind,startphrase,sent1,sent2,gold-source,ending0,ending1,ending2,ending3,label\n"
    '0,v1,3,"The cat sat. It","The cat sat.",It,gold,was good.,ran.,"slept, then.",came.,2\n'
)
QUESTION = ChoiceExample(
    context="the cat was", prompt="it", endings=("was good", "came", "had music at home"), label=1
)


def read(path) -> Dataset:
    return TASK.read(str(path), columns=Columns(), max_examples=None)


def features(*labels: int | None) -> Features:
    examples = tuple(
        ChoiceExample(context="a", prompt="", endings=("b", "c", "d"), label=label)
        for label in labels
    )
    return Features(examples=examples, encoded=Encoded(inputs=(), padding={}, truncated=0))


def encode(tokenizer, *examples: object, max_length: int = 64) -> Features:
    return features_of(TASK, tokenizer, examples, max_length=max_length)


def test_swag_is_read(write_file) -> None:
    (example,) = read(write_file("val.csv", SWAG)).examples
    assert example == ChoiceExample(
        context="The cat sat.",
        prompt="It",
        endings=("was good.", "ran.", "slept, then.", "came."),
        label=2,
    )
    assert example.content == ("The cat sat.", "It", "was good.", "ran.", "slept, then.", "came.")


def test_swag_without_labels_is_read(write_file) -> None:
    lines = [line.rsplit(",", 1)[0] for line in SWAG.splitlines()]
    (example,) = read(write_file("test.csv", "\n".join(lines))).examples
    assert example.label is None


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (
            {"context": "a", "endings": ["b", "c"], "label": 1},
            ChoiceExample(context="a", prompt="", endings=("b", "c"), label=1),
        ),
        (
            {"question": "a", "choices": ["b", "c"], "label": "0"},
            ChoiceExample(context="a", prompt="", endings=("b", "c"), label=0),
        ),
        (
            {"context": "a", "question": "b", "endings": ["c", "d"], "label": None},
            ChoiceExample(context="a", prompt="b", endings=("c", "d"), label=None),
        ),
        (
            {"sent1": "a", "sent2": "b", "ending0": "c", "ending1": "d", "label": 0},
            ChoiceExample(context="a", prompt="b", endings=("c", "d"), label=0),
        ),
    ],
    ids=["context", "question", "both", "swag"],
)
def test_json_lines_are_read_in_both_layouts(write_file, row, expected) -> None:
    path = write_file("a.jsonl", json.dumps(row) + "\n\n")
    assert read(path).examples == (expected,)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"text": "a", "label": 0}, "must have `sent1`, .*; got `text`, `label`, with 0 endings"),
        ({"context": "a", "endings": ["b"], "label": 0}, "at least two endings"),
        ({"context": "a", "endings": ["b", 3]}, "must have strings .* got int"),
        ({"context": "a", "endings": ["b", " "]}, "must not have a blank context or ending"),
        ({"context": "a", "endings": ["b", "c"], "label": 2}, "0 to 1, as `label`, got 2"),
        ({"context": "a", "endings": ["b", "c"], "label": "b"}, "0 to 1, as `label`, got 'b'"),
    ],
    ids=["other-fields", "one-ending", "number", "blank", "label-too-high", "label-no-number"],
)
def test_malformed_rows_are_refused(write_file, row, message) -> None:
    with pytest.raises(DataFileError, match=message) as caught:
        read(write_file("a.jsonl", json.dumps(row)))
    assert str(caught.value).startswith("Line 1 of `")


def test_different_numbers_of_endings_are_refused(write_file) -> None:
    rows = [{"context": "a", "endings": ["b", "c", "d"][:n]} for n in (2, 2, 3)]
    path = write_file("a.jsonl", "\n".join(map(json.dumps, rows)))
    with pytest.raises(DataFileError, match=r"Line 3 of .* must have 2 endings .* got 3"):
        read(path)


def test_requested_columns_are_refused(write_file) -> None:
    with pytest.raises(
        DataFileError, match=r"`text_column='sent1'` cannot be used .* fixed column names"
    ):
        TASK.read(
            str(write_file("val.csv", SWAG)), columns=Columns(text="sent1"), max_examples=None
        )


def test_max_examples_limits_what_is_read(write_file) -> None:
    path = write_file("val.csv", SWAG + SWAG.splitlines()[1])
    assert len(TASK.read(str(path), columns=Columns(), max_examples=1)) == 1


def test_empty_file_is_refused(write_file) -> None:
    with pytest.raises(DataFileError, match="contains no examples"):
        read(write_file("val.csv", SWAG.splitlines()[0]))


def test_each_choice_is_a_pair_padded_to_the_longest(tokenizer) -> None:
    (inputs,) = encode(tokenizer, QUESTION).encoded.inputs
    texts = [QUESTION.context] * 3, [f"it {ending}" for ending in QUESTION.endings]
    expected = tokenizer(*texts, padding=True)
    assert inputs["input_ids"].dtype == np.int32
    assert {name: inputs[name].tolist() for name in NAMES} == {
        name: expected[name] for name in NAMES
    }


def test_empty_prompt_adds_no_space(tokenizer) -> None:
    example = ChoiceExample(context="a", prompt="", endings=("b", "c"))
    (inputs,) = encode(tokenizer, example).encoded.inputs
    assert inputs["input_ids"].tolist() == tokenizer(["a", "a"], ["b", "c"])["input_ids"]


def test_questions_are_batched_with_padding(tokenizer) -> None:
    other = ChoiceExample(context="a", prompt="", endings=("b", "c", "d"))
    made = encode(tokenizer, other, QUESTION)
    (batch,) = make_batches(made.encoded, batch_size=2)
    assert batch.indices == (1, 0)
    longest = made.encoded.inputs[1]["input_ids"].shape[1]
    assert batch.inputs["input_ids"].shape == (2, 3, longest)
    assert batch.inputs["attention_mask"][1].sum() == made.encoded.inputs[0]["attention_mask"].sum()


def test_truncated_choices_are_reported(tokenizer) -> None:
    made = encode(tokenizer, QUESTION, max_length=8)
    assert made.notices == ("2 of 3 texts were longer than 8 tokens and were cut.",)


def test_plain_text_for_calibration_is_the_only_choice(tokenizer) -> None:
    made = encode(tokenizer, Example(text="the cat"))
    assert made.encoded.inputs[0]["input_ids"].tolist() == [tokenizer("the cat")["input_ids"]]
    assert TASK.decisions(Outcome([np.zeros(1, np.float32)], made)) is None
    with pytest.raises(DataFileError, match="The right ending is missing"):
        TASK.labels(made, {})


# Decisions 0, 2, 2.
PREDICTIONS = list(np.array([[9, 1, 1], [1, 2, 3], [0, 0, 1]], np.float32))


def test_accuracy_by_hand() -> None:
    (metric,) = TASK.metrics(Outcome(PREDICTIONS, features(0, 1, 2)))
    assert (metric.name, metric.examples) == ("accuracy", 3)
    assert metric.value == pytest.approx(200 / 3)


def test_answers_and_labels_are_indices_of_endings() -> None:
    assert TASK.decisions(Outcome(PREDICTIONS, features(0, 1, 2))) == [(0,), (2,), (2,)]
    assert TASK.labels(features(0, 2), {}) == [{"labels": 0}, {"labels": 2}]
    assert TASK.class_names is None


def test_missing_label_is_reported_with_its_row(write_file) -> None:
    rows = [{"context": "a", "endings": ["b", "c"], "label": label} for label in (0, None)]
    dataset = read(write_file("a.jsonl", "\n".join(map(json.dumps, rows))))
    with pytest.raises(DataFileError, match=r"^Line 2 of .*Add its number as `label`, from 0"):
        TASK.check_labels(dataset, {})
