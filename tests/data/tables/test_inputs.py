"""Reading rows: formats, places of bad rows, and which files are read."""

from __future__ import annotations

import dataclasses
import errno
import gzip
import io
import json
import logging
import os
import sys
import threading
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qdqbert.common.errors import DataFileError, MissingExtraError, UserInputError
from qdqbert.common.storage import place_of
from qdqbert.data.tables import inputs, parquet
from qdqbert.data.tables.inputs import open_source, unchanged
from qdqbert.data.tables.rows import BadRow, Row


@pytest.fixture
def write(tmp_path) -> Callable[[str, bytes], Path]:
    def write(name: str, content: bytes) -> Path:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
        return path

    return write


def read(name: object, **options: Any) -> list[tuple[int, Any]]:
    """Return the number of each row with its values, or with what is wrong with it."""
    return [
        (row.number, row.reason if isinstance(row, BadRow) else dict(row.values))
        for row in open_source(str(name), **options).rows()
    ]


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.txt", "one\r\n\ntwo\u2028three", ["one", "", "two\u2028three"]),
        ("a.csv", 'id,text\n1,"one, ""two"""\n', [{"id": "1", "text": 'one, "two"'}]),
        ("a.tsv", 'id\ttext\n1\tsay "no\n', [{"id": "1", "text": 'say "no'}]),
        ("a.jsonl", '{"text": "one", "n": 1}\n\n"two"\n', [{"text": "one", "n": 1}, "two"]),
        ("a.ndjson.gz", '{"text": "one"}\n', [{"text": "one"}]),
        ("a.txt.gz", "one\ntwo\n", ["one", "two"]),
        ("a.csv", "\ufeffid,text\n1,one\n", [{"id": "1", "text": "one"}]),
        ("a.csv", "", []),
        ("a.csv", 'id;text\n1;"one; two, three"\n', [{"id": "1", "text": "one; two, three"}]),
        ("a.csv", "\n\nid\ttext\n1\tone\n", [{"id": "1", "text": "one"}]),
        ("a.csv.gz", "id|text\n1|one\n", [{"id": "1", "text": "one"}]),
        ("a.csv", "text\none; two\n", [{"text": "one; two"}]),
        ("a.csv", "a;b,text\n1,one; two\n", [{"a;b": "1", "text": "one; two"}]),
        ("a.csv", '"a;b"\none\n', [{"a;b": "one"}]),
        ("a.csv", ",text\n0,one\n", [{"index": "0", "text": "one"}]),
        ("a.tsv", "\tindex\n0\tone\n", [{"Unnamed: 0": "0", "index": "one"}]),
        ("a.csv", "Unnamed: 0,text\n0,one\n", [{"Unnamed: 0": "0", "text": "one"}]),
        ("a.csv", "sep=;\r\nid;text\r\n1;a, b\r\n", [{"id": "1", "text": "a, b"}]),
        ("a.csv", '"my;\ntext",id\none,1\n', [{"my;\ntext": "one", "id": "1"}]),
        ("a.csv", '"my,\n\n""text";id\none;1\n', [{'my,\n\n"text': "one", "id": "1"}]),
        ("a.csv", '5" disk;12" disk\none;1\n', [{'5" disk': "one", '12" disk': "1"}]),
        ("a.csv", "\ufeffsep=^\nid^text\n1^one\n", [{"id": "1", "text": "one"}]),
    ],
)
def test_rows_of_each_format(write, name, content, expected) -> None:
    found = read(write(name, content.encode()))
    rows = [each if isinstance(each, dict) else {"text": each} for each in expected]
    assert [values for _, values in found] == rows


