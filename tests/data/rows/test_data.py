from __future__ import annotations

import csv
import dataclasses
import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from qdqbert.common.errors import DataFileError
from qdqbert.data.rows.data import (
    Columns,
    Example,
    check_each,
    check_readable,
    digest_examples,
    read_dataset,
)
from qdqbert.data.tables.parquet import import_pyarrow

Write = Callable[[str, str | bytes], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write_file(name: str, content: str | bytes) -> Path:
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write_file


def _tuples(path: Path, **options) -> list[tuple[str | None, ...]]:
    examples = read_dataset(path, **options).examples
    return [(example.text, example.text_pair, example.label) for example in examples]


# Formats.


def test_each_line_of_a_txt_file_is_a_text_and_blank_lines_are_counted(write: Write) -> None:
    dataset = read_dataset(write("a.txt", "one, 1\n\n  \ntwo\tx\r\n"))
    assert dataset.examples == (Example(text="one, 1"), Example(text="two\tx"))
    assert dataset.columns == Columns()
    assert dataset.notices == ("2 rows with a blank text: skipped (first at line 2).",)


def test_txt_that_starts_with_many_blank_lines_is_read(write: Write) -> None:
    assert _tuples(write("a.txt", "\n" * 50 + "one\n")) == [("one", None, None)]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.txt", "one\rtwo\r"),
        ("a.csv", "text\rone\rtwo"),
        ("a.tsv", "text\rone\rtwo\r"),
        ("a.jsonl", '{"text": "one"}\r{"text": "two"}'),
        ("a.csv", "sep=;\nid;text\n1;one\n2;two\n"),
        ("a.csv", '"id,\n";text\n1;one\n2;two\n'),
    ],
)
def test_lines_of_old_programs_and_of_excel_are_read(write: Write, name, content) -> None:
    assert [text for text, _, _ in _tuples(write(name, content))] == ["one", "two"]


def test_csv_follows_rfc_quoting(write: Write) -> None:
    path = write("a.csv", 'text,label\r\n"a, ""b""\r\nc",x\r\nd,y\r\n')
    assert _tuples(path) == [('a, "b"\r\nc', None, "x"), ("d", None, "y")]


@pytest.mark.parametrize(
    ("separator", "name"), [(";", "semicolons"), ("\t", "tabs"), ("|", "vertical bars")]
)
def test_csv_with_another_separator_is_read(write: Write, separator: str, name: str) -> None:
    rows = [["text", "label"], ['"a, ""b""; c\td|e"', "1,5"], ["f", ""]]
    path = write("a.csv", "\n".join(separator.join(row) for row in rows))
    dataset = read_dataset(path)
    assert dataset.examples == (Example(text='a, "b"; c\td|e', label="1,5"), Example(text="f"))
    assert dataset.notices == (f"Read columns separated by {name}.",)


@pytest.mark.parametrize(
    ("content", "texts"),
    [
        # Texts of one column, with or without a header.
        ('"a\tb text"\nother\n', ["a\tb text", "other"]),
        ("text\none; two\nthree\n", ["one; two", "three"]),
        ("one; two\nthree\nfour; five\n", ["one; two", "three", "four; five"]),
        ("one; two\nthree; four\n", ["one; two", "three; four"]),
        # Both occur, so that commas count.
        ("text,a;b\nc;d,e\n", ["c;d"]),
    ],
)
def test_other_separators_in_texts_are_text(write: Write, content: str, texts) -> None:
    assert [text for text, _, _ in _tuples(write("a.csv", content))] == texts


def test_rows_without_a_header_show_the_separator_too(write: Write) -> None:
    path = write("a.csv", "one;1\ntwo;0\nthree;1\n")
    assert _tuples(path) == [("one", None, "1"), ("two", None, "0"), ("three", None, "1")]


def test_tsv_with_commas_is_refused(write: Write) -> None:
    with pytest.raises(DataFileError, match=r"separated by ',', expected tabs.*end in \.csv"):
        read_dataset(write("a.tsv", "text,label\na,1\n"))


