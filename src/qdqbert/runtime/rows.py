"""Columns that models read from rows and add to them. Each class of models has its own."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Literal

from qdqbert.data.tables.rows import Column
from qdqbert.runtime.options import AnswerOptions
from qdqbert.runtime.scheduler import Job

Texts = tuple[str, ...]

LABEL = Column(name="label", kind="text")
SCORE = Column(name="score", kind="number")


def text_or_pair_of(texts: Texts) -> Any:
    """Return the text of a row, or both."""
    return texts[0] if len(texts) == 1 else texts


@dataclasses.dataclass(frozen=True, kw_only=True)
class RowFormat:
    """The columns that a kind of model reads from a row, and adds to it.

    Attributes:
        name: Name of the kind of model, for messages.
        columns: Returns the columns that are written.
        length: Returns the length of the lists of numbers in the first of them; `None` if they
            differ.
        job: Returns the job of the model for the options of a call.
        values: Returns the values of the columns, in their order, from an answer of the job.
        pair: Whether a row has a second text.
        options: Names of the options that apply.
        needs: Names of those of which a call has one, if there are any.
        item: Returns an input of the job from the texts of a row.
        read: Returns an input of the job from the fields of a row, for tasks whose columns have
            fixed names. Raises `DataFileError`.
    """

    name: str
    columns: Callable[[AnswerOptions], tuple[Column, ...]]
    job: Callable[[Any, AnswerOptions], Job[Any, Any]]
    values: Callable[[Any, AnswerOptions], tuple[Any, ...]]
    length: Callable[[Any, AnswerOptions], int | None] = lambda model, options: None
    pair: Literal["never", "optional", "required"] = "never"
    options: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    item: Callable[[Texts], Any] = text_or_pair_of
    read: Callable[[Mapping[str, Any]], Any] | None = None


def always(*columns: Column) -> Callable[[AnswerOptions], tuple[Column, ...]]:
    """Return `columns` for all options."""
    return lambda _: columns


def is_one(options: AnswerOptions) -> bool:
    """Return whether a row gets one answer, not a list of them."""
    return options.top_k in (None, 1) and options.threshold is None


def classes(answer: Any, options: AnswerOptions) -> tuple[Any, ...]:
    """Return the label and the score, or the lists of them, of a classifier's answer."""
    labels = [each["label"] for each in answer]
    scores = [each["score"] for each in answer]
    return (labels[0], scores[0]) if is_one(options) else (labels, scores)