@pytest.mark.parametrize(
    ("name", "content"),
    [("a.csv", b'one,"1"\n\ntwo\nthree,3\n'), ("a.tsv", b"one\t1\n\ntwo\nthree\t3")],
)
def test_columns_are_numbered_without_a_header(write, name, content) -> None:
    path = write(name, content)
    assert read(path, header=False) == [
        (1, {"0": "one", "1": "1"}),
        (3, "it has 1 field, and the first row has 2"),
        (4, {"0": "three", "1": "3"}),
    ]
    assert read(write(name, b""), header=False) == []


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("a.txt", ["one", "two"]),
        ("a.csv", ["text", "one", '"two"']),
        ("a.tsv", ["text", "one", "two"]),
        ("a.jsonl", ['"one"', '{"text": "two"}']),
        ("a.txt.gz", ["one", "two"]),
    ],
)
def test_lines_end_in_any_way(write, name, lines, end, last) -> None:
    content = end.join(lines) + (end if last else "")
    found = read(write(name, content.encode()))
    first = len(lines) - 1
    assert found == [(first, {"text": "one"}), (first + 1, {"text": "two"})]


@pytest.mark.parametrize(
    ("name", "content", "names"),
    [
        ("a.csv", b"id,text\n", ("id", "text")),
        ("a.tsv", b"id\ttext\n1\tone\n", ("id", "text")),
        ("a.txt", b"", ("text",)),
        ("a.jsonl", b"", None),
        ("a.csv", b"", None),
    ],
)
def test_the_columns_are_known_without_rows(write, name, content, names) -> None:
    header = open_source(str(write(name, content))).start(5).header
    assert (None if header is None else header.names) == names


def test_only_formats_with_a_header_can_be_without_one(write) -> None:
    with pytest.raises(UserInputError, match="`header=False` applies to csv and tsv only") as found:
        open_source(str(write("a.txt", b"one\n")), header=False)
    assert found.value.argument == "header"


def test_a_row_has_the_number_of_its_first_line(write) -> None:
    path = write("a.csv", b'text\n"one\ntwo"\n\nthree\n')
    assert read(path) == [(2, {"text": "one\ntwo"}), (5, {"text": "three"})]


@pytest.mark.parametrize(
    ("name", "content", "number", "reason"),
    [
        ("a.txt", b"one\ntw\xff\nthree\n", 2, "it is not UTF-8: byte 0xff at column 3"),
        ("a.csv", b"text\n\xe9t\xe9\nthree\n", 2, "it is not UTF-8: byte 0xe9 at column 1"),
        ("a.csv", b"a,b\n1,2,3\n4,5\n", 2, "it has 3 fields, and the header has 2"),
        ("a.csv", b"a,b\n1\n4,5\n", 2, "it has 1 field, and the header has 2"),
        ("a.csv", b'text\n"a"b\nthree\n', 2, "it is not CSV: ',' expected after '\"'"),
        ("a.tsv", b"a\tb\n1\n4\t5\n", 2, "it has 1 field, and the header has 2"),
        ("a.jsonl", b'"one"\n{"a": \n"two"\n', 2, "it is not JSON: Expecting value"),
        ("a.jsonl", b'"one"\n[1]\n"two"\n', 2, "it must be a JSON object or a string, got list"),
        ("a.jsonl", b'"one"\n"\\ud83d"\n"two"\n', 2, "it contains half of a surrogate pair"),
        ("a.jsonl", b'"one"\n"\xff"\n"two"\n', 2, "it is not UTF-8: byte 0xff at column 2"),
        ("a.jsonl", b'"one"\n{"a": {"b": 1, "b": 2}}\n"two"\n', 2, "it has two fields 'b'"),
    ],
)
def test_reading_goes_on_after_a_bad_row(write, name, content, number, reason) -> None:
    bad = [(line, value) for line, value in read(write(name, content)) if isinstance(value, str)]
    assert [line for line, _ in bad] == [number]
    assert bad[0][1].startswith(reason)
    assert len(read(write(name, content))) > 1


def test_a_stray_carriage_return_is_described_without_the_advice_to_programmers(write) -> None:
    found = read(write("a.csv", b"text\none\rtwo\nthree\n"))
    assert found[0] == (2, "it is not CSV: new-line character seen in unquoted field")


