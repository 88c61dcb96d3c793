"""Write files so that a reader sees the old content or the new one, never a part, and hash them.

Folders for temporary files, too.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import json
import math
import os
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from qdqbert.common.errors import CheckpointError, UserInputError

# The first bytes of a file that stands for one which Git LFS has not downloaded.
_POINTER = "version https://git-lfs"
MEMORY = Path("/dev/shm")
"""The folder that Linux keeps in memory."""


def temporary_places() -> list[Path]:
    """Return the folders that temporary files can be written to: the system's, and memory."""
    found = []
    with contextlib.suppress(OSError):
        found.append(Path(tempfile.gettempdir()))
    if MEMORY.is_dir() and os.access(MEMORY, os.W_OK):
        found.append(MEMORY)
    return found


def temporary_error() -> UserInputError | None:
    """Return the error about a system without a folder for temporary files.

    Libraries stop with an `OSError` while they are loaded. `None` if there is a folder.
    """
    try:
        tempfile.gettempdir()
    except OSError as error:
        return UserInputError(
            f"No folder for temporary files can be written: {error.strerror}. Set the environment "
            "variable TMPDIR to a folder that can be."
        )
    return None


@contextlib.contextmanager
def explaining_places() -> Iterator[None]:
    """Say what a library misses that finds no current folder, or none for temporary files.

    Raises:
        UserInputError: There is none.
    """
    try:
        yield
    except FileNotFoundError as error:
        try:
            os.getcwd()
        except FileNotFoundError:
            raise UserInputError(
                "The current folder was deleted. Change to another one."
            ) from error
        raise temporary_error() or error from error


@contextlib.contextmanager
def temporary_folder() -> Iterator[Path]:
    """Yield a new folder for temporary files, which is removed at the end.

    Raises:
        UserInputError: There is no place for one.
    """
    places = temporary_places()
    if not places and (problem := temporary_error()):
        raise problem
    try:
        made = tempfile.TemporaryDirectory(
            prefix="qdqbert-", dir=places[0], ignore_cleanup_errors=True
        )
    except OSError as error:
        raise UserInputError(
            f"No folder for temporary files can be made in {str(places[0])!r}: {error.strerror}. "
            "Set the environment variable TMPDIR to another one."
        ) from error
    with made as folder:
        yield Path(folder)


def check_input_place(
    path: str | os.PathLike[str], kind: type[UserInputError] = CheckpointError
) -> None:
    """Refuse an input that the system cannot look up; nothing is said of one that is not there.

    Raises:
        UserInputError: Its name is too long, or a folder on the way, or the input itself if it is a
            folder, cannot be entered. The error is of the class `kind`.
    """
    try:
        # The files of a folder have to be found, too.
        os.stat(os.path.join(path, os.curdir))
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return
    except OSError as error:
        raise kind(f"{os.fspath(path)!r} cannot be read: {error.strerror}.") from error


def check_output_place(path: Path, argument: str = "output") -> None:
    """Refuse an output that the system cannot look up, or a device or pipe.

    Raises:
        UserInputError: Its name is impossible, a folder on the way cannot be read, or what is there
            is neither a file nor a folder.
    """
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            os.scandir(path).close()
        elif not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "it is neither a regular file nor a folder")
    except (FileNotFoundError, NotADirectoryError):
        # It is made, or what is in the way is named then.
        return
    except (OSError, ValueError) as error:
        raise UserInputError(
            f"`{argument}={str(path)!r}` cannot be written: "
            f"{getattr(error, 'strerror', None) or error}. Pass another `{argument}`.",
            argument=argument,
        ) from error


def is_utf8(path: str) -> bool:
    """Return whether a path is UTF-8, as libraries expect. Other bytes of it are surrogates."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def is_within(path: Path, place: Path) -> bool:
    """Return whether a path is a place or inside it, whatever links and dots lead there."""
    return inside_of(place)(path)


def inside_of(place: Path) -> Callable[[Path], bool]:
    """Return what `is_within` is for a place, for many paths: their folders are resolved once."""
    real = os.path.realpath(place)
    status = place.stat() if place.exists() else None
    resolved = functools.cache(os.path.realpath)

    def holds(path: Path) -> bool:
        names = [os.path.join(resolved(path.parent), path.name)]
        if path.is_symlink() or path.name in ("", ".."):
            names.append(os.path.realpath(path))
        if any(Path(name).is_relative_to(real) for name in names):
            return True
        return status is not None and path.exists() and os.path.samestat(path.stat(), status)

    return holds


def followed(path: Path) -> Path:
    """Return the target of a symbolic link, and the folder that `.` or `..` stands for."""
    is_indirect = path.is_symlink() or path.name in ("", "..")
    return Path(os.path.realpath(path)) if is_indirect else path


def name_of(path: str | os.PathLike[str]) -> str:
    """Return the name of a path: that of a link itself, and of the folder that `.` stands for."""
    found = Path(path)
    return found.resolve().name if found.name in ("", "..") else found.name


def refuse_pointer(path: str | Path, kind: type[UserInputError] = CheckpointError) -> None:
    """Refuse a file that Git LFS has not downloaded; nothing is said of one that is not there.

    Raises:
        UserInputError: It is a pointer to the file. The error is of the class `kind`.
    """
    try:
        if not Path(path).is_file():
            return
        with open(path, "rb") as file:
            start = file.read(len(_POINTER))
    except (OSError, ValueError):
        # Who reads the file says so.
        return
    refuse_pointer_text(start.decode(errors="replace"), path, kind)


def refuse_pointer_text(
    text: str, name: str | Path, kind: type[UserInputError] = CheckpointError
) -> None:
    """Refuse the start of a file that Git LFS has not downloaded; see `refuse_pointer`."""
    if text.startswith(_POINTER):
        raise kind(
            f"{str(name)!r} is a pointer of Git LFS: the file itself was not downloaded. Run "
            "`git lfs install && git lfs pull` in its repository."
        )


def digest_of(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file atomically.

    Raises:
        OSError: The file cannot be written. An existing file is unchanged.
    """
    with new_file(path) as file:
        file.write(content)


@contextlib.contextmanager
def new_file(path: Path) -> Iterator[BinaryIO]:
    """Yield a file to write to and read from, which appears whole. Symbolic links are followed.

    Raises:
        OSError: The file cannot be written. An existing file is unchanged.
    """
    path = followed(path)
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
    with replacing(path) as partial, partial.open("w+b") as file:
        yield file


@contextlib.contextmanager
def replacing(path: Path, partial: Path | None = None) -> Iterator[Path]:
    """Yield a path to write a file to, which replaces the one at `path` at the end.

    `partial` is the path to write to, on the same disk; by default it is in the same folder.

    Raises:
        OSError: The file cannot be written. An existing file is unchanged.
    """
    partial = partial or path.with_name(f".{path.name}.partial")
    try:
        yield partial
        # The name must not reach the disk before the content. Windows only flushes what it may
        # write to.
        with partial.open("r+b") as file:
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write indented JSON atomically.

    Raises:
        OSError: The file cannot be written. An existing file is unchanged.
    """
    write_bytes(path, json_bytes(content))


def json_bytes(content: Mapping[str, Any]) -> bytes:
    """Return indented JSON in UTF-8."""
    return (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode()


def json_values(value: Any) -> Any:
    """Return a value with `None` for numbers that JSON cannot represent: NaN and infinities."""
    if isinstance(value, Mapping):
        return {key: json_values(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [json_values(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
