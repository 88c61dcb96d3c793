"""The cache of this package: kernels, packed models, downloads, digests. All can be made again.

It is the folder `QDQBERT_CACHE`, or `qdqbert` in the user's cache.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import functools
import hashlib
import json
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from qdqbert.common.errors import UserInputError
from qdqbert.common.files import digest_of, is_utf8, temporary_places, write_bytes

_LOGGER = logging.getLogger("qdqbert")

_MODELS, _DIGESTS = "models", "digests"
DOWNLOAD = "url-"
"""Start of the names of folders that hold what a URL names; the others are packed models."""
_PARTIAL = ".partial-"
# A folder that has been filled for so long is one of a process that was killed.
_ABANDONED_SECONDS = 24 * 3600
# Sizes of the files of a folder.
_SIZES = "sizes.json"
LIMIT_BYTES = 20 * 10**9
"""Size of all folders. Beyond it, those that were not used for longest are removed."""

# Smaller files are read in no time.
_LARGE_BYTES = 10**6
# A file that was just written can change again without another time.
_SETTLED_SECONDS = 2


def cache_folder() -> Path:
    """Return the folder of the cache, which need not exist.

    Raises:
        UserInputError: Its path is not UTF-8.
    """
    if chosen := os.environ.get("QDQBERT_CACHE"):
        folder = _expanded(chosen)
    else:
        folder = _expanded(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "qdqbert"
    if not is_utf8(str(folder)):
        raise UserInputError(
            f"The cache {str(folder)!r} is not UTF-8. Set the environment variable QDQBERT_CACHE "
            "to another folder."
        )
    return folder


def _expanded(path: str) -> Path:
    """Return a path without `~`. As in Docker, the home of a user without one is `/`."""
    first, *rest = Path(os.path.expanduser(path)).parts or (".",)
    return Path("/" if first == "~" else first, *rest)


def models_folder() -> Path:
    """Return the folder of packed models and of downloads."""
    return cache_folder() / _MODELS


def kept_folder(key: str, fill: Callable[[Path], None]) -> Path:
    """Return a folder of the cache. Fill it first, if it does not exist or is damaged.

    One process does it and others wait: a folder appears when it is complete. If the cache
    cannot be used, the folder is a temporary one of this process, in memory where there is room.

    Args:
        key: Name of the folder, which says all that its content depends on.
        fill: Writes the content into an empty folder.

    Raises:
        UserInputError: Neither the cache nor a temporary folder can be written.
    """
    folder = models_folder() / key
    try:
        is_new = not folder.is_dir()
        # It can be another user's, which is an error.
        if not is_new and not _is_complete(folder):
            _LOGGER.warning(
                "%s in the cache is not complete or damaged. It is made again.", str(folder)
            )
            shutil.rmtree(folder)
            is_new = True
        if is_new:
            with _alone(folder):
                if not folder.is_dir():
                    _fill(folder, fill)
    except OSError as error:
        reason = error.strerror or str(error)
        found = _temporary(fill, f"The cache {str(folder.parent)!r} cannot be used ({reason})")
        _say_that_there_is_no_cache(str(folder.parent), reason)
        return found
    if is_new:
        _trim(folder)
    else:
        # The time of the last use.
        with contextlib.suppress(OSError):
            os.utime(folder)
    return folder


@functools.cache
def _say_that_there_is_no_cache(folder: str, reason: str) -> None:
    """Say once in a process that its models and downloads are for it alone."""
    _LOGGER.warning(
        "The cache %s cannot be written (%s). Models are packed, and files of URLs downloaded, for "
        "this process only. Set QDQBERT_CACHE to a folder that can be written.",
        folder,
        reason,
    )


def kept_digest(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal, which is kept until a large file changes.

    A file has changed if its size, inode, or time of the last change of content or attributes has.

    Raises:
        OSError: The file cannot be read.
    """
    found = path.stat()
    if found.st_size < _LARGE_BYTES:
        return digest_of(path)
    own = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:32]
    kept = cache_folder() / _DIGESTS / own
    times = (found.st_mtime_ns, found.st_ctime_ns)
    state = [found.st_size, found.st_dev, found.st_ino, *times]
    # A damaged file counts as missing.
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        entry = json.loads(kept.read_bytes())
        if entry["state"] == state:
            return bytes.fromhex(entry["sha256"]).hex()
    digest = digest_of(path)
    if time.time_ns() - max(times) > _SETTLED_SECONDS * 10**9:
        content = json.dumps({"state": state, "sha256": digest})
        with contextlib.suppress(OSError):
            kept.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_bytes(kept, content.encode())
    return digest


