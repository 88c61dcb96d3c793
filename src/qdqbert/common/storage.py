"""Files in object storage, named by URLs such as s3://bucket/folder/file, through fsspec.

A `RemotePath` has those methods of `pathlib.Path` that this package uses, so that most code does
not know where a file is. Storage has neither folders, locks, appending nor renaming: a file appears
whole when it was written, and a folder is what the names of files say.

fsspec finds the credentials and the address of a storage as its packages do: in environment
variables, files of the user, or `~/.config/fsspec`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import functools
import glob
import io
import os
import re
import shutil
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, cast
from urllib.parse import unquote

from qdqbert.common.errors import UserInputError
from qdqbert.common.files import replacing, temporary_folder, write_bytes

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_HALF = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/(?!/)")
# Schemes of files of this machine.
_LOCAL = ("file", "local")
# The package that reads each scheme, which its users install; `None` if nothing is missing.
_PACKAGES = {
    "s3": "s3fs",
    "s3a": "s3fs",
    "gs": "gcsfs",
    "gcs": "gcsfs",
    "az": "adlfs",
    "abfs": "adlfs",
    "abfss": "adlfs",
    "hf": None,
    "http": "aiohttp",
    "https": "aiohttp",
    "memory": None,
}
# Schemes of which the first part of a URL is a bucket, which has to be made before files.
_WITH_BUCKETS = ("s3", "s3a", "gs", "gcs", "az", "abfs", "abfss")
# Bytes that are read of a file at a time.
_READ_BYTES = 1 << 20


# What a storage says of a file that changes with it, the most reliable first.
_TAGS = ("ETag", "etag", "md5Hash", "md5", "blob_id", "commit_hash", "LastModified", "mtime")
_TIMES = ("Content-MD5", "Last-Modified", "last_modified", "created")
# The time when it was written.
_WRITTEN = ("LastModified", "last_modified", "mtime", "updated", "created")


@dataclasses.dataclass(frozen=True)
class Stored:
    """What a storage says of a file.

    Attributes:
        size: Its size in bytes.
        version: A text that changes when the file does.
        is_known: Whether the storage says more than the size.
        written: When it was written, with a zone, if the storage says so.
    """

    size: int
    version: str
    is_known: bool = True
    written: datetime.datetime | None = None


def _stored(known: Mapping[str, Any]) -> Stored:
    tag = next((known[name] for name in (*_TAGS, *_TIMES) if known.get(name)), None)
    # Of some pages of the web, the size is not known.
    size = int(known["size"] or 0)
    times = (_time(known.get(name)) for name in _WRITTEN)
    return Stored(
        size=size,
        version=f"{size} {tag}",
        is_known=tag is not None,
        written=next((each for each in times if each is not None), None),
    )


def _time(value: Any) -> datetime.datetime | None:
    """Return a time with a zone that a storage names in its own way, if it is known how."""
    if isinstance(value, float):
        return datetime.datetime.fromtimestamp(value, datetime.UTC)
    if isinstance(value, str):
        try:
            value = datetime.datetime.fromisoformat(value)
        except ValueError:
            return None
    return value if isinstance(value, datetime.datetime) and value.tzinfo is not None else None


@dataclasses.dataclass(frozen=True, order=True)
class RemotePath:
    """A file or a folder in object storage.

    Attributes:
        url: Its URL, without a slash at the end.
    """

    url: str

    def __str__(self) -> str:
        """Return the URL."""
        return self.url

    def __truediv__(self, name: str) -> RemotePath:
        """Return the path of what is in the folder."""
        return RemotePath(f"{self.url}/{name}")

    @property
    def _scheme(self) -> str:
        return self.url.partition("://")[0]

    @property
    def _place(self) -> PurePosixPath:
        """The part of the URL after the scheme."""
        return PurePosixPath(self.url.partition("://")[2])

    @property
    def _system(self) -> Any:
        return _open_system(self.url)[0]

    @property
    def _key(self) -> str:
        """The path, as the file system names it."""
        return _open_system(self.url)[1]

    @property
    def name(self) -> str:
        """The last part."""
        return self._place.name

    @property
    def stem(self) -> str:
        """The last part without its suffix."""
        return self._place.stem

    @property
    def suffix(self) -> str:
        """The end of the last part from its last dot on."""
        return self._place.suffix

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts between slashes, of which the first is a bucket, container or host."""
        return self._place.parts

    @property
    def parent(self) -> RemotePath:
        """The folder."""
        return RemotePath(f"{self._scheme}://{self._place.parent}")

    def with_name(self, name: str) -> RemotePath:
        """Return the path with another last part."""
        return self.parent / name

    def with_suffix(self, suffix: str) -> RemotePath:
        """Return the path with another suffix."""
        return self.with_name(f"{self.stem}{suffix}")

    def absolute(self) -> RemotePath:
        """Return the path, as a URL does not depend on a folder."""
        return self

    def is_within(self, place: RemotePath) -> bool:
        """Return whether this is a place or inside it, whatever schemes name them."""
        (mine, key), (theirs, folder) = _open_system(self.url), _open_system(place.url)
        return type(mine) is type(theirs) and f"{key.strip('/')}/".startswith(
            f"{folder.strip('/')}/"
        )

    def exists(self) -> bool:
        """Return whether there is a file or a folder."""
        with translated():
            return bool(self._system.exists(self._key))

    def lacks_bucket(self) -> bool:
        """Return whether it is known that its bucket or container does not exist."""
        bucket = RemotePath(f"{self._scheme}://{self.parts[0]}")
        try:
            return self._scheme in _WITH_BUCKETS and not bucket.exists()
        except OSError:
            return False

    def is_file(self) -> bool:
        """Return whether there is a file."""
        with translated():
            return bool(self._system.isfile(self._key))

    def is_dir(self) -> bool:
        """Return whether there are files whose names start with this path and a slash."""
        with translated():
            return bool(self._system.isdir(self._key))

    def iterdir(self) -> Iterator[RemotePath]:
        """Yield the files and folders in a folder; nothing if there is none."""
        with translated():
            try:
                names = self._system.ls(self._key, detail=False)
            except FileNotFoundError:
                return
            # Some storage has an object for the folder itself.
            yield from self._under(
                name for name in names if name.strip("/") != self._key.strip("/")
            )

    def find(self, pattern: str | None = None) -> dict[RemotePath, Stored]:
        """Return all files below the folder, or those that match a pattern of `fsspec`'s `glob`."""
        with translated():
            found: Mapping[str, Mapping[str, Any]] = (
                self._system.find(self._key, detail=True)
                if pattern is None
                else self._system.glob(f"{self._key}/{pattern}", detail=True)
            )
            # Consoles make empty objects for folders, whose names end with a slash.
            files = {
                name: each
                for name, each in found.items()
                if each["type"] == "file" and not name.endswith("/")
            }
            return dict(zip(self._under(files), map(_stored, files.values()), strict=True))

    def _under(self, names: Iterable[str]) -> Iterator[RemotePath]:
        """Yield what the file system names, as URLs of the form of this one."""
        start = len(self._key.strip("/"))
        for name in names:
            yield RemotePath(self.url + name.strip("/")[start:])

    def stored(self) -> Stored:
        """Return the size and the version of a file."""
        with translated():
            return _stored(self._system.info(self._key))

    def open(self, mode: str = "rb") -> BinaryIO:
        """Open a file for reading. It can be read at any position."""
        if mode != "rb":
            raise ValueError(f"{self.url} is written whole, by `write_bytes` or `upload`")
        with translated():
            return cast(BinaryIO, self._system.open(self._key, "rb"))

    def read_bytes(self) -> bytes:
        """Return the content of a file."""
        with translated():
            return cast(bytes, self._system.cat_file(self._key))

    def write_bytes(self, content: bytes) -> None:
        """Write a file: nobody sees a part of it."""
        with translated():
            self._system.pipe_file(self._key, content)

    def upload(self, path: Path) -> None:
        """Write the content of a local file: nobody sees a part of it."""
        with translated():
            self._system.put_file(str(path), self._key)

    def download(self, path: Path) -> None:
        """Write the content to a local file."""
        with translated():
            self._system.get_file(self._key, str(path))

    def unlink(self, missing_ok: bool = False) -> None:
        """Remove a file."""
        with translated():
            try:
                self._system.rm_file(self._key)
            except FileNotFoundError:
                if not missing_ok:
                    raise

    def mkdir(self, *, parents: bool = True, exist_ok: bool = True) -> None:
        """Do nothing: a folder is there when a file is in it."""