def test_an_unclosed_quote_is_a_bad_row(write) -> None:
    found = read(write("a.csv", b'text\none\n"two\nthree\n'))
    assert found == [(2, {"text": "one"}), (3, "it is not CSV: unexpected end of data")]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"text,text\none,two\n", "different names of columns with commas between them, got"),
        (b"text,\none,two\n", "different names of columns"),
        (b",,text\none,two,three\n", "different names of columns"),
        ("text\none\n".encode("utf-16"), "`.*` must be UTF-8, got UTF-16. Save it as UTF-8."),
        ("text\none\n".encode("utf-16-be"), "must be UTF-8, got UTF-16 or no text"),
        ("text\none\n".encode("utf-32"), "must be UTF-8, got UTF-32. Save it"),
        (b"t\xff\none\n", r"Line 1 of `.*`: it is not UTF-8"),
    ],
)
def test_a_header_that_cannot_be_used_is_reported(write, content, message) -> None:
    with pytest.raises(DataFileError, match=message):
        read(write("a.csv", content))


def test_files_of_folders_and_patterns_are_read_by_name(write, tmp_path) -> None:
    for name in ("b.txt", "a.txt.gz", ".hidden.txt", "_SUCCESS"):
        write(f"folder/{name}", f"{name} 1\n{name} 2\n".encode())
    expected = [
        (line, {"text": f"{name} {line}"}) for name in ("a.txt.gz", "b.txt") for line in (1, 2)
    ]
    assert read(tmp_path / "folder") == expected
    assert read(tmp_path / "folder" / "*.txt*") == expected
    assert read(write("a[1].txt", b"one\n")) == [(1, {"text": "one"})]


# What a folder has, and whether it is read as a folder and by a pattern of all files.
_KINDS = {
    "a.txt": (True, True),
    "k=1/b.txt": (True, True),
    "k=2/l=x/c.txt": (True, True),
    "more/d.txt": (False, True),
    "k=1/deep/er/e.txt": (False, True),
    "pictures/of/e.png": (False, False),
    ".hidden.txt": (False, False),
    "_temporary/f.txt": (False, False),
    "more/_g.txt": (False, False),
    "_k=1/h.txt": (False, False),
    "k=3_$folder$": (False, False),
}


@pytest.mark.parametrize("kind", ["local", "memory", "in a hidden folder"])
def test_what_is_read_of_a_folder(tmp_path, caplog, kind) -> None:
    root = "memory://kinds/in" if kind == "memory" else f"{tmp_path}/in"
    if kind == "in a hidden folder":
        root = f"{tmp_path}/.cache/in"
    for name in _KINDS:
        place = place_of(f"{root}/{name}")
        if isinstance(place, Path):
            place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(b"one\n")
    caplog.set_level(logging.WARNING, "qdqbert")
    source = open_source(root)
    assert unchanged(source, root, json.loads(json.dumps(source.identity())))
    (note,) = caplog.messages
    pattern = f"{root}/**/*.txt"
    assert note == (
        f"`input={root!r}`: Folders in it whose names are no partitions (COLUMN=VALUE) are left "
        f"out: '{root}/k=1/deep', '{root}/more'. To read them, too, pass the pattern {pattern!r}."
    )
    for index, each in enumerate([source, open_source(pattern)]):
        found = {file.name.removeprefix(f"{root}/") for file in each.files}
        assert found == {name for name, read in _KINDS.items() if read[index]}
    assert len(caplog.messages) == 1


def test_a_folder_with_files_in_its_folders_only_says_how_they_are_read(write, tmp_path) -> None:
    for name in "abcd":
        write(f"{name}/x.txt", b"one\n")
    message = (
        r"has no files\. Folders .* '.*/a', '.*/b', '.*/c' and 1 more\. .* pattern '.*/\*\*/\*'"
    )
    with pytest.raises(DataFileError, match=message):
        open_source(str(tmp_path))
    assert len(open_source(f"{tmp_path}/**/*").files) == 4


