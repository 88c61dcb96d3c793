"""Find the input files of a run, and read their rows one after another."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import glob
import gzip
import hashlib
import io
import itertools
import logging
import os
import re
import sys
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any, BinaryIO, cast
from urllib.parse import unquote

from qdqbert.common.choices import INPUT_FORMATS, InputFormat
from qdqbert.common.errors import DataFileError, UserInputError
from qdqbert.common.files import is_utf8, refuse_pointer
from qdqbert.common.storage import (
    Place,
    RemotePath,
    Stored,
    is_unreachable,
    is_url,
    open_place,
    pattern_start,
    place_of,
    split_pattern,
    translated,
)
from qdqbert.data.tables.arrivals import Arrivals, Arrives
from qdqbert.data.tables.delimited import read_csv, read_tsv
from qdqbert.data.tables.lines import Lines, read_objects, read_texts
from qdqbert.data.tables.parquet import read_parquet, rows_of_groups, schema_of
from qdqbert.data.tables.rows import NO_VALUE, After, BadRow, Constant, Header, Row

STDIN = "-"

_LOGGER = logging.getLogger("qdqbert")

_SUFFIXES: Mapping[str, InputFormat] = {
    ".txt": "txt",
    ".csv": "csv",
    ".tsv": "tsv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
}
_Reader = Callable[[Lines], Iterator[Header | Row | BadRow]]
_READERS: Mapping[str, _Reader] = {
    "txt": read_texts,
    "csv": read_csv,
    "tsv": read_tsv,
    "jsonl": read_objects,
}
# Formats whose first row has the names of the columns, unless the caller says that it does not.
_WITHOUT_HEADER = {
    "csv": functools.partial(read_csv, header=False),
    "tsv": functools.partial(read_tsv, header=False),
}

# A folder of Hive's, as Spark writes them.
_PARTITION = re.compile(r"([^=]+)=(.*)")
# End of the names of files that Hadoop makes for folders in storage.
_HADOOP = "_$folder$"
# Values that are integers: not those with zeros before them, which would be lost.
_INTEGER = re.compile(r"-?[1-9]\d{0,17}|0")

# Most folders that a message names.
_NAMED = 3

# Size of the start and the end of a file by which it is recognized.
_HASHED_BYTES = 1 << 16
# Files of Parquet on this machine whose columns are compared before the run. Those of others are
# when they are read.
_COMPARED_FILES = 1000


@dataclasses.dataclass(frozen=True, kw_only=True)
class Start:
    """The start of an input.

    Attributes:
        header: The columns that the first file names before its rows; `None` if it names none.
        head: The first rows.
        rows: All rows, the first ones included.
        arrives: Waits for the next of them, if they come from stdin.
    """

    header: Header | None
    head: list[Row | BadRow]
    rows: Iterator[Row | BadRow]
    arrives: Arrives


@dataclasses.dataclass(frozen=True, kw_only=True)
class InputFile:
    """A file of an input.

    Attributes:
        place: Where it is.
        size: Its size in bytes when it was found.
        version: What storage says of its content; `None` for files of this machine.
        partition: Values of the columns that the folders around it have: `lang=en/day=1`.
        rows: The first row that is read of a .parquet file, from 0, and the one after the last;
            all if `None`. `size` is the part of the size of the file that they are.
    """

    place: Place
    size: int
    version: str | None = None
    partition: Mapping[str, Constant] = dataclasses.field(default_factory=dict)
    rows: tuple[int, int] | None = None

    @property
    def name(self) -> str:
        """The file, as messages name it."""
        return str(self.place)

    def identity(self) -> Any:
        """Return a fingerprint: size, time, start and end, or the version that storage named."""
        return self.version or _fingerprint(cast(Path, self.place), self.size)


@dataclasses.dataclass(frozen=True, order=True, slots=True)
class Cursor:
    """How far an input was read: up to the end of a row of a file.

    Attributes:
        file: Index of the file.
        after: The place in it.
    """

    file: int
    after: After


START = Cursor(0, After(0, 0))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
    """The input of a run.

    Attributes:
        files: The files in the order in which they are read.
        format: Format of all files.
        is_stdin: Whether stdin is read, and no file.
        header: Whether the first row of .csv and .tsv files has the names of the columns.
        skips_damage: Whether a part of a file that cannot be read becomes a `BadRow`.
        first: Name and columns of the first file of Parquet, if they are known: others need the
            same ones.
        reader: The machine that reads, if another one has found the files.
    """

    files: tuple[InputFile, ...]
    format: InputFormat
    is_stdin: bool = False
    header: bool = True
    skips_damage: bool = False
    first: tuple[str, Any] | None = None
    reader: str | None = None

    @property
    def size(self) -> int | None:
        """Size of all files in bytes; `None` for stdin."""
        return None if self.is_stdin else sum(each.size for each in self.files)

    @property
    def has_header(self) -> bool:
        """Whether the names of the columns were read from the first row."""
        return self.header and self.format in _WITHOUT_HEADER

    @functools.cached_property
    def _places(self) -> dict[str, tuple[int, int]]:
        """Index of each file, and the size of those before it, by its name."""
        starts = itertools.accumulate((each.size for each in self.files), initial=0)
        placed = enumerate(zip(self.files, starts, strict=False))
        return {each.name: (index, start) for index, (each, start) in placed}

    def place(self, row: Row | BadRow) -> str:
        """Return how messages refer to a row."""
        kind = "Row" if self.format == "parquet" else "Line"
        if row.last == _NO_MORE:
            return f"`{row.file}` from {kind.lower()} {row.number} on"
        if isinstance(row, BadRow) and row.last > row.number and self.format == "parquet":
            return f"Rows {row.number} to {row.last} of `{row.file}`"
        return f"{kind} {row.number} of `{row.file}`"

    def cursor(self, file: str, number: int, position: int) -> Cursor:
        """Return the place after a row: of a file, with the number of its last line."""
        index, start = self._places.get(file, (0, 0))
        return Cursor(index, After(number, position - start))

    def identity(self) -> dict[str, Any]:
        """Return a fingerprint of each file."""
        return {identity_name(each): each.identity() for each in self.files}

    def listing(self) -> str:
        """Return a hash of the names, sizes and versions of the files."""
        found = [(each.name, each.size, each.version) for each in self.files]
        return hashlib.sha256(repr(found).encode()).hexdigest()

    def shard(self, index: int, count: int) -> Source:
        """Return one of `count` parts of about the same size, which follow one another.

        A file belongs to the part in which it starts. Files of Parquet are divided between row
        groups, so that only those that reach into another part are opened.
        """
        total = sum(each.size for each in self.files)
        first, stop = (total * each // count for each in (index, index + 1))
        found = []
        before = 0
        for file in self.files:
            start, end = before, before + file.size
            before = end
            is_whole = first <= start and end <= stop
            if self.format == "parquet" and not is_whole and start < stop and first < end:
                try:
                    found += _row_groups(file, first - start, stop - start)
                except DataFileError:
                    if not self.skips_damage:
                        raise
                    # It becomes a bad row of the shard in which it starts.
                    found += [file] * (first <= start < stop)
            elif first <= start < stop or (start == stop == total and index == count - 1):
                found.append(file)
        return dataclasses.replace(self, files=tuple(found))

    def rows(self, start: Cursor = START) -> Iterator[Row | BadRow]:
        """Yield the rows after a place. Their positions count the sizes of earlier files.

        Rows before it are not read where the format allows it: in .parquet files, and in text
        files that are not compressed.
        """
        return (each for each in self._read(start) if not isinstance(each, Header))

    def start(self, count: int, patience: float | None = None) -> Start:
        """Read the header and the first rows; raise as `rows`.

        Args:
            count: Number of rows.
            patience: Seconds after which rows of stdin that have not come are not waited for.
        """
        stdin = Arrivals(sys.stdin.buffer) if self.is_stdin else None
        found = self._read(START, stdin)
        header = None
        head: list[Row | BadRow] = []
        deadline = 0.0
        for each in found:
            if isinstance(each, Header):
                header = header or each
                continue
            deadline = deadline or time.monotonic() + (patience or 0)
            head.append(each)
            if len(head) == count:
                break
            if stdin and patience is not None and not stdin.arrives(deadline - time.monotonic()):
                break
        first = collections.deque(head)

        def rows() -> Iterator[Row | BadRow]:
            while first:
                yield first.popleft()
            yield from (each for each in found if not isinstance(each, Header))

        def arrives(seconds: float) -> bool:
            return bool(first) or stdin is None or stdin.arrives(seconds)

        return Start(header=header, head=head, rows=rows(), arrives=arrives)

    def _read(
        self, start: Cursor, stdin: Arrivals | None = None
    ) -> Iterator[Header | Row | BadRow]:
        if self.is_stdin:
            stream = cast(BinaryIO, stdin or sys.stdin.buffer)
            yield from self._reader(Lines("stdin", stream, stream))
            return
        before = sum(each.size for each in self.files[: start.file])
        first = self.first
        for index, file in enumerate(self.files[start.file :], start=start.file):
            after = start.after if index == start.file and start.after.number else None
            if after is not None and after.number == _NO_MORE:
                before += file.size
                continue
            for row in self._rows_of(file, before, after, first):
                if isinstance(row, Header):
                    first = first or row.columns
                yield row
            before += file.size

    def _rows_of(
        self, file: InputFile, before: int, after: After | None, first: tuple[str, Any] | None
    ) -> Iterator[Header | Row | BadRow]:
        """Yield the rows of a file, and what cannot be read as a `BadRow` if that is wanted.

        `first` are the name and the columns of the first file.
        """
        last = after.number if after else 0
        try:
            with reporting(file.name, self.reader):
                for row in self._open(file, after):
                    if isinstance(row, Header):
                        if first and row.columns and (reason := _difference(first, row.columns)):
                            yield from self._refused(file, reason, before + file.size, after)
                            return
                        yield row
                        continue
                    number = row.last or row.number
                    if after is not None and number <= after.number:
                        continue
                    last = number
                    if before:
                        row = row._replace(position=before + row.position)
                    yield row
        except DataFileError as error:
            cause = error.__cause__
            if not self.skips_damage or (cause and is_unreachable(cause, file.place)):
                raise
            reason = str(error).rstrip(".")
            end = before + file.size
            yield BadRow(file.name, last + 1, reason, end, _NO_MORE)

    def _refused(
        self, file: InputFile, reason: str, position: int, after: After | None
    ) -> Iterator[BadRow]:
        """Yield all rows of a file of Parquet as one `BadRow`, unless it was read before."""
        if not self.skips_damage:
            raise _mixed(file.name, reason)
        start, stop = file.rows or (0, sum(rows_of_groups(file.place)))
        if after is None and stop > start:
            yield BadRow(file.name, start + 1, reason, position, stop, stop - start)

    def _open(self, file: InputFile, after: After | None) -> Iterator[Header | Row | BadRow]:
        place, partition = file.place, file.partition
        if self.format == "parquet":
            yield from read_parquet(
                place,
                file.size,
                rows=file.rows,
                partition=partition,
                after=after,
                skips_damage=self.skips_damage,
            )
            return
        if isinstance(place, Path):
            refuse_pointer(place, DataFileError)
        with open_place(place) as raw:
            is_compressed = place.suffix.lower() == ".gz"
            # The size of a pipe, and of some pages of the web, is not known.
            size = file.size or None
            limited = _Limited(raw, size) if is_compressed and size else raw
            stream = gzip.GzipFile(fileobj=cast(Any, limited)) if is_compressed else raw
            lines = Lines(
                file.name,
                cast(BinaryIO, stream),
                cast(BinaryIO, limited),
                size=None if is_compressed else size,
                after=after,
            )
            for each in self._reader(lines):
                yield _with_partition(each, partition) if partition else each

    @property
    def _reader(self) -> _Reader:
        return _READERS[self.format] if self.header else _WITHOUT_HEADER[self.format]


def _row_groups(file: InputFile, first: int, stop: int) -> list[InputFile]:
    """Return the row groups of a file that start in a part of it, if there are some.

    The part is from `first` to before `stop`, in bytes of the file.
    """
    with reporting(file.name):
        counts = rows_of_groups(file.place)
    total = max(1, sum(counts))
    starts = list(itertools.accumulate(counts, initial=0))
    taken = [
        (start, start + rows)
        for start, rows in zip(starts, counts, strict=False)
        if first <= file.size * start // total < stop
    ]
    if not taken:
        return []
    rows = taken[0][0], taken[-1][1]
    size = file.size * rows[1] // total - file.size * rows[0] // total
    return [dataclasses.replace(file, rows=rows, size=size)]


# The number of the last line of a file whose rest cannot be read.
_NO_MORE = 1 << 62


class _Limited(io.RawIOBase):
    """The start of a file, which may grow."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file, self._size = file, size

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        left = self._size - self._file.tell()
        return self._file.read(left if size < 0 else min(size, left))

    def tell(self) -> int:
        return self._file.tell()


