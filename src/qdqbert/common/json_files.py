"""Read JSON files that come from outside, and check the values that code relies on.

Every error is a `CheckpointError` that names the file, and the setting in it.
"""

from __future__ import annotations

import collections
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from qdqbert.common.errors import CheckpointError
from qdqbert.common.files import refuse_pointer, refuse_pointer_text

_T = TypeVar("_T")

# The largest vocabularies of today are files of 35 MB.
_LARGEST_FILE = 100_000_000
# No width, length or number of parts of a model is larger.
_LARGEST = 65_536
LARGEST_FLOAT = 1e30
"""Larger numbers have no float32, or their products have none."""


def read_json(path: Path) -> dict[str, Any]:
    """Return the object that a JSON file holds.

    Raises:
        CheckpointError: The file is missing, cannot be read, or holds something else.
    """
    return parse_object(read_text(path), path)


def read_text(path: Path) -> str:
    """Return the text of a file in UTF-8.

    Raises:
        CheckpointError: The file is missing, too large, or not UTF-8.
    """
    try:
        # A file may grow, and a device has no size.
        with path.open("rb") as file:
            content = file.read(_LARGEST_FILE + 1)
        if len(content) > _LARGEST_FILE:
            raise damaged(path, f"it is larger than {_LARGEST_FILE // 10**6} MB")
        return content.decode()
    except FileNotFoundError as error:
        raise CheckpointError(f"{str(path)!r} is missing.") from error
    except OSError as error:
        raise CheckpointError(f"{str(path)!r} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise damaged(path, "it is not UTF-8") from error


def parse_object(text: str, name: str | Path, *, unique: bool = True) -> dict[str, Any]:
    """Return the object that a text in JSON holds; see `parse_json`."""
    content = parse_json(text, name, unique=unique)
    if not isinstance(content, dict):
        raise damaged(name, "it does not hold a JSON object")
    return content


def parse_json(text: str, name: str | Path, *, unique: bool = True) -> Any:
    """Return the value that a text in JSON holds.

    `name` is the file, for errors. With `unique`, an object that has a name twice is refused.

    Raises:
        CheckpointError: It is not JSON, is nested too deeply, has half of a surrogate pair, or a
            name twice.
    """
    try:
        content = json.loads(text, object_pairs_hook=unique_pairs if unique else None)
        if "\\ud" in text or "\\uD" in text:
            json.dumps(content, ensure_ascii=False).encode()
    except RecursionError as error:
        raise damaged(name, "it is nested too deeply") from error
    except UnicodeEncodeError as error:
        raise damaged(name, "it has a character that is no character of Unicode") from error
    except ValueError as error:
        refuse_pointer_text(text, name)
        raise damaged(name, f"it is not JSON ({error})") from error
    return content


def unique_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the object with these pairs.

    Raises:
        ValueError: A name is there twice.
    """
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError(f"{shown(repeated([name for name, _ in pairs]))} is there twice")
    return found


def repeated(names: Sequence[str]) -> str | None:
    """Return the first name that comes twice; `None` if there is none."""
    counts = collections.Counter(names)
    return next((name for name in names if counts[name] > 1), None)


def damaged(name: str | Path, reason: str) -> CheckpointError:
    """Return the error about a file of a folder.

    Raises:
        CheckpointError: Git LFS has not downloaded the file.
    """
    refuse_pointer(name)
    return CheckpointError(
        f"{str(name)!r} is damaged: {reason}. Restore the file, or make the folder again."
    )


def shown(value: object) -> str:
    """Return a value for an error, cut to 40 characters."""
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}..."


class Fields:
    """An object with checked values. Names in errors are paths from the root.

    Attributes:
        values: The values, which are not checked.
    """

    def __init__(
        self, values: Any, wrong: Callable[[str], CheckpointError], path: str = ""
    ) -> None:
        """Take an object.

        Args:
            values: The object.
            wrong: Returns the error with a reason, such as "setting 'a.b' is missing".
            path: Prefix of its names.

        Raises:
            CheckpointError: It is not an object.
        """
        self._path = path
        self._wrong = wrong
        if not isinstance(values, Mapping):
            raise self.refuse("", values, "an object")
        self.values: Mapping[str, Any] = values

    @classmethod
    def of_file(cls, path: Path) -> Fields:
        """Read a file; see `read_json`."""
        return cls.of_text(read_text(path), path)

    @classmethod
    def of_text(cls, text: str, name: str | Path) -> Fields:
        """Read a text in JSON, of the file `name`; see `parse_object`."""
        return cls(parse_object(text, name), lambda reason: damaged(name, reason))

    def refuse(self, name: str, value: object, wanted: str) -> CheckpointError:
        """Return the error about a value."""
        place = f"{self._path}{name}".rstrip(".")
        what = f"setting {place!r}" if place else "the whole"
        return self._wrong(f"{what} is {shown(value)} and has to be {wanted}")

    def has(self, name: str) -> bool:
        """Return whether there is a value, and it is not null."""
        return self.values.get(name) is not None

    def optional(self, read: Callable[..., _T], name: str, *limits: int) -> _T | None:
        """Return what `read`, one of these methods, returns; `None` if there is no value."""
        return read(name, *limits) if self.has(name) else None

    def given(self, read: Callable[..., _T], name: str, usual: _T, *limits: int) -> _T:
        """Return what `read` returns, also of null; `usual` if the name is not there."""
        return read(name, *limits) if name in self.values else usual

    def get(self, name: str) -> Any:
        """Return a value of any kind."""
        if name not in self.values:
            raise self._wrong(f"setting '{self._path}{name}' is missing")
        return self.values[name]

    def integer(self, name: str, low: int = 1, high: int = _LARGEST, *, multiple: int = 1) -> int:
        """Return an integer between two limits."""
        value = self.get(name)
        if type(value) is not int or not low <= value <= high or value % multiple:
            what = f"a multiple of {multiple}" if multiple > 1 else "an integer"
            raise self.refuse(name, value, f"{what} from {low} to {high}")
        return value

    def equal(self, name: str, wanted: int) -> None:
        """Check an integer that follows from others."""
        self.integer(name, wanted, wanted)

    def number(self, name: str, low: float = -LARGEST_FLOAT) -> float:
        """Return a finite number."""
        value = self.get(name)
        if type(value) not in (int, float) or not low <= value <= LARGEST_FLOAT:
            raise self.refuse(name, value, "a finite number" if low else "a number from 0")
        return float(value)

    def truth(self, name: str) -> bool:
        """Return a truth value."""
        return bool(self._of(name, bool, "true or false"))

    def text(self, name: str) -> str:
        """Return a text."""
        return str(self._of(name, str, "a text"))

    def choice(self, name: str, choices: tuple[str, ...]) -> str:
        """Return one of some texts."""
        value = self.get(name)
        if not isinstance(value, str) or value not in choices:
            raise self.refuse(name, value, f"one of {', '.join(choices)}")
        return value

    def names(self, name: str) -> list[str]:
        """Return a list of different texts."""
        value = self.get(name)
        is_list = isinstance(value, list) and all(isinstance(each, str) for each in value)
        if not is_list or len(set(value)) < len(value):
            raise self.refuse(name, value, "a list of different names")
        return list(value)

    def list_of(self, name: str) -> list[Any]:
        """Return a list of any values."""
        return list(self._of(name, list, "a list"))

    def numbers(self, name: str) -> list[float]:
        """Return a list of finite numbers."""
        values = self.list_of(name)
        for value in values:
            if type(value) not in (int, float) or not abs(value) <= LARGEST_FLOAT:
                raise self.refuse(name, value, "a list of finite numbers")
        return [float(value) for value in values]

    def _of(self, name: str, kind: type, wanted: str) -> Any:
        value = self.get(name)
        if not isinstance(value, kind):
            raise self.refuse(name, value, wanted)
        return value

    def child(self, name: str) -> Fields:
        """Return an object."""
        return Fields(self.get(name), self._wrong, f"{self._path}{name}.")

    def children(self, name: str) -> list[Fields]:
        """Return a list of objects."""
        return [
            Fields(each, self._wrong, f"{self._path}{name}.{i}.")
            for i, each in enumerate(self.list_of(name))
        ]

    def by_name(self, name: str) -> dict[str, Fields]:
        """Return an object whose values are objects."""
        inner = self.child(name)
        return {each: inner.child(each) for each in inner.values}

    def texts_by_name(self, name: str) -> dict[str, str]:
        """Return an object whose values are texts."""
        inner = self.child(name)
        return {each: inner.text(each) for each in inner.values}
