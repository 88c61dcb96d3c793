from __future__ import annotations

import json

import pytest

from qdqbert.common.errors import DataFileError
from qdqbert.data.rows import in_memory
from qdqbert.data.rows.conll import TokenExample, parse_sentence, read_sentences
from qdqbert.data.rows.data import Columns

GUESS = Columns()
CAT = TokenExample(words=("the", "cat", "sat"), tags=("O", "B-PER", "O"))
RAIN = TokenExample(words=("rain",), tags=("B-LOC",))
ROWS = """
{"tokens": ["the", "cat", "sat"], "ner_tags": ["O", "B-PER", "O"]}

{"tokens": [], "ner_tags": []}
{"tokens": ["rain"], "ner_tags": ["B-LOC"]}
"""
BTC = "the\tO\ncat\tB-PER\nsat\tO\n\nrain\tB-LOC\n"


def read(path, *, columns=GUESS, max_examples=None) -> list[TokenExample]:
    return list(read_sentences(str(path), columns=columns, max_examples=max_examples).examples)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("btc.train", BTC),
        ("spaces.txt", BTC.replace("\t", " ")),
        ("aligned.conll", BTC.replace("\t", "    ")),
        ("four-columns.conll", BTC.replace("\t", " NN I-NP ")),
        ("four-columns-by-tab.conll", BTC.replace("\t", "\t_\t_\t")),
        ("windows.conll", BTC.replace("\n", "\r\n")),
        ("mark.conll", "\ufeff" + BTC),
        ("gaps.conll", "\n\n" + BTC.replace("\n\n", "\n\n \t\n\n") + "\n\n"),
        ("documents.conll", "-DOCSTART-\tO\n\n" + BTC.replace("\n\n", "\n-DOCSTART-\tO\n")),
        ("comments.conll", "# id = 1\n# text = a b\n" + BTC.replace("\n\n", "\n\n# id = 2\n")),
        ("open-end.conll", BTC.rstrip()),
        ("rows.jsonl", ROWS),
    ],
)
def test_all_layouts_give_the_same_sentences(write_file, name, text) -> None:
    assert read(write_file(name, text)) == [CAT, RAIN]


def test_comments_are_recognized_by_their_number_of_columns(write_file) -> None:
    text = "# id = 1\n" + BTC.replace("\t", " ") + "# O\n"
    hash_word = TokenExample(words=("rain", "#"), tags=("B-LOC", "O"))
    assert read(write_file("a.conll", text)) == [CAT, hash_word]


def test_a_single_column_is_words_without_tags(write_file) -> None:
    path = write_file("a.txt", "# id = 1\nthe\n#\n\nrain\n")
    assert read(path) == [TokenExample(words=("the", "#")), TokenExample(words=("rain",))]


def test_unusual_words_are_kept(write_file) -> None:
    words = ("#tag", "two words", " ", "", "\u00a0", "a\u2028b", "\u200b", "\x85", '"', "#")
    text = "".join(f"{word}\tO\n" for word in words)
    assert read(write_file("a.conll", text)) == [TokenExample(words=words, tags=("O",) * 10)]
    spaced = read(write_file("b.conll", "a\u00a0b O\n"))
    assert spaced == [TokenExample(words=("a\u00a0b",), tags=("O",))]


def test_max_examples_limits_what_is_read(write_file) -> None:
    dataset = read_sentences(str(write_file("a.conll", BTC)), columns=Columns(), max_examples=1)
    assert dataset.examples == (CAT,)
    assert (dataset.columns, dataset.notices) == (Columns(), ())
    assert CAT.content == ("the cat sat",)
    second = read(write_file("b.conll", "-DOCSTART-\tO\n\n" + BTC))[1]
    assert second.row == 7


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.conll", "", "hold no sentences"),
        ("a.conll", " \n\t\n\n", "hold no sentences"),
        ("a.conll", "a\tO\nb\n", r"Line 2 of `.*a.conll` must have 2 columns .*got 1"),
        ("a.conll", "a\tO\n\nb\tx\tO\n", "Line 3 .* got 3. Separate all columns by a tab"),
        ("a.conll", "a\tO\nb\t \n", "Line 2 .* must have a tag in its last column, got none"),
        ("a.jsonl", "[1]", "Line 1 of `.*`: it must be a JSON object, got list"),
        ("a.jsonl", '\n{"tokens"', "Line 2 of `.*`: it is not JSON"),
        (
            "a.jsonl",
            '\n{"tokens": ["\\ud800"]}',
            "Line 2 of `.*`: it contains half of a surrogate pair",
        ),
        ("a.ndjson", '{"text": "a"}', "Line 1 .* as `tokens` or `words`, got only 'text'"),
    ],
    ids=["empty", "blank", "short", "long", "no-tag", "list", "no-json", "half", "no-words"],
)
def test_a_malformed_file_is_refused(write_file, name, text, message) -> None:
    with pytest.raises(DataFileError, match=message):
        read(write_file(name, text))


