"""Lines of a file in UTF-8, and the JSON that they hold."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

from qdqbert.errors import DataFileError

# A pair of surrogates, half of one (in the group), or another escape. In JSON a backslash always
# starts one of them.
_ESCAPE = re.compile(
    r"\\(?:u[dD][89abAB]..\\u[dD][c-fC-F]..|(u[dD][89a-fA-F]..)|.)", flags=re.DOTALL
)


def existing_file(path: str) -> Path:
    """The file of that name.

    Raises:
        DataFileError: There is none, or it is a directory.
    """
    file = Path(path)
    if not file.is_file():
        wrong = "is a directory, not a file" if file.is_dir() else "does not exist"
        raise DataFileError(f"Data file `{path}` {wrong}. Check the path.")
    return file


def read_lines(path: str | Path) -> Iterator[tuple[int, str]]:
    r"""Yields number and text of each line, its end kept, a byte order mark left out.

    Only "\n" ends a line: words and texts may hold U+2028 and its like.

    Raises:
        DataFileError: The file cannot be opened, or is not in UTF-8.
    """
    offset = 0
    try:
        with Path(path).open("rb") as file:
            for number, raw in enumerate(file, start=1):
                mark = 3 if number == 1 and raw.startswith(b"\xef\xbb\xbf") else 0
                yield number, raw[mark:].decode("utf-8")
                offset += len(raw)
    except UnicodeDecodeError as error:
        raise DataFileError(
            f"File `{path}` must be UTF-8, got byte 0x{error.object[error.start]:02x} at position "
            f"{offset + mark + error.start} (line {number}). Save it as UTF-8."
        ) from error
    except OSError as error:
        raise DataFileError(f"File `{path}` cannot be read: {error}. Name another file.") from error


def json_rows(path: str) -> Iterator[tuple[str, dict[str, object]]]:
    """Yields the object of each line that is not blank, with what errors call the line.

    Raises:
        DataFileError: As `read_lines`; or a line holds something else, see `json_object`.
    """
    for line, text in read_lines(path):
        if text.strip():
            yield f"Line {line} of `{path}`", json_object(text, path, line=line)


def json_object(text: str, path: str, *, line: int | None = None) -> dict[str, object]:
    """The JSON object of a line; of the whole file where `line` is `None`.

    Raises:
        DataFileError: As `load_json`; or the JSON is no object.
    """
    value = load_json(text, path, line=line)
    if isinstance(value, dict):
        return value
    where, remedy = _named(path, line)
    raise DataFileError(f"{where} must be a JSON object, got {kind_of(value)}. {remedy}")


def load_json(text: str, path: str | Path, *, line: int | None = None) -> object:
    """The JSON value of a line; of the whole file where `line` is `None`.

    Raises:
        DataFileError: It is not JSON; or it has half of a surrogate pair, which Python's strings
            may hold but no tokenizer takes.
    """
    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError) as error:
        where, remedy = _named(path, line)
        raise DataFileError(f"{where} is not JSON: {error}. {remedy}") from error
    half = next((each for each in _ESCAPE.finditer(text) if each[1]), None)
    if half is not None:
        where, _ = _named(path, (line or 1) + text.count("\n", 0, half.start()))
        raise DataFileError(
            f"{where} holds half of a surrogate pair, got `{half[0]}`, which is no character. "
            "Write both halves, or leave it out."
        )
    return value


def kind_of(value: object) -> str:
    """What errors call the kind of a JSON value."""
    return "null" if value is None else type(value).__name__


def _named(path: str | Path, line: int | None) -> tuple[str, str]:
    """What errors call a place, and what is to be written there."""
    if line is None:
        return f"File `{path}`", "Write one object."
    return f"Line {line} of `{path}`", "Write one object a line."
