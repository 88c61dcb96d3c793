"""Which classes the labels of a data set mean."""

from __future__ import annotations

import re

import pytest

from qdqbert.common.errors import DataFileError
from qdqbert.data.rows.data import Columns, Dataset, Example
from qdqbert.tasks.class_names import (
    class_named,
    class_of,
    name_classes,
    new_names,
    plain_number,
)

STARS = {0: "1 star", **{index: f"{index + 1} stars" for index in range(1, 5)}}
SENTIMENT = {0: "negative", 1: "neutral", 2: "positive"}
GENERIC = {index: f"LABEL_{index}" for index in range(5)}
DIGITS = {index: str(index + 1) for index in range(5)}
TWO = {0: "LABEL_0", 1: "LABEL_1"}


def read(labels, id2label) -> dict[str, str]:
    """Return the name that each label is read as; itself if it is a name."""
    naming = name_classes(labels, id2label, where="`a.csv`")
    return {label: naming.names.get(label, label) for label in labels}


@pytest.mark.parametrize(
    ("labels", "id2label", "expected"),
    [
        ("12345", STARS, ["1 star", "2 stars", "3 stars", "4 stars", "5 stars"]),
        (["1.0", "5.0"], STARS, ["1 star", "5 stars"]),
        ("01234", STARS, ["1 star", "2 stars", "3 stars", "4 stars", "5 stars"]),
        ("012", SENTIMENT, ["negative", "neutral", "positive"]),
        (["0.0", "2.0"], SENTIMENT, ["negative", "positive"]),
        (["0", "Positive"], SENTIMENT, ["negative", "positive"]),
        (["LABEL_2", "label_0"], SENTIMENT, ["positive", "negative"]),
        ("01234", GENERIC, list(GENERIC.values())),
        (["True", "false"], TWO, ["LABEL_1", "LABEL_0"]),
        # Names that are numbers are names, unless another label shows that they are not.
        ("135", DIGITS, ["1", "3", "5"]),
        (["1.0", "3.0"], DIGITS, ["1", "3"]),
        ("01234", DIGITS, ["1", "2", "3", "4", "5"]),
        (["-1", "0", "1.0"], {0: "-1", 1: "0", 2: "1"}, ["-1", "0", "1"]),
        # Names with the numbers of their classes.
        ("12", {0: "level 0", 1: "level 1", 2: "level 2"}, ["level 1", "level 2"]),
        # Numbers in names that do not tell all classes apart.
        ("01", {0: "top 10", 1: "other"}, ["top 10", "other"]),
        ("01", {0: "under 18", 1: "18 or more"}, ["under 18", "18 or more"]),
    ],
)
def test_labels_are_names_or_numbers_of_classes_or_in_names(labels, id2label, expected) -> None:
    assert list(read(labels, id2label).values()) == expected


@pytest.mark.parametrize(
    ("labels", "id2label", "notice"),
    [
        (
            ["5", "1", "3"],
            STARS,
            "Labels are read as the numbers in the names of classes: '1' is '1 star', '3' is "
            "'3 stars', '5' is '5 stars'.",
        ),
        (
            "01",
            SENTIMENT,
            "Labels are read as the numbers of classes: '0' is 'negative', '1' is 'neutral'.",
        ),
        (
            "12",
            SENTIMENT,
            "Labels are read as the numbers of classes: '1' is 'neutral', '2' is 'positive'. No "
            "label is 'negative', number 0. If yours count from 1, write the names instead.",
        ),
    ],
)
def test_how_numbers_are_read_is_said(labels, id2label, notice) -> None:
    assert name_classes(labels, id2label, where="`a.csv`").notices == (notice,)


def test_names_are_read_without_a_word_in_any_case_and_spacing() -> None:
    naming = name_classes(["Negative", "neutral"], SENTIMENT, where="`a.csv`")
    assert naming.names == {"Negative": "negative"}
    assert naming.notices == ()
    assert class_named("5  Stars", STARS) == 4
    # Only case tells these apart.
    assert [class_named(each, {0: "a", 1: "A"}) for each in ("a", "A", "b")] == [0, 1, None]


