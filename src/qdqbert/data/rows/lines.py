"""Read the lines of UTF-8 files, and the JSON values that they hold."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from qdqbert.common.errors import DataFileError
from qdqbert.common.files import refuse_pointer
from qdqbert.common.storage import is_url
from qdqbert.data.tables.lines import Lines, bad_byte, json_value, kind_of
from qdqbert.data.tables.parquet import read_parquet
from qdqbert.data.tables.rows import Row

PARQUET = ".parquet"

# Files whose rows have fields with names, and values of all types.
RECORD_SUFFIXES = (".jsonl", ".ndjson", PARQUET)


def existing_file(path: str) -> Path:
    """Return the path of an existing file."""
    file = Path(path)
    if not file.is_file():
        wrong = "is a directory, not a file" if file.is_dir() else "does not exist"
        raise DataFileError(f"Data file `{path}` {wrong}. Check the path.")
    return file


def counted(count: int, noun: str) -> str:
    """Return a number with a noun, in the plural unless the number is 1: "1 row", "2 rows"."""
    return f"{count} {noun if count == 1 else plural(noun)}"


def plural(noun: str) -> str:
    """Return the plural of a noun: rows, batches, queries."""
    if noun[-1] == "y" and noun[-2] not in "aeiou":
        return f"{noun.removesuffix('y')}ies"
    return f"{noun}{'es' if noun.endswith('ch') else 's'}"


def cut_notice(cut: int, count: int, noun: str, limit: str) -> str:
    """Return a sentence about some of several things that lost their end: texts, questions."""
    verb = "was" if cut == 1 else "were"
    return f"{cut} of {counted(count, noun)} {verb} longer than {limit} and {verb} cut."


def source_name(path: str) -> str:
    """Return how messages begin that are about all of the data."""
    return f"{'File' if _is_file(path) else 'Data'} `{path}`"


def row_name(path: str, number: int) -> str:
    """Return how messages refer to a row: by line of a file, by number in other data."""
    has_lines = _is_file(path) and not path.lower().endswith(PARQUET)
    return f"{'Line' if has_lines else 'Row'} {number} of `{path}`"


def _is_file(path: str) -> bool:
    # A data set that was read from a URL has its name.
    return bool(Path(path).suffix) if is_url(path) else Path(path).is_file()


def read_lines(path: str | Path) -> Iterator[tuple[int, str]]:
    """Yield number and text of each line, as `Lines`."""
    refuse_pointer(path, DataFileError)
    try:
        with Path(path).open("rb") as file:
            for number, text, _ in Lines(str(path), file, file):
                reason = bad_byte(text)
                if reason is not None:
                    raise DataFileError(
                        f"Line {number} of `{path}`: {reason}. Save the file as UTF-8, for example "
                        "with `iconv -f cp1252 -t utf-8` if it was written on Windows."
                    )
                yield number, text
    except OSError as error:
        raise DataFileError(f"File `{path}` cannot be read: {error}. Name another file.") from error


def read_text(path: str | Path) -> str:
    """Return the whole text of a file; raise as `read_lines`."""
    return "".join(line for _, line in read_lines(path))


def read_records(path: str) -> Iterator[tuple[int, dict[str, object]]]:
    """Yield number and fields of each row of a .parquet file, or each object in lines of JSON."""
    if path.lower().endswith(PARQUET):
        for row in read_parquet(Path(path)):
            if isinstance(row, Row):
                yield row.number, dict(row.values)
        return
    for line, text in read_lines(path):
        if text.strip():
            yield line, json_object(text, path, line=line)


def json_object(text: str, path: str, *, line: int | None = None) -> dict[str, object]:
    """Return the JSON object in a line, or in the whole file if `line` is `None`."""
    value = load_json(text, path, line=line)
    if not isinstance(value, dict):
        raise _refused(f"it must be a JSON object, got {kind_of(value)}", path, line)
    return value


def load_json(text: str, path: str | Path, *, line: int | None = None) -> object:
    """Return the JSON value in a line, or in the whole file if `line` is `None`."""
    value, reason = json_value(text)
    if reason is not None:
        raise _refused(reason, path, line)
    return value


def _refused(reason: str, path: str | Path, line: int | None) -> DataFileError:
    where, part = ("File", "file") if line is None else (f"Line {line} of", "row")
    return DataFileError(f"{where} `{path}`: {reason}. Correct the {part}.")