def _with_partition(
    each: Header | Row | BadRow, partition: Mapping[str, Constant]
) -> Header | Row | BadRow:
    """Add columns of folders; those of the file come first, and stay."""
    if isinstance(each, Header):
        return Header(tuple(dict.fromkeys([*each.names, *partition])))
    if isinstance(each, Row):
        added = {name: one.value for name, one in partition.items() if name not in each.values}
        return each._replace(values={**each.values, **added})
    return each


def open_source(
    name: str, format: InputFormat | None = None, *, header: bool = True, skips_damage: bool = False
) -> Source:
    """Find the files of an input.

    Args:
        name: A file, a folder, a pattern with `*`, their URLs, or "-" for stdin. Folders in a
            folder whose names are `COLUMN=VALUE` are read, too.
        format: Format of the files. By their suffix if `None`; "jsonl" for stdin.
        header: Whether the first row of .csv and .tsv files has the names of the columns.
        skips_damage: See `Source`.

    Raises:
        DataFileError: There is no such file, or files have different formats.
        UserInputError: The format cannot be read from stdin, or has no header.
    """
    source = _open_stdin(format) if name == STDIN else _open_files(name, format, skips_damage)
    if not header and source.format not in _WITHOUT_HEADER:
        raise UserInputError(
            f"`header=False` applies to csv and tsv only, and `input={name!r}` is "
            f"{source.format}. Leave it out.",
            argument="header",
        )
    return dataclasses.replace(source, header=header, skips_damage=skips_damage)