@pytest.mark.parametrize(
    ("header", "name"),
    [
        (",tweet,target", "index"),
        (",tweet,kind", "index"),
        ("Unnamed: 0,tweet,kind", "Unnamed: 0"),
        ("__index_level_0__,tweet,kind", "__index_level_0__"),
        (",index,tweet", "Unnamed: 0"),
    ],
)
def test_the_index_of_pandas_is_a_column(write: Write, header: str, name: str) -> None:
    path = write("a.csv", f"{header}\n0,first,a\n1,second,b\n")
    dataset = read_dataset(path, columns=Columns(text="1"))
    assert [example.text for example in dataset.examples] == ["first", "second"]
    assert dataset.names[0] == name


def test_the_column_with_the_longest_texts_is_suggested(write: Write) -> None:
    path = write("a.csv", ",id,tweet,author\n0,7,a long text,me\n1,8,,you\n")
    message = "got columns 'index', 'id', 'tweet', 'author'. 'tweet' has the longest texts: pass "
    with pytest.raises(DataFileError, match=f"{message}`text_column='tweet'`"):
        read_dataset(path)
    with pytest.raises(DataFileError, match=r"got columns 'index', 'id'. Pass `text_column`."):
        read_dataset(write("b.csv", ",id\n0,7\n"))


def test_one_long_line_is_reported(write: Write) -> None:
    dataset = read_dataset(write("a.txt", "word " * 4000))
    assert len(dataset) == 1
    assert "is one line of 20,000 characters, and so one text" in dataset.notices[0]
    assert read_dataset(write("b.txt", "word " * 4000 + "\nshort")).notices == ()


def test_tsv_takes_quotes_literally(write: Write) -> None:
    path = write("a.tsv", 'sentence\tlabel\n"open quote\t1\nsay "hi"\t0\r\n')
    assert _tuples(path) == [('"open quote', None, "1"), ('say "hi"', None, "0")]


@pytest.mark.parametrize("suffix", [".jsonl", ".ndjson", ".JSONL"])
def test_json_lines_hold_objects(write: Write, suffix: str) -> None:
    rows = [{"sentence1": "a\u2028b", "sentence2": "c", "score": 1.5}, {}]
    content = "\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    assert _tuples(write("a" + suffix, content)) == [("a\u2028b", "c", "1.5")]


def test_json_lines_hold_strings(write: Write) -> None:
    dataset = read_dataset(write("a.jsonl", '"one"\n\n"two"\n'))
    assert [example.text for example in dataset.examples] == ["one", "two"]
    assert dataset.columns == Columns()


@pytest.mark.parametrize(
    ("value", "label"),
    [
        (["a", "é"], '["a", "é"]'),
        ("x", "x"),
        (True, "True"),
        (3, "3"),
        (0, "0"),
        (0.25, "0.25"),
        (None, None),
        ("", None),
    ],
)
def test_json_label_becomes_a_string(write: Write, value: object, label: str | None) -> None:
    path = write("a.jsonl", json.dumps({"text": "a", "label": value}))
    assert _tuples(path) == [("a", None, label)]


def test_byte_order_mark_is_left_out(write: Write) -> None:
    assert _tuples(write("a.csv", b"\xef\xbb\xbftext,label\na,1\n")) == [("a", None, "1")]


def test_long_csv_text_is_read_and_leaves_the_limit_of_csv_alone(write: Write) -> None:
    limit = csv.field_size_limit()
    path = write("a.csv", "text,label\n" + "x" * (limit + 1) + ",1\n")
    assert len(read_dataset(path).examples[0].text) == limit + 1
    with pytest.raises(DataFileError, match="UTF-8"):
        read_dataset(write("b.csv", b"text\n\xff\n"))
    assert csv.field_size_limit() == limit


