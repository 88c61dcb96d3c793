"""Exceptions that this package raises.

* QdqBertError
  - UserInputError          an argument, a path or a file cannot be used
    · DataFileError         a data file is missing, empty or has the wrong columns
    · CheckpointError       a checkpoint cannot be loaded, or its architecture is not supported
    · OutputExistsError     the output folder already exists
    · MissingExtraError     an optional dependency is not installed
  - SpecError               a spec or a recipe contradicts itself
    · UnmatchedRuleError    a rule or a pattern matches no site
  - CalibrationError        a quantizer has no usable range
    · UncalibratedError     a quantizer saw no data
  - TrainingError           training cannot continue
  - GraphError              an exported graph does not have the expected form

Messages name options as Python does, in backticks: `max_length`, or `max_length=512` with a value.
The command line prints the same message in the spelling of its own options.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

# Longest message, and how much of a longer one is kept at its end, where the advice is.
_LONGEST = 2000
_KEPT_AT_END = 600
# Longest message of another library that is quoted. What is wrong is at its end.
_LONGEST_QUOTED = 800
# What libraries in C++ say before the reason: that loading failed, with a file that may be a copy;
# and the place in their source, with the signature of the function.
_NOT_THE_REASON = re.compile(
    r"\[ONNXRuntimeError\] : \d+ : \w+ : (?:Load model from .*? failed:)?"
    r"|/\S+\.(?:cc|cpp|h):\d+ [^()]*\((?:[^()]|\([^()]*\))*\)(?: const)? "
    r"|(?:Exception from| at) \S+\.(?:cc|cpp|h|hpp):\d+:\s"
)


def shortened(text: str, longest: int = _LONGEST) -> str:
    """Return a message, with its middle left out if it is very long.

    Names of columns and files, and values, can have any length, and messages quote them.
    """
    if len(text) <= longest:
        return text
    return f"{text[: longest - _KEPT_AT_END]} [...] {text[-_KEPT_AT_END:]}"


def one_line(message: object) -> str:
    """Return what an error of another library says, on one line, without a full stop."""
    reason = _NOT_THE_REASON.sub(" ", str(message)[-20_000:])
    return shortened(" ".join(reason.split()), _LONGEST_QUOTED).rstrip(".")


class QdqBertError(Exception):
    """Base class of all errors that this package raises.

    Attributes:
        argument: Name of the parameter that caused the error, as in the Python function. `None`
            if no single parameter did.
    """

    def __init__(self, message: str = "", *, argument: str | None = None) -> None:
        """Set the message and the parameter that it is about."""
        super().__init__(shortened(message))
        self.argument = argument


class UserInputError(QdqBertError, ValueError):
    """An argument, a path or a file cannot be used."""


class DataFileError(UserInputError):
    """A data file is missing, empty or has the wrong columns."""


class CheckpointError(UserInputError):
    """A checkpoint cannot be loaded, or its architecture is not supported."""


class OutputExistsError(UserInputError):
    """The output folder already exists."""


class MissingExtraError(UserInputError):
    """An optional dependency is not installed."""


class ModelClosedError(QdqBertError, RuntimeError):
    """A model that was closed is used."""


class SpecError(QdqBertError, ValueError):
    """A spec or a recipe contradicts itself."""


class UnmatchedRuleError(SpecError):
    """A rule or a pattern matches no site."""


class CalibrationError(QdqBertError, RuntimeError):
    """A quantizer has no usable range."""


class UncalibratedError(CalibrationError, AssertionError):
    """A quantizer saw no data.

    Also an `AssertionError`, which pytorch-quantization raises in this case.
    """


class TrainingError(QdqBertError, RuntimeError):
    """Training cannot continue, for example because the loss is not finite."""


class GraphError(QdqBertError, RuntimeError):
    """An exported graph does not have the expected form."""


@contextlib.contextmanager
def naming(argument: str) -> Iterator[None]:
    """Name the parameter that gave a file or a model in errors that name none.

    The parameter becomes the `argument` of the error, and the start of its message.

    Raises:
        UserInputError: The block raised one.
    """
    try:
        yield
    except UserInputError as error:
        if error.argument is not None:
            raise
        raise type(error)(f"`{argument}`: {error}", argument=argument) from error


@contextlib.contextmanager
def showing(name: str, folder: Path) -> Iterator[None]:
    """Name a model of the hub, instead of its folder in the hub's cache, in errors of a block.

    Nothing changes if the name is the one of a folder.

    Raises:
        QdqBertError: The block raised one.
    """
    try:
        yield
    except QdqBertError as error:
        message = str(error).replace(str(folder), name)
        if Path(name).is_dir() or message == str(error):
            raise
        raise type(error)(message, argument=error.argument) from error