@pytest.mark.parametrize("root", ["{}", "memory://folders"])
def test_names_of_folders_that_are_not_utf8_are_not_made_one(tmp_path, root) -> None:
    root = root.format(tmp_path)
    for value in ("k=%FF", "k=%FE"):
        place = place_of(f"{root}/{value}/a.txt")
        if isinstance(place, Path):
            place.parent.mkdir()
        place.write_bytes(b"one\n")
    with pytest.raises(DataFileError, match=r"folder 'k=%F.' .* bytes that are not UTF-8"):
        open_source(root)


def test_a_file_of_a_folder_whose_name_is_not_utf8_is_named(tmp_path) -> None:
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/a\xff.txt")).touch()
    with pytest.raises(DataFileError, match=r"has the file '.*/a\\udcff\.txt', whose name is not"):
        open_source(str(tmp_path))


def test_positions_of_rows_grow_up_to_the_size(write, tmp_path) -> None:
    for name in ("b.txt", "a.txt"):
        write(f"folder/{name}", b"one\ntwo\n")
    source = open_source(str(tmp_path / "folder"))
    assert [row.position for row in source.rows()] == [4, 8, 12, 16]
    assert source.size == 16


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("folder", "All files of .* must have one format, got a.csv and b.txt"),
        ("missing.csv", "does not exist"),
        ("*.jsonl", "does not exist"),
        ("empty", "has no files"),
        ("unknown.c", r"must end in one of \.txt, \.csv, .*pass `input_format`"),
        ("table.parquet.gz", "must end in one of"),
        ("broken.parquet", "is not a Parquet file"),
        ("broken.txt.gz", r"cannot be read: Not a gzipped file"),
    ],
)
def test_files_that_cannot_be_read_are_reported(write, tmp_path, name, message) -> None:
    for each in ("folder/a.csv", "folder/b.txt", "table.parquet.gz", "broken.parquet", "unknown.c"):
        write(each, b"text\n")
    (tmp_path / "broken.txt.gz").write_bytes(b"text\n")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataFileError, match=message):
        read(tmp_path / name)


def test_the_format_can_be_given(write) -> None:
    assert read(write("a.log", b"one\n"), format="txt") == [(1, {"text": "one"})]


def test_stdin_is_jsonl_unless_another_format_is_given(monkeypatch) -> None:
    def type_in(content: bytes) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))

    type_in(b'"one"\n')
    assert read("-") == [(1, {"text": "one"})]
    type_in(b"one\n")
    assert read("-", format="txt") == [(1, {"text": "one"})]
    with pytest.raises(UserInputError, match="stdin can be txt, csv, tsv or jsonl"):
        open_source("-", "parquet")


def test_a_file_that_vanishes_is_reported(write, tmp_path) -> None:
    for name in ("folder/a.txt", "folder/b.txt"):
        write(name, b"one\n")
    rows = open_source(str(tmp_path / "folder")).rows()
    next(rows)
    (tmp_path / "folder" / "b.txt").unlink()
    with pytest.raises(DataFileError, match=r"b.txt` does not exist any more"):
        next(rows)


def test_files_are_identified_by_size_time_start_and_end(write) -> None:
    path = write("a.txt", b"x" * 200_000)
    before = open_source(str(path)).identity()
    (name,) = before
    assert str(path) in name
    assert open_source(str(path)).identity() == before
    with path.open("r+b") as file:
        file.write(b"y")
    after = open_source(str(path)).identity()
    assert after[name][2] != before[name][2]
    assert after[name][0] == 200_000


