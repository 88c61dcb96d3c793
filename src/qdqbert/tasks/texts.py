"""Functions shared by tasks over texts: tokenizing texts and reading labels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from qdqbert.encoding import encode
from qdqbert.errors import DataFileError
from qdqbert.tasks.data import Dataset, Example
from qdqbert.tasks.lines import counted
from qdqbert.tasks.task import Features, TaskOptions

# Number of classes that an error lists.
_MOST_NAMES = 40


def encode_texts(
    examples: Sequence[Example],
    tokenizer: Any,
    *,
    input_names: Sequence[str],
    max_length: int,
    options: TaskOptions,
) -> Features:
    """Make one feature of each example, of its text or of its two texts together."""
    del options
    pairs = [example.text_pair for example in examples if example.text_pair is not None]
    encoded = encode(
        tokenizer,
        [example.text for example in examples],
        pairs or None,
        input_names=input_names,
        max_length=max_length,
    )
    return Features(
        examples=tuple(examples),
        encoded=encoded,
        notices=truncation_notice(encoded.truncated, len(encoded.inputs), max_length),
    )


def truncation_notice(truncated: int, texts: int, max_length: int) -> tuple[str, ...]:
    """Return a notice on texts that lost their end; empty if there are none."""
    if not truncated:
        return ()
    verb = "was" if truncated == 1 else "were"
    return (
        f"{truncated} of {counted(texts, 'text')} {verb} longer than {max_length} tokens and "
        f"{verb} cut.",
    )


def check_label_column(dataset: Dataset) -> None:
    """Check that a column of labels was found; raise `DataFileError` otherwise."""
    if dataset.columns.label is None:
        raise DataFileError(
            f"The data `{dataset.path}` have no column of labels. Name it with `label_column`.",
            argument="label_column",
        )


def label_of(example: Example) -> str:
    """Return the label as the file writes it, without spaces around it.

    Raises:
        DataFileError: The label is blank or missing.
    """
    label = (example.label or "").strip()
    if not label:
        raise DataFileError("The label is blank. Fill it in, or remove the row.")
    return label


def class_of(label: str, id2label: Mapping[int, str]) -> int:
    """Return the class of a label, which is its name in the config, in any case, or its number.

    Raises:
        DataFileError: The model does not have such a class.
    """
    wanted = label.strip().lower()
    for index, name in id2label.items():
        if wanted == name.lower():
            return int(index)
    number = wanted.removesuffix(".0")
    if number.isdecimal() and int(number) in id2label:
        return int(number)
    raise DataFileError(
        f"Label {label!r} is not one of the model's: {listed_classes(id2label)}. Name another "
        "column with `label_column`, or set `id2label` in the checkpoint's config.json."
    )


def sorted_names(names: Iterable[str]) -> list[str]:
    """Return names of classes, sorted; integers first, by their value."""
    return sorted(
        names, key=lambda name: (0, int(name), name) if name.isdecimal() else (1, 0, name)
    )


def listed_classes(id2label: Mapping[int, str]) -> str:
    """Return the numbers and names of classes for a message: 0 or 'no', 1 or 'yes'."""
    names = [f"{index} or {name!r}" for index, name in sorted(id2label.items())]
    return ", ".join(names[:_MOST_NAMES]) + (", …" if len(names) > _MOST_NAMES else "")
