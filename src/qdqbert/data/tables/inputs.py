"""Find the input files of a run, and read their rows one after another."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import glob
import gzip
import hashlib
import itertools
import os
import re
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from qdqbert.common.choices import INPUT_FORMATS, InputFormat
from qdqbert.common.errors import DataFileError, UserInputError
from qdqbert.common.files import is_utf8, refuse_pointer
from qdqbert.data.tables.delimited import read_csv, read_tsv
from qdqbert.data.tables.lines import read_objects, read_texts
from qdqbert.data.tables.parquet import count_rows, read_parquet, schema_of
from qdqbert.data.tables.rows import BadRow, Header, Row

STDIN = "-"

_SUFFIXES: Mapping[str, InputFormat] = {
    ".txt": "txt",
    ".csv": "csv",
    ".tsv": "tsv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
}
_Reader = Callable[[str, BinaryIO, BinaryIO], Iterator[Header | Row | BadRow]]
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
_PARTITION = re.compile(r"([^=]+)=.*")

# Size of the start and the end of a file by which it is recognized.
_HASHED_BYTES = 1 << 16


@dataclasses.dataclass(frozen=True, kw_only=True)
class Start:
    """The start of an input.

    Attributes:
        header: The columns that the first file names before its rows; `None` if it names none.
        head: The first rows.
        rows: All rows, the first ones included.
    """

    header: Header | None
    head: list[Row | BadRow]
    rows: Iterator[Row | BadRow]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
    """The input of a run.

    Attributes:
        files: The files in the order in which they are read; none for stdin.
        sizes: Size of each file: bytes, or rows of a .parquet file.
        format: Format of all files.
        header: Whether the first row of .csv and .tsv files has the names of the columns.
    """

    files: tuple[Path, ...]
    sizes: tuple[int, ...]
    format: InputFormat
    header: bool = True

    @property
    def size(self) -> int | None:
        """Size of all files; `None` for stdin."""
        return sum(self.sizes) if self.files else None

    @property
    def has_header(self) -> bool:
        """Whether the names of the columns were read from the first row."""
        return self.header and self.format in _WITHOUT_HEADER

    @property
    def partitions(self) -> tuple[str, ...]:
        """Names of the columns that the folders of the files have the values of: `lang=en`."""
        parts = (part for path in self.files for part in path.parent.parts)
        names = (found[1] for part in parts if (found := _PARTITION.fullmatch(part)))
        return tuple(dict.fromkeys(names))

    def place(self, row: Row | BadRow) -> str:
        """Return how messages refer to a row."""
        return f"{'Row' if self.format == 'parquet' else 'Line'} {row.number} of `{row.file}`"

    def identity(self) -> dict[str, Any]:
        """Return a fingerprint of each file: its size, time, start and end."""
        return {f"the input file {str(path.absolute())!r}": _identity(path) for path in self.files}

    def rows(self) -> Iterator[Row | BadRow]:
        """Yield the rows of all files. Their positions count the sizes of earlier files."""
        return (each for each in self._read() if not isinstance(each, Header))

    def start(self, count: int) -> Start:
        """Read the header and the first `count` rows; raise as `rows`."""
        found = self._read()
        first = next(found, None)
        header = first if isinstance(first, Header) else None
        before = [] if first is None or header is not None else [first]
        rows = (each for each in itertools.chain(before, found) if not isinstance(each, Header))
        head = list(itertools.islice(rows, count))
        return Start(header=header, head=head, rows=itertools.chain(head, rows))

    def _read(self) -> Iterator[Header | Row | BadRow]:
        if not self.files:
            stream = sys.stdin.buffer
            yield from self._reader("stdin", stream, stream)
            return
        before = 0
        for path, size in zip(self.files, self.sizes, strict=True):
            with _reporting(path):
                for row in self._rows_of(path):
                    if before and not isinstance(row, Header):
                        row = dataclasses.replace(row, position=before + row.position)
                    yield row
            before += size

    def _rows_of(self, path: Path) -> Iterator[Header | Row | BadRow]:
        if self.format == "parquet":
            yield from read_parquet(path)
            return
        refuse_pointer(path, DataFileError)
        with path.open("rb") as file:
            stream = gzip.GzipFile(fileobj=file) if path.suffix.lower() == ".gz" else file
            yield from self._reader(str(path), stream, file)  # type: ignore[arg-type]

    @property
    def _reader(self) -> _Reader:
        return _READERS[self.format] if self.header else _WITHOUT_HEADER[self.format]


def open_source(name: str, format: InputFormat | None = None, *, header: bool = True) -> Source:
    """Find the files of an input.

    Args:
        name: A file, a folder, a pattern with `*`, or "-" for stdin.
        format: Format of the files. By their suffix if `None`; "jsonl" for stdin.
        header: Whether the first row of .csv and .tsv files has the names of the columns.

    Raises:
        DataFileError: There is no such file, or files have different formats.
        UserInputError: The format cannot be read from stdin, or has no header.
    """
    source = _open_stdin(format) if name == STDIN else _open_files(name, format)
    if not header and source.format not in _WITHOUT_HEADER:
        raise UserInputError(
            f"`header=False` applies to csv and tsv only, and `input={name!r}` is "
            f"{source.format}. Leave it out.",
            argument="header",
        )
    return dataclasses.replace(source, header=header)


def _open_stdin(format: InputFormat | None) -> Source:
    if format == "parquet":
        raise UserInputError(
            "`input_format='parquet'`: stdin can be txt, csv, tsv or jsonl. Pass a file.",
            argument="input_format",
        )
    return Source(files=(), sizes=(), format=format or "jsonl")


def _open_files(name: str, format: InputFormat | None) -> Source:
    files = _find(name)
    formats = {path: format or _format_of(path) for path in files}
    first = formats[files[0]]
    odd = next((path for path in files if formats[path] != first), None)
    if odd is not None:
        raise DataFileError(
            f"All files of `input={name!r}` must have one format, got {files[0].name} and "
            f"{odd.name}. Pass a pattern, such as '*.{first}'.",
            argument="input",
        )
    if first == "parquet":
        _check_schemas(files)
        sizes = tuple(count_rows(path) for path in files)
    else:
        sizes = tuple(path.stat().st_size for path in files)
    return Source(files=files, sizes=sizes, format=first)


def _find(name: str) -> tuple[Path, ...]:
    path = Path(name)
    if path.is_dir():
        # Names with `.` and `_` are files that other programs keep next to the data.
        found = [each for each in path.iterdir() if each.name[0] not in "._" and each.is_file()]
    elif path.exists():
        found = [path]
    else:
        found = [Path(each) for each in glob.glob(name, recursive=True) if Path(each).is_file()]
    if not found:
        wrong = "has no files" if path.is_dir() else "does not exist"
        raise DataFileError(f"`input={name!r}` {wrong}. Check the path.", argument="input")
    odd = next((each for each in found if not is_utf8(str(each))), None)
    if odd is not None:
        raise DataFileError(
            f"`input={name!r}` has the file {str(odd)!r}, whose name is not UTF-8. Rename it.",
            argument="input",
        )
    return tuple(sorted(found))


def _format_of(path: Path) -> InputFormat:
    suffix = path.suffix.lower()
    is_compressed = suffix == ".gz"
    if is_compressed:
        suffix = Path(path.stem).suffix.lower()
    if suffix not in _SUFFIXES or (is_compressed and suffix == ".parquet"):
        known = ", ".join(_SUFFIXES)
        raise DataFileError(
            f"File `{path}` must end in one of {known}, or in one of them and .gz (except "
            f".parquet). Rename it, or pass `input_format`, one of {', '.join(INPUT_FORMATS)}.",
            argument="input_format",
        )
    return _SUFFIXES[suffix]


def _check_schemas(files: tuple[Path, ...]) -> None:
    first = schema_of(files[0])
    for path in files[1:]:
        if schema_of(path) != first:
            raise DataFileError(
                f"Files of one run must have the same columns and types, and `{path}` differs "
                f"from `{files[0]}`. Run them one by one.",
                argument="input",
            )


def _identity(path: Path) -> tuple[int, int, str]:
    with _reporting(path), path.open("rb") as file:
        status = os.fstat(file.fileno())
        digest = hashlib.sha256(file.read(_HASHED_BYTES))
        file.seek(max(0, status.st_size - _HASHED_BYTES))
        digest.update(file.read(_HASHED_BYTES))
    return status.st_size, status.st_mtime_ns, digest.hexdigest()


@contextlib.contextmanager
def _reporting(path: Path) -> Iterator[None]:
    """Turn errors of reading a file into `DataFileError`."""
    try:
        yield
    except FileNotFoundError as error:
        raise DataFileError(f"File `{path}` does not exist any more.") from error
    except (OSError, EOFError, zlib.error) as error:
        raise DataFileError(f"File `{path}` cannot be read: {error}.") from error