def test_parquet_needs_pyarrow(write, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'qdqbert\[parquet\]'"):
        read(write("a.parquet", b""))


@pytest.mark.parametrize("where", ["local", "memory"])
@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ([("id", "int64"), ("text", "int64")], "column 'text' is int64, and string in"),
        ([("id", "int64")], "column 'text' is missing, and string in"),
        ([("text", "string")], "column 'id' is missing, and int64 in"),
        ([("text", "string"), ("id", "int64")], "columns have another order than in"),
        (
            [("id", "int64"), ("text", "string"), ("x", "int8")],
            "column 'x' is int8, and missing in",
        ),
        ([("id", "int64"), ("text", "no")], "column 'text' is string without nulls, and string in"),
    ],
)
def test_a_file_with_other_columns_is_named_or_left_out(tmp_path, where, columns, reason) -> None:
    pa = parquet.import_pyarrow()
    root = str(tmp_path) if where == "local" else f"memory://{tmp_path.name}"
    usual = pa.schema([("id", pa.int64()), ("text", pa.string())])
    kinds = {"int64": pa.int64(), "string": pa.string(), "int8": pa.int8(), "no": pa.string()}
    odd = pa.schema([pa.field(name, kinds[kind], kind != "no") for name, kind in columns])
    for name, schema in (("a", usual), ("b", odd), ("c", usual)):
        values = {"text": ["1", "2", "3"], "id": [1, 2, 3], "x": [1, 2, 3]}
        arrays = [pa.array(values[each.name]).cast(each.type) for each in schema]
        buffer = pa.BufferOutputStream()
        pa.parquet.write_table(pa.table(arrays, schema=schema), buffer, row_group_size=2)
        place_of(f"{root}/{name}.parquet").write_bytes(buffer.getvalue().to_pybytes())
    with pytest.raises(DataFileError, match=rf"`.*b\.parquet` {reason} `.*a\.parquet`\. Run it"):
        read(root)
    source = open_source(root, skips_damage=True)
    rows = list(source.rows())
    assert [(Path(row.file).stem, row.number) for row in rows] == [
        *(("a", number) for number in (1, 2, 3)),
        ("b", 1),
        *(("c", number) for number in (1, 2, 3)),
    ]
    bad = rows[3]
    assert isinstance(bad, BadRow)
    assert (bad.last, bad.rows) == (3, 3)
    assert bad.reason.startswith(reason)
    assert source.place(bad) == f"Rows 1 to 3 of `{bad.file}`"
    assert [row.position for row in rows] == sorted(row.position for row in rows)
    # Reading goes on after any row, and each shard has its part.
    header = source.start(1).header
    known = dataclasses.replace(source, first=header.columns if header else None)
    for count, row in enumerate(rows, start=1):
        cursor = known.cursor(row.file, row.last or row.number, row.position)
        assert list(known.rows(cursor)) == rows[count:]
    for count in (2, 4, 9):
        parts = [row for index in range(count) for row in known.shard(index, count).rows()]
        numbers = [
            (row.file, number)
            for row in parts
            for number in range(row.number, (row.last or row.number) + 1)
        ]
        assert numbers == [(f"{root}/{n}.parquet", i) for n in "abc" for i in (1, 2, 3)]


def test_rows_are_not_read_ahead(write) -> None:
    source = open_source(str(write("a.txt", b"one\n" * 100_000)))
    rows = source.rows()
    first = next(rows)
    assert isinstance(first, Row)
    assert first[1:] == (1, {"text": "one"}, 4, 0)


_TEXTS = {
    "txt": ("a.txt", b"one\n\ntwo\nthree\nfour"),
    "txt, byte order mark": ("a.txt", b"\xef\xbb\xbfone\r\ntwo\r\nthree\r\n"),
    "txt, carriage returns": ("a.txt", b"one\rtwo\rthree\r"),
    "txt, compressed": ("a.txt.gz", b"one\ntwo\nthree\n"),
    "jsonl": ("a.jsonl", b'{"text": "one"}\n\n"two"\n{\n"three"\n'),
    "csv, lines in cells": ("a.csv", b'id,text\n1,"a\n\nb"\n\n2,c\n3,"d\ne"\n4,f\n'),
    "csv, a bad row": ("a.csv", b"id,text\n1,a\n2\n3,c\n"),
    "csv, a separator": ("a.csv", b"sep=;\nid;text\n1;a\n2;b\n3;c\n"),
    "csv, blank lines first": ("a.csv", b"\n\nid,text\n1,a\n2,b\n"),
    "csv, compressed": ("a.csv.gz", b'id,text\n1,"a\nb"\n2,c\n'),
    "tsv": ("a.tsv", b"id\ttext\n1\ta\n\n2\tb\n3\tc\n"),
    "tsv, no row": ("a.tsv", b"id\ttext\n"),
}


