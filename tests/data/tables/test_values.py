"""Columns of all types of Arrow go through unchanged, whatever they are written to."""

from __future__ import annotations

import base64
import csv
import datetime
import decimal
import io
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

from qdqbert.data.tables.inputs import open_source
from qdqbert.data.tables.outputs import Writer
from qdqbert.data.tables.rows import Column, Layout, Row
from qdqbert.data.tables.values import repeated_field

SCORE = Column(name="score", kind="number")
LAST = 2**63 - 1
DECIMALS = [decimal.Decimal("12.30"), decimal.Decimal("-0.01")]


def ticks(kind: pa.DataType, *values: int | None) -> pa.Array:
    """Return an array of times, dates or durations by the integers that are stored."""
    return pa.array(values, pa.int32() if kind.bit_width == 32 else pa.int64()).view(kind)


def extension(kind: pa.DataType, *values: Any) -> pa.Array:
    return pa.ExtensionArray.from_storage(kind, pa.array(values, kind.storage_type))


# Ordinary and extreme values, and a null, of types that .csv files can have.
FLAT = {
    "bool": pa.array([True, False, None]),
    "int8": pa.array([127, -128, None], pa.int8()),
    "int64": pa.array([2**63 - 1, -(2**63), None]),
    "uint64": pa.array([2**64 - 1, 0, None], pa.uint64()),
    "float32": pa.array([0.1, 3.4e38, None], pa.float32()),
    "float64": pa.array([0.1, 5e-324, None]),
    "infinite": pa.array([math.inf, -math.inf, None]),
    "string": pa.array(['"a", b', "ß\n", None]),
    "large_string": pa.array(["a", "b", None], pa.large_string()),
    "decimal128": pa.array([*DECIMALS, None], pa.decimal128(38, 10)),
    "date32": ticks(pa.date32(), 18263, -719162, None),
    **{
        f"timestamp_{unit}": ticks(pa.timestamp(unit), 1_577_934_245, -1, None)
        for unit in ("s", "ms", "us", "ns")
    },
    "utc": ticks(pa.timestamp("us", "UTC"), 1_577_934_245_000_001, 0, None),
    "zone": ticks(pa.timestamp("ms", "Europe/Berlin"), 1_577_934_245_001, 1_590_000_000_000, None),
    "offset": ticks(pa.timestamp("s", "+05:30"), 1_577_934_245, -1, None),
    "time32_s": ticks(pa.time32("s"), 1, 86_399, None),
    "time32_ms": ticks(pa.time32("ms"), 1, 86_399_999, None),
    "time64_us": ticks(pa.time64("us"), 1, 86_399_999_999, None),
    "time64_ns": ticks(pa.time64("ns"), 1001, 86_399_999_999_999, None),
}
# Types whose values are compared with a text.
OTHER = {
    "null": (pa.nulls(2), ["", ""]),
    "nan": (pa.array([math.nan, 1.5]), ["NaN", "1.5"]),
    "half": (pa.array([np.float16(1.5), None]), ["1.5", ""]),
    "view": (pa.array(["a", None], pa.string_view()), ["a", ""]),
    "binary": (pa.array([b"\xff\x00", b"a"]), [base64.b64encode(b"\xff\x00").decode(), "YQ=="]),
    "binary_view": (pa.array([b"a", None], pa.binary_view()), ["YQ==", ""]),
    "large_binary": (pa.array([b"a", None], pa.large_binary()), ["YQ==", ""]),
    "fixed_binary": (pa.array([b"ab", None], pa.binary(2)), ["YWI=", ""]),
    "decimal32": (pa.array([decimal.Decimal("1.2"), None], pa.decimal32(5, 2)), ["1.20", ""]),
    "decimal256": (pa.array([*DECIMALS], pa.decimal256(50, 3)), ["12.300", "-0.010"]),
    "small_decimal": (
        pa.array([decimal.Decimal("1E-10"), None], pa.decimal128(20, 15)),
        ["0.000000000100000", ""],
    ),
    "far_year": (
        ticks(pa.timestamp("ms"), 10**16, -(10**17)),
        ["318857-05-20T17:46:40.000", "-3166904-02-24T14:13:20.000"],
    ),
    "far_date": (ticks(pa.date32(), 2**31 - 1, None), ["5881580-07-11", ""]),
    "extreme_ns": (
        ticks(pa.timestamp("ns"), LAST, 1),
        [
            "2262-04-11T23:47:16.854775807",
            "1970-01-01T00:00:00.000000001",
        ],
    ),
    "unknown_zone": (
        ticks(pa.timestamp("ms", "Mars/Phobos"), 86_400_000, None),
        ["1970-01-02T00:00:00.000+00:00", ""],
    ),
    "old_zone": (
        ticks(pa.timestamp("ms", "Europe/Berlin"), -(10**13), None),
        ["1653-02-10T06:13:20.000+00:00", ""],
    ),
    "duration": (
        ticks(pa.duration("ns"), 1500, -1_500_000_000),
        [
            "PT0.000001500S",
            "-PT1.500000000S",
        ],
    ),
    "uuid": (
        extension(pa.uuid(), b"0123456789abcdef", None),
        ["30313233-3435-3637-3839-616263646566", ""],
    ),
    "bool8": (extension(pa.bool8(), 1, None), ["true", ""]),
    "json": (extension(pa.json_(), '{"a": 1}', None), ['{"a": 1}', ""]),
    "dictionary": (pa.array(["a", None]).dictionary_encode(), ["a", ""]),
    "binary_dictionary": (pa.array([b"a", None]).dictionary_encode(), ["YQ==", ""]),
    "list": (pa.array([[1, None], None]), ["[1, null]", ""]),
    "large_list": (pa.array([[1], []], pa.large_list(pa.int8())), ["[1]", "[]"]),
    "fixed_list": (pa.array([[1, 2], None], pa.list_(pa.int8(), 2)), ["[1, 2]", ""]),
    "list_view": (pa.array([[1], None], pa.list_view(pa.int8())), ["[1]", ""]),
    "days": (pa.array([[datetime.date(1970, 1, 1)], None]), ['["1970-01-01"]', ""]),
    "nested_nan": (pa.array([[math.nan], None]), ["[null]", ""]),
    "struct": (
        pa.array([{"n": 1, "b": b"a"}, None], pa.struct([("n", pa.int8()), ("b", pa.binary())])),
        ['{"n": 1, "b": "YQ=="}', ""],
    ),
    "map": (
        pa.array([[("a", b"a")], None], pa.map_(pa.string(), pa.binary())),
        ['[["a", "YQ=="]]', ""],
    ),
}
ARRAYS = FLAT | {name: array for name, (array, _) in OTHER.items()}


