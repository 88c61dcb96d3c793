"""Writing rows in blocks: what is written can be read again."""

from __future__ import annotations

import decimal
import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qdqbert.common.errors import DataFileError, UserInputError
from qdqbert.data.tables import parquet
from qdqbert.data.tables.inputs import open_source
from qdqbert.data.tables.outputs import Writer, format_of
from qdqbert.data.tables.rows import BadRow, Column, Layout, Row

SCORE = Column(name="score", kind="number")
VECTOR = Column(name="embedding", kind="numbers")


def write(
    path: Path,
    rows: Sequence[Mapping[str, Any]],
    answers: Sequence[Mapping[str, Any]],
    columns: tuple[Column, ...] = (SCORE,),
    *,
    block_rows: int = 2,
) -> None:
    """Write rows in blocks, each to a file, and join them. One of them is empty."""
    format, is_compressed = format_of(str(path), None)
    layout = Layout(kept=tuple(rows[0]) if rows else (), answers=columns)
    writer = Writer(format=format, is_compressed=is_compressed, layout=layout)
    blocks = [
        writer.block(
            [Row("file", 0, row, 0) for row in rows[start : start + block_rows]],
            answers[start : start + block_rows],
        )
        for start in range(0, len(rows), block_rows)
    ]
    with tempfile.TemporaryDirectory() as folder:
        parts = [Path(folder) / str(index) for index in range(len(blocks) + 1)]
        for part, block in zip(parts, [*blocks, b""], strict=True):
            part.write_bytes(block)
        writer.join(path, parts, len(rows))


def read(path: Path) -> list[dict[str, Any]]:
    return [dict(row.values) for row in open_source(str(path)).rows()]


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
LINE = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=8)
SCORES = st.floats(allow_nan=False, allow_infinity=False)


@pytest.mark.parametrize("suffix", ["jsonl", "jsonl.gz", "csv", "csv.gz", "tsv", "parquet"])
@given(data=st.data())
@settings(max_examples=15)
def test_rows_are_read_as_they_were_written(suffix, data) -> None:
    texts = LINE if suffix == "tsv" else TEXT
    rows = data.draw(st.lists(st.fixed_dictionaries({"id": texts, "text": texts}), max_size=5))
    scores = data.draw(st.lists(SCORES, min_size=len(rows), max_size=len(rows)))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"a.{suffix}"
        write(path, rows, [{"score": score} for score in scores])
        found = read(path)
    is_typed = "json" in suffix or suffix == "parquet"
    assert [float(row.pop("score")) for row in found] == scores
    assert found == rows
    assert is_typed or all(isinstance(value, str) for row in found for value in row.values())


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_values_of_json_keep_their_types(tmp_path, suffix) -> None:
    rows = [{"a": 1, "b": [1, 2], "c": {"d": None}}, {"a": 2, "b": [], "c": {"d": "x"}}]
    path = tmp_path / f"a.{suffix}"
    write(path, rows, [{"score": 0.5}] * 2)
    assert read(path) == [{**row, "score": 0.5} for row in rows]


def test_other_values_are_json_in_cells(tmp_path) -> None:
    path = tmp_path / "a.csv"
    write(path, [{"a": None, "b": True, "c": [1, "x"], "d": 1.5}], [{"score": float("nan")}])
    cells = {"a": "", "b": "true", "c": '[1, "x"]', "d": "1.5", "score": "NaN"}
    assert read(path) == [cells]


def test_tabs_and_line_ends_become_spaces_in_tsv(tmp_path) -> None:
    path = tmp_path / "a.tsv"
    write(path, [{"text": "a\tb\nc"}], [{"score": 1.0}])
    assert path.read_bytes() == b"text\tscore\na b c\t1.0\n"


VECTORS = [np.array([index, 0.1], dtype=np.float32) for index in range(3)]


def test_vectors_have_no_dictionary(tmp_path) -> None:
    pa = parquet.import_pyarrow()
    rows = [{"text": "a"}, {"text": "a"}]
    write(tmp_path / "a.parquet", rows, [{"embedding": each} for each in VECTORS[:2]], (VECTOR,))
    group = pa.parquet.ParquetFile(tmp_path / "a.parquet").metadata.row_group(0)
    found = [group.column(index).has_dictionary_page for index in range(2)]
    assert found == [True, False]