def _open_stdin(format: InputFormat | None) -> Source:
    if format == "parquet":
        raise UserInputError(
            "`input_format='parquet'`: stdin can be txt, csv, tsv or jsonl. Pass a file.",
            argument="input_format",
        )
    return Source(files=(), format=format or "jsonl", is_stdin=True)


def _open_files(name: str, format: InputFormat | None, skips_damage: bool) -> Source:
    files, others = _find(name)
    if others:
        _LOGGER.warning("`input=%r`: %s", name, _left_out(name, files, others))
    formats = {each.name: format or _format_of(each.place) for each in files}
    first = formats[files[0].name]
    odd = next((each for each in files if formats[each.name] != first), None)
    if odd is not None:
        raise DataFileError(
            f"All files of `input={name!r}` must have one format, got {files[0].place.name} and "
            f"{odd.place.name}. Pass a pattern, such as '*.{first}'.",
            argument="input",
        )
    if first == "parquet" and not skips_damage:
        _check_schemas(files[:_COMPARED_FILES])
    return Source(files=_with_partitions(files), format=first)


def _find(name: str) -> tuple[list[InputFile], list[Place]]:
    """Return the files of an input, sorted by name, and folders in it whose files it has not.

    These are folders with files that end as those of the input. Partitions of the files are not
    found yet.
    """
    place = place_of(name)
    files: list[InputFile] = []
    below: Mapping[Any, Iterable[str]] = {}
    others: list[Place] = []
    with reporting(name), contextlib.suppress(FileNotFoundError):
        files, below = _find_remote(name) if isinstance(place, RemotePath) else _find_local(place)
        end = _common_end(files)
        others = [key for key, names in below.items() if any(each.endswith(end) for each in names)]
    if not files:
        wrong = f"does not exist{_without_bucket(name)}. Check the path."
        if others:
            wrong = f"has no files. {_left_out(name, files, others)}"
        elif place.is_dir():
            wrong = "has no files. Check the path."
        raise DataFileError(f"`input={name!r}` {wrong}", argument="input")
    odd = next((each.name for each in files if not is_utf8(each.name)), None)
    if odd is not None:
        raise DataFileError(
            f"`input={name!r}` has the file {odd!r}, whose name is not UTF-8. Rename it.",
            argument="input",
        )
    return sorted(files, key=lambda each: each.place), others