@pytest.mark.parametrize("header", [True, False])
@pytest.mark.parametrize("kind", _TEXTS)
def test_reading_goes_on_after_any_row(write, kind, header) -> None:
    name, content = _TEXTS[kind]
    if not header and name.split(".")[1] not in ("csv", "tsv"):
        pytest.skip("has no header")
    source = open_source(str(write(name, content)), header=header)
    rows = list(source.rows())
    for count, row in enumerate(rows, start=1):
        cursor = source.cursor(row.file, row.last or row.number, row.position)
        assert list(source.rows(cursor)) == rows[count:]


def test_reading_goes_on_in_a_later_file(write, tmp_path) -> None:
    for name in "abc":
        write(f"in/{name}.csv", b"text\none\ntwo\n")
    source = open_source(str(tmp_path / "in"))
    rows = list(source.rows())
    for count, row in enumerate(rows, start=1):
        cursor = source.cursor(row.file, row.last or row.number, row.position)
        assert list(source.rows(cursor)) == rows[count:]


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "txt", "parquet"])
def test_rows_before_the_place_are_not_read(write, tmp_path, suffix, monkeypatch) -> None:
    lines = 40_000
    if suffix == "parquet":
        pa = parquet.import_pyarrow()
        texts = [f"{index:09d}" for index in range(lines)]
        path = tmp_path / "a.parquet"
        pa.parquet.write_table(
            pa.table({"text": texts}),
            path,
            row_group_size=1000,
            compression="none",
            use_dictionary=False,
        )
    else:
        line = '"{:09d}"\n' if suffix == "jsonl" else "{:09d}\n"
        content = "".join(line.format(index) for index in range(lines))
        path = write(f"a.{suffix}", f"{'text' if suffix == 'csv' else ''}\n{content}".encode())
    source = open_source(str(path))
    rows = list(source.rows())
    read = 0

    class Counting(io.FileIO):
        def readinto(self, buffer: Any) -> int:
            nonlocal read
            count = super().readinto(buffer)
            read += count or 0
            return count or 0

    def open_counting(place: Any) -> Any:
        return io.BufferedReader(Counting(place, "rb"), 1 << 13)

    monkeypatch.setattr(inputs, "open_place", open_counting)
    monkeypatch.setattr(parquet, "open_place", open_counting)
    row = rows[-11]
    cursor = source.cursor(row.file, row.last or row.number, row.position)
    found = [dict(each.values) for each in source.rows(cursor)]  # type: ignore[union-attr]
    assert found == [dict(each.values) for each in rows[-10:]]  # type: ignore[union-attr]
    assert 0 < read < path.stat().st_size / 4


def test_parquet_goes_on_after_any_row(tmp_path) -> None:
    pa = parquet.import_pyarrow()
    path = tmp_path / "a.parquet"
    pa.parquet.write_table(pa.table({"text": [f"t{i}" for i in range(11)]}), path, row_group_size=4)
    source = open_source(str(path))
    rows = list(source.rows())
    assert [row.position for row in rows] == sorted(row.position for row in rows)
    assert rows[-1].position == path.stat().st_size
    for count, row in enumerate(rows, start=1):
        cursor = source.cursor(row.file, row.number, row.position)
        found = list(source.rows(cursor))
        assert [each.number for each in found] == list(range(count + 1, 12))
        assert [dict(each.values)["text"] for each in found] == [f"t{i}" for i in range(count, 11)]


def damaged_parquet(path: Path) -> None:
    """Write three row groups of four rows, of which the second one is damaged."""
    pa = parquet.import_pyarrow()
    texts = [f"text number {index} of the file" for index in range(12)]
    table = pa.table({"text": texts})
    pa.parquet.write_table(table, path, row_group_size=4, compression="none", use_dictionary=False)
    content = path.read_bytes()
    start = content.index(texts[4].encode()) - 60
    path.write_bytes(content[:start] + b"\xff" * 80 + content[start + 80 :])