@pytest.mark.parametrize("suffix", ["jsonl", "csv", "parquet"])
def test_vectors_are_lists_of_floats(tmp_path, suffix) -> None:
    path = tmp_path / f"a.{suffix}"
    rows = [{"text": str(index)} for index in range(3)]
    write(path, rows, [{"embedding": each} for each in VECTORS], (VECTOR,))
    found = [row["embedding"] for row in read(path)]
    if suffix == "csv":
        assert found[1] == "[1.0,0.1]"
    else:
        np.testing.assert_array_equal(np.array(found, dtype=np.float32), VECTORS)


def test_npy_holds_the_vectors(tmp_path) -> None:
    path = tmp_path / "a.npy"
    rows = [{"text": str(index)} for index in range(3)]
    write(path, rows, [{"embedding": each} for each in VECTORS], (VECTOR,))
    found = np.load(path, mmap_mode="r")
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, VECTORS)
    write(path, [], [], (VECTOR,))
    assert np.load(path).shape == (0, 0)


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_small_vectors_keep_their_type(tmp_path, dtype) -> None:
    column = Column(name="embedding", kind="numbers", dtype=dtype)
    vectors = np.array([[1, 2, 3], [100, 127, 0]], dtype)
    rows = [{"text": "a"}, {"text": "b"}]
    answers = [{"embedding": each} for each in vectors]
    for suffix in ("npy", "parquet", "jsonl"):
        write(tmp_path / f"a.{suffix}", rows, answers, (column,), block_rows=1)
    found = np.load(tmp_path / "a.npy", mmap_mode="r")
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, vectors)
    pa = parquet.import_pyarrow()
    table = pa.parquet.read_table(tmp_path / "a.parquet")
    assert table.schema.field("embedding").type == pa.list_(getattr(pa, dtype)())
    assert table.column("embedding").to_pylist() == vectors.tolist()
    assert [row["embedding"] for row in read(tmp_path / "a.jsonl")] == vectors.tolist()


def test_parquet_columns_become_text_if_their_types_differ(tmp_path) -> None:
    path = tmp_path / "a.parquet"
    values: list[Any] = [1, None, "two", None, [3], {"a": 4}]
    rows = [{"value": value, "number": n, "none": None} for n, value in enumerate(values)]
    rows[3]["number"] = 0.5
    write(path, rows, [{"score": 1.0}] * 6)
    found = read(path)
    assert [row["value"] for row in found] == ["1", None, "two", None, "[3]", '{"a": 4}']
    assert [row["number"] for row in found] == [0.0, 1.0, 2.0, 0.5, 4.0, 5.0]
    assert [row["none"] for row in found] == [None] * 6


def test_parquet_columns_keep_types_that_python_has_not(tmp_path) -> None:
    pa = parquet.import_pyarrow()
    table = pa.table(
        {
            "text": pa.array(["one", "two"], pa.dictionary(pa.int8(), pa.string())),
            "time": pa.array([1, 2], pa.timestamp("ns")),
            "price": pa.array([decimal.Decimal("1.50"), None]),
            "small": pa.array([1, 2], pa.int8()),
        }
    )
    pa.parquet.write_table(table, tmp_path / "in.parquet")
    rows = [row.values for row in open_source(str(tmp_path / "in.parquet")).rows()]
    write(tmp_path / "out.parquet", rows, [{"score": 1.0}, {"score": 2.0}], block_rows=1)
    found = pa.parquet.read_table(tmp_path / "out.parquet")
    assert found.schema.field("time").type == pa.timestamp("ns")
    assert found.schema.field("small").type == pa.int8()
    assert found.schema.field("text").type == pa.dictionary(pa.int8(), pa.string())
    assert found.column("price").to_pylist() == [decimal.Decimal("1.50"), None]
    write(tmp_path / "out.jsonl", rows, [{"score": 1.0}, {"score": 2.0}])
    first = read(tmp_path / "out.jsonl")[0]
    assert first["price"] == "1.50"
    assert first["time"].startswith("1970-01-01")
    assert isinstance(rows[0]["text"], str)


