"""Check what calls get as inputs: one, or a list of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set, Sized
from typing import Any

from qdqbert.common.errors import UserInputError
from qdqbert.common.json_files import repeated

Text = str | tuple[str, str]
"""A text, or a pair of texts."""

# Iterables whose items are not the inputs: characters, bytes, names of fields, in no order.
_NO_LISTS = (str, bytes, bytearray, memoryview, Mapping, Set)


def listed(inputs: Any, argument: str, wanted: str) -> list[Any]:
    """Return the inputs of a call as a list; refuse something else. The items are not checked.

    Args:
        inputs: A list, a tuple, an iterator, a numpy array, a column of a table, or what else has a
            length and items, as a `KeyDataset` of transformers.
        argument: Name of the parameter.
        wanted: The accepted kinds of `inputs`, for the message.
    """
    # Of the class: polars warns of the columns of a LazyFrame.
    if hasattr(type(inputs), "columns") or hasattr(type(inputs), "column_names"):
        raise UserInputError(
            f"`{argument}` has to be {wanted}, got a table: {type(inputs).__name__}. Pass one of "
            "its columns, as in table['text'].",
            argument=argument,
        )
    found = inputs
    for name in ("tolist", "to_pylist"):
        # Items of numpy, pandas and Arrow become objects of Python.
        if not isinstance(found, _NO_LISTS) and callable(getattr(found, name, None)):
            found = getattr(found, name)()
    if not isinstance(found, Iterable) and is_indexed(found):
        found = [found[index] for index in range(len(found))]
    if isinstance(found, _NO_LISTS) or not isinstance(found, Iterable):
        raise UserInputError(
            f"`{argument}` has to be {wanted}, got {described(inputs)}.", argument=argument
        )
    return list(found)


def listed_texts(inputs: Any, argument: str, *, takes_one: bool = True) -> list[str]:
    """Return texts as a list; refuse something else.

    If `takes_one`, `inputs` may be a single text.
    """
    wanted = "a text or a list of texts" if takes_one else "a list of texts"
    is_one = takes_one and isinstance(inputs, str)
    texts = [inputs] if is_one else listed(inputs, argument, wanted)
    wrong = next((position for position, each in enumerate(texts) if not is_text(each)), None)
    if wrong is not None:
        place = ", got" if is_one else f"; item {wrong} is"
        raise UserInputError(
            f"`{argument}` has to be {wanted}{place} {described(texts[wrong])}.", argument=argument
        )
    return texts


def listed_labels(labels: Any, argument: str = "candidate_labels") -> list[str]:
    """Return the labels of a call, which may be one text with commas between them.

    Raises:
        UserInputError: There is none, one is blank or no text, or one is there twice.
    """
    if isinstance(labels, str):
        labels = [each.strip() for each in labels.split(",") if each.strip()]
    found = list(labels) if isinstance(labels, Iterable) else [labels]
    wrong = [each for each in found if not is_text(each) or not each.strip()]
    if not found or wrong:
        raise UserInputError(
            f"`{argument}` has to be labels, as a list of texts or one text with commas, got "
            f"{described(wrong[0] if wrong else labels)}.",
            argument=argument,
        )
    if (twice := repeated(found)) is not None:
        raise UserInputError(
            f"`{argument}` has {twice!r} twice. Name each label once.", argument=argument
        )
    return found


def is_indexed(value: Any) -> bool:
    """Return whether a value has a length and items, as a dataset of PyTorch."""
    return isinstance(value, Sized) and hasattr(type(value), "__getitem__")


def lower_case(value: Any) -> Any:
    """Return the name of a choice as transformers takes it: in any case, or an enumeration's."""
    name = getattr(value, "name", value)
    return name.lower() if isinstance(name, str) else value


def check_text(value: Any) -> str:
    """Return an input; refuse one that is no text."""
    if not is_text(value):
        raise UserInputError(f"Each input has to be a text; got {described(value)}.")
    return str(value)


def is_text(value: Any) -> bool:
    """Return whether a value is a string with characters only, no halves of them."""
    if not isinstance(value, str):
        return False
    if value.isascii():
        return True
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def text_or_pair(value: Any) -> Text:
    """Return a text, or a pair given as a mapping, a tuple or a list; refuse something else."""
    if is_text(value):
        return str(value)
    parts: Any = value
    if isinstance(value, Mapping) and not value.keys() - {"text", "text_pair"}:
        parts = (value.get("text"), value.get("text_pair"))
        if parts[1] is None and is_text(parts[0]):
            return str(parts[0])
    if not is_pair(parts) or not all(map(is_text, parts)):
        raise UserInputError(
            "Each input has to be a text or a pair of texts, as (first, second) or {'text': ..., "
            f"'text_pair': ...}}; got {described(value)}."
        )
    return parts[0], parts[1]


def is_pair(value: Any) -> bool:
    """Return whether a value is a sequence of two strings."""
    return (
        isinstance(value, Sequence)
        and not isinstance(value, str)
        and len(value) == 2
        and all(isinstance(each, str) for each in value)
    )


def check_whole(argument: str, value: Any, *, at_least: int) -> None:
    """Refuse an argument that is neither `None` nor a whole number of some size."""
    if value is None:
        return
    if type(value) is not int:
        raise UserInputError(
            f"`{argument}` must be a whole number, got {value!r:.100} ({type(value).__name__}).",
            argument=argument,
        )
    if value < at_least:
        raise UserInputError(
            f"`{argument}` must be at least {at_least}, got {value}.", argument=argument
        )


def check_choice(argument: str, value: Any, known: Sequence[str]) -> None:
    """Refuse an argument that is none of some names."""
    if value not in known:
        raise UserInputError(
            f"`{argument}={value!r}` is unknown. Known: {', '.join(known)}.", argument=argument
        )


def check_device(value: Any) -> None:
    """Refuse a `device` of a call other than the CPU; code for sentence-transformers passes it."""
    devices = value if isinstance(value, list | tuple) else [value]
    if any(each is not None and str(each) != "cpu" for each in devices):
        raise UserInputError(
            f"`device={value!s:.100}`: a model runs where it was loaded, and takes no other device "
            "in a call. Leave it out.",
            argument="device",
        )


def described(value: Any) -> str:
    """Return a value and its type, for messages."""
    if isinstance(value, str) and not is_text(value):
        return f"a string with a lone surrogate, which cannot be encoded: {value!r:.60}"
    return f"{type(value).__name__} {value!r:.60}"


def located(error: UserInputError, position: int) -> UserInputError:
    """Return an error about one input of several, with its position."""
    message = f"{error} This is input {position}, counted from 0."
    return type(error)(message, argument=error.argument)
