"""What tasks over texts share: reading a table, and tokenizing texts or pairs of texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from qdqbert.encoding import encode
from qdqbert.errors import DataFileError
from qdqbert.tasks.data import Columns, Dataset, Example, read_dataset
from qdqbert.tasks.task import Features, TaskOptions


def read_texts(path: str, *, columns: Columns, max_examples: int | None) -> Dataset:
    """Texts or pairs of texts with their labels, see `read_dataset`."""
    return read_dataset(path, columns=columns, max_examples=max_examples)


def encode_together(
    examples: Sequence[Example],
    tokenizer: Any,
    *,
    input_names: Sequence[str],
    max_length: int,
    options: TaskOptions,
) -> Features:
    """One row an example: its text, or its two texts in one row."""
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
        notices=cut_notice(encoded.truncated, len(encoded.rows), max_length),
    )


def cut_notice(truncated: int, rows: int, max_length: int) -> tuple[str, ...]:
    """What a user is told of texts that lost their end, if some did."""
    if not truncated:
        return ()
    return (f"{truncated} of {rows} texts were longer than {max_length} tokens and were cut.",)


def label_of(example: Example) -> str:
    """The label as the file writes it, without spaces around it.

    Raises:
        DataFileError: There is none.
    """
    if example.label is None:
        raise DataFileError(
            "The data has no labels to compare with. Name their column with `--label-column`."
        )
    return example.label.strip()


def class_of(label: str, id2label: dict[int, str] | Any) -> int:
    """The class of a label: its name in the config, in any case, or its number.

    Raises:
        DataFileError: The model does not know it.
    """
    wanted = label.strip().lower()
    for index, name in id2label.items():
        if wanted == name.lower():
            return int(index)
    if wanted.removesuffix(".0").isdigit() and int(wanted.removesuffix(".0")) in id2label:
        return int(wanted.removesuffix(".0"))
    known = ", ".join(f"{index} or {name!r}" for index, name in sorted(id2label.items())[:20])
    raise DataFileError(
        f"Label {label!r} is not one of the model's: {known}. Name the labels' column "
        "with `--label-column`, or set `id2label` in the checkpoint's config.json."
    )
