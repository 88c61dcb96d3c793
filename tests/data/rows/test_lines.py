from __future__ import annotations

import re
from pathlib import Path

import pytest

from qdqbert.common.errors import DataFileError
from qdqbert.data.rows.lines import (
    counted,
    existing_file,
    json_object,
    load_json,
    read_lines,
    read_records,
    row_name,
)
from qdqbert.data.tables.parquet import import_pyarrow


def test_lines_keep_their_ends_and_only_a_line_feed_ends_one(write_file) -> None:
    path = write_file("a.txt", "\ufeffa\u2028b\x85c\x0cd\r\n\n\u00a0\rx")
    assert list(read_lines(path)) == [(1, "a\u2028b\x85c\x0cd\r\n"), (2, "\n"), (3, "\u00a0\rx")]
    assert list(read_lines(str(path))) == list(read_lines(path))


def test_a_byte_order_mark_is_removed_at_the_start_only(write_file) -> None:
    assert list(read_lines(write_file("a.txt", "a\n\ufeffb"))) == [(1, "a\n"), (2, "\ufeffb")]


def test_an_empty_file_has_no_lines(write_file) -> None:
    assert list(read_lines(write_file("a.txt", ""))) == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            b"ab\nc\xffd\n",
            "^Line 2 of .*: it is not UTF-8: byte 0xff at column 2. Save the file as",
        ),
        (b"\xef\xbb\xbfte\xe9", "^Line 1 .* byte 0xe9 at column 3"),
        (b"a\n\xe2\x80\n", "^Line 2 .* byte 0xe2 at column 1"),
    ],
    ids=["second-line", "after-a-mark", "cut-by-a-line-end"],
)
def test_the_position_of_a_byte_that_is_not_utf8_is_reported(
    tmp_path: Path, content: bytes, message: str
) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(content)
    with pytest.raises(DataFileError, match=message):
        list(read_lines(path))


def test_lines_before_one_that_is_not_utf8_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"a\n\xff\n")
    assert next(read_lines(path)) == (1, "a\n")


def test_messages_count_and_name_rows(write_file) -> None:
    assert counted(2, "query") == "2 queries"
    assert (counted(0, "row"), counted(1, "row"), counted(2, "batch")) == (
        "0 rows",
        "1 row",
        "2 batches",
    )
    path = str(write_file("a.txt", "a"))
    assert row_name(path, 3) == f"Line 3 of `{path}`"
    assert row_name("hub:a@b", 3) == "Row 3 of `hub:a@b`"


def test_a_missing_file_and_a_directory_are_refused(tmp_path: Path, write_file) -> None:
    path = write_file("a.txt", "a")
    assert existing_file(str(path)) == path
    with pytest.raises(DataFileError, match=r"Data file `.*none\.txt` does not exist\. Check"):
        existing_file(str(tmp_path / "none.txt"))
    with pytest.raises(DataFileError, match=r"is a directory, not a file\. Check the path"):
        existing_file(str(tmp_path))
    with pytest.raises(DataFileError, match=r"none\.txt` cannot be read: .*Name another file"):
        list(read_lines(tmp_path / "none.txt"))


def test_rows_of_parquet_have_numbers_and_no_lines(tmp_path: Path) -> None:
    pyarrow = import_pyarrow()
    path = tmp_path / "a.parquet"
    rows = [{"tokens": ["the", "cat"], "id": 1}, {"tokens": None, "id": 2}]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    assert list(read_records(str(path))) == list(enumerate(rows, start=1))
    assert row_name(str(path), 2) == f"Row 2 of `{path}`"


def test_json_rows_skip_blank_lines(write_file) -> None:
    path = str(write_file("a.jsonl", '\n{"a": 1}\r\n \t\n{"b": "\u2028"}'))
    assert list(read_records(path)) == [
        (2, {"a": 1}),
        (4, {"b": "\u2028"}),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "{}\n[1]",
            r"^Line 2 of `.*a\.jsonl`: it must be a JSON object, got list\. Correct the row",
        ),
        ("null", "^Line 1 .* must be a JSON object, got null"),
        ("\n{", r"^Line 2 of `.*a\.jsonl`: it is not JSON: .* at character 2\. Correct the row\."),
        ("[" * 100_000, "^Line 1 .* is not JSON"),
    ],
    ids=["list", "null", "cut", "deep"],
)
def test_a_line_that_is_not_an_object_is_refused(write_file, text: str, message: str) -> None:
    with pytest.raises(DataFileError, match=message):
        list(read_records(str(write_file("a.jsonl", text))))


def test_errors_about_a_whole_file_name_no_line() -> None:
    assert json_object('{\n"a": 1}\n', "a.json") == {"a": 1}
    with pytest.raises(
        DataFileError, match=r"^File `a\.json`: it is not JSON: .* at line 2, character 4\. "
    ):
        json_object('{\n"a"', "a.json")
    with pytest.raises(
        DataFileError, match=r"^File `a\.json`: it must be a JSON object, got str\."
    ):
        json_object('"a"', "a.json")


@pytest.mark.parametrize(
    ("text", "escape"),
    [
        (r'"\ud800"', r"\ud800"),
        (r'"\uDBFF rain"', r"\uDBFF"),
        (r'"\udc00"', r"\udc00"),
        (r'"\ude00\ud83d"', r"\ude00"),
        (r'"\ud83d\ud83d\ude00"', r"\ud83d"),
        (r'"\\\ud800"', r"\ud800"),
        (r'{"\uDFFF": 1}', r"\uDFFF"),
        (r'[{"a": ["\n\u0041\ud83d\ude00", "\ud83d", "\ude00"]}]', r"\ud83d"),
    ],
    ids=["high", "upper", "low", "swapped", "high-pair", "backslash", "name", "two-strings"],
)
def test_half_of_a_surrogate_pair_is_refused(text: str, escape: str) -> None:
    message = (
        rf"^Line 3 of `a\.jsonl`: it contains half of a surrogate pair, {re.escape(escape)} at "
        r"character \d+, which is not a character\. Correct the row\.$"
    )
    with pytest.raises(DataFileError, match=message):
        load_json(text, "a.jsonl", line=3)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (r'"\ud83d\ude00"', "\U0001f600"),
        (r'"\uD83D\uDE00 \ud83d\uDe00"', "\U0001f600 \U0001f600"),
        (r'"\\ud800"', r"\ud800"),
        (r'"\\\\udc00 \" \u00e9 \ud7ff \ue000"', '\\\\udc00 " \u00e9 \ud7ff \ue000'),
    ],
    ids=["pair", "case", "escaped", "several"],
)
def test_valid_escapes_are_read(text: str, value: str) -> None:
    assert load_json(text, "a.jsonl", line=1) == value


def test_half_of_a_surrogate_pair_in_a_whole_file_is_reported_with_its_line() -> None:
    with pytest.raises(
        DataFileError, match=r"half of a surrogate pair, \\ud83d at line 3, character 2,"
    ):
        load_json('{"a":\n["\\ud83d\\ude00",\n"\\ud83d"]\n}', "a.json")
