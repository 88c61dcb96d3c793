"""Columns that are the names of folders, as Hive, Spark and pyarrow write them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

import qdqbert
from qdqbert.common.errors import UserInputError

_FOLDERS = {
    "lang=de/day=1": ("de", 1),
    "lang=en/day=12": ("en", 12),
    "lang=__HIVE_DEFAULT_PARTITION__/day=1": (None, 1),
    "lang=a%2Fb/day=1": ("a/b", 1),
}
_WRITERS = {
    "txt": lambda path, text: path.write_text(f"{text}\n"),
    "csv": lambda path, text: path.write_text(f"text\n{text}\n"),
    "jsonl": lambda path, text: path.write_text(json.dumps({"text": text}) + "\n"),
    "parquet": lambda path, text: pq.write_table(pa.table({"text": [text]}), path),
}


def write(root: Path, format: str) -> None:
    """Write a file with one text into each folder."""
    for folder in _FOLDERS:
        (root / folder).mkdir(parents=True)
        _WRITERS[format](root / folder / f"part-0.{format}", f"the cat {folder}")
        (root / folder / "_SUCCESS").write_text("")


@pytest.mark.parametrize("pattern", ["", "**/*.{}", "lang=*/day=*/part-*.{}"])
@pytest.mark.parametrize("format", _WRITERS)
@pytest.mark.usual("parquet", "txt-", "csv-lang=*/day=*/part-*.{}")
def test_the_names_of_folders_are_columns(
    classifier, tmp_path, read_objects, format, pattern
) -> None:
    write(tmp_path / "in", format)
    given = f"{tmp_path}/in/{pattern.format(format)}" if pattern else tmp_path / "in"
    qdqbert.run(classifier, given, tmp_path / "a.jsonl")
    found = {row["text"]: (row["lang"], row["day"]) for row in read_objects(tmp_path / "a.jsonl")}
    assert found == {f"the cat {folder}": value for folder, value in _FOLDERS.items()}


def test_columns_have_the_types_that_pyarrow_gives_them(classifier, tmp_path) -> None:
    write(tmp_path / "in", "parquet")
    qdqbert.run(classifier, tmp_path / "in", tmp_path / "a.parquet")
    expected = ds.dataset(tmp_path / "in", partitioning="hive").to_table().sort_by("text")
    found = pq.read_table(tmp_path / "a.parquet").sort_by("text")
    assert found.column_names[:3] == ["text", "lang", "day"]
    assert found.column("lang").to_pylist() == expected.column("lang").to_pylist()
    assert found.column("day").to_pylist() == expected.column("day").to_pylist()
    assert found.schema.field("day").type == pa.int64()


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (["7", "07"], ["7", "07"]),
        (["-3", "0"], [-3, 0]),
        (["1", "x"], ["1", "x"]),
        (["1", "__HIVE_DEFAULT_PARTITION__"], [1, None]),
        (["99999999999999999999"], ["99999999999999999999"]),
    ],
)
def test_integers_are_those_that_lose_nothing(
    classifier, tmp_path, read_objects, values, expected
) -> None:
    for index, value in enumerate(values):
        (tmp_path / f"in/{index}/k={value}").mkdir(parents=True)
        (tmp_path / f"in/{index}/k={value}/a.txt").write_text("the cat\n")
    qdqbert.run(classifier, f"{tmp_path}/in/*/*/*.txt", tmp_path / "a.jsonl")
    assert [row["k"] for row in read_objects(tmp_path / "a.jsonl")] == expected


def test_a_column_of_the_file_stays(classifier, tmp_path, read_objects) -> None:
    (tmp_path / "year=2024").mkdir()
    (tmp_path / "year=2024/a.csv").write_text("year,text\n1999,the cat\n")
    qdqbert.run(classifier, tmp_path / "year=2024/a.csv", tmp_path / "a.jsonl")
    assert [row["year"] for row in read_objects(tmp_path / "a.jsonl")] == ["1999"]


def test_only_the_folders_directly_around_a_file_are_columns(
    classifier, tmp_path, read_objects
) -> None:
    (tmp_path / "run=3/data").mkdir(parents=True)
    (tmp_path / "run=3/data/a.txt").write_text("the cat\n")
    qdqbert.run(classifier, tmp_path / "run=3/data/a.txt", tmp_path / "a.jsonl")
    assert "run" not in read_objects(tmp_path / "a.jsonl")[0]


def rows_of(table: pa.Table) -> list[dict[str, Any]]:
    """Return rows in an order that does not depend on files."""
    return sorted(table.to_pylist(), key=lambda row: row["id"])


@pytest.mark.parametrize("names", [("lang",), ("lang", "day"), ("label",)])
def test_partitions_are_written_as_pyarrow_reads_them(
    classifier, write_objects, tmp_path, names
) -> None:
    texts = ["the cat", "a dog in the night", "books", "music and the river"]
    values = ["en", "de", None, "a/b c=d", "é"]
    rows = [
        {"id": i, "text": f"{texts[i % 4]} {i}", "lang": values[i % 5], "day": i % 2}
        for i in range(11)
    ]
    source = write_objects(rows)
    qdqbert.run(classifier, source, tmp_path / "flat.parquet")
    qdqbert.run(classifier, source, f"{tmp_path}/out/", partition_by=names)
    whole = pq.read_table(tmp_path / "flat.parquet")
    found = ds.dataset(tmp_path / "out", partitioning="hive", format="parquet").to_table()
    assert rows_of(found.select(whole.column_names)) == rows_of(whole)
    for path in (tmp_path / "out").rglob("*.parquet"):
        schema = pq.ParquetFile(path).schema_arrow
        assert not set(names) & set(schema.names)
        ids = pq.ParquetFile(path).read().column("id").to_pylist()
        assert ids == sorted(ids)
    again = qdqbert.run(classifier, f"{tmp_path}/out/", tmp_path / "again.jsonl")
    assert again.rows == 11


def test_partitions_replace_earlier_ones(classifier, write_objects, tmp_path) -> None:
    source = write_objects([{"text": "the cat", "lang": "en"}])
    qdqbert.run(classifier, source, f"{tmp_path}/out/", partition_by=["lang"])
    other = write_objects([{"text": "the cat", "lang": "de"}], "other.jsonl")
    qdqbert.run(classifier, other, f"{tmp_path}/out/", partition_by=["lang"], overwrite=True)
    found = [each.relative_to(tmp_path / "out") for each in (tmp_path / "out").rglob("*.parquet")]
    assert found == [Path("lang=de/part-00000.parquet")]


@pytest.mark.parametrize(
    ("output", "options", "message"),
    [
        ("a.parquet", {}, "needs a folder of Parquet as output"),
        ("out/", {"output_format": "jsonl"}, "needs a folder of Parquet as output"),
        ("out/", {"partition_by": ["nothing"]}, "'nothing'.* is not a column"),
        ("out/", {"partition_by": ["lang", "lang"]}, "twice"),
        ("out/", {"partition_by": ["text", "lang", "label", "score"]}, "no column is left"),
    ],
)
def test_impossible_partitions_are_refused(
    classifier, write_objects, tmp_path, output, options, message
) -> None:
    source = write_objects([{"text": "the cat", "lang": "en"}])
    with pytest.raises(UserInputError, match=message) as error:
        qdqbert.run(
            classifier, source, f"{tmp_path}/{output}", **{"partition_by": ["lang"], **options}
        )
    assert error.value.argument == "partition_by"
    assert not (tmp_path / output).exists()


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([float("nan"), 1.0, float("nan"), None], pa.float64()),
        ([float("inf"), float("-inf"), 1.5, None], pa.float64()),
        (["__HIVE_DEFAULT_PARTITION__", None, "a"], pa.string()),
        ([[1], [1], [2], None], pa.list_(pa.int64())),
        ([{"a": 1}, {"a": 1}, None], pa.struct([("a", pa.int64())])),
        (["a", "b", "a"], pa.string_view()),
        ([True, False, None, True], pa.bool_()),
        (["a", "b", "a"], pa.dictionary(pa.int32(), pa.string())),
    ],
)
def test_no_row_is_lost_whatever_the_values_are(classifier, tmp_path, values, kind) -> None:
    table = pa.table({"text": ["the cat"] * len(values), "k": pa.array(values, kind)})
    pq.write_table(table, tmp_path / "in.parquet")
    report = qdqbert.run(classifier, tmp_path / "in.parquet", f"{tmp_path}/out/", partition_by="k")
    files = list((tmp_path / "out").rglob("*.parquet"))
    assert (
        sum(pq.ParquetFile(each).metadata.num_rows for each in files) == report.rows == len(values)
    )


_LARGE = 2**53


@pytest.mark.parametrize(
    ("files", "folders"),
    [
        ([[1, 1, 1, 1], [1.0, 1.0, 1.0, 1.0]], {"k=1"}),
        ([[1, 1.0, 1, 1.0], [1, 1, 1, 1]], {"k=1"}),
        ([[1, 1, 1, 1], [1.5, 1.0, 1.5, 1.0]], {"k=1", "k=1.5"}),
        ([[0, 0, 0, 0], [-0.0, 0.0, -0.0, 0.0]], {"k=0"}),
        ([[1, None, 1, 1], [None, None, None, None], [1.0, None, 1.0, 1.0]], {"k=1", "k=__HIVE"}),
        ([[1, 1, 1, 1], ["x", "x", "x", "x"], [1.0, 1.0, 1.0, 1.0]], {"k=1", "k=x"}),
        ([[1.0, "x", 1, 1.0], [1.0, 1.0, 1.0, 1.0], [1, 1, 1, 1]], {"k=1", "k=x"}),
        ([[1, 1, 1, 1], ["1", "1", "1", "1"]], {"k=1"}),
        ([[1, 1, 1, 1], [True, True, True, True]], {"k=1", "k=true"}),
        ([[_LARGE + 1] * 4, [float(_LARGE)] * 4, [_LARGE] * 4], {f"k={_LARGE}", f"k={_LARGE + 1}"}),
        ([[1e20, 1e20, 1e20, 1e20]], {"k=1e%2B20"}),
    ],
)
def test_a_value_has_one_folder_whatever_types_files_find_for_it(
    classifier, write_objects, tmp_path, files, folders
) -> None:
    values = [value for file in files for value in file]
    source = write_objects([{"id": i, "text": "the cat", "k": k} for i, k in enumerate(values)])
    report = qdqbert.run(classifier, source, f"{tmp_path}/out/", partition_by="k")
    assert {each.name.partition("_HIVE")[0] for each in (tmp_path / "out").iterdir()} == {
        each.partition("_HIVE")[0] for each in folders
    }
    files_found = (tmp_path / "out").rglob("*.parquet")
    ids = sorted(pq.ParquetFile(x).read().column("id").to_pylist() for x in files_found)
    assert sorted(i for each in ids for i in each) == list(range(report.rows))


def test_numbers_are_named_as_pyarrow_names_them(classifier, tmp_path) -> None:
    values = [1.0, 1.5, -3.0, 0.25, 1e20, 123456789.0]
    table = pa.table({"text": ["the cat"] * len(values), "k": values})
    pq.write_table(table, tmp_path / "in.parquet")
    pq.write_to_dataset(table, tmp_path / "expected", partition_cols=["k"])
    qdqbert.run(classifier, tmp_path / "in.parquet", f"{tmp_path}/out/", partition_by="k")
    found, expected = (
        {each.name for each in (tmp_path / name).iterdir()} for name in ("out", "expected")
    )
    assert found == expected


def test_an_input_without_rows_gives_a_file(classifier, tmp_path) -> None:
    pq.write_table(
        pa.table({"text": pa.array([], pa.string()), "k": pa.array([], pa.int64())}),
        tmp_path / "in.parquet",
    )
    qdqbert.run(classifier, tmp_path / "in.parquet", f"{tmp_path}/out/", partition_by="k")
    assert pq.read_table(tmp_path / "out/part-00000.parquet").column_names == [
        "text",
        "label",
        "score",
    ]


def test_unfinished_files_are_not_read(classifier, tmp_path) -> None:
    for name in ("k=1/a", "_temporary/k=1/a", "k=1/_a"):
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / f"{name}.txt").write_text("the cat\n")
    for pattern, rows in (("**/*.txt", 1), ("*/*.txt", 1), ("_temporary/*/*.txt", 1)):
        report = qdqbert.run(
            classifier, f"{tmp_path}/in/{pattern}", tmp_path / "a.jsonl", overwrite=True
        )
        assert report.rows == rows


def test_columns_do_not_depend_on_the_current_folder(
    classifier, tmp_path, read_objects, monkeypatch
) -> None:
    (tmp_path / "run=7").mkdir()
    (tmp_path / "run=7/a.txt").write_text("the cat\n")
    monkeypatch.chdir(tmp_path / "run=7")
    for given in ("a.txt", "../run=7/a.txt", str(tmp_path / "run=7/a.txt")):
        qdqbert.run(classifier, given, tmp_path / "a.jsonl", overwrite=True)
        assert [row["run"] for row in read_objects(tmp_path / "a.jsonl")] == [7]


def test_a_link_to_a_folder_around_it_is_left_out(classifier, tmp_path) -> None:
    (tmp_path / "in/k=1").mkdir(parents=True)
    (tmp_path / "in/k=1/a.txt").write_text("the cat\n")
    (tmp_path / "in/k=2").symlink_to(tmp_path / "in")
    assert qdqbert.run(classifier, tmp_path / "in", tmp_path / "a.jsonl").rows == 1
