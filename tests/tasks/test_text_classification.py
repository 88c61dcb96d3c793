from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from qdqbert.common.errors import DataFileError
from qdqbert.data.rows.data import Columns, Dataset, Example
from qdqbert.data.tokenizing.encoding import Encoded
from qdqbert.runtime.batches import Results
from qdqbert.tasks.task import Features, Outcome
from qdqbert.tasks.text_classification import TEXT_CLASSIFICATION as TASK
from task_features import features_of

ID2LABEL = {0: "Negative", 1: "Neutral", 2: "Positive"}
# Decisions 0, 2, 2, 2.
PREDICTIONS = list(np.array([[9, 1, 1], [1, 2, 3], [0, 0, 1], [-3, -2, -1]], np.float32))


@pytest.fixture
def read(write_file) -> Callable[[str], Dataset]:
    def read_csv(content: str) -> Dataset:
        return TASK.read(str(write_file("a.csv", content)), columns=Columns(), max_examples=None)

    return read_csv


def features(*labels: str | None) -> Features:
    examples = tuple(Example(text="a", label=label) for label in labels)
    return Features(examples=examples, encoded=Encoded(inputs=(), padding={}, truncated=0))


def test_texts_and_labels_are_read_from_a_table(write_file) -> None:
    path = write_file("reviews.csv", "text,label\na,Positive\nb,Neutral\n")
    dataset = TASK.read(str(path), columns=Columns(), max_examples=1)
    assert dataset.examples == (Example(text="a", label="Positive"),)


@pytest.mark.parametrize("pair", [None, "b"], ids=["one-text", "pair"])
def test_both_texts_of_a_pair_are_encoded_together(tokenizer, pair) -> None:
    example = Example(text="a", text_pair=pair)
    names = ("input_ids", "token_type_ids")
    made = features_of(TASK, tokenizer, [example], names=names)
    (inputs,) = made.encoded.inputs
    expected = tokenizer("a", pair)
    assert {name: inputs[name].tolist() for name in names} == {
        name: expected[name] for name in names
    }
    assert (made.examples, made.notices) == ((example,), ())


def test_truncated_texts_are_reported(tokenizer) -> None:
    long = [Example(text="cat " * 9), Example(text="a")]
    made = features_of(TASK, tokenizer, long, max_length=5, names=("input_ids",))
    assert made.notices == ("1 of 2 texts was longer than 5 tokens and was cut.",)


def test_predictions_are_the_logits() -> None:
    logits = np.arange(6, dtype=np.float32).reshape(2, 3)
    made = TASK.predictions(Results(outputs={"logits": logits}, inputs={}, features=(), places=()))
    assert [each.tolist() for each in made] == logits.tolist()


@pytest.mark.parametrize(
    "labels",
    [
        ("Negative", "Positive", "Neutral", "Positive"),
        ("negative", "POSITIVE", " neutral ", "pOsItIvE"),
        ("0", "2", "1", "2"),
        ("0.0", "2.0", "1.0", "2"),
        ("0", "positive", "Neutral", "2.0"),
    ],
    ids=["names", "any-case", "numbers", "numbers-as-pandas-writes-them", "mixed"],
)
def test_accuracy_by_hand(labels) -> None:
    # The third decision is wrong.
    metric, *_ = TASK.metrics(Outcome(PREDICTIONS, features(*labels), ID2LABEL))
    assert (metric.name, metric.value, metric.examples) == ("accuracy", 75.0, 4)


def test_two_classes_are_scored_with_the_f1_of_the_second() -> None:
    # Decisions 1, 1, 1, 0.
    predictions = list(np.array([[0, 1], [-2, -1], [3, 4], [1, 0]], np.float32))
    metrics = TASK.metrics(Outcome(predictions, features(*"1100"), {0: "no", 1: "yes"}))
    assert [(metric.name, metric.examples) for metric in metrics] == [
        ("accuracy", 4),
        ("f1", 4),
        ("mcc", 4),
    ]
    assert [metric.value for metric in metrics] == pytest.approx([75, 80, 200 / 12**0.5])


def test_more_classes_are_scored_with_the_mean_of_their_f1() -> None:
    # F1 of the classes: 1, 0 and 2 · 2 / (3 + 2).
    metrics = TASK.metrics(Outcome(PREDICTIONS, features(*"0212"), ID2LABEL))
    assert [metric.name for metric in metrics] == ["accuracy", "f1_macro", "mcc"]
    assert metrics[1].value == pytest.approx(100 * (1 + 0 + 0.8) / 3)


