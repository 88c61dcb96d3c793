"""Copies of what URLs name, in the cache: downloaded once, and again when a file has changed.

And folders that are uploaded.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import errno
import hashlib
import json
import logging
import os
import uuid
from collections.abc import Callable, Collection, Mapping
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from qdqbert.common.cache import DOWNLOAD, kept_folder
from qdqbert.common.errors import UserInputError
from qdqbert.common.progress import Progress, Silent
from qdqbert.common.storage import RemotePath, Stored

_LOGGER = logging.getLogger("qdqbert")

AT_ONCE = 8
"""Number of files that are downloaded or uploaded at once."""

# What the system says if the copy cannot be written, rather than the file be read.
_OF_COPY = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
GRAPHS = (".onnx", ".xml")
"""Ends of models that are files. Others beside them are not copied with them."""

WEB = ("http://", "https://")
"""Schemes of the web, where folders cannot be listed."""

_MEGABYTE = 10**6
# Seconds between two looks at how much has arrived.
_INTERVAL = 0.2


def downloaded(
    place: RemotePath, kind: type[UserInputError], progress: Progress | None = None
) -> Path:
    """Return a local copy of a file or a folder, which keeps its name.

    With a graph come the files beside it: its weights, and a tokenizer. The copy is in the cache,
    where its name is a digest of the URL and of the versions of all files. If the cache cannot be
    written, it is a temporary folder of this process.

    Args:
        place: The file or the folder.
        kind: Class of the error.
        progress: Shows the download.

    Raises:
        UserInputError: There is no such file or folder, or it cannot be read. The error is of the
            class `kind`.
    """
    try:
        is_file = place.is_file()
        found = _listed(place, is_file=is_file)
    except OSError as error:
        raise _unreadable(place, error, kind) from error
    if not found:
        raise kind(f"{place.url!r} does not exist. Check the URL, and the access to the storage.")
    names = {each: _name(each, None if is_file else place, kind) for each in found}
    root = "files" if is_file else place.name

    def fill(folder: Path) -> None:
        _LOGGER.info("Downloading %s.", place.url)
        try:
            megabytes = sum(each.size for each in found.values()) // _MEGABYTE
            with (progress or Silent()).stage(f"Downloading {place.url}", megabytes) as step:
                _download({each: folder / root / name for each, name in names.items()}, step)
            again = _listed(place, is_file=is_file)
        except OSError as error:
            if error.errno in _OF_COPY or str(error.filename or "").startswith(str(folder)):
                raise
            raise _unreadable(place, error, kind) from error
        if again != found:
            raise kind(f"{place.url!r} changed while it was downloaded. Try again.")

    content: list[Any] = [place.url, sorted((k.url, v.version) for k, v in found.items())]
    if not all(each.is_known for each in found.values()):
        # Of such a file, the storage says its size only, which can stay the same.
        content.append(uuid.uuid4().hex)
    key = hashlib.sha256(json.dumps(content).encode()).hexdigest()[:40]
    copy = kept_folder(f"{DOWNLOAD}{key}", fill) / root
    return copy / names[place] if is_file else copy


def _listed(place: RemotePath, *, is_file: bool) -> Mapping[RemotePath, Stored]:
    """Return the files that belong to a file or a folder."""
    if not is_file:
        return place.find()
    if place.suffix.lower() not in GRAPHS or place.url.startswith(WEB):
        return {place: place.stored()}
    beside = place.parent.find("*").items()
    return {k: v for k, v in beside if k == place or k.suffix.lower() not in GRAPHS}


def _name(path: RemotePath, folder: RemotePath | None, kind: type[UserInputError]) -> str:
    """Return the name of a file, or its path in a folder, which must not lead out of it."""
    if folder is not None:
        name = path.url[len(folder.url) + 1 :]
    else:
        # After a question mark, a query follows.
        is_on_web = path.url.startswith(WEB)
        name = PurePosixPath(urlsplit(path.url).path).name if is_on_web else path.name
    separators = [each for each in (os.sep, os.altsep) if each not in (None, "/")]
    is_outside = name.startswith("/") or not {"", ".."}.isdisjoint(name.split("/"))
    if is_outside or any(str(each) in name for each in separators):
        raise kind(f"{path.url!r} has a name that a file of this machine cannot have. Rename it.")
    return name


def _download(files: Mapping[RemotePath, Path], step: Callable[[], None]) -> None:
    """Download files, and call a function for each megabyte."""
    for path in files.values():
        path.parent.mkdir(parents=True, exist_ok=True)
    done = 0
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        running = {pool.submit(each.download, path) for each, path in files.items()}
        try:
            left = running
            while left:
                ended, left = concurrent.futures.wait(left, _INTERVAL, "FIRST_EXCEPTION")
                for each in ended:
                    each.result()
                arrived = sum(map(_size, files.values())) // _MEGABYTE
                for _ in range(arrived - done):
                    step()
                done = arrived
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def upload_folder(folder: Path, place: RemotePath, last: Collection[str]) -> None:
    """Put the files of a folder in the place of those below a URL.

    `last` are names of files that make a folder what it is, in their order. They are removed before
    others change, and uploaded after them.

    Raises:
        OSError: The storage cannot be written.
    """
    files = {
        place / each.relative_to(folder).as_posix(): each
        for each in sorted(folder.rglob("*"))
        if each.is_file()
    }
    marks = [place / name for name in last]
    before = set(place.find()) if place.is_dir() else set()
    for path in before.intersection(marks):
        path.unlink()
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        running = [
            pool.submit(path.upload, local) for path, local in files.items() if path not in marks
        ]
        try:
            for each in running:
                each.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
    for path in before - files.keys() - set(marks):
        path.unlink(missing_ok=True)
    for path in marks:
        if path in files:
            path.upload(files[path])


def _size(path: Path) -> int:
    with contextlib.suppress(OSError):
        return path.stat().st_size
    return 0


def _unreadable(place: RemotePath, error: OSError, kind: type[UserInputError]) -> UserInputError:
    return kind(
        f"{place.url!r} cannot be read: {error.strerror or error}. Check the URL, and the access "
        "to the storage."
    )
