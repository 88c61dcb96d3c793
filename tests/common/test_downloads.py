"""Copies of what URLs name, with fsspec's file system in memory."""

from __future__ import annotations

import errno
import functools
import http.server
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from qdqbert.common import cache
from qdqbert.common.downloads import downloaded, upload_folder
from qdqbert.common.errors import CheckpointError, UserInputError
from qdqbert.common.storage import RemotePath, place_of

_FILES = {"config.json": b"{}", "1_Pooling/config.json": b"[]", "model.bin": b"x" * 3_000_000}


def place(url: str) -> RemotePath:
    found = place_of(url)
    assert isinstance(found, RemotePath)
    return found


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """URL in memory of a folder of this test, which has a cache of its own."""
    monkeypatch.setenv("QDQBERT_CACHE", str(tmp_path / "cache"))
    return f"memory://bucket/{tmp_path.name}"


@pytest.fixture
def folder(bucket: str) -> RemotePath:
    """A folder with files."""
    root = place(f"{bucket}/my-model")
    for name, content in _FILES.items():
        (root / name).write_bytes(content)
    return root


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that were downloaded."""
    found: list[str] = []
    download = RemotePath.download

    def counted(self: RemotePath, path: Path) -> None:
        found.append(self.name)
        download(self, path)

    monkeypatch.setattr(RemotePath, "download", counted)
    return found


def content_of(copy: Path) -> dict[str, bytes]:
    files = [each for each in copy.rglob("*") if each.is_file()]
    return {each.relative_to(copy).as_posix(): each.read_bytes() for each in files}


def test_a_folder_is_downloaded_once_and_keeps_its_name(folder, read) -> None:
    copy = downloaded(folder, CheckpointError)
    assert (copy.name, content_of(copy)) == ("my-model", _FILES)
    assert sorted(read) == sorted(Path(name).name for name in _FILES)
    assert downloaded(folder, CheckpointError) == copy
    assert len(read) == len(_FILES)


@pytest.mark.parametrize("change", ["changed", "added", "removed"])
def test_a_folder_is_downloaded_again_when_it_has_changed(folder, change) -> None:
    before = downloaded(folder, CheckpointError)
    expected = dict(_FILES)
    if change == "removed":
        (folder / "config.json").unlink()
        del expected["config.json"]
    else:
        name = {"changed": "config.json", "added": "new.json"}[change]
        (folder / name).write_bytes(b"[]")
        expected[name] = b"[]"
    after = downloaded(folder, CheckpointError)
    assert after != before
    assert content_of(after) == expected


def test_a_file_comes_alone_and_a_graph_with_what_is_beside_it(folder) -> None:
    names = ("a.csv", "a.onnx", "a.onnx.data", "tokenizer.json", "b.onnx")
    for name in names:
        (folder / name).write_bytes(name.encode())
    assert set(content_of(downloaded(folder / "a.csv", UserInputError).parent)) == {"a.csv"}
    copy = downloaded(folder / "a.onnx", UserInputError)
    assert copy.read_bytes() == b"a.onnx"
    beside = {"a.csv", "a.onnx", "a.onnx.data", "tokenizer.json", "config.json", "model.bin"}
    assert set(content_of(copy.parent)) == beside


def test_what_does_not_exist_or_cannot_be_read_is_refused_by_url(folder, monkeypatch) -> None:
    with pytest.raises(CheckpointError, match=r"'memory://.*/none' does not exist\. Check the URL"):
        downloaded(folder / "none", CheckpointError)

    def refused(self: RemotePath, *_: object) -> None:
        raise PermissionError(errno.EACCES, "Access Denied")

    monkeypatch.setattr(RemotePath, "download", refused)
    with pytest.raises(CheckpointError, match=r"'memory://.*/my-model' cannot be read: Access Den"):
        downloaded(folder, CheckpointError)
    assert not cache.kept_models()


def test_nothing_of_a_download_that_was_killed_is_taken_for_whole(folder, read, tmp_path) -> None:
    code = """
import os, sys
from pathlib import Path
from qdqbert.common.downloads import downloaded
from qdqbert.common.errors import UserInputError
from qdqbert.common.storage import RemotePath, place_of
root = place_of(sys.argv[1])
(root / "a.bin").write_bytes(b"a")
def half(self, path):
    path.write_bytes(b"h")
    os._exit(9)
