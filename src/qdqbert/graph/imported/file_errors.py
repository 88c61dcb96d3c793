"""Turn libraries' errors about a user's .onnx file into errors that name the file."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from qdqbert.errors import QdqBertError, UserInputError


def one_line(message: object) -> str:
    """Return the start of an error's message on one line, without a full stop."""
    return " ".join(str(message).split())[:200].rstrip(".")


@contextlib.contextmanager
def file_errors(path: Path) -> Iterator[None]:
    """Raise every exception as one line that names the file.

    Raises:
        UserInputError: Anything was raised.
    """
    try:
        yield
    except QdqBertError as error:
        text = " ".join(str(error).split())
        names_file = repr(path.name) in text and text == str(error)
        # An error about an option is not about the file.
        is_about_names = error.argument in ("input_names", "output_names")
        if isinstance(error, UserInputError) and (names_file or is_about_names):
            raise
        raise UserInputError(
            f"Graph {path.name!r} cannot be used: {text}", argument=error.argument
        ) from error
    except OSError as error:
        raise UserInputError(f"Graph {path.name!r} cannot be used: {error}.") from error
    # Which library fails, and with which class, depends on the file.
    except Exception as error:
        raise UserInputError(
            f"Graph {path.name!r} cannot be used: it is damaged in a way that no check names "
            f"({type(error).__name__}: {one_line(error)}). Export it again."
        ) from error