def test_the_row_group_that_is_damaged_is_named(tmp_path) -> None:
    path = tmp_path / "a.parquet"
    damaged_parquet(path)
    message = rf"Rows 5 to 8 of `{path}`, in row group 1 cannot be read: .* `on_error='skip'`"
    with pytest.raises(DataFileError, match=message):
        read(path)


def test_reading_goes_on_after_a_row_group_that_is_damaged(tmp_path) -> None:
    path = tmp_path / "a.parquet"
    damaged_parquet(path)
    source = open_source(str(path), skips_damage=True)
    rows = list(source.rows())
    assert [row.number for row in rows] == [1, 2, 3, 4, 5, 9, 10, 11, 12]
    (bad,) = [row for row in rows if isinstance(row, BadRow)]
    assert (bad.number, bad.last, bad.rows) == (5, 8, 4)
    assert bad.reason.startswith("in row group 1 cannot be read: ")
    assert source.place(bad) == f"Rows 5 to 8 of `{path}`"
    cursor = source.cursor(bad.file, bad.last, bad.position)
    assert [row.number for row in source.rows(cursor)] == [9, 10, 11, 12]


@pytest.mark.parametrize(
    ("name", "content", "before"),
    [
        ("b.txt.gz", gzip.compress(b"one\n" * 5000, mtime=0)[:-30], None),
        ("b.txt.gz", b"no gzip", 0),
        ("b.csv", b'\xff\xfe"\x00', 0),
        ("b.parquet", b"PAR1 and nothing", 0),
    ],
)
def test_reading_goes_on_after_a_file_that_is_damaged(tmp_path, name, content, before) -> None:
    suffix = name.partition(".")[2]
    pa = parquet.import_pyarrow()
    for good in ("a", "c"):
        path = tmp_path / f"{good}.{suffix}"
        if suffix == "parquet":
            pa.parquet.write_table(pa.table({"text": [good]}), path)
        else:
            text = f"text\n{good}\n".encode() if suffix == "csv" else f"{good}\n".encode()
            path.write_bytes(gzip.compress(text) if suffix.endswith("gz") else text)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataFileError, match=name):
        read(tmp_path)
    source = open_source(str(tmp_path), skips_damage=True)
    rows = list(source.rows())
    (bad,) = [row for row in rows if isinstance(row, BadRow)]
    assert bad.file == str(tmp_path / name)
    assert before is None or bad.number == before + 1
    kind = "row" if suffix == "parquet" else "line"
    assert source.place(bad) == f"`{bad.file}` from {kind} {bad.number} on"
    good_rows = [dict(row.values)["text"] for row in rows if isinstance(row, Row)]
    assert (good_rows[0], good_rows[-1]) == ("a", "c")
    assert [row.position for row in rows] == sorted(row.position for row in rows)
    cursor = source.cursor(bad.file, bad.last, bad.position)
    assert [dict(row.values) for row in source.rows(cursor)] == [{"text": "c"}]  # type: ignore[union-attr]