def _common_end(files: Iterable[InputFile]) -> str:
    """Return the suffixes that all files have; nothing if they differ."""
    ends = {"".join(_suffixes(each.place)) for each in files}
    return ends.pop() if len(ends) == 1 else ""


def _left_out(name: str, files: Sequence[InputFile], folders: Sequence[Place]) -> str:
    """Return what a message says of folders that are left out, and how they are read."""
    names = sorted(repr(str(each)) for each in folders)
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    pattern = f"{glob.escape(name.rstrip('/' + os.sep))}/**/*{_common_end(files)}"
    return (
        f"Folders in it whose names are no partitions (COLUMN=VALUE) are left out: "
        f"{', '.join(names[:_NAMED])}{more}. To read them, too, pass the pattern {pattern!r}."
    )


def _find_local(path: Path) -> tuple[list[InputFile], dict[Path, Iterable[str]]]:
    """Return the files of an input, and the names of files below folders that are left out."""
    others: list[Path] = []
    if path.is_dir():
        found = list(_files_in(path, others))
    elif path.exists():
        found = [path]
    else:
        names = map(Path, glob.glob(str(path), recursive=True))
        first = pattern_start(path.parts)
        wanted = [each for each in names if _is_wanted(each.parts[first:], path.parts[first:])]
        for each in wanted:
            _refuse_dangling(each)
        found = [each for each in wanted if each.is_file()]
    return [InputFile(place=each, size=each.stat().st_size) for each in found], {
        each: _names_below(each) for each in others
    }