def test_a_name_that_looks_like_a_number_is_a_name() -> None:
    predictions = [np.array([1, 0], np.float32)]
    metric, *_ = TASK.metrics(Outcome(predictions, features("1"), {0: "1", 1: "0"}))
    assert metric.value == 100


@pytest.mark.parametrize("label", ["3", "-1", "excellent", "1.5", "\u00b2"])
def test_an_unknown_label_is_reported_with_its_row_and_the_classes(read, label) -> None:
    dataset = read(f"text,label\na,0\nb,{label}\n")
    known = "0 or 'Negative', 1 or 'Neutral', 2 or 'Positive'"
    message = f"^Line 3 of `.*`, column 'label': Label {label!r} is not one of the model's: {known}"
    with pytest.raises(DataFileError, match=message):
        TASK.check_labels(dataset, ID2LABEL)


@pytest.mark.parametrize("label", ["", "  "], ids=["empty", "spaces"])
def test_a_blank_label_among_many_is_reported_with_its_row(read, label) -> None:
    dataset = read("text,label\n" + "a,0\n" * 30 + f"a,{label}\n" + "a,0\n" * 30)
    message = r"^Line 32 of `.*a\.csv`, column 'label': The label is blank. Fill it in"
    with pytest.raises(DataFileError, match=message):
        TASK.check_labels(dataset, ID2LABEL)
    with pytest.raises(DataFileError, match=message):
        TASK.class_names(dataset)


def test_data_without_a_column_of_labels_are_refused(read) -> None:
    dataset = read("text\na\n")
    for check in (TASK.class_names, lambda each: TASK.check_labels(each, ID2LABEL)):
        with pytest.raises(
            DataFileError, match="no column has a name that is known to hold labels"
        ) as caught:
            check(dataset)
        assert caught.value.argument == "label_column"


def test_known_labels_are_accepted(read) -> None:
    TASK.check_labels(read("text,label\na,Positive\nb,0\n"), ID2LABEL)


def test_a_decision_is_the_largest_class() -> None:
    assert TASK.decisions(Outcome(PREDICTIONS, features(*"0212"))) == [(0,), (2,), (2,), (2,)]


def test_a_model_is_trained_with_numbers_of_classes() -> None:
    assert TASK.labels(features("positive", "0", "Neutral"), ID2LABEL) == [
        {"labels": 2},
        {"labels": 0},
        {"labels": 1},
    ]


@pytest.mark.parametrize(
    ("labels", "names"),
    [
        (("pos", "neg", " pos ", "Neutral"), ["Neutral", "neg", "pos"]),
        (("10", "2", "0", "2"), ["0", "2", "10"]),
        (("b", "3"), ["3", "b"]),
        (("1.5", "2"), ["score"]),
    ],
    ids=["names", "numbers-by-value", "numbers-first", "fractions"],
)
def test_the_classes_of_a_new_head_are_all_labels_sorted(read, labels, names) -> None:
    dataset = read("text,label\n" + "".join(f"a,{label}\n" for label in labels))
    assert TASK.class_names(dataset) == names


def test_labels_are_replaced_by_the_names_that_they_mean(read) -> None:
    stars = {0: "1 star", 1: "2 stars", 2: "3 stars"}
    dataset = TASK.read_labels(read("text,label\na,3.0\nb, 1 \nc,2\n"), stars)
    assert [each.label for each in dataset.examples] == ["3 stars", "1 star", "2 stars"]
    assert "Labels are read as the numbers in the names of classes" in dataset.notices[-1]
    made = Features(examples=dataset.examples, encoded=Encoded(inputs=(), padding={}, truncated=0))
    assert TASK.labels(made, stars) == [{"labels": 2}, {"labels": 0}, {"labels": 1}]


def test_names_are_read_without_a_word(read) -> None:
    dataset = read("text,label\na,Positive\nb,Neutral\n")
    assert TASK.read_labels(dataset, ID2LABEL) == dataset


def test_the_column_of_ambiguous_labels_is_named(read) -> None:
    dataset = read("text,label\na,1\n")
    with pytest.raises(DataFileError, match=r"^Labels of `.*a\.csv`, column 'label' can be"):
        TASK.read_labels(dataset, {0: "1 star", 1: "2 stars"})


def test_a_new_head_has_no_names_with_the_decimals_that_pandas_adds(read) -> None:
    dataset = read("text,label\na,1.0\nb,0.0\nc,1.0\n")
    names = TASK.class_names(dataset)
    assert names == ["0", "1"]
    named = TASK.read_labels(dataset, dict(enumerate(names)))
    assert [each.label for each in named.examples] == ["1", "0", "1"]
    assert named.notices == dataset.notices
