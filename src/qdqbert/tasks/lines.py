"""Read the lines of UTF-8 files, and the JSON values that they hold."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from qdqbert.errors import DataFileError
from qdqbert.tables.lines import other_encoding
from qdqbert.tables.rows import half_surrogate


def existing_file(path: str) -> Path:
    """Return the path of an existing file.

    Raises:
        DataFileError: The file does not exist, or it is a directory.
    """
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
    if noun.endswith("ry"):
        return f"{noun.removesuffix('y')}ies"
    return f"{noun}{'es' if noun.endswith('ch') else 's'}"


def source_name(path: str) -> str:
    """Return how messages begin that are about all of the data."""
    return f"{'File' if Path(path).is_file() else 'Data'} `{path}`"


def row_name(path: str, number: int) -> str:
    """Return how messages refer to a row: by line of a file, by number in other data."""
    return f"{'Line' if Path(path).is_file() else 'Row'} {number} of `{path}`"


def read_lines(path: str | Path) -> Iterator[tuple[int, str]]:
    r"""Yield number (from 1) and text of each line, with its end but without a byte order mark.

    Only "\n" ends a line, because words and texts can contain U+2028 and similar characters.

    Raises:
        DataFileError: The file cannot be opened, or is not UTF-8.
    """
    offset = 0
    try:
        with Path(path).open("rb") as file:
            for number, raw in enumerate(file, start=1):
                other = other_encoding(raw) if number == 1 else None
                if other is not None:
                    raise DataFileError(
                        f"File `{path}` must be UTF-8, got {other}. Save it as UTF-8."
                    )
                mark = 3 if number == 1 and raw.startswith(b"\xef\xbb\xbf") else 0
                yield number, raw[mark:].decode("utf-8")
                offset += len(raw)
    except UnicodeDecodeError as error:
        raise DataFileError(
            f"File `{path}` must be UTF-8, got byte 0x{error.object[error.start]:02x} at position "
            f"{offset + mark + error.start} (line {number}). Save it as UTF-8, for example with "
            "`iconv -f cp1252 -t utf-8` if it was written on Windows."
        ) from error
    except OSError as error:
        raise DataFileError(f"File `{path}` cannot be read: {error}. Name another file.") from error


def read_text(path: str | Path) -> str:
    """Return the whole text of a file; raise as `read_lines`."""
    return "".join(line for _, line in read_lines(path))


def json_rows(path: str) -> Iterator[tuple[int, dict[str, object]]]:
    """Yield the number and the object of each line that is not blank.

    Raises:
        DataFileError: As `read_lines` and `json_object`.
    """
    for line, text in read_lines(path):
        if text.strip():
            yield line, json_object(text, path, line=line)


def json_object(text: str, path: str, *, line: int | None = None) -> dict[str, object]:
    """Return the JSON object in a line, or in the whole file if `line` is `None`.

    Raises:
        DataFileError: As `load_json`; or the value is not an object.
    """
    value = load_json(text, path, line=line)
    if isinstance(value, dict):
        return value
    where, hint = _place_and_hint(path, line)
    raise DataFileError(f"{where} must be a JSON object, got {kind_of(value)}. {hint}")


def load_json(text: str, path: str | Path, *, line: int | None = None) -> object:
    """Return the JSON value in a line, or in the whole file if `line` is `None`.

    Raises:
        DataFileError: The text is not JSON, or contains half of a surrogate pair, which Python's
            strings accept but tokenizers do not.
    """
    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError) as error:
        where, hint = _place_and_hint(path, line)
        raise DataFileError(f"{where} is not JSON: {error}. {hint}") from error
    half = half_surrogate(text)
    if half is not None:
        where, _ = _place_and_hint(path, (line or 1) + text.count("\n", 0, half.start()))
        raise DataFileError(
            f"{where} contains half of a surrogate pair, got `{half[0]}`, which is not a "
            "character. Write both halves, or remove it."
        )
    return value


def kind_of(value: object) -> str:
    """Return how messages name the kind of a JSON value."""
    return "null" if value is None else type(value).__name__


def _place_and_hint(path: str | Path, line: int | None) -> tuple[str, str]:
    if line is None:
        return f"File `{path}`", "Write one object."
    return f"Line {line} of `{path}`", "Write one object per line."