def test_max_examples_stops_before_a_later_error(write: Write) -> None:
    content = "text,label\n" + "a,1\n" * 30 + "b\n"
    assert len(_tuples(write("a.csv", content), max_examples=25)) == 25
    with pytest.raises(DataFileError, match="Line 32"):
        read_dataset(write("a.csv", content))


# Columns with a header.


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("label,text", ("text", None, "label")),
        ("id, Sentence1 ,SENTENCE2,score", ("Sentence1", "SENTENCE2", "score")),
        ("question,text,label", ("text", None, "label")),
        ("premise,hypothesis,gold_label", ("premise", "hypothesis", "gold_label")),
        ("query,passage,x", ("query", "passage", None)),
        ("score,label,review", ("review", None, "label")),
        ("question,,context,stars", ("question", "context", "stars")),
        ("Text,text,TEXT,label", ("text", None, "label")),
        ("id,id,text", ("text", None, None)),
    ],
)
def test_known_names_are_inferred_in_order(write: Write, header: str, expected) -> None:
    path = write("a.csv", header + "\n" + ",".join("abcd"[: header.count(",") + 1]) + "\n")
    assert dataclasses.astuple(read_dataset(path).columns) == expected


def test_requested_name_makes_a_row_the_header(write: Write) -> None:
    path = write("a.csv", "foo,bar,baz\na,b,1\n")
    asked = Columns(text="foo", text_pair="bar", label="baz")
    dataset = read_dataset(path, columns=asked)
    assert dataset.examples == (Example(text="a", text_pair="b", label="1"),)
    assert dataset.columns == asked
    assert dataset.notices == ()


def test_requested_column_is_not_inferred_for_another_role(write: Write) -> None:
    path = write("a.csv", "text,sentence2,category\na,b,c\n")
    asked = Columns(text="sentence2", label="text")
    assert read_dataset(path, columns=asked).columns == asked


def test_number_selects_a_column_below_a_header(write: Write) -> None:
    path = write("a.csv", "text,foo\na,b\n")
    assert read_dataset(path, columns=Columns(label="1")).columns.label == "foo"


def test_name_takes_precedence_over_number(write: Write) -> None:
    path = write("a.csv", "1,text,foo\na,b,c\n")
    assert _tuples(path, columns=Columns(label="1")) == [("b", None, "a")]


def test_second_column_with_a_repeated_name_is_selected_by_number(write: Write) -> None:
    path = write("a.csv", "text,text\na,b\n")
    assert _tuples(path, columns=Columns(text_pair="1")) == [("a", "b", None)]


@pytest.mark.parametrize(
    ("header", "columns"),
    [
        ("text,text,label", Columns()),
        ("Text,TEXT,label", Columns()),
        ("text,label,label", Columns()),
        ("id,x,x", Columns(text="x")),
    ],
)
def test_columns_that_could_both_be_meant_are_refused(write: Write, header: str, columns) -> None:
    path = write("a.csv", f"{header}\na,b,c\n")
    with pytest.raises(DataFileError, match=r"each of them could be meant. Rename one, or pass"):
        read_dataset(path, columns=columns)


def test_possible_second_text_that_is_not_read_is_reported(write: Write) -> None:
    path = write("a.tsv", "index\tquestion\tsentence\tlabel\n0\tq\ts\tentailment\n")
    dataset = read_dataset(path)
    assert dataset.columns == Columns(text="sentence", label="label")
    assert dataset.notices == (
        "Read one text per row; 'question' may hold a second one: see `text_pair_column`.",
    )


def test_json_columns_may_start_in_a_later_row(write: Write) -> None:
    path = write("a.jsonl", '{"text": "", "label": 1}\n{"text": "a", "label": 2}\n')
    assert _tuples(path) == [("a", None, "2")]


# Columns without a header.


