"""The best of several endings: SWAG, and question answering with given answers.

An example is a context, what all endings start with, and the endings. The model reads each ending
in a row of its own: the context as first text; start and ending, with a space between, as second.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbert.encoding import Encoded, encode, padding_of, stack_padded
from qdqbert.errors import DataFileError
from qdqbert.tasks.data import Columns, Dataset, Example, open_table
from qdqbert.tasks.logits import accuracy_of, largest, logit_rows
from qdqbert.tasks.task import Features, Labels, Metric, Predictions, Task, TaskOptions
from qdqbert.tasks.texts import cut_notice

_LAYOUT = (
    "`sent1`, `sent2`, `ending0`, `ending1`, ... as in SWAG, or `context` or `question` with a "
    "list `endings` or `choices`"
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChoiceExample:
    """A context and at least two endings, one of them right.

    Attributes:
        context: What comes before; never blank.
        prompt: What every ending starts with; may be empty.
        endings: To choose from, none of them blank.
        label: Index of the right one; `None` where the file does not say.
    """

    context: str
    prompt: str
    endings: tuple[str, ...]
    label: int | None = None

    @property
    def content(self) -> tuple[str, ...]:
        """What a model is shown of it."""
        return (self.context, self.prompt, *self.endings)


def read_choices(path: str, *, columns: Columns, max_examples: int | None) -> Dataset:
    """Reads a .csv, .tsv, .jsonl or .ndjson file, or a data set of the hub, with those fields.

    Raises:
        DataFileError: The data cannot be read, has other fields, or examples with different
            numbers of endings, or columns were named, which have fixed names here.
    """
    if columns != Columns():
        raise DataFileError(
            f"`--text-column`, `--text-pair-column` and `--label-column` are not for "
            f"multiple-choice, whose columns have fixed names: {_LAYOUT}, and `label`. Leave the "
            "options out."
        )
    if max_examples is not None and max_examples < 1:
        raise DataFileError(f"`max_examples` must be at least 1, got {max_examples}.")
    # A header without `label`, as that of a test set, is told by its sentences.
    table = open_table(path, Columns(text="sent1"))
    examples = tuple(itertools.islice(_examples(path, table.rows), max_examples))
    if not examples:
        raise DataFileError(
            f"File `{path}` holds no examples: expected rows with {_LAYOUT}, got none. Add rows."
        )
    return Dataset(path=path, examples=examples, columns=Columns(), notices=tuple(table.notices))


def _examples(path: str, rows: Iterator[tuple[int, dict[str, object]]]) -> Iterator[ChoiceExample]:
    wanted = None
    for line, row in rows:
        example = _example(f"Row {line} of `{path}`", row)
        wanted = wanted or len(example.endings)
        if len(example.endings) != wanted:
            raise DataFileError(
                f"Row {line} of `{path}` must have {wanted} endings as the rows before, got "
                f"{len(example.endings)}. Put rows with other numbers into a file of their own."
            )
        yield example


def _example(where: str, row: Mapping[str, object]) -> ChoiceExample:
    texts = [row[name] for name in ("sent1", "context", "question") if row.get(name)]
    prompt = row.get("sent2") or (texts[1] if len(texts) > 1 else "")
    endings = _endings(row)
    if not texts or len(endings) < 2:
        got = ", ".join(f"`{name}`" for name in row)
        raise DataFileError(
            f"{where} must have {_LAYOUT}, with at least two endings; got {got} with "
            f"{len(endings)}. Rename the fields, or add what is missing."
        )
    for text in (texts[0], prompt, *endings):
        if not isinstance(text, str):
            raise DataFileError(
                f"{where} must have strings as context and endings, got {type(text).__name__}. "
                "Change the value."
            )
    if not all(ending.strip() for ending in (str(texts[0]), *endings)):
        raise DataFileError(
            f"{where} must have no blank context or ending, got one. Fill it in, or remove the row."
        )
    return ChoiceExample(
        context=str(texts[0]),
        prompt=str(prompt),
        endings=tuple(endings),
        label=_label(where, row.get("label"), len(endings)),
    )


def _endings(row: Mapping[str, object]) -> list[Any]:
    for name in ("endings", "choices"):
        listed = row.get(name)
        if isinstance(listed, list):
            return listed
    numbered = itertools.takewhile(
        lambda name: row.get(name) is not None, (f"ending{i}" for i in itertools.count())
    )
    return [row[name] for name in numbered]


def _label(where: str, value: object, endings: int) -> int | None:
    if value is None or value == "":
        return None
    if str(value).strip().isdecimal() and int(str(value)) < endings:
        return int(str(value))
    raise DataFileError(
        f"{where} must have an ending's number, 0 to {endings - 1}, as `label`, got {value!r}. "
        "Change the value."
    )


def _encode(
    examples: Sequence[Any],
    tokenizer: Any,
    *,
    input_names: Sequence[str],
    max_length: int,
    options: TaskOptions,
) -> Features:
    """One row an example: its choices, padded to the longest of them."""
    del options
    pairs = [_pairs(example) for example in examples]
    flat = [pair for each in pairs for pair in each]
    seconds = [second for _, second in flat if second is not None]
    encoded = encode(
        tokenizer,
        [first for first, _ in flat],
        seconds or None,
        input_names=input_names,
        max_length=max_length,
    )
    singles = iter(encoded.rows)
    padding = padding_of(tokenizer, input_names)
    rows = tuple(_stack(list(itertools.islice(singles, len(each))), padding) for each in pairs)
    return Features(
        examples=tuple(examples),
        encoded=Encoded(rows=rows, padding=padding, truncated=encoded.truncated),
        notices=cut_notice(encoded.truncated, len(flat), max_length),
    )


def _pairs(example: ChoiceExample | Example) -> list[tuple[str, str | None]]:
    """First and second text of each choice; a plain text, to calibrate on, is its only choice."""
    if isinstance(example, Example):
        return [(example.text, example.text_pair)]
    start = f"{example.prompt} " if example.prompt else ""
    return [(example.context, start + ending) for ending in example.endings]


def _stack(
    rows: Sequence[Mapping[str, NDArray[np.int32]]], padding: Mapping[str, int]
) -> dict[str, NDArray[np.int32]]:
    return {
        name: stack_padded([row[name] for row in rows], filler).astype(np.int32)
        for name, filler in padding.items()
    }


def _metrics(
    rows: Predictions, features: Features, id2label: Mapping[int, str], options: TaskOptions
) -> list[Metric]:
    del id2label, options
    return [accuracy_of(rows, _right_ones(features))]


def _labels(features: Features, id2label: Mapping[int, str]) -> list[Labels]:
    del id2label
    return [{"labels": label} for label in _right_ones(features)]


def _right_ones(features: Features) -> list[int]:
    labels = [getattr(example, "label", None) for example in features.examples]
    if any(not isinstance(label, int) for label in labels):
        raise DataFileError(
            "Some examples do not say which ending is right. Add it as `label`, from 0."
        )
    return [int(label) for label in labels if label is not None]


MULTIPLE_CHOICE = Task(
    name="multiple-choice",
    read=read_choices,
    encode=_encode,
    rows=logit_rows,
    metrics=_metrics,
    decisions=largest,
    labels=_labels,
)