@pytest.mark.parametrize("where", ["local", "memory"])
@pytest.mark.parametrize("suffix", ["txt", "txt.gz", "parquet"])
@pytest.mark.parametrize(
    ("error", "is_damage"),
    [
        (FileNotFoundError(errno.ENOENT, "No such file"), {"local": False, "memory": False}),
        (PermissionError(errno.EACCES, "Forbidden"), {"local": False, "memory": False}),
        (ConnectionResetError(errno.ECONNRESET, "Reset"), {"local": False, "memory": False}),
        (TimeoutError("No answer"), {"local": False, "memory": False}),
        # A bad sector of a disk, or storage that fails.
        (OSError(errno.EIO, "Input/output error"), {"local": True, "memory": False}),
        (RuntimeError("of a library"), {"memory": False}),
        (OSError("Corrupt snappy compressed data."), {"local": True, "memory": True}),
        (zlib.error("incorrect data check"), {"local": True, "memory": True}),
        (EOFError("ended before the end-of-stream"), {"local": True, "memory": True}),
    ],
)
def test_a_file_that_cannot_be_reached_is_not_skipped_as_a_damaged_one(
    tmp_path, monkeypatch, where, suffix, error, is_damage
) -> None:
    if where not in is_damage or (suffix == "parquet" and isinstance(error, EOFError | zlib.error)):
        pytest.skip("does not happen")
    pa = parquet.import_pyarrow()
    root = str(tmp_path) if where == "local" else f"memory://{tmp_path.name}"
    buffer = pa.BufferOutputStream()
    pa.parquet.write_table(pa.table({"text": ["one"] * 4}), buffer)
    content = {"txt": b"one\n" * 4, "txt.gz": gzip.compress(b"one\n" * 4)}
    content["parquet"] = buffer.getvalue().to_pybytes()
    for name in "abc":
        place_of(f"{root}/{name}.{suffix}").write_bytes(content[suffix])
    open_file = inputs.open_place

    class Failing(io.BytesIO):
        def _fail(self, *_: Any) -> Any:
            # The end of a file of Parquet can be read.
            if suffix != "parquet" or self.tell() < 8:
                raise error
            return super().read(*_)

        read = readinto = readline = __next__ = _fail  # type: ignore[assignment]

    def opened(place: Any) -> Any:
        return Failing(content[suffix]) if place.stem.startswith("b") else open_file(place)

    monkeypatch.setattr(inputs, "open_place", opened)
    monkeypatch.setattr(parquet, "open_place", opened)
    source = open_source(root, skips_damage=True)
    if not is_damage[where]:
        with pytest.raises(DataFileError, match=rf"b\.{suffix}` (cannot be read|does not exist)"):
            list(source.rows())
        return
    rows = list(source.rows())
    assert [Path(row.file).name[0] for row in rows if isinstance(row, Row)] == [*"aaaacccc"]
    assert [Path(row.file).name[0] for row in rows if isinstance(row, BadRow)] == ["b"]


def test_a_pipe_is_read_to_its_end(tmp_path) -> None:
    path = tmp_path / "pipe.txt"
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_text, args=("one\ntwo\n",))
    writer.start()
    source = open_source(str(path))
    assert [dict(row.values) for row in source.rows()] == [{"text": "one"}, {"text": "two"}]  # type: ignore[union-attr]
    writer.join()


def test_a_quote_that_is_not_closed_counts_all_lines_that_it_takes(write) -> None:
    path = write("a.csv", b'text\n"one" x\ntwo\n"three\nfour\nfive\n')
    source = open_source(str(path), skips_damage=True)
    bad = [row for row in source.rows() if isinstance(row, BadRow)]
    assert sum(row.rows for row in bad) + sum(isinstance(r, Row) for r in source.rows()) == 5


def test_one_text_that_is_not_utf8_is_one_bad_value(tmp_path) -> None:
    pa = parquet.import_pyarrow()
    buffers = pa.array([b"one", b"a\xff", b"two"], pa.binary()).view(pa.string())
    pa.parquet.write_table(pa.table({"text": buffers}), tmp_path / "a.parquet")
    values = [row.values["text"] for row in open_source(str(tmp_path / "a.parquet")).rows()]  # type: ignore[union-attr]
    assert values[0] == "one"
    assert values[2] == "two"
    assert not isinstance(values[1], str)


@pytest.mark.parametrize("name", ["in", "in/*.txt"])
def test_a_link_to_nothing_is_named(tmp_path, write, name) -> None:
    write("in/a.txt", b"one\n")
    (tmp_path / "in/b.txt").symlink_to(tmp_path / "gone.txt")
    with pytest.raises(DataFileError, match=r"b\.txt` is a link to '.*gone\.txt', which does not"):
        open_source(f"{tmp_path}/{name}")
