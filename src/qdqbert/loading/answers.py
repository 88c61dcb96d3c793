"""Models on rows: which columns they read and add."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from qdqbert.common.errors import DataFileError, UserInputError
from qdqbert.common.objects import fetched
from qdqbert.data.rows.columns import Columns as Requested
from qdqbert.data.rows.columns import Table, check_names, quoted, resolve_columns
from qdqbert.data.tables.rows import Column
from qdqbert.loading.load import load
from qdqbert.runtime.model import Model
from qdqbert.runtime.options import AnswerOptions, RowOptions
from qdqbert.runtime.rows import RowFormat, Texts
from qdqbert.tasks.hypotheses import hypotheses
from qdqbert.tasks.structures import structures_of_json

# Prefix of an answer's column whose name the rows already have.
_PREFIX = "predicted_"


def load_model(options: RowOptions) -> Model:
    """Load the model that options name; see `load`.

    What can be checked without it is checked before, as a model can be large.
    """
    if options.structures is not None:
        structures_of_json(options.structures)
    if options.hypothesis_template is not None:
        hypotheses((), options.hypothesis_template)
    # An error about a URL names the parameter of the caller.
    with fetched(options.model, "model"):
        model: Model = load(options.model, **options.of_engine())
    return model


def read_item(entry: RowFormat, fields: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    """Return the input of the job for a row.

    `names` are the columns of the texts; tasks whose columns have fixed names ignore them.

    Raises:
        DataFileError: The row cannot be used. The message is a phrase about "it".
    """
    return entry.read(fields) if entry.read else entry.item(_texts(fields, names))


def _texts(fields: Mapping[str, Any], names: tuple[str, ...]) -> Texts:
    texts = []
    for name in names:
        text = fields.get(name)
        if text is None:
            raise DataFileError(f"it has no value in column {name!r}")
        if not isinstance(text, str):
            raise DataFileError(f"column {name!r} must be a text, got {type(text).__name__}")
        if not text.strip():
            raise DataFileError(f"column {name!r} is blank")
        texts.append(text)
    return tuple(texts)


def entry_of(model: Model, options: RowOptions) -> RowFormat:
    """Return the entry of a model.

    Raises:
        UserInputError: An option does not apply to the model, or it needs one that is missing.
    """
    entry = model.row_format(options)
    unused = {
        field.name
        for field in dataclasses.fields(AnswerOptions)
        if field.name not in entry.options and getattr(options, field.name) != field.default
    }
    if entry.pair == "never" and options.text_pair_column is not None:
        unused.add("text_pair_column")
    if entry.read is not None and options.text_column is not None:
        unused.add("text_column")
    for name in sorted(unused):
        raise UserInputError(
            f"`{name}={getattr(options, name)!r}` does not apply to {entry.name}, which "
            f"`model={options.model!r}` is. Leave it out.",
            argument=name,
        )
    if entry.needs and not any(getattr(options, name) for name in entry.needs):
        raise UserInputError(
            f"{' or '.join(f'`{each}`' for each in entry.needs)} is missing: "
            f"`model={options.model!r}` is {entry.name}. Pass it.",
            argument=entry.needs[0],
        )
    return entry


def text_columns(
    entry: RowFormat,
    options: RowOptions,
    *,
    path: str,
    names: Sequence[str],
    head: Sequence[tuple[int, dict[str, Any]]] = (),
    has_names: bool = True,
) -> tuple[str, ...]:
    """Find the columns of the texts; none for tasks whose columns have fixed names.

    `path` is what has the columns, for messages, and `names` are theirs. `head` has numbers and
    fields of the first rows. Without `has_names`, columns are inferred by their places.

    Raises:
        UserInputError: A column does not exist or cannot be inferred, or a name is not a text.
    """
    check_names(names, path)
    if entry.read is not None:
        return ()
    first_cells = None if has_names else [str(cell) for cell in head[0][1].values()]
    table = Table(
        path=path, rows=iter(()), names=list(names), head=list(head), first_cells=first_cells
    )
    requested = Requested(text=options.text_column, text_pair=options.text_pair_column)
    found, _ = resolve_columns(table, requested)
    assert found.text is not None, "resolved or refused"
    if entry.pair == "required" and found.text_pair is None:
        raise UserInputError(
            f"`model={options.model!r}` is {entry.name}, which reads two texts per row, and "
            f"`{path}` has no column whose name is known to hold the second one, got "
            f"columns {quoted(names)}. Pass `text_pair_column`.",
            argument="text_pair_column",
        )
    if entry.pair == "never" or found.text_pair is None:
        return (found.text,)
    return found.text, found.text_pair


def answer_columns(
    model: Model, options: RowOptions, *, path: str, names: Collection[str]
) -> tuple[Column, ...]:
    """Return the columns of the answers, called `predicted_NAME` if the rows have a column `NAME`.

    `path` is what has the columns, for messages, and `names` are those of the rows.

    Raises:
        DataFileError: The rows have columns of both names.
    """
    entry = model.row_format(options)
    first, *others = entry.columns(options)
    columns = tuple(
        dataclasses.replace(each, name=(_PREFIX if each.name in names else "") + each.name)
        for each in (dataclasses.replace(first, length=entry.length(model, options)), *others)
    )
    given = [each.name for each in columns]
    clash = next((name for name in given if name in names or given.count(name) > 1), None)
    if clash is not None:
        raise DataFileError(
            f"{path} has the columns {clash.removeprefix(_PREFIX)!r} and {clash!r}, which are the "
            "names of an answer. Rename one of them.",
            argument="input",
        )
    return columns