@pytest.mark.parametrize("labels", ["12", "1234", ["2.0", "4"]])
def test_numbers_that_can_be_read_in_two_ways_are_refused(labels) -> None:
    message = (
        "^Labels of `a.csv` can be the numbers in the names of classes .* or the numbers of classes"
    )
    with pytest.raises(DataFileError, match=message) as caught:
        name_classes(labels, STARS, where="`a.csv`")
    assert caught.value.argument == "label_column"


@pytest.mark.parametrize("id2label", [GENERIC, {**SENTIMENT, 3: "odd", 4: "none"}])
def test_numbers_that_count_from_1_are_refused(id2label) -> None:
    with pytest.raises(DataFileError, match="count from 1 to 5, and the model's classes from 0"):
        name_classes("12345", id2label, where="`a.csv`")


def test_labels_without_a_class_are_left_to_the_check_of_rows() -> None:
    assert read(["0", "7", "odd"], SENTIMENT) == {"0": "negative", "7": "7", "odd": "odd"}
    assert read(["True", "False"], SENTIMENT) == {"True": "True", "False": "False"}
    assert read(["True"], {0: "spam", 1: "ham"}) == {"True": "True"}
    for label in ("7", "odd", "1.5", "\u0662", "1_0", "nan"):
        with pytest.raises(DataFileError, match="is not one of the model's"):
            class_of(label, SENTIMENT)


def test_classes_with_one_name_are_told_apart_by_their_numbers() -> None:
    id2label = {0: "same", 1: "same", 2: "other"}
    named = read("012", id2label)
    assert [class_of(name, id2label) for name in named.values()] == [0, 1, 2]


def test_decimals_of_whole_numbers_are_removed() -> None:
    assert [plain_number(each) for each in ("1.0", "2", "1.5", "a")] == ["1", "2", "1.5", "a"]


SCORES = ["0.2", "0.5", "1", "3.25"]


def as_classes(labels) -> set[str]:
    """Return the classes of a new head for data with these labels."""
    examples = tuple(Example(text="a", label=each, row=row) for row, each in enumerate(labels, 2))
    dataset = Dataset(path="a.csv", examples=examples, columns=Columns(label="y"), notices=())
    return new_names(dataset, lambda example: [example.label])


@pytest.mark.parametrize(
    ("labels", "odd"),
    [
        *((SCORES, odd) for odd in ("nan", "N/A", "None", "null", "-", "?", "inf", "missing")),
        *(("012", odd) for odd in ("NaN", "NA", "none", "NULL", "-", "inf")),
        *((["good", "bad"], odd) for odd in ("nan", "NaN", "<NA>", "#N/A")),
    ],
)
def test_a_missing_value_or_a_word_among_scores_is_no_class(labels, odd) -> None:
    message = f"^Row {len(labels) + 2} of .*, column 'y': Label {re.escape(repr(odd))} would"
    with pytest.raises(DataFileError, match=message):
        as_classes([*labels, odd])


@pytest.mark.parametrize(
    "labels",
    [
        SCORES,
        ["0", "1"],
        ["1", "2", "mixed"],
        ["favor", "against", "none"],
        ["NN", ".", "-"],
        ["1.5", "two", "three"],
    ],
)
def test_words_scores_and_whole_numbers_may_be_classes(labels) -> None:
    assert as_classes(labels) == set(labels)


@pytest.mark.parametrize("labels", ["111", ["good"] * 3])
def test_one_class_is_refused(labels) -> None:
    with pytest.raises(DataFileError, match=f"column 'y' name one class only, '{labels[0]}'"):
        as_classes(labels)


def test_a_name_of_several_classes_is_refused_and_their_numbers_are_not() -> None:
    names = {0: "bad", 1: "good", 2: "good"}
    with pytest.raises(DataFileError, match=r"'good' is the name of several classes .*: 1, 2"):
        class_of("good", names)
    assert [class_of(label, names) for label in ("bad", "1", "2")] == [0, 1, 2]
    assert read("012", names) == {"0": "bad", "1": "1", "2": "2"}