@pytest.mark.parametrize(
    ("output", "given", "expected"),
    [
        ("a.jsonl.gz", None, ("jsonl", True)),
        ("a.NDJSON", None, ("jsonl", False)),
        ("a.out", "csv", ("csv", False)),
        ("-", None, ("jsonl", False)),
        ("folder/", None, ("parquet", False)),
        ("folder/", "csv", ("csv", False)),
    ],
)
def test_the_format_follows_the_name(output, given, expected) -> None:
    assert format_of(output, given) == expected


@pytest.mark.parametrize(
    ("output", "given", "message"),
    [
        ("a.txt", None, "a .txt file cannot hold the columns of answers"),
        ("a.out", None, "must end in one of .jsonl"),
        ("a.parquet.gz", None, "cannot be compressed with gzip"),
        ("-", "parquet", "stdout can be jsonl, csv or tsv"),
    ],
)
def test_outputs_that_cannot_be_written_are_refused(output, given, message) -> None:
    with pytest.raises(UserInputError, match=message):
        format_of(output, given)


def test_columns_of_the_input_come_before_answers(tmp_path) -> None:
    rows = [{"a": 1}, {"a": 2}, {"a": 3, "late": 4}]
    write(tmp_path / "a.parquet", rows, [{"score": 1.0}] * 3)
    assert list(read(tmp_path / "a.parquet")[0]) == ["a", "late", "score"]


@pytest.mark.parametrize("count", [0, 3])
def test_parquet_columns_keep_what_their_file_says_of_them(tmp_path, count) -> None:
    """Extension types that are not known here are such notes."""
    pa = parquet.import_pyarrow()
    tensor = pa.fixed_shape_tensor(pa.float32(), (2, 2))
    flat = pa.array([[1, 2, 3, 4.0]] * 3, pa.list_(pa.float32(), 4))
    note = {"ARROW:extension:name": "geoarrow.wkb", "ARROW:extension:metadata": "{}"}
    fields = [
        pa.field("place", pa.binary(), nullable=False, metadata=note),
        pa.field("id", pa.int8(), nullable=False),
        pa.field("tensor", tensor),
        pa.field("text", pa.string(), metadata={"note": "a"}),
    ]
    arrays = [
        [b"1", b"2", b"3"],
        [1, 2, 3],
        pa.ExtensionArray.from_storage(tensor, flat),
        ["a"] * 3,
    ]
    about = {"geo": "{}", "org.apache.spark.sql.parquet.row.metadata": "{}"}
    table = pa.table([pa.array(each) for each in arrays], schema=pa.schema(fields, about)).slice(
        0, count
    )
    found = _through(table, tmp_path)
    assert found.drop_columns(["score"]).equals(table)
    assert pa.schema(list(found.schema)[:4]).equals(pa.schema(fields), check_metadata=True)
    # Spark's metadata would hide the answers.
    assert found.schema.metadata == {b"geo": b"{}"}


def _through(table: Any, folder: Path) -> Any:
    """Return a table that was read from a file, given an answer, and written in blocks."""
    pa = parquet.import_pyarrow()
    pa.parquet.write_table(table, folder / "in.parquet")
    start = open_source(str(folder / "in.parquet")).start(9)
    assert start.header is not None
    layout = Layout(kept=start.header.names, answers=(SCORE,), types=start.header.types)
    writer = Writer(format="parquet", is_compressed=False, layout=layout)
    parts = []
    for row in start.rows:
        assert isinstance(row, Row)
        parts.append(folder / str(row.number))
        parts[-1].write_bytes(writer.block([row], [{"score": 1.0}]))
    writer.join(folder / "out.parquet", parts, table.num_rows)
    return pa.parquet.read_table(folder / "out.parquet")