Place = Path | RemotePath
"""A file or folder of this machine or in object storage."""


def is_url(name: str | os.PathLike[str]) -> bool:
    """Return whether a name has a scheme, as s3://bucket/file."""
    return isinstance(name, str) and _URL.match(name) is not None


def place_of(name: str) -> Place:
    """Return the path that a name stands for: of this machine, unless it is a URL.

    Raises:
        UserInputError: The scheme is not known, or its package is not installed.
    """
    found = _URL.match(name)
    if found is None:
        _refuse_half(name)
        return Path(name)
    scheme = found[1].lower()
    if scheme in _LOCAL:
        return Path(_local_path(name))
    if scheme not in _PACKAGES:
        known = ", ".join(f"{each}://" for each in (*_PACKAGES, *_LOCAL))
        raise UserInputError(
            f"{name!r} has a scheme that is not known, {found[1]!r}. Pass a path of this machine, "
            f"or one of {known}."
        )
    if "::" in name:
        raise UserInputError(
            f"{name!r} has '::', with which fsspec chains file systems. Pass a URL without it."
        )
    url = f"{scheme}://{name[found.end() :].rstrip('/')}"
    if url.endswith("//"):
        raise UserInputError(f"{name!r} names no file or folder. Pass its URL.")
    _open_system(url)
    return RemotePath(url)