def _files_in(
    folder: Path, others: list[Path], around: frozenset[str] = frozenset()
) -> Iterator[Path]:
    """Yield the files in a folder and in its folders of partitions; add its other ones to `others`.

    A link to a folder `around` is left out.
    """
    around |= {os.path.realpath(folder)}
    for each in folder.iterdir():
        if _is_beside(each.name):
            continue
        _refuse_dangling(each)
        if each.is_file():
            yield each
        elif each.is_dir() and os.path.realpath(each) not in around:
            if is_partition(each.name):
                yield from _files_in(each, others, around)
            else:
                others.append(each)


def _names_below(folder: Path) -> Iterator[str]:
    """Yield the names of the files below a folder that a pattern would find."""
    for _, inside, names in os.walk(folder):
        inside[:] = itertools.filterfalse(_is_beside, inside)
        yield from itertools.filterfalse(_is_beside, names)


def _refuse_dangling(path: Path) -> None:
    """Refuse a link to nothing: its rows would be missing without a word."""
    if path.is_symlink() and not path.exists():
        raise DataFileError(f"`{path}` is a link to {os.readlink(path)!r}, which does not exist.")


def _find_remote(name: str) -> tuple[list[InputFile], dict[RemotePath, list[str]]]:
    """Return what `_find_local` does."""
    place = cast(RemotePath, place_of(name))
    if place.is_file():
        # Its name can have characters of patterns.
        return [_remote_file(place, place.stored())], {}
    root, pattern = split_pattern(name)
    asked = tuple(pattern.split("/")) if pattern is not None else ()
    found: list[InputFile] = []
    others: dict[RemotePath, list[str]] = {}
    for path, stored in root.find(pattern).items():
        parts = path.parts[len(root.parts) :]
        if not _is_wanted(parts, asked):
            continue
        other = next((each for each in parts[:-1] if not asked and not is_partition(each)), None)
        if other is None:
            found.append(_remote_file(path, stored))
        else:
            folder = root / "/".join(parts[: parts.index(other) + 1])
            others.setdefault(folder, []).append(path.name)
    return found, others