@pytest.mark.parametrize(
    "frame",
    [
        pd.DataFrame({"a": pd.period_range("2020", periods=3, freq="M"), "b": [1, 2, 3]}),
        pd.DataFrame({"a": pd.interval_range(0, 3), "b": pd.Categorical(["x", "y", "x"])}),
        pd.DataFrame({"a": [1, 2, 3]}, index=pd.Index(["x", "y", "z"], name="key")),
        pd.DataFrame({"a": [1, 2, 3]}, index=pd.date_range("2020", periods=3, tz="Europe/Rome")),
        pd.DataFrame({"a": [1, 2, 3]}, index=pd.RangeIndex(4, 10, 2)),
    ],
    ids=["period", "interval", "named", "unnamed", "range"],
)
def test_pandas_reads_the_frame_that_it_wrote(tmp_path, frame) -> None:
    pa = parquet.import_pyarrow()
    found = _through(pa.Table.from_pandas(frame), tmp_path).to_pandas()
    expected = frame.assign(score=1.0)
    if isinstance(frame.index, pd.RangeIndex):
        # Rows can be left out, so that they are not counted as before.
        expected = expected.reset_index(drop=True)
    pd.testing.assert_frame_equal(found, expected, check_freq=False)


@pytest.mark.parametrize("columns", [[0, 1], [("a", "b"), ("a", "c")], ["a", "b"]])
def test_pandas_reads_answers_beside_columns_of_any_name(tmp_path, columns) -> None:
    pa = parquet.import_pyarrow()
    frame = pd.DataFrame([[1, 2]])
    frame.columns = pd.Index(columns)
    found = _through(pa.Table.from_pandas(frame), tmp_path).to_pandas()
    assert list(found.columns) == [*map(str, columns), "score"]


@pytest.mark.parametrize("about", ["not JSON", "{}", "[]", '{"index_columns": [1]}'])
def test_damaged_metadata_of_pandas_is_left_out(tmp_path, about) -> None:
    pa = parquet.import_pyarrow()
    table = pa.table({"a": [1]}).replace_schema_metadata({"pandas": about})
    assert not _through(table, tmp_path).schema.metadata


def test_metadata_that_differs_between_files_is_left_out(tmp_path) -> None:
    pa = parquet.import_pyarrow()
    for name in ("1", "2"):
        note = {"ARROW:extension:name": "geoarrow.wkb", "ARROW:extension:metadata": name}
        field = pa.field("place", pa.binary(), metadata=note)
        schema = pa.schema([field], {"geo": name})
        (tmp_path / "in").mkdir(exist_ok=True)
        pa.parquet.write_table(pa.table([[b"1"]], schema=schema), tmp_path / f"in/{name}.parquet")
    rows = [each.values for each in open_source(str(tmp_path / "in")).rows()]
    for block_rows in (1, 2):
        write(tmp_path / "out.parquet", rows, [{"score": 1.0}] * 2, block_rows=block_rows)
        found = pa.parquet.read_schema(tmp_path / "out.parquet")
        assert not found.metadata
        assert found.field("place").metadata == {b"ARROW:extension:name": b"geoarrow.wkb"}


@pytest.mark.parametrize("kind", ["lists", "objects", "both"])
def test_values_of_any_depth_that_is_read_are_written(tmp_path, kind) -> None:
    value: Any = 1
    for level in range(40):
        value = [value] if kind == "lists" or (kind == "both" and level % 2) else {"a": value}
    for name in ("deep", "deeper"):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps({"value": value}))
        value = [value]
    rows = [dict(row.values) for row in open_source(str(tmp_path / "deep.jsonl")).rows()]
    for suffix in ("parquet", "jsonl", "csv"):
        write(tmp_path / f"out.{suffix}", rows, [{"score": 1.0}])
        assert read(tmp_path / f"out.{suffix}")
    (bad,) = open_source(str(tmp_path / "deeper.jsonl")).rows()
    assert isinstance(bad, BadRow)
    assert bad.reason == "it has lists or objects in one another, more than 40 levels deep"


@pytest.mark.parametrize(("count", "is_read"), [(59, True), (60, False), (90, False)])
def test_parquet_of_more_levels_than_can_be_written_is_refused(tmp_path, count, is_read) -> None:
    pa = parquet.import_pyarrow()
    value: Any = 1
    for _ in range(count):
        value = {"a": value}
    table = pa.table({"deep": [value]})
    if is_read:
        assert _through(table, tmp_path).drop_columns(["score"]) == table
        return
    with pytest.raises(DataFileError, match=r"Column 'deep' of .* more than 60 types in one"):
        _through(table, tmp_path)