def copied(table: pa.Table, output: Path, *, block_rows: int = 2) -> Path:
    """Write a table as .parquet, and the rows that are read of it to another file."""
    pyarrow.parquet.write_table(table, output.with_name("in.parquet"))
    start = open_source(str(output.with_name("in.parquet"))).start(10)
    assert start.header is not None
    layout = Layout(kept=start.header.names, answers=(SCORE,), types=start.header.types)
    format: Any = output.suffix[1:]
    writer = Writer(format=format, is_compressed=False, layout=layout)
    rows = [row for row in start.rows if isinstance(row, Row)]
    parts = []
    for first in range(0, len(rows), block_rows):
        block = rows[first : first + block_rows]
        parts.append(output.with_name(f"part-{first}"))
        parts[-1].write_bytes(writer.block(block, [{"score": 0.5}] * len(block)))
    writer.join(output, parts, len(rows))
    return output


@pytest.mark.parametrize("rows", [0, None])
@pytest.mark.parametrize("name", ARRAYS)
def test_parquet_keeps_types_and_values(tmp_path, name, rows) -> None:
    array = ARRAYS[name]
    table = pa.table({"value": array, "text": ["a"] * len(array)}).slice(0, rows)
    found = pyarrow.parquet.read_table(copied(table, tmp_path / "out.parquet"))
    # What Parquet itself keeps of the types.
    expected = pyarrow.parquet.read_table(tmp_path / "in.parquet")
    assert found.schema.names == ["value", "text", "score"]
    assert found.drop(["score"]).schema.equals(expected.schema)
    assert found.schema.field("score").type == pa.float64()
    values = [each.column("value").combine_chunks() for each in (found, expected)]
    assert str(values[0]) == str(values[1])


@pytest.mark.parametrize("suffix", ["csv", "tsv"])
@pytest.mark.parametrize("name", FLAT)
def test_arrow_reads_cells_as_what_they_were(tmp_path, name, suffix) -> None:
    if (name, suffix) == ("string", "tsv"):
        pytest.skip("line ends become spaces")
    path = copied(pa.table({"value": FLAT[name]}), tmp_path / f"out.{suffix}")
    # Parquet has no seconds, and stores them as milliseconds.
    array = pyarrow.parquet.read_table(tmp_path / "in.parquet").column("value").combine_chunks()
    found = pyarrow.csv.read_csv(
        path,
        parse_options=pyarrow.csv.ParseOptions(
            delimiter="\t" if suffix == "tsv" else ",",
            quote_char=False if suffix == "tsv" else '"',
            newlines_in_values=True,
        ),
        convert_options=pyarrow.csv.ConvertOptions(
            column_types={"value": array.type}, strings_can_be_null=True
        ),
    )
    assert found.column("value").combine_chunks().equals(array)