@pytest.mark.parametrize(
    ("rows", "columns", "notice"),
    [
        (["one", "two"], Columns(text="0"), "column 0 as text"),
        (["a,pos", "b,neg"], Columns(text="0", label="1"), "column 0 as text, column 1 as label"),
        (["a,1.5", "b,2"], Columns(text="0", label="1"), "column 0 as text, column 1 as label"),
        (
            ["a,b,1", "c,d,0"],
            Columns(text="0", text_pair="1", label="2"),
            "column 0 as text, column 1 as text_pair, column 2 as label",
        ),
        (["a,7,1", "c,8,0"], Columns(text="0", label="2"), "column 0 as text, column 2 as label"),
        (["a,7,x"], Columns(text="0"), "column 0 as text"),
        (["a,b,nan"], Columns(text="0", text_pair="1"), "column 0 as text, column 1 as text_pair"),
        (
            ["a,b,1", "c,4,0", "d,e,1"],
            Columns(text="0", text_pair="1", label="2"),
            "column 0 as text, column 1 as text_pair, column 2 as label",
        ),
    ],
    ids=["one", "two", "two_scores", "pair", "number_second", "word_last", "nan", "mostly_words"],
)
def test_columns_are_inferred_by_position(
    write: Write, rows: list[str], columns: Columns, notice: str
) -> None:
    dataset = read_dataset(write("a.csv", "\n".join(rows)))
    assert dataset.columns == columns
    assert dataset.notices == (f"No header found; took {notice}.",)
    assert len(dataset.examples) == len(rows)


def test_only_the_first_20_rows_decide_whether_a_column_is_numeric(write: Write) -> None:
    rows = ["a,1,5"] * 20
    assert read_dataset(write("a.csv", "\n".join([*rows, "a,1,x"]))).columns.label == "2"
    assert read_dataset(write("a.csv", "\n".join([*rows[1:], "a,1,x"]))).columns.label is None


def test_requested_number_does_not_make_the_first_row_a_header(write: Write) -> None:
    path = write("a.csv", "a,1\nb,0\n")
    assert _tuples(path, columns=Columns(label="1")) == [("a", None, "1"), ("b", None, "0")]


def test_requested_numbers_take_precedence_over_inferred_columns(write: Write) -> None:
    path = write("a.tsv", "id7\t1\t*\tthe text\n")
    assert _tuples(path, columns=Columns(text="3", label="1")) == [("the text", None, "1")]


# Rows that are skipped or cut.


def test_blank_texts_are_skipped_and_counted(write: Write) -> None:
    dataset = read_dataset(write("a.csv", "text,label\na,1\n ,2\n\n,\nb,3\n"))
    assert [example.text for example in dataset.examples] == ["a", "b"]
    assert dataset.notices == ("3 rows with a blank text: skipped (first at line 3).",)


def test_pairs_with_a_blank_text_are_skipped(write: Write) -> None:
    content = (
        '{"text": "a", "text_pair": null}\n'
        '{"text": null, "text_pair": "b"}\n'
        '{"text": "c", "text_pair": "d"}\n'
    )
    dataset = read_dataset(write("a.jsonl", content))
    assert dataset.examples == (Example(text="c", text_pair="d"),)
    assert "2 rows with a blank text" in dataset.notices[0]


def test_surplus_fields_are_reported(write: Write) -> None:
    dataset = read_dataset(write("a.csv", "text,label\nhello, world,1\nb,1,\n"))
    assert dataset.examples[0] == Example(text="hello", label=" world")
    assert dataset.notices == (
        "1 row longer than the first row: the surplus fields were left out (first at line 2).",
    )


# Rows and the digest.


def test_examples_know_their_row_and_errors_name_file_row_and_column(write: Write) -> None:
    dataset = read_dataset(write("a.csv", 'text,label\n"a\nb",1\n,2\nc,x\n'))
    assert [example.row for example in dataset.examples] == [2, 5]

    def check(example: Example) -> None:
        if example.label == "x":
            raise DataFileError("Wrong.", argument="label_column")

    with pytest.raises(
        DataFileError, match=r"^Line 5 of `.*a\.csv`, column 'label': Wrong"
    ) as caught:
        check_each(dataset, check)
    assert caught.value.argument == "label_column"


