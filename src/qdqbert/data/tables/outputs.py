"""Write output files in blocks of rows, and join blocks into one file.

Blocks of all formats except parquet are parts of the finished file: bytes that only need a header
before them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from qdqbert.common.choices import OutputFormat
from qdqbert.common.errors import UserInputError
from qdqbert.common.files import check_output_place, is_within
from qdqbert.common.storage import Place, RemotePath, append_files, place_of, size_of, whole_file
from qdqbert.data.tables.delimited import csv_header, tsv_header, write_csv, write_tsv
from qdqbert.data.tables.npy import npy_header, write_vectors
from qdqbert.data.tables.parquet import (
    import_pyarrow,
    join_blocks,
    partitions,
    unify_files,
    write_block,
    write_table,
    written,
)
from qdqbert.data.tables.rows import Layout, Row, object_line

STDOUT = "-"

_SUFFIXES: Mapping[str, OutputFormat] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
    ".npy": "npy",
}
_TEXT_FORMATS = ("jsonl", "csv", "tsv")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Writer:
    """How rows are written.

    Attributes:
        is_compressed: Whether the output is compressed with gzip.
        layout: Columns of the output. Rows of .jsonl and .parquet files keep all of their columns.
        partition_by: Columns whose values name the folders of .parquet files.
    """

    format: OutputFormat
    is_compressed: bool
    layout: Layout
    partition_by: tuple[str, ...] = ()

    def header(self, *, rows: int = 0, size_bytes: int = 0) -> bytes:
        """Return the start of the file, before the first block."""
        if self.format == "npy":
            return npy_header(rows, size_bytes, self.layout.answers[0])
        headers = {"csv": csv_header, "tsv": tsv_header}
        content = headers[self.format](self.layout) if self.format in headers else b""
        return self._compressed(content) if content else content

    def block(self, rows: Sequence[Row], answers: Sequence[Mapping[str, Any]]) -> bytes:
        """Return rows and their answers as a block."""
        if self.format == "parquet":
            return write_block(self.layout.answers, rows, answers)
        if self.format == "npy":
            column = self.layout.answers[0]
            return write_vectors((answer[column.name] for answer in answers), column.dtype)
        return self._compressed(self._lines(rows, answers))

    def _lines(self, rows: Sequence[Row], answers: Sequence[Mapping[str, Any]]) -> bytes:
        pairs = zip(rows, answers, strict=True)
        if self.format == "jsonl":
            return write_objects({**written(row.values), **answer} for row, answer in pairs)
        merged = ({**written(row.values, self.layout.kept), **answer} for row, answer in pairs)
        write = write_csv if self.format == "csv" else write_tsv
        return write(self.layout, merged)

    def _compressed(self, content: bytes) -> bytes:
        # A gzip file can consist of several members. Without a time, equal rows give equal bytes.
        return gzip.compress(content, mtime=0) if self.is_compressed else content

    def write(
        self, folder: Place, name: str, sources: Sequence[Place], rows: int
    ) -> tuple[list[str], str]:
        """Write blocks as a file of a folder; with `partition_by`, as one for each combination.

        Returns the names of the files in the folder, and a digest of their columns and types, which
        is empty for formats without types.

        Args:
            folder: The folder.
            name: Name of the file.
            sources: Files of blocks.
            rows: Number of their rows.
        """
        if not self.partition_by:
            with whole_file(folder / name) as path:
                return [name], self.join(path, sources, rows)
        names, digest = [], ""
        for part, table in partitions(self.layout, sources, self.partition_by):
            names.append(f"{part}/{name}" if part else name)
            with whole_file(folder / names[-1]) as path:
                digest = write_table(path, table)
        return names, digest

    def join(self, path: Path, sources: Sequence[Place], rows: int) -> str:
        """Write blocks as one file. Returns a digest of its columns and types; see `write`.

        Args:
            path: The file.
            sources: Files of blocks.
            rows: Number of their rows.
        """
        if self.format == "parquet":
            return join_blocks(self.layout, sources, path)
        size_bytes = sum(map(size_of, sources))
        with path.open("wb") as file:
            file.write(self.header(rows=rows, size_bytes=size_bytes))
            append_files(file, sources)
        return ""

    def unify(self, files: Sequence[Place]) -> None:
        """Give the finished files of a folder, which differ in them, the same columns and types."""
        if self.format == "parquet" and self.layout.types is None:
            unify_files(self.layout, files)


def write_objects(rows: Iterable[Mapping[str, Any]]) -> bytes:
    """Return rows as lines of a .jsonl file."""
    return b"".join(map(object_line, rows))


def format_of(output: str, given: OutputFormat | None) -> tuple[OutputFormat, bool]:
    """Return the format of an output, and whether it is compressed.

    Args:
        output: A file, a folder, or "-" for stdout.
        given: The format that the caller chose. By default by the suffix; "jsonl" for stdout and
            "parquet" for folders.

    Raises:
        UserInputError: The format is unknown, or cannot be written there.
        MissingExtraError: pyarrow is needed and not installed.
    """
    path = place_of(output)
    is_compressed = path.suffix.lower() == ".gz"
    suffix = Path(path.stem).suffix.lower() if is_compressed else path.suffix.lower()
    if output != STDOUT and isinstance(path, Path):
        check_output_place(path)
    if output == STDOUT:
        chosen = given or "jsonl"
    elif is_folder(output):
        _check_replaceable(path)
        chosen, is_compressed = given or "parquet", False
    else:
        chosen = given or _by_suffix(output, suffix)
    if output == STDOUT and chosen not in _TEXT_FORMATS:
        raise UserInputError(
            f"`output_format={chosen!r}`: stdout can be jsonl, csv or tsv. Pass a file.",
            argument="output_format",
        )
    if is_compressed and chosen not in _TEXT_FORMATS:
        raise UserInputError(
            f"`output={output!r}`: {chosen} files cannot be compressed with gzip. Leave out .gz.",
            argument="output",
        )
    if chosen == "parquet":
        import_pyarrow()
    return chosen, is_compressed


def _check_replaceable(folder: Place) -> None:
    """Refuse to replace the current folder, or one around it."""
    if isinstance(folder, RemotePath):
        return
    # The current folder may have been deleted.
    with contextlib.suppress(FileNotFoundError):
        if is_within(Path.cwd(), folder):
            raise UserInputError(
                f"`output={str(folder)!r}` is the current folder or one around it, which cannot be "
                "replaced. Pass a folder inside it.",
                argument="output",
            )


def _by_suffix(output: str, suffix: str) -> OutputFormat:
    if suffix == ".txt":
        raise UserInputError(
            f"`output={output!r}`: a .txt file cannot hold the columns of answers. Write .jsonl "
            "or .csv instead.",
            argument="output",
        )
    if suffix not in _SUFFIXES:
        raise UserInputError(
            f"`output={output!r}` must end in one of {', '.join(_SUFFIXES)}, or in .jsonl.gz, "
            ".csv.gz or .tsv.gz. Rename it, or pass `output_format`.",
            argument="output",
        )
    return _SUFFIXES[suffix]


def is_folder(output: str) -> bool:
    """Return whether an output is a folder: it exists as one, or ends with a slash."""
    return output.endswith(("/", os.sep)) or place_of(output).is_dir()