def _refuse_half(name: str) -> None:
    """Refuse what `Path` makes of a URL, which would be a folder of this machine."""
    found = _HALF.match(name)
    if found is not None and found[1].lower() in (*_PACKAGES, *_LOCAL):
        raise UserInputError(
            f"{name!r} has one slash after {found[1]!r}: `Path` takes the other one from a URL. "
            f"Pass a string: '{found[1]}://{name[found.end() :]}'."
        )


def pattern_start(parts: Sequence[str]) -> int:
    """Return the index of the first part of a path that has `*`, `?` or `[`."""
    return next((i for i, part in enumerate(parts) if glob.has_magic(part)), len(parts))


def split_pattern(name: str) -> tuple[RemotePath, str | None]:
    """Return a URL up to its first part with `*`, `?` or `[`, and the rest; `None` without one."""
    path = place_of(name)
    assert isinstance(path, RemotePath)
    parts = path.parts
    first = pattern_start(parts)
    # In the address of a file on the web, `?` starts the query.
    if first == len(parts) or path.url.startswith("http"):
        return path, None
    start = path.url.partition("://")[0]
    return RemotePath(f"{start}://{'/'.join(parts[:first])}"), "/".join(parts[first:])


def _local_path(url: str) -> str:
    """Return the path in file:///folder/name, or in file://folder/name, as fsspec reads it."""
    rest = url.partition("://")[2]
    return unquote(rest.removeprefix("localhost") if rest.startswith("localhost/") else rest)


@functools.lru_cache(maxsize=1024)
def _find_key(url: str, pid: int) -> tuple[Any, str]:
    from fsspec.core import url_to_fs

    # Listings are not kept, as others write the same folders.
    found: tuple[Any, str] = url_to_fs(url, use_listings_cache=False)
    return found


def _open_system(url: str) -> tuple[Any, str]:
    """Return the file system of a URL, and its name of the file.

    Raises:
        UserInputError: The package of the scheme is not installed, or the URL is impossible.
    """
    scheme = url.partition("://")[0]
    try:
        # A file system is not shared with a process that was forked.
        return _find_key(url, os.getpid())
    except ImportError as error:
        package = _PACKAGES[scheme]
        raise UserInputError(
            f"{url!r} needs a package that is not installed: {error.name or package}. Run "
            f"`pip install {package}`."
        ) from error
    except ValueError as error:
        raise UserInputError(f"{url!r} cannot be used: {error}.") from error


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """Turn the errors of storage packages, which have classes of their own, into `OSError`."""
    try:
        yield
    except (OSError, UserInputError):
        raise
    except Exception as error:
        raise OSError(f"{type(error).__name__}: {error}") from error


def is_unreachable(error: BaseException, place: Place) -> bool:
    """Return whether an error of reading a file says nothing of its content.

    The file is gone, may not be read, or is in storage that does not answer.
    """
    if isinstance(error, FileNotFoundError | PermissionError | ConnectionError | TimeoutError):
        return True
    # Errors of storage have a number, or were translated; of content are those of decompression.
    cause = error.__cause__
    is_translated = cause is not None and not isinstance(cause, EOFError | zlib.error)
    is_of_storage = isinstance(error, OSError) and (error.errno is not None or is_translated)
    return isinstance(place, RemotePath) and is_of_storage


def open_place(place: Place) -> BinaryIO:
    """Open a file for reading; lines of a file in storage are read from a buffer."""
    if isinstance(place, Path):
        return place.open("rb")
    return cast(BinaryIO, io.BufferedReader(cast(Any, place.open()), _READ_BYTES))


def size_of(place: Place) -> int:
    """Return the size of a file in bytes."""
    return place.stat().st_size if isinstance(place, Path) else place.stored().size


def write_place(place: Place, content: bytes) -> None:
    """Write a file: nobody sees a part of it.

    Raises:
        OSError: The file cannot be written.
    """
    if isinstance(place, Path):
        write_bytes(place, content)
    else:
        place.write_bytes(content)


@contextlib.contextmanager
def whole_file(place: Place, folder: Place | None = None) -> Iterator[Path]:
    """Yield a local path to write a file to, which becomes the file at `place` at the end.

    Args:
        place: The file. Folders of this machine are made.
        folder: The folder of this machine where it is written, on the same disk; by default that
            of `place`. Files for storage are written to a temporary folder.

    Raises:
        OSError: The file cannot be written. An existing file is unchanged.
    """
    if isinstance(place, RemotePath):
        with temporary_folder() as temporary:
            path = temporary / place.name
            yield path
            place.upload(path)
        return
    place.parent.mkdir(parents=True, exist_ok=True)
    with replacing(place, folder / "joined" if isinstance(folder, Path) else None) as partial:
        yield partial


def append_files(file: BinaryIO, sources: Iterable[Place]) -> None:
    """Write the contents of files one after another."""
    for source in sources:
        with open_place(source) as content:
            shutil.copyfileobj(content, file, _READ_BYTES)


def remove_tree(place: Place) -> None:
    """Remove a file, or a folder with all that is in it."""
    if isinstance(place, RemotePath):
        for path in [*place.find(), place]:
            path.unlink(missing_ok=True)
    elif place.is_dir():
        shutil.rmtree(place)
    else:
        place.unlink()
