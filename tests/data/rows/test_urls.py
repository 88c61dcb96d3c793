"""Data in object storage are read, and refused, as those of this machine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from qdqbert.common.errors import DataFileError
from qdqbert.common.objects import fetched
from qdqbert.common.storage import RemotePath, place_of
from qdqbert.data.rows.data import Columns, Dataset, check_readable, read_data, read_dataset

_FILES = {
    "a.txt": b"one\ntwo\n",
    "a.csv": b"text;label\none;1\ntwo;0\n;1\n",
    "a.tsv": b"text\tlabel\none\t1\ttoo much\n",
    "a.jsonl": b'{"text": "one", "label": 1}\n',
    "a.ndjson": b'"one"\n"two"\n',
    "pos/a.txt": b"one",
    "neg/b.txt": b"two",
    "bad.csv": b'text\n"one"x\n',
    "bad.jsonl": b'{"text": 1\n',
    "bad.txt": b"one\n\xff\n",
    "bad.parquet": b"PAR1",
    "empty.txt": b"",
    "a.doc": b"one",
    "pointer.txt": b"version https://git-lfs.github.com/spec/v1\n",
    "no-classes/sub/a.csv": b"text\none\n",
}


@pytest.fixture
def local(tmp_path: Path) -> Path:
    """A folder with data."""
    for name, content in _FILES.items():
        path = tmp_path / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    pq.write_table(pa.table({"text": ["one", "two"]}), tmp_path / "data" / "a.parquet")
    return tmp_path / "data"


@pytest.fixture
def url(local: Path, own_cache: Path) -> str:
    """The same folder in storage."""
    root = place_of(f"memory://bucket/{local.parent.name}")
    assert isinstance(root, RemotePath)
    for path in local.rglob("*"):
        if path.is_file():
            (root / path.relative_to(local).as_posix()).write_bytes(path.read_bytes())
    return root.url


def outcome(read: Callable[[], Dataset], place: str) -> tuple[object, ...]:
    """What is read, or the error, with the name of the folder replaced."""
    try:
        found = read()
    except DataFileError as error:
        return (str(error).replace(place, "DATA"),)
    notices = [each.replace(place, "DATA") for each in found.notices]
    return found.examples, found.columns, found.names, notices, found.path.replace(place, "DATA")


@pytest.mark.parametrize(
    ("name", "column"),
    [
        *((name, None) for name in ("a.parquet", *_FILES) if "/" not in name),
        ("", None),
        ("no-classes", None),
        ("a.csv", "missing"),
        ("a.txt", "missing"),
    ],
)
def test_data_are_read_as_local_ones(name: str, column: str | None, local: Path, url: str) -> None:
    columns = Columns(text=column)

    def near() -> Dataset:
        path = str(local / name)
        check_readable(path, columns)
        return read_data(read_dataset, path, columns)

    def far() -> Dataset:
        with fetched(f"{url}/{name}", "data", DataFileError) as path:
            check_readable(path, columns)
            return read_data(read_dataset, path, columns)

    assert outcome(far, url) == outcome(near, str(local))


def test_data_that_do_not_exist_are_refused_by_url(url: str) -> None:
    with (
        pytest.raises(DataFileError, match=rf"`data`: '{url}/none.csv' does not exist"),
        fetched(f"{url}/none.csv", "data", DataFileError),
    ):
        pass