RemotePath.download = half
downloaded(root, UserInputError)
"""
    command = [sys.executable, "-c", code, folder.url]
    assert subprocess.run(command, check=False).returncode == 9
    assert not cache.kept_models()
    assert content_of(downloaded(folder, UserInputError)) == _FILES


def test_a_folder_that_changes_meanwhile_is_refused(folder, monkeypatch) -> None:
    download = RemotePath.download

    def changing(self: RemotePath, path: Path) -> None:
        download(self, path)
        (folder / "config.json").write_bytes(b"[1]")

    monkeypatch.setattr(RemotePath, "download", changing)
    with pytest.raises(UserInputError, match="changed while it was downloaded"):
        downloaded(folder, UserInputError)
    assert not cache.kept_models()


def test_without_a_cache_a_copy_is_temporary(folder, tmp_path, monkeypatch, caplog) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("QDQBERT_CACHE", str(tmp_path / "file"))
    copy = downloaded(folder, UserInputError)
    assert content_of(copy) == _FILES
    shutil.rmtree(copy.parent)


@pytest.mark.parametrize("name", ["../outside", "a/../../outside", "/outside", "a//b"])
def test_a_name_that_leads_out_of_the_folder_is_refused(name, folder, monkeypatch) -> None:
    found = {RemotePath(f"{folder.url}/{name}"): (folder / "config.json").stored()}
    monkeypatch.setattr(RemotePath, "find", lambda *_: found)
    with pytest.raises(UserInputError, match="a name that a file of this machine cannot have"):
        downloaded(folder, UserInputError)


def test_the_progress_counts_megabytes(folder) -> None:
    class Stages:
        def __init__(self) -> None:
            self.seen: list[tuple[str, int | None]] = []
            self.steps = 0

        def stage(self, title: str, total: int | None = None) -> Any:
            self.seen.append((title, total))
            return self

        def __enter__(self) -> Callable[[], None]:
            return self.step

        def __exit__(self, *_: object) -> None:
            pass

        def step(self) -> None:
            self.steps += 1

    stages: Any = Stages()
    downloaded(folder, UserInputError, stages)
    downloaded(folder, UserInputError, stages)
    assert stages.seen == [(f"Downloading {folder.url}", 3)]
    assert stages.steps == 3


@pytest.fixture
def web(tmp_path: Path) -> Iterator[str]:
    """Address of a server of the files in a folder."""
    (tmp_path / "web").mkdir()
    (tmp_path / "web" / "a.csv").write_text("text")

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    handler = functools.partial(Quiet, directory=str(tmp_path / "web"))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_a_file_of_the_web_has_its_name_without_the_query(bucket, web) -> None:
    pytest.importorskip("aiohttp")
    copy = downloaded(place(f"{web}/a.csv?key=1"), UserInputError)
    assert (copy.name, copy.read_text()) == ("a.csv", "text")


# Uploads.


def test_a_folder_is_uploaded_in_the_place_of_another_one(folder, tmp_path, monkeypatch) -> None:
    events: list[str] = []
    for name in ("upload", "unlink"):
        method = getattr(RemotePath, name)

        def told(self: RemotePath, *args: Any, method: Any = method, **kwargs: Any) -> None:
            events.append(f"{method.__name__} {self.url[len(folder.url) + 1 :]}")
            method(self, *args, **kwargs)

        monkeypatch.setattr(RemotePath, name, told)
    new = {"config.json": b"{1}", "b/c.bin": b"c", "d.bin": b"d"}
    for name, content in new.items():
        (tmp_path / "new" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "new" / name).write_bytes(content)
    upload_folder(tmp_path / "new", folder, last=("config.json", "other.json"))
    found = {path.url[len(folder.url) + 1 :]: path.read_bytes() for path in folder.find()}
    assert found == new
    # At no time the file that makes it valid is beside files of another folder.
    assert (events[0], events[-1]) == ("unlink config.json", "upload config.json")
    assert sorted(events[1:-1]) == [
        "unlink 1_Pooling/config.json",
        "unlink model.bin",
        "upload b/c.bin",
        "upload d.bin",
    ]