def kept_models() -> list[Path]:
    """Return the folders of all packed models and downloads; none without a cache.

    Raises:
        OSError: The cache cannot be read.
    """
    try:
        found = list(models_folder().iterdir())
    except FileNotFoundError:
        return []
    # Names of incomplete folders start with a dot.
    return [each for each in found if not each.name.startswith(".")]


def size_bytes() -> int:
    """Return the size of all packed models and downloads."""
    return sum(_size(folder) for folder in _complete())


def _fill(folder: Path, fill: Callable[[Path], None]) -> None:
    partial = Path(tempfile.mkdtemp(prefix=_PARTIAL, dir=folder.parent))
    try:
        fill(partial)
        write_bytes(partial / _SIZES, json.dumps(_states(partial)).encode())
        # Another process may have been faster.
        with contextlib.suppress(FileExistsError):
            _rename(partial, folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Let one process at a time fill a folder, where the file system has locks."""
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder.with_name(f".{folder.name}.lock")
    try:
        import fcntl
    except ImportError:
        # Windows: several can do it at once.
        yield
        return
    with path.open("w") as file:
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                # A process that was forked meanwhile has the file, too.
                fcntl.flock(file, fcntl.LOCK_UN)


def _states(folder: Path) -> dict[str, int | str]:
    """Return the digests of the small files of a folder, and the sizes of the large ones.

    Raises:
        OSError: The folder cannot be read.
    """
    os.scandir(folder).close()
    files = {
        each.relative_to(folder).as_posix(): each.stat().st_size
        for each in folder.rglob("*")
        if each.is_file()
    }
    return {
        name: size
        if size >= _LARGE_BYTES and not name.endswith(".json")
        else digest_of(folder / name)
        for name, size in files.items()
    }


def _is_complete(folder: Path) -> bool:
    """Return whether all files are as they were written. Of large ones, the sizes are compared.

    After a loss of power, or by a program that cleans up, they can be shorter or missing.

    Raises:
        OSError: The folder cannot be read.
    """
    found = _states(folder)
    try:
        kept = json.loads((folder / _SIZES).read_bytes())
        return all(found.get(name) == state for name, state in kept.items())
    except (FileNotFoundError, ValueError, AttributeError):
        return False


def _rename(partial: Path, folder: Path) -> None:
    try:
        partial.rename(folder)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            raise FileExistsError from error
        raise


def _temporary(fill: Callable[[Path], None], problem: str) -> Path:
    """Return a folder of this process, in memory if it has room for the content.

    Raises:
        UserInputError: No folder for temporary files has.
    """
    reason = "There is no folder for temporary files"
    for place in reversed(temporary_places()):
        folder = None
        try:
            folder = Path(tempfile.mkdtemp(prefix="qdqbert-", dir=place))
            fill(folder)
        except OSError as error:
            reason = f"Neither can {str(place)!r} ({error.strerror or error})"
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)
        else:
            atexit.register(shutil.rmtree, folder, ignore_errors=True)
            return folder
    raise UserInputError(
        f"{problem}. {reason}. Set the environment variable QDQBERT_CACHE to a folder that can be "
        "written."
    )


def _trim(newest: Path) -> None:
    """Remove the least recently used folders, if all are too large together.

    What processes left that were killed is removed, too.
    """
    for folder in newest.parent.glob(f"{_PARTIAL}*"):
        if time.time() - _last_used(folder) > _ABANDONED_SECONDS:
            shutil.rmtree(folder, ignore_errors=True)
    folders = sorted(_complete(), key=_last_used, reverse=True)
    total = 0
    for folder in folders:
        total += _size(folder)
        if total > LIMIT_BYTES and folder != newest:
            # Files that other processes have mapped stay readable for them.
            shutil.rmtree(folder, ignore_errors=True)


def _complete() -> list[Path]:
    with contextlib.suppress(OSError):
        return kept_models()
    return []


def _last_used(folder: Path) -> float:
    try:
        return folder.stat().st_mtime
    except OSError:
        return 0.0


def _size(folder: Path) -> int:
    total = 0
    with contextlib.suppress(OSError):
        total = sum(each.stat().st_size for each in folder.rglob("*") if each.is_file())
    return total
