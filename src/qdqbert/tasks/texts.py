"""Functions shared by tasks over texts: tokenizing texts and reading labels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from qdqbert.common.errors import DataFileError
from qdqbert.data.rows.columns import quoted
from qdqbert.data.rows.data import Dataset, Example, check_each
from qdqbert.tasks.task import Features, Tokenization


def encode_texts(examples: Sequence[Example], how: Tokenization) -> Features:
    """Make one feature of each example, of its text or of its two texts together."""
    pairs = [example.text_pair for example in examples if example.text_pair is not None]
    encoded = how.encode([example.text for example in examples], pairs or None)
    return how.features(examples, encoded, len(encoded.inputs))


def require_pairs(dataset: Dataset, task: str) -> None:
    """Refuse data without a second text; raise `DataFileError`."""
    if dataset.examples[0].text_pair is None:
        raise DataFileError(
            f"The data `{dataset.path}` have one text per row, and {task} reads two. Name the "
            "second one with `text_pair_column`.",
            argument="text_pair_column",
        )


def check_label_column(dataset: Dataset) -> None:
    """Check that a column of labels was found; raise `DataFileError` otherwise."""
    if dataset.columns.label is None:
        found = f"got columns {quoted(dataset.names)}" if dataset.names else "only texts"
        hint = (
            "Pass `label_column`."
            if dataset.names
            else "Pass a .csv or .jsonl file, or a list of dicts."
        )
        raise DataFileError(
            f"Data `{dataset.path}`: no column has a name that is known to hold labels, {found}. "
            f"{hint}",
            argument="label_column",
        )


def checking(
    read: Callable[[Any, Mapping[int, str]], Any],
) -> Callable[[Dataset, Mapping[int, str]], None]:
    """Return a check that there is a column of labels, of which each can be read.

    `read` takes an example, and the names of the classes.
    """

    def check(dataset: Dataset, id2label: Mapping[int, str]) -> None:
        check_label_column(dataset)
        check_each(dataset, lambda example: read(example, id2label))

    return check


def label_of(example: Example) -> str:
    """Return the label, without spaces around it; raise `DataFileError` if it is blank."""
    label = (example.label or "").strip()
    if not label:
        raise DataFileError("The label is blank. Fill it in, or remove the row.")
    return label
