"""The cache of this package: kernels, packed models and digests. All can be made again.

It is the folder `QDQBERT_CACHE`, or `qdqbert` in the user's cache.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import hashlib
import json
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from qdqbert.files import digest_of, write_bytes

_LOGGER = logging.getLogger("qdqbert")

_MODELS, _DIGESTS = "models", "digests"
LIMIT_BYTES = 20 * 10**9
"""Size of all packed models. Beyond it, those that were not used for longest are removed."""

# Smaller files are read in no time.
_LARGE_BYTES = 10**6
# A file that was just written can change again without another time.
_SETTLED_SECONDS = 2

# Linux keeps this folder in memory.
_MEMORY = Path("/dev/shm")


def cache_folder() -> Path:
    """Return the folder of the cache, which need not exist."""
    if chosen := os.environ.get("QDQBERT_CACHE"):
        return Path(chosen)
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "qdqbert"


def models_folder() -> Path:
    """Return the folder of packed models."""
    return cache_folder() / _MODELS


def kept_folder(key: str, fill: Callable[[Path], None]) -> Path:
    """Return a folder of the cache. Fill it first, if it does not exist.

    Several processes can do this at once: a folder appears when it is complete. If the cache
    cannot be written, the folder is a temporary one of this process, in memory where there is one.

    Args:
        key: Name of the folder, which says all that its content depends on.
        fill: Writes the content into an empty folder.
    """
    folder = models_folder() / key
    if folder.is_dir():
        # The time of the last use.
        with contextlib.suppress(OSError):
            os.utime(folder)
        return folder
    try:
        _fill(folder, fill)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT):
            raise
        _LOGGER.warning(
            "The cache %s cannot be written (%s). The model is packed for this process only.",
            str(folder.parent),
            error.strerror,
        )
        return _temporary(fill)
    _trim(folder)
    return folder


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
    """Return the folders of all packed models; none without a cache.

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
    """Return the size of all packed models."""
    return sum(_size(folder) for folder in _complete())


def _fill(folder: Path, fill: Callable[[Path], None]) -> None:
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=".partial-", dir=folder.parent))
    try:
        fill(partial)
        # Another process may have been faster.
        with contextlib.suppress(FileExistsError):
            _rename(partial, folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _rename(partial: Path, folder: Path) -> None:
    try:
        partial.rename(folder)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            raise FileExistsError from error
        raise


def _temporary(fill: Callable[[Path], None]) -> Path:
    has_memory = _MEMORY.is_dir() and os.access(_MEMORY, os.W_OK)
    folder = Path(tempfile.mkdtemp(prefix="qdqbert-", dir=_MEMORY if has_memory else None))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    fill(folder)
    return folder


def _trim(newest: Path) -> None:
    """Remove the least recently used folders, if all are too large together."""
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
