"""The cache of packed models, where it can be written and where it cannot."""

from __future__ import annotations

import errno
import os
import pwd
import tempfile
import threading
from pathlib import Path

import pytest

from qdqbert.common import cache
from qdqbert.common.errors import UserInputError

_NAMES = ("QDQBERT_CACHE", "XDG_CACHE_HOME", "HOME")


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        (("/c", "/x", "/h"), "/c"),
        (("~/c", "/x", "/h"), "/h/c"),
        (("~", "/x", "/h"), "/h"),
        ((None, "/x", "/h"), "/x/qdqbert"),
        ((None, "~/x", "/h"), "/h/x/qdqbert"),
        (("", "", "/h"), "/h/.cache/qdqbert"),
        ((None, None, ""), "/.cache/qdqbert"),
        # A user without a home folder, as in a container: `/`, as Docker sets it.
        ((None, None, None), "/.cache/qdqbert"),
        (("~/c", None, None), "/c"),
        (("~", None, None), "/"),
    ],
)
def test_the_folder_follows_the_environment(monkeypatch, variables, expected) -> None:
    def unknown(user: int) -> None:
        raise KeyError(user)

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    for name, value in zip(_NAMES, variables, strict=True):
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)
    assert cache.cache_folder() == Path(expected)


def fill(folder: Path) -> None:
    (folder / "content").write_text("all of it")


def missing(place: Path) -> Path:
    return place / "missing" / "folder"


def a_file(place: Path) -> Path:
    place.write_text("")
    return place


def in_a_file(place: Path) -> Path:
    return a_file(place) / "folder"


def too_long(place: Path) -> Path:
    return place / ("x" * 300)


def a_broken_link(place: Path) -> Path:
    place.symlink_to(place.with_name("nowhere"))
    return place


@pytest.mark.parametrize("make", [missing, a_file, in_a_file, too_long, a_broken_link])
def test_a_folder_is_filled_wherever_the_cache_is(make, tmp_path, monkeypatch, caplog) -> None:
    monkeypatch.setenv("QDQBERT_CACHE", str(make(tmp_path / "cache")))
    for key in ("first", "second"):
        assert (cache.kept_folder(key, fill) / "content").read_text() == "all of it"
    # Once in a process, with the variable that helps.
    messages = [each for each in caplog.messages if "QDQBERT_CACHE" in each]
    assert len(messages) == (make is not missing)


@pytest.mark.parametrize("name", ["EACCES", "EROFS", "ENOSPC", "EDQUOT", "EIO", "ESTALE", "EMFILE"])
def test_whatever_the_system_says_a_temporary_folder_is_used(
    name, tmp_path, monkeypatch, caplog
) -> None:
    number = getattr(errno, name)

    def refused(*arguments: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setenv("QDQBERT_CACHE", str(tmp_path))
    monkeypatch.setattr(cache, "_fill", refused)
    assert (cache.kept_folder("key", fill) / "content").is_file()
    assert os.strerror(number) in caplog.text


def test_a_folder_that_another_user_keeps_is_not_used(tmp_path, monkeypatch, caplog) -> None:
    monkeypatch.setenv("QDQBERT_CACHE", str(tmp_path))
    kept = cache.kept_folder("key", fill)

    def refused(path: Path) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "scandir", refused)
    assert cache.kept_folder("key", fill) != kept
    assert "Permission denied" in caplog.text


@pytest.mark.parametrize("content", [None, "", "all of", "all of IT", "all of it and more"])
@pytest.mark.parametrize("name", ["content", "sizes.json"])
def test_a_damaged_folder_is_made_again(tmp_path, monkeypatch, caplog, name, content) -> None:
    monkeypatch.setenv("QDQBERT_CACHE", str(tmp_path))
    file = cache.kept_folder("key", fill) / name
    file.unlink()
    if content is not None:
        file.write_text(content)
    assert (cache.kept_folder("key", fill) / "content").read_text() == "all of it"
    assert "is not complete" in caplog.text
    caplog.clear()
    cache.kept_folder("key", lambda folder: pytest.fail("It is there."))
    assert not caplog.records


def test_what_a_killed_process_left_is_removed_after_a_day(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("QDQBERT_CACHE", str(tmp_path))
    old, new = (tmp_path / "models" / f".partial-{name}" for name in ("old", "new"))
    for each in (old, new):
        each.mkdir(parents=True)
    os.utime(old, (0, 0))
    cache.kept_folder("key", fill)
    assert (old.exists(), new.exists()) == (False, True)


def test_one_process_fills_a_folder_and_others_wait(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("QDQBERT_CACHE", str(tmp_path))
    filled, release = [], threading.Event()

    def fill_slowly(folder: Path) -> None:
        filled.append(folder)
        fill(folder)
        # The second one, if there were one, would not wait.
        assert len(filled) > 1 or release.wait(60)

    threads = [
        threading.Thread(target=cache.kept_folder, args=("key", fill_slowly)) for _ in range(2)
    ]
    for each in threads:
        each.start()
    threads[1].join(0.2)
    release.set()
    for each in threads:
        each.join(60)
    assert len(filled) == 1
    assert [each.name for each in (tmp_path / "models").iterdir()] == ["key"]


def test_files_of_inner_folders_are_compared(tmp_path, monkeypatch, caplog) -> None:
    monkeypatch.setenv("QDQBERT_CACHE", str(tmp_path))

    def fill_inside(folder: Path) -> None:
        (folder / "a").mkdir()
        fill(folder / "a")

    file = cache.kept_folder("key", fill_inside) / "a" / "content"
    file.write_text("half")
    assert (cache.kept_folder("key", fill_inside) / "a" / "content").read_text() == "all of it"
    assert "is not complete" in caplog.text


def test_a_model_that_memory_has_no_room_for_is_packed_on_the_disk(tmp_path, monkeypatch) -> None:
    memory, disk = tmp_path / "memory", tmp_path / "disk"
    monkeypatch.setenv("QDQBERT_CACHE", str(a_file(tmp_path / "cache")))
    monkeypatch.setattr(cache, "temporary_places", lambda: [disk, memory])
    memory.mkdir()
    disk.mkdir()

    def fill_if_there_is_room(folder: Path) -> None:
        fill(folder)
        if folder.is_relative_to(memory):
            raise OSError(errno.ENOSPC, "No space left on device")

    assert cache.kept_folder("key", fill_if_there_is_room).parent == disk
    assert not list(memory.iterdir())


def test_without_any_place_the_variable_is_named(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("QDQBERT_CACHE", str(a_file(tmp_path / "cache")))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    monkeypatch.setattr("qdqbert.common.files.MEMORY", tmp_path / "missing")
    with pytest.raises(UserInputError, match="Set the environment variable QDQBERT_CACHE to a"):
        cache.kept_folder("key", fill)


@pytest.mark.parametrize("name", ["QDQBERT_CACHE", "XDG_CACHE_HOME"])
def test_a_cache_that_is_not_utf8_is_refused(monkeypatch, name) -> None:
    """Libraries cannot open its files."""
    monkeypatch.delenv("QDQBERT_CACHE", raising=False)
    monkeypatch.setenv(name, os.fsdecode(b"/tmp/a\xff"))
    with pytest.raises(
        UserInputError, match=r"'/tmp/a\\udcff.*' is not UTF-8\. Set .*QDQBERT_CACHE"
    ):
        cache.cache_folder()