def _is_wanted(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    """Return whether a pattern means a file that it finds.

    Files beside the data are only meant by a pattern that has such a name itself.
    """
    return any(map(_is_beside, pattern)) or not any(map(_is_beside, parts))


def _is_beside(name: str) -> bool:
    """Return whether other programs keep a file or folder of this name next to the data.

    Spark's unfinished files start with `_` or `.`, for example, and Hadoop makes files for folders.
    """
    is_hidden = name.startswith((".", "_")) and name not in (".", "..")
    return is_hidden or name.endswith(_HADOOP)


def _remote_file(path: RemotePath, stored: Stored) -> InputFile:
    return InputFile(place=path, size=stored.size, version=stored.version)


def is_partition(folder: str) -> bool:
    """Return whether the name of a folder is a column and its value, as Hive writes them."""
    return _PARTITION.fullmatch(folder) is not None


def _with_partitions(files: Iterable[InputFile]) -> tuple[InputFile, ...]:
    """Add the values that the names of folders have. Columns of integers have integers."""
    # The folder around a file can be the current one.
    found = [dict(_partition_of(each.place.absolute())) for each in files]
    names = dict.fromkeys(name for each in found for name in each)
    texts = {name: {each.get(name) for each in found} - {None} for name in names}
    integers = {name for name in names if all(_INTEGER.fullmatch(str(x)) for x in texts[name])}

    def constant(text: str | None, name: str) -> Constant:
        is_integer = name in integers
        return Constant(int(text) if is_integer and text is not None else text, is_integer)

    return tuple(
        dataclasses.replace(
            file, partition={name: constant(each.get(name), name) for name in names}
        )
        for file, each in zip(files, found, strict=True)
    )


def _partition_of(place: Place) -> list[tuple[str, str | None]]:
    """Return the columns and values in the names of the folders directly around a file."""
    pairs = []
    for part in reversed(PurePath(*place.parts).parts[:-1]):
        found = _PARTITION.fullmatch(part)
        if found is None:
            break
        try:
            name, value = (unquote(each, errors="strict") for each in found.groups())
        except UnicodeDecodeError as error:
            raise DataFileError(
                f"The folder {part!r} of `input` is a column and its value, and its escapes are "
                "bytes that are not UTF-8. Rename it.",
                argument="input",
            ) from error
        pairs.append((name, None if value == NO_VALUE else value))
    return pairs[::-1]


def _format_of(path: Place) -> InputFormat:
    suffix, end = _suffixes(path)
    if suffix.lower() not in _SUFFIXES or (end and suffix.lower() == ".parquet"):
        known = ", ".join(_SUFFIXES)
        raise DataFileError(
            f"File `{path}` must end in one of {known}, or in one of them and .gz (except "
            f".parquet). Rename it, or pass `input_format`, one of {', '.join(INPUT_FORMATS)}.",
            argument="input_format",
        )
    return _SUFFIXES[suffix.lower()]


def _suffixes(path: Place) -> tuple[str, str]:
    """Return the suffix that names the format of a file, and the one of gzip, or nothing."""
    if path.suffix.lower() == ".gz":
        return Path(path.stem).suffix, path.suffix
    return path.suffix, ""


def _check_schemas(files: Iterable[InputFile]) -> None:
    """Compare the columns of files of this machine, which takes a fraction of reading them."""
    schemas = {each.name: schema_of(each.place) for each in files if isinstance(each.place, Path)}
    first = next(iter(schemas.items()), None)
    for each in schemas.items():
        if first and (reason := _difference(first, each)):
            raise _mixed(each[0], reason)


def _difference(first: tuple[str, Any], other: tuple[str, Any]) -> str | None:
    """Return how the columns of a file of Parquet differ from those of the first one, if so."""
    name, expected = first
    if other[1] == expected:
        return None
    known, found = ({each.name: each for each in columns} for columns in (expected, other[1]))
    same = {each for each in known.keys() & found.keys() if known[each] == found[each]}
    odd = next((each for each in [*known, *found] if each not in same), None)
    if odd is None:
        return f"columns have another order than in `{name}`"
    here, there = (_described(columns.get(odd)) for columns in (found, known))
    return f"column {odd!r} is {here}, and {there} in `{name}`"


def _described(field: Any) -> str:
    """Return the type of a column of Parquet in words."""
    if field is None:
        return "missing"
    return f"{field.type}{'' if field.nullable else ' without nulls'}"


def _mixed(name: str, reason: str) -> DataFileError:
    """Return the error about a file whose columns are not those of the first one."""
    return DataFileError(
        f"Files of one run must have the same columns and types, and in `{name}` {reason}. Run it "
        "alone, or pass `on_error='skip'` to leave it out.",
        argument="input",
    )


def identity_name(file: InputFile) -> str:
    """Return the name of a file's fingerprint in `Source.identity`."""
    return f"the input file {str(file.place.absolute())!r}"


def unchanged(
    source: Source, name: str, identity: Mapping[str, Any], *, may_grow: bool = True
) -> bool:
    """Return whether the files of an input are what they were.

    `name` is that of the input, to list what is in storage again, and `identity` is what
    `Source.identity` was. With `may_grow`, text files may have grown.
    """
    may_grow &= source.format != "parquet"
    is_remote = any(each.version is not None for each in source.files)
    versions = {each.name: each.version for each in _find(name)[0]} if is_remote else {}
    return all(
        versions.get(each.name) == each.version
        if each.version is not None
        else _is_same(each, identity.get(identity_name(each)), may_grow=may_grow)
        for each in source.files
    )


def _is_same(file: InputFile, identity: Any, *, may_grow: bool) -> bool:
    size, _, digest = current = _fingerprint(cast(Path, file.place), file.size)
    has_grown = may_grow and size > file.size
    return list(current) == identity or (
        has_grown and identity is not None and digest == identity[2]
    )


def _fingerprint(path: Path, size: int) -> tuple[int, int, str]:
    """Return size, time, and a hash of the start and the end of what is read of a file."""
    with reporting(str(path)), path.open("rb") as file:
        status = os.fstat(file.fileno())
        digest = hashlib.sha256(file.read(min(size, _HASHED_BYTES)))
        start = max(0, size - _HASHED_BYTES)
        file.seek(start)
        digest.update(file.read(size - start))
    return status.st_size, status.st_mtime_ns, digest.hexdigest()


@contextlib.contextmanager
def reporting(name: str, reader: str | None = None) -> Iterator[None]:
    """Turn errors of reading a file into `DataFileError`.

    Args:
        name: The file.
        reader: The machine that reads it, if another one has found it.
    """
    try:
        with translated() if is_url(name) else contextlib.nullcontext():
            yield
    except FileNotFoundError as error:
        where = "any more" if reader is None else f"on {reader}, or that machine cannot see it"
        raise DataFileError(
            f"File `{name}` does not exist {where}{_without_bucket(name)}."
        ) from error
    except (OSError, EOFError, zlib.error) as error:
        raise DataFileError(f"File `{name}` cannot be read: {error}.") from error


def _without_bucket(name: str) -> str:
    """Return what a message says of a file that does not exist, if its bucket does not either."""
    place = place_of(name)
    if isinstance(place, RemotePath) and place.lacks_bucket():
        return f": there is no bucket {place.parts[0]!r}"
    return ""