@pytest.mark.parametrize("name", OTHER)
def test_cells_of_other_types_are_texts_without_quotes(tmp_path, name) -> None:
    array, expected = OTHER[name]
    path = copied(pa.table({"value": array}), tmp_path / "out.csv", block_rows=1)
    rows = list(csv.DictReader(io.StringIO(path.read_bytes().decode())))
    assert [row["value"] for row in rows] == expected


@pytest.mark.parametrize("name", ARRAYS)
def test_json_has_the_values_of_cells(tmp_path, name) -> None:
    table = pa.table({"value": ARRAYS[name]})
    lines = copied(table, tmp_path / "out.jsonl").read_text(encoding="utf-8").splitlines()
    values = [json.loads(line, parse_constant=pytest.fail)["value"] for line in lines]
    cells = copied(table, tmp_path / "out.csv").read_bytes().decode()
    for value, row in zip(values, csv.DictReader(io.StringIO(cells)), strict=True):
        if value is None or isinstance(value, str):
            # JSON has neither NaN nor infinity.
            assert row["value"] in (value or "", "NaN", "inf", "-inf")
        else:
            assert json.loads(row["value"]) == value


def test_pandas_reads_durations(tmp_path) -> None:
    array = ticks(pa.duration("us"), 1_500_000, -1, 90_061_000_000)
    path = copied(pa.table({"value": array}), tmp_path / "out.csv")
    found = [pd.Timedelta(text) for text in pd.read_csv(path)["value"]]
    assert found == [pd.Timedelta(each) for each in array.to_pylist()]


def test_a_field_that_an_object_has_twice_is_found() -> None:
    twice = pa.struct([pa.field("a", pa.int8()), pa.field("a", pa.int8())])
    assert repeated_field(pa.list_(pa.struct([pa.field("b", twice)]))) == "a"
    assert repeated_field(pa.map_(pa.string(), pa.struct([pa.field("a", pa.int8())]))) is None


# Values of a column of JSON, a block for each.
LARGE = 2**60 + 1


@pytest.mark.parametrize(
    ("blocks", "kind", "expected"),
    [
        ([LARGE, 0.5], pa.string(), [str(LARGE), "0.5"]),
        ([0.5, LARGE, None], pa.string(), ["0.5", str(LARGE), None]),
        ([1, 0.5], pa.float64(), [1.0, 0.5]),
        ([[LARGE], [0.5]], pa.string(), [f"[{LARGE}]", "[0.5]"]),
        ([[1], [0.5]], pa.list_(pa.float64()), [[1.0], [0.5]]),
        ([{"a": LARGE}, {"a": 0.5}], pa.string(), [f'{{"a": {LARGE}}}', '{"a": 0.5}']),
        ([2**63, 1], pa.string(), [str(2**63), "1"]),
        ([True, 1], pa.string(), ["true", "1"]),
        ([None, None], pa.string(), [None, None]),
        ([None, 1], pa.int64(), [None, 1]),
        # Parquet has no objects without fields.
        ([{}, None], pa.string(), ["{}", None]),
        ([[{}], []], pa.string(), ["[{}]", "[]"]),
        ([{"a": {}, "b": 1}], pa.string(), ['{"a": {}, "b": 1}']),
        ([{}, {"a": 1}], pa.struct([("a", pa.int64())]), [{"a": None}, {"a": 1}]),
    ],
)
def test_types_that_differ_between_blocks_end_as_one(tmp_path, blocks, kind, expected) -> None:
    layout = Layout(kept=("value",), answers=(SCORE,))
    writer = Writer(format="parquet", is_compressed=False, layout=layout)
    parts = []
    for number, value in enumerate(blocks):
        parts.append(tmp_path / str(number))
        parts[-1].write_bytes(writer.block([Row("", 1, {"value": value}, 0)], [{"score": 1.0}]))
    writer.join(tmp_path / "a.parquet", parts, len(blocks))
    found = pyarrow.parquet.read_table(tmp_path / "a.parquet").column("value")
    assert (found.type, found.to_pylist()) == (kind, expected)
