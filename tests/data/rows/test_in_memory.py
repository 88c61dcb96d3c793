"""Rows in memory are read as the same rows of a file are."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qdqbert.common.errors import DataFileError
from qdqbert.common.objects import Rows, as_rows
from qdqbert.data.rows.conll import TokenExample, read_sentences
from qdqbert.data.rows.data import Columns, Example, check_readable, read_dataset
from qdqbert.data.rows.in_memory import records
from qdqbert.tasks.multiple_choice import read_choices
from qdqbert.tasks.questions import read_questions
from qdqbert.tasks.reranking import read_rankings

NO_COLUMNS = Columns()


def rows(value: object) -> Rows:
    found = as_rows(value)
    assert found is not None
    return found


def read(value: object, **columns: str) -> Any:
    return read_dataset(rows(value), columns=Columns(**columns))


def tuples(value: object, **columns: str) -> list[tuple[str | None, ...]]:
    return [(each.text, each.text_pair, each.label) for each in read(value, **columns).examples]


@pytest.fixture
def as_file(tmp_path: Path) -> Any:
    """Writes rows to a .jsonl file."""

    def write(values: list[Any]) -> str:
        path = tmp_path / "rows.jsonl"
        path.write_text("".join(json.dumps(each) + "\n" for each in values))
        return str(path)

    return write


# Lists.


def test_a_list_of_strings_is_a_list_of_texts(as_file) -> None:
    texts = ["one", "", "two\nlines", "  ", "é"]
    found, expected = read(texts), read_dataset(as_file(texts))
    assert found.examples == expected.examples
    assert [each.row for each in found.examples] == [1, 3, 5]
    assert found.notices == expected.notices
    assert found.path == "<list of 5 rows>"
    assert found.columns == NO_COLUMNS


def test_a_list_of_dicts_is_read_as_lines_of_json(as_file) -> None:
    dicts = [
        {"premise": "a", "hypothesis": "b", "label": 1, "id": 7},
        {"premise": "c", "hypothesis": "d", "label": "x", "id": 8},
        {"premise": "", "hypothesis": "d", "label": None, "id": 9},
    ]
    found, expected = read(dicts), read_dataset(as_file(dicts))
    assert found.examples == expected.examples
    assert (found.columns, found.names) == (expected.columns, expected.names)
    assert found.notices == expected.notices


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ([("a", "b"), ("c", "d")], [("a", "b", None), ("c", "d", None)]),
        ([["a", "b"]], [("a", "b", None)]),
        ([("a", "b", 0.5)], [("a", "b", "0.5")]),
        ([("a", 1), ("b", 0)], [("a", None, "1"), ("b", None, "0")]),
        ([("a", [1, 0])], [("a", None, "[1, 0]")]),
        ([("a",), None, ("b",)], [("a", None, None), ("b", None, None)]),
    ],
    ids=["pairs", "lists", "scored", "labeled", "several-labels", "single"],
)
def test_tuples_are_a_text_another_text_and_a_label(value, expected) -> None:
    assert tuples(value) == expected


def test_the_second_of_two_texts_is_a_label_if_it_is_requested() -> None:
    films = [("good film", "positive"), ("bad film", "negative")]
    assert tuples(films, label="1") == [
        ("good film", None, "positive"),
        ("bad film", None, "negative"),
    ]
    assert read(films, label="1").notices == ()
    (notice,) = read(films).notices
    assert notice.startswith("Read rows of two texts as pairs of texts. Pass `label_column=1`")


def test_arrays_are_read_as_lists() -> None:
    assert tuples(np.array(["a", "b"])) == tuples(["a", "b"])
    assert tuples(np.array([["a", "b"]])) == tuples([("a", "b")])


@pytest.mark.parametrize(
    ("value", "columns", "words"),
    [
        ([], {}, r"^Data `<list of 0 rows>` contains no examples"),
        ([1, 2], {}, r"^Row 1 of `<list of 2 rows>` must be a text, a tuple of texts or a dict"),
        (["a", 3], {}, r"^Row 2 of `<list of 2 rows>` must be a text like the first row, got int"),
        ([("a", "b"), "c"], {}, "^Row 2 of .* must have 2 items like the first row, got str"),
        ([("a", "b"), ("c",)], {}, "^Row 2 of .* must have 2 items like the first row, got 1"),
        ([("a", "b", 1, 2)], {}, "^Row 1 of .* must have a text, at most one other text and a"),
        ([{"text": "a"}, "b"], {}, "^Row 2 of .* must be a dict of columns"),
        ([{"text": "a"}, {"x": 1}], {}, "^Row 2 of .* must have a field for column 'text'"),
        ([{"text": 3}], {}, "^Row 1 of .* must have a value of type str as 'text', got int"),
        ([{"body!": "long text"}], {}, "^Data `.*` has no column .*`text_column='body!'`"),
        ([{"text": "a"}], {"label": "y"}, "^`label_column='y'` must be a column of `<list of 1"),
        (["a"], {"label": "y"}, "^Data `.*` has no columns, because each row is one text"),
        (["a", "\ud83d"], {}, "^Row 2 of .* contains half of a surrogate pair"),
        ([__file__], {}, "^Row 1 of .* must be a text, got the name of a file"),
    ],
)
def test_a_row_that_cannot_be_read_is_named(value, columns, words) -> None:
    with pytest.raises(DataFileError, match=words):
        read(value, **columns)


def test_columns_are_checked_before_the_rows_are_read() -> None:
    data = rows([{"text": "a", "y": 1}])
    check_readable(data, Columns(label="y"))
    with pytest.raises(DataFileError, match="`label_column='z'` must be a column"):
        check_readable(data, Columns(label="z"))


# pandas.


def test_a_frame_is_read_as_the_file_that_it_writes(tmp_path, monkeypatch) -> None:
    pandas = pytest.importorskip("pandas")
    monkeypatch.setattr("qdqbert.data.rows.in_memory._CHUNK", 2)
    frame = pandas.DataFrame(
        {
            "id": [4, 5, 6, 7],
            "sentence1": ["a", "b", None, "d"],
            "sentence2": ["e", "f", "g", "h"],
            "score": [1.5, float("nan"), 3.0, 4.0],
        },
        index=["w", "x", "y", "z"],
    )
    frame.to_csv(tmp_path / "frame.csv", index=False)
    found, expected = read(frame), read_dataset(tmp_path / "frame.csv")
    assert found.examples == expected.examples
    assert [each.row for each in found.examples] == [1, 2, 4]
    assert (found.columns, found.names) == (expected.columns, expected.names)
    assert found.path == "<DataFrame of 4 rows>"


def test_a_series_is_a_list_of_texts() -> None:
    pandas = pytest.importorskip("pandas")
    texts = pandas.Series(["a", None, "b"], dtype="string", index=[5, 6, 7])
    assert [(each.row, each.text) for each in read(texts).examples] == [(1, "a"), (3, "b")]


def test_columns_without_a_name_are_named_by_number() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame([["a", "x"], ["b", "y"]])
    assert tuples(frame, text="0", label="1") == [("a", None, "x"), ("b", None, "y")]


@pytest.mark.parametrize("names", [[("x", "text"), ("x", "label")], ["text", 1.5], ["0", 0]])
def test_names_that_are_no_texts_are_refused(names) -> None:
    with pytest.raises(DataFileError, match="Rename "):
        read([dict(zip(names, ["a", "b"], strict=True))])


def test_a_frame_with_two_columns_of_one_name_is_refused() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame([["a", "b"]], columns=["text", "text"])
    with pytest.raises(DataFileError, match="`<DataFrame of 1 row>` must have a name of its own"):
        read(frame)


# polars.


class PolarsLike:
    """Has what is read of a DataFrame of polars, which iterates over its columns."""

    columns = ("text", "label", "words")
    rows = (("a", "x", ["b"]), (None, "y", ["c"]), ("d", "x", ["e"]))

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[tuple[object, ...]]:
        return iter(zip(*self.rows, strict=True))

    def iter_rows(self, *, named: bool) -> Iterator[dict[str, object]]:
        assert named
        return (dict(zip(self.columns, row, strict=True)) for row in self.rows)


def polars_frame() -> object:
    polars = pytest.importorskip("polars")
    return polars.DataFrame(PolarsLike.rows, schema=list(PolarsLike.columns), orient="row")


@pytest.mark.parametrize("make", [PolarsLike, polars_frame])
def test_a_frame_of_polars_is_read_by_rows(make) -> None:
    frame = make()
    assert rows(frame).kind == "polars"
    assert tuples(frame) == [("a", None, "x"), ("d", None, "x")]
    assert [row["words"] for _, row in records(rows(frame))] == [["b"], ["c"], ["e"]]


# The library `datasets`.


def test_classes_of_a_data_set_are_read_by_name() -> None:
    datasets = pytest.importorskip("datasets")
    features = datasets.Features(
        text=datasets.Value("string"), label=datasets.ClassLabel(names=["bad", "good"])
    )
    data = datasets.Dataset.from_dict({"text": ["a", "b"], "label": [1, 0]}, features=features)
    expected = [("a", None, "good"), ("b", None, "bad")]
    assert tuples(data) == tuples(data.with_format("numpy")) == expected


# Tasks with rows of their own.


def test_sentences_are_dicts_of_words_and_tags(as_file) -> None:
    dicts = [
        {"tokens": ["Ada", "met", "Bob"], "ner_tags": ["B-PER", "O", "B-PER"]},
        {"tokens": ["so"], "ner_tags": ["O"]},
    ]
    expected = read_sentences(as_file(dicts), columns=NO_COLUMNS, max_examples=None)
    held = [{name: tuple(each) for name, each in row.items()} for row in dicts]
    for value in (dicts, held):
        found = read_sentences(rows(value), columns=NO_COLUMNS, max_examples=None)
        assert found.examples == expected.examples
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"words": [np.array(["so"])], "labels": [np.array(["O"])]})
    found = read_sentences(rows(frame), columns=NO_COLUMNS, max_examples=None)
    assert found.examples == (TokenExample(words=("so",), tags=("O",)),)


def test_a_text_in_the_place_of_a_sentence_is_refused() -> None:
    with pytest.raises(
        DataFileError, match=r"^Row 1 of .* must be a dict of columns for this task"
    ):
        read_sentences(rows(["Ada met Bob"]), columns=NO_COLUMNS, max_examples=None)


def test_questions_are_dicts_of_the_fields_of_squad(as_file) -> None:
    dicts = [
        {
            "id": "1",
            "question": "who",
            "context": "Ada met Bob",
            "answers": {"text": ["Ada"], "answer_start": [0]},
        }
    ]
    expected = read_questions(as_file(dicts), columns=NO_COLUMNS, max_examples=None).examples
    answers = {"text": np.array(["Ada"]), "answer_start": np.array([0])}
    for value in (dicts, [{**dicts[0], "answers": answers}]):
        found = read_questions(rows(value), columns=NO_COLUMNS, max_examples=None)
        assert found.examples == expected
    with pytest.raises(DataFileError, match=r"^Row 1 of `<list of 1 row>` must have `context`"):
        read_questions(
            rows([{"id": "1", "question": "who"}]), columns=NO_COLUMNS, max_examples=None
        )


def test_choices_are_dicts_of_the_columns_of_swag(as_file) -> None:
    dicts = [{"sent1": "a", "sent2": "b", "ending0": "c", "ending1": "d", "label": 1}]
    expected = read_choices(as_file(dicts), columns=NO_COLUMNS, max_examples=None).examples
    assert read_choices(rows(dicts), columns=NO_COLUMNS, max_examples=None).examples == expected


def test_documents_of_a_query_are_tuples_or_dicts() -> None:
    dicts = [{"query_id": "q", "query": "a", "document": "b", "relevance": 1}]
    (found,) = read_rankings(rows(dicts), columns=NO_COLUMNS, max_examples=None).examples
    assert (found.text, found.text_pair, found.label, found.group) == ("a", "b", "1", "q")
    (found,) = read_rankings(rows([("a", "b", 1)]), columns=NO_COLUMNS, max_examples=None).examples
    assert Example(text="a", text_pair="b", label="1").content == found.content
    assert (found.label, found.group) == ("1", "a")