def test_digest_is_that_of_the_examples_in_order(write: Write) -> None:
    dataset = read_dataset(write("a.csv", "text,label\na,1\né,2\n"))
    same = read_dataset(write("b.jsonl", '{"text": "a", "label": 1}\n{"text": "é", "label": 2}'))
    digest = digest_examples(dataset.examples)
    assert digest == digest_examples(list(same.examples))
    assert digest_examples(dataset.examples[::-1]) != digest
    rows = [["a", None, "1"], ["é", None, "2"]]
    content = b"".join(json.dumps(row).encode() + b"\n" for row in rows)
    assert digest == hashlib.sha256(content).hexdigest()


def test_digest_distinguishes_fields_and_examples() -> None:
    variants: list[list[Example]] = [
        [],
        [Example(text="a")],
        [Example(text="a"), Example(text="b")],
        [Example(text="a", text_pair="b")],
        [Example(text="a", label="b")],
        [Example(text="a\nb")],
        [Example(text="a", label="None")],
        [Example(text="a", label="null")],
    ]
    assert len({digest_examples(examples) for examples in variants}) == len(variants)


# Refusals.


@pytest.mark.parametrize(
    ("name", "content", "columns", "message"),
    [
        ("a.xlsx", "a", Columns(), r"one of \.csv, .*, \.parquet, \.tsv, \.txt, got '\.xlsx'"),
        ("a", "a", Columns(), "must end in one of .*, got ''"),
        ("a.txt", "", Columns(), r"a\.txt` contains no examples"),
        ("a.txt", " \n\n", Columns(), "contains no examples: .*, got 2 blank rows"),
        ("a.csv", "", Columns(), "contains no examples"),
        ("a.csv", "text,label\n", Columns(), "contains no examples"),
        ("a.tsv", "text\tlabel\n\t1\n", Columns(), "contains no examples"),
        ("a.jsonl", "\n", Columns(), "contains no examples"),
        ("a.txt", "a", Columns(text="text"), r"a\.txt` has no columns, .*`text_column='text'`"),
        ("a.jsonl", '"a"', Columns(label="label"), "has no columns, .*`label_column='label'`"),
        ("a.csv", "text,x\na,b", Columns(text="foo"), r"`text_column='foo'`.*a\.csv.*'text', 'x'"),
        ("a.csv", "text,x\na,b", Columns(text_pair="2"), r"`text_pair_column='2'`.*'text', 'x'"),
        ("a.jsonl", '{"text": "a"}', Columns(label="y"), r"`label_column='y'`.*got columns 'text'"),
        ("a.csv", "p,q\na,b", Columns(text="foo"), r"`text_column='foo'`.*no header.*'p', 'q'"),
        ("a.csv", "id,label\n1,2", Columns(), "no column whose .*'id', 'label'.*`text_column`"),
        ("a.jsonl", '{"foo": "a"}', Columns(), "no column whose .*'foo'.*`text_column='foo'`"),
        ("a.csv", "text,b\n1,2", Columns(text="b", label="b"), "must name a different column"),
        ("a.csv", "text,label\na,1\nb\n", Columns(), "Line 3 .*'label', got only 'text'"),
        ("a.tsv", "a\tb\t1\nc\td\n", Columns(label="2"), "Line 2 .*'2', got only '0', '1'"),
        ("a.csv", 'text,label\n"a\nb",1\nc', Columns(), "Line 4 .*'label'"),
        ("a.csv", 'text,label\na,1\n"b,2\nc,3', Columns(), "Line 3 of .*: it is not CSV"),
        ("a.jsonl", '{"text": "a"}\n{"text": ', Columns(), "Line 2 .*is not JSON"),
        ("a.jsonl", "[" * 100_000, Columns(), "Line 1 .*is not JSON"),
        ("a.jsonl", '"a"\n"\\ud800"', Columns(), "Line 2 .*contains half of a surrogate pair"),
        ("a.jsonl", '{"text": "a"}\n[1]', Columns(), "Line 2 .*must be a JSON object.*got list"),
        ("a.jsonl", '{"text": "a"}\n"b"', Columns(), "Line 2 .*'text', got only '<line>'"),
        ("a.jsonl", '{"text": "a", "label": 1}\n{"text": "b"}', Columns(), "Line 2 .*'label'"),
        ("a.jsonl", '{"text": "a", "label": {}}', Columns(), "Line 1 .*'label', got dict"),
        (
            "a.jsonl",
            '{"text": 3}',
            Columns(),
            "Line 1 .*must have a value of type str as 'text', got int",
        ),
        ("a.txt", b"ab\nc\xffd\n", Columns(), "Line 2 .* byte 0xff at column 2"),
        ("a.csv", b"\xef\xbb\xbfte\xe9", Columns(), "Line 1 .* byte 0xe9 at column 3"),
        ("a.txt", "héllo".encode("utf-16"), Columns(), "got UTF-16. Save it as UTF-8"),
        ("a.csv", "text,label\na,b".encode("utf-16-le"), Columns(), "got UTF-16 or no text"),
        ("a.csv", "text\nné".encode("cp1252"), Columns(), "byte 0xe9 .*iconv -f cp1252 -t utf-8"),
    ],
    ids=lambda value: repr(value)[:30],  # one content is long
)
def test_unusable_file_is_refused(
    write: Write, name: str, content: str | bytes, columns: Columns, message: str
) -> None:
    path = write(name, content)
    with pytest.raises(DataFileError, match=message):
        read_dataset(path, columns=columns)