def test_a_missing_file_a_directory_and_another_encoding_are_refused(tmp_path) -> None:
    with pytest.raises(DataFileError, match="does not exist"):
        read(tmp_path / "none.conll")
    with pytest.raises(DataFileError, match="is a directory, not a file"):
        read(tmp_path)
    (tmp_path / "latin.conll").write_bytes(b"a\tO\ncaf\xe9\tO\n")
    with pytest.raises(DataFileError, match=r"Line 2 of .* byte 0xe9 at column 4"):
        read(tmp_path / "latin.conll")


@pytest.mark.parametrize(
    ("columns", "option"),
    [
        (Columns(text="0"), "text_column='0'"),
        (Columns(text_pair="b"), "text_pair_column='b'"),
        (Columns(label="tag"), "label_column='tag'"),
    ],
    ids=["text", "pair", "label"],
)
def test_requested_columns_are_refused(write_file, columns, option) -> None:
    with pytest.raises(DataFileError, match=f"`{option}` cannot be used for this task"):
        read(write_file("a.conll", BTC), columns=columns)


def test_hub_data_are_read_row_by_row(monkeypatch) -> None:
    rows = [{"id": "0", "tokens": ["rain"], "ner_tags": ["B-LOC"]}, {"tokens": 3}]
    monkeypatch.setattr(in_memory, "hub_rows", lambda path: enumerate(rows, start=1))
    assert read("hub:a@test", max_examples=1) == [RAIN]
    with pytest.raises(DataFileError, match="Row 2 of `hub:a@test` must have a list of str"):
        read("hub:a@test")


@pytest.mark.parametrize(
    ("words", "tags"), [("tokens", "ner_tags"), ("words", "tags"), ("words", "labels")]
)
def test_the_lists_of_a_row_have_several_names(words, tags) -> None:
    row = json.loads(json.dumps({words: ["a", "b"], tags: [0, "B-PER"], "id": 3}))
    assert parse_sentence(row, "hub:a@b", 1) == TokenExample(words=("a", "b"), tags=("0", "B-PER"))


@pytest.mark.parametrize("tags", [None, [None]], ids=["none", "hidden"])
def test_a_row_without_tags_is_read(tags) -> None:
    assert parse_sentence({"tokens": ["a"], "tags": tags}, "hub:a@b", 1) == TokenExample(
        words=("a",)
    )


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            {"text": "a b"},
            "Row 7 of `hub:a@b` must have a list of words as `tokens` or `words`, got only 'te",
        ),
        ({"words": "a b"}, "Row 7 of `hub:a@b` must have a list of str as `words`, got str"),
        ({"words": ["a", 1]}, "Row 7 of `hub:a@b` must have str in `words`, got 1"),
        ({"words": ["a"], "tags": "O"}, "a list of str or int as `tags`, got str"),
        ({"words": ["a"], "tags": [True]}, "str or int in `tags`, got True"),
        ({"words": ["a", "b"], "tags": ["O", None]}, "str or int in `tags`, got None"),
        ({"words": ["a", "b"], "tags": ["O"]}, "got 2 words in `words` and 1 tags in `tags`"),
    ],
    ids=["text", "string", "number", "tags", "bool", "half-hidden", "lengths"],
)
def test_a_malformed_row_is_refused(row, message) -> None:
    with pytest.raises(DataFileError, match=message):
        parse_sentence(row, "hub:a@b", 7)
