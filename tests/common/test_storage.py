"""Tests of `qdqbert.common.storage`, with fsspec's file system in memory against `pathlib`."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import fsspec
import pytest

from qdqbert.common.errors import UserInputError
from qdqbert.common.storage import (
    RemotePath,
    is_url,
    place_of,
    split_pattern,
    translated,
    whole_file,
)

_FILES = {"a.txt": b"one", "folder/b.csv": b"", "lang=en/day=1/c d.parquet": b"x" * 70_000}


@pytest.fixture
def remote() -> RemotePath:
    """A folder in memory with a few files."""
    root = place_of("memory://bucket/root/")
    assert isinstance(root, RemotePath)
    for path in root.find():
        path.unlink()
    for name, content in _FILES.items():
        (root / name).write_bytes(content)
    return root


@pytest.fixture
def local(tmp_path: Path) -> Path:
    """The same files on this machine."""
    for name, content in _FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    return tmp_path


@pytest.mark.parametrize("name", ["", *_FILES, "folder", "lang=en", "missing", "folder/missing.x"])
def test_a_path_answers_as_one_of_pathlib_does(name: str, remote: RemotePath, local: Path) -> None:
    far, near = (remote / name if name else remote), local / name
    assert (far.exists(), far.is_file(), far.is_dir()) == (
        near.exists(),
        near.is_file(),
        near.is_dir(),
    )
    if name:
        assert (far.name, far.stem, far.suffix) == (near.name, near.stem, near.suffix)
        assert (far.parent / "z").name == (near.parent / "z").name
        assert far.with_suffix(".z").name == near.with_suffix(".z").name
    if near.is_dir():
        assert {each.name for each in far.iterdir()} == {each.name for each in near.iterdir()}
    if near.is_file():
        assert far.read_bytes() == near.read_bytes()
        assert far.stored().size == near.stat().st_size
        with far.open() as file:
            file.seek(near.stat().st_size // 2)
            assert file.read() == near.read_bytes()[near.stat().st_size // 2 :]


def test_all_files_below_a_folder_are_found(remote: RemotePath) -> None:
    assert {str(each) for each in remote.find()} == {f"{remote}/{name}" for name in _FILES}
    assert [str(each) for each in remote.find("**/*.parquet")] == [f"{remote}/{list(_FILES)[2]}"]


def test_a_folder_that_is_not_there_has_no_files(remote: RemotePath) -> None:
    assert list((remote / "none").iterdir()) == []
    assert (remote / "none").find() == {}


def test_a_version_changes_with_the_file(remote: RemotePath) -> None:
    path = remote / "a.txt"
    before = path.stored()
    assert path.stored() == before
    path.write_bytes(b"two")
    assert path.stored().version != before.version


def test_a_file_that_is_missing_is_an_error_of_the_system(remote: RemotePath) -> None:
    path = remote / "missing"
    path.unlink(missing_ok=True)
    for call in (path.read_bytes, path.unlink, path.open, path.stored):
        with pytest.raises(FileNotFoundError):
            call()


def test_nothing_is_written_if_the_writing_stops(remote: RemotePath) -> None:
    path = remote / "whole.bin"

    def stop() -> None:
        with whole_file(path) as place:
            place.write_bytes(b"half")
            raise KeyError

    with pytest.raises(KeyError):
        stop()
    assert not path.exists()
    with whole_file(path) as place:
        place.write_bytes(b"whole")
    assert path.read_bytes() == b"whole"


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("a/b.txt", Path("a/b.txt")),
        ("file:///tmp/a%20b", Path("/tmp/a b")),
        ("file://localhost/tmp/a", Path("/tmp/a")),
        ("file:///tmp/a#1/b?c", Path("/tmp/a#1/b?c")),
        ("local:///tmp/a", Path("/tmp/a")),
        ("MEMORY://bucket/a/", RemotePath("memory://bucket/a")),
        ("C:\\data\\a.csv", Path("C:\\data\\a.csv")),
    ],
)
def test_a_name_stands_for_a_place(name: str, place: Path | RemotePath) -> None:
    assert place_of(name) == place
    assert is_url(name) == ("://" in name)


@pytest.mark.parametrize(
    ("name", "folder", "pattern"),
    [
        ("memory://b/a/c.csv", "memory://b/a/c.csv", None),
        ("memory://b/a/*/c-?.csv", "memory://b/a", "*/c-?.csv"),
        ("memory://b/**", "memory://b", "**"),
    ],
)
def test_a_pattern_is_split_from_its_folder(name: str, folder: str, pattern: str | None) -> None:
    assert split_pattern(name) == (RemotePath(folder), pattern)


def test_an_unknown_scheme_is_refused_by_name() -> None:
    with pytest.raises(UserInputError, match=r"'ftp9://a/b' has a scheme .* 'ftp9'.*s3://"):
        place_of("ftp9://a/b")


@pytest.mark.parametrize("name", ["s3:/bucket/a", str(Path("GS://bucket/a")), "file:/tmp/a"])
def test_what_path_makes_of_a_url_is_refused(name: str) -> None:
    with pytest.raises(UserInputError, match=r"one slash after .* Pass a string: '\w+://\w+/a'"):
        place_of(name)


@pytest.mark.parametrize("name", ["memory://", "memory:///"])
def test_a_url_of_nothing_is_refused(name: str) -> None:
    with pytest.raises(UserInputError, match="names no file or folder"):
        place_of(name)


def test_chains_of_file_systems_are_refused() -> None:
    with pytest.raises(UserInputError, match="has '::'"):
        place_of("memory://bucket/o::a.jsonl")


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    with pytest.raises(UserInputError, match=re.escape("Run `pip install gcsfs`.")):
        place_of("gs://bucket/of-nobody")


def test_errors_of_a_package_become_errors_of_the_system() -> None:
    class StorageError(Exception):
        pass

    def fail() -> None:
        with translated():
            raise StorageError("no credentials")

    with pytest.raises(OSError, match="StorageError: no credentials"):
        fail()


@pytest.mark.slow
def test_s3_answers_as_pathlib_does(s3_bucket: str, local: Path) -> None:
    root = place_of(f"{s3_bucket}/root")
    assert isinstance(root, RemotePath)
    for name, content in _FILES.items():
        (root / name).write_bytes(content)
    for name in ("", *_FILES, "folder", "lang=en", "missing"):
        far, near = (root / name if name else root), local / name
        found = far.exists(), far.is_file(), far.is_dir()
        assert found == (near.exists(), near.is_file(), near.is_dir())
        if near.is_dir():
            assert {each.name for each in far.iterdir()} == {each.name for each in near.iterdir()}
    assert {str(each) for each in root.find()} == {f"{root}/{name}" for name in _FILES}
    assert [str(each) for each in root.find("**/*.parquet")] == [f"{root}/{list(_FILES)[2]}"]
    # As consoles of storage make folders.
    system = fsspec.filesystem("s3")
    for name in ("", "folder", "empty"):
        system.call_s3("put_object", Bucket=root.parts[0], Key=f"root/{name}/".replace("//", "/"))
    for pattern in (None, "**"):
        assert {str(each) for each in root.find(pattern)} == {f"{root}/{name}" for name in _FILES}
    assert {each.name for each in root.iterdir()} == {"a.txt", "folder", "lang=en", "empty"}
    path = root / "a.txt"
    before = path.stored()
    path.write_bytes(b"two")
    assert path.read_bytes() == b"two"
    assert path.stored().is_known
    assert path.stored() != before
    path.unlink()
    with pytest.raises(FileNotFoundError):
        path.read_bytes()


def test_a_place_is_the_same_under_other_names(remote: RemotePath) -> None:
    other = RemotePath("memory:///bucket/root")
    assert (other / "a.txt").is_within(remote)
    assert remote.is_within(other)
    assert not RemotePath("memory://bucket/rooted").is_within(remote)