def test_parquet_is_read_by_the_names_of_its_columns(tmp_path: Path) -> None:
    pyarrow = import_pyarrow()
    path = tmp_path / "a.parquet"
    table = pyarrow.table({"id": [1, 2, 3], "text": ["a", None, "b"], "label": [0, 1, 1]})
    pyarrow.parquet.write_table(table, path)
    check_readable(str(path), Columns(text="text"))
    found = read_dataset(path)
    assert found.examples == (Example(text="a", label="0"), Example(text="b", label="1"))
    with pytest.raises(DataFileError, match=r"Row 1 of .* type str as 'id', got int"):
        read_dataset(path, columns=Columns(text="id"))


def test_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataFileError, match=r"missing\.csv` does not exist"):
        read_dataset(str(tmp_path / "missing.csv"))


def test_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data.csv").mkdir()
    with pytest.raises(DataFileError, match=r"data\.csv` is a directory"):
        read_dataset(tmp_path / "data.csv")
    with pytest.raises(DataFileError, match="is a directory, not a file"):
        read_dataset(tmp_path)


def test_file_that_cannot_be_opened_is_refused(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write("a.txt", "a")

    def refuse(*_: object) -> None:
        raise PermissionError("Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(DataFileError, match=r"a\.txt` cannot be read: Permission denied"):
        read_dataset(path)


@pytest.mark.parametrize(
    ("content", "columns", "message"),
    [
        (None, Columns(), "does not exist"),
        ("text\nné".encode("cp1252"), Columns(), "it is not UTF-8: byte 0xe9"),
        ("text,y\na,b\n", Columns(label="z"), "`label_column='z'` must be a column"),
        ("tweet,y\na,b\n", Columns(label="y"), "'tweet' has the longest texts"),
    ],
)
def test_data_are_checked_without_a_task(write: Write, tmp_path, content, columns, message) -> None:
    path = str(tmp_path / "missing.csv") if content is None else str(write("a.csv", content))
    with pytest.raises(DataFileError, match=message):
        check_readable(path, columns)


def test_data_of_every_task_are_readable(write: Write, tmp_path) -> None:
    for path in (
        write("a.conll", "the\tO\ncat\tO\n"),
        write("a.json", "{}"),
        write("a.csv", "id;tweet\n1;a\n"),
        tmp_path,
        "hub:nyu-mll/glue:sst2@train",
    ):
        check_readable(str(path), Columns())
