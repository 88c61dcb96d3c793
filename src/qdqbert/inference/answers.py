"""What each kind of model reads from a row and adds to it: one entry of a table each."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal

from qdqbert.errors import DataFileError, UserInputError
from qdqbert.inference.classification import TextClassifier
from qdqbert.inference.embedding import Embedder
from qdqbert.inference.fill_mask import MaskFiller
from qdqbert.inference.load import load
from qdqbert.inference.model import Model
from qdqbert.inference.multiple_choice import ChoiceSelector
from qdqbert.inference.next_sentence_prediction import NextSentencePredictor
from qdqbert.inference.options import AnswerOptions, RowOptions
from qdqbert.inference.question_answering import QuestionAnswerer
from qdqbert.inference.reranking import Reranker
from qdqbert.inference.scheduler import Job
from qdqbert.inference.token_classification import TokenClassifier
from qdqbert.tables.rows import Column, Kind
from qdqbert.tasks.columns import Columns as Requested
from qdqbert.tasks.columns import Table, quoted, resolve_columns
from qdqbert.tasks.multiple_choice import choice_example

Texts = tuple[str, ...]
Columns = Callable[[AnswerOptions], tuple[Column, ...]]

# Put before the name of an answer's column that the rows have, too.
_PREFIX = "predicted_"


def _text_or_pair(texts: Texts) -> Any:
    return texts[0] if len(texts) == 1 else texts


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskEntry:
    """Columns and options of a kind of model.

    Attributes:
        name: What the model is, for messages.
        columns: Returns the columns that are written.
        job: Returns the job of the model for the options of a call.
        values: Returns the values of the columns, in their order, from an answer of the job.
        pair: Whether a row has a second text.
        options: Names of the options that apply.
        item: Returns an input of the job from the texts of a row.
        read: Returns an input of the job from the fields of a row, for tasks whose columns have
            fixed names. Raises `DataFileError`.
    """

    name: str
    columns: Columns
    job: Callable[[Any, AnswerOptions], Job[Any, Any]]
    values: Callable[[Any, AnswerOptions], tuple[Any, ...]]
    pair: Literal["never", "optional", "required"] = "never"
    options: tuple[str, ...] = ()
    item: Callable[[Texts], Any] = _text_or_pair
    read: Callable[[Mapping[str, Any]], Any] | None = None


def _always(*columns: Column) -> Columns:
    return lambda _: columns


def _is_one(options: AnswerOptions) -> bool:
    return options.top_k in (None, 1) and options.threshold is None


def _embed(model: Embedder, options: AnswerOptions) -> Job[Any, Any]:
    return model.job(
        prompt_name=options.prompt_name,
        prompt=options.prompt,
        normalize_embeddings=options.normalize,
        truncate_dim=options.truncate_dim,
        chunk_overlap=options.chunk_overlap,
    )


_LABEL = Column(name="label", kind="text")
_SCORE = Column(name="score", kind="number")


def _class_columns(options: AnswerOptions) -> tuple[Column, ...]:
    if _is_one(options):
        return _LABEL, _SCORE
    return Column(name="labels", kind="texts"), Column(name="scores", kind="numbers")


def _classes(answer: Any, options: AnswerOptions) -> tuple[Any, ...]:
    labels = [each["label"] for each in answer]
    scores = [each["score"] for each in answer]
    return (labels[0], scores[0]) if _is_one(options) else (labels, scores)


_ANSWER_FIELDS: tuple[tuple[str, Kind], ...] = (
    ("answer", "text"),
    ("score", "number"),
    ("start", "integer"),
    ("end", "integer"),
)


def _answer_columns(options: AnswerOptions) -> tuple[Column, ...]:
    if _is_one(options):
        return tuple(Column(name=name, kind=kind) for name, kind in _ANSWER_FIELDS)
    return (Column(name="answers", kind="records", fields=_ANSWER_FIELDS),)


def _answers(found: Any, options: AnswerOptions) -> tuple[Any, ...]:
    if _is_one(options):
        return tuple(found[0][name] for name, _ in _ANSWER_FIELDS)
    return (found,)


def _entity_columns(options: AnswerOptions) -> tuple[Column, ...]:
    is_token = options.aggregation_strategy == "none"
    place: tuple[tuple[str, Kind], ...] = (("start", "integer"), ("end", "integer"))
    fields: tuple[tuple[str, Kind], ...] = (
        ("entity" if is_token else "entity_group", "text"),
        ("score", "number"),
        *((("index", "integer"),) if is_token else ()),
        ("word", "text"),
        *place,
    )
    return (Column(name="entities", kind="records", fields=fields),)


_FILLS = Column(
    name="fills",
    kind="record_lists",
    fields=(("score", "number"), ("token", "integer"), ("token_str", "text"), ("sequence", "text")),
)


def _fills(answer: Any, options: AnswerOptions) -> tuple[Any, ...]:
    del options
    # A text with one mask has one list, without a list around it.
    return ([answer] if isinstance(answer[0], dict) else answer,)


def _read_choices(fields: Mapping[str, Any]) -> dict[str, Any]:
    given = {name: value for name, value in fields.items() if name != "label"}
    example = choice_example("it", given, 0)
    return {"context": example.context, "prompt": example.prompt, "choices": example.endings}


TASKS: Mapping[type[Model], TaskEntry] = {
    Embedder: TaskEntry(
        name="an embedder",
        options=("normalize", "truncate_dim", "prompt", "prompt_name", "chunk_overlap"),
        columns=_always(Column(name="embedding", kind="numbers")),
        job=_embed,
        values=lambda answer, _: (answer,),
    ),
    TextClassifier: TaskEntry(
        name="a classifier",
        pair="optional",
        options=("top_k", "threshold"),
        columns=_class_columns,
        job=lambda model, options: model.job(top_k=options.top_k or 1, threshold=options.threshold),
        values=_classes,
    ),
    Reranker: TaskEntry(
        name="a reranker",
        pair="required",
        columns=_always(_SCORE),
        job=lambda model, _: model.scoring_job(),
        values=lambda answer, _: (float(answer[0]),),
    ),
    NextSentencePredictor: TaskEntry(
        name="a model for next sentence prediction",
        pair="required",
        columns=_always(_LABEL, _SCORE),
        job=lambda model, _: model.job(),
        values=_classes,
    ),
    QuestionAnswerer: TaskEntry(
        name="a model for question answering",
        pair="required",
        options=("top_k",),
        columns=_answer_columns,
        item=lambda texts: {"question": texts[0], "context": texts[1]},
        job=lambda model, options: model.job(top_k=options.top_k or 1),
        values=_answers,
    ),
    TokenClassifier: TaskEntry(
        name="a model for token classification",
        options=("aggregation_strategy",),
        columns=_entity_columns,
        job=lambda model, options: model.job(
            aggregation_strategy=options.aggregation_strategy or "simple"
        ),
        values=lambda answer, _: (answer,),
    ),
    MaskFiller: TaskEntry(
        name="a masked language model",
        options=("top_k",),
        columns=_always(_FILLS),
        job=lambda model, options: model.job(top_k=options.top_k or 5),
        values=_fills,
    ),
    ChoiceSelector: TaskEntry(
        name="a model for multiple choice",
        columns=_always(
            Column(name="label", kind="integer"), _SCORE, Column(name="scores", kind="numbers")
        ),
        read=_read_choices,
        job=lambda model, _: model.job(),
        values=lambda answer, _: (answer["label"], answer["score"], answer["scores"]),
    ),
}


def load_model(options: RowOptions) -> Model:
    """Load the model that options name; see `load`."""
    model: Model = load(
        options.model,
        engine=options.engine,
        provider=options.provider,
        kernel=options.kernel,
        target=options.target,
        threads=options.threads,
        batch_invariant=options.batch_invariant,
    )
    return model


def read_item(entry: TaskEntry, fields: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    """Return the input of the job for a row.

    Args:
        entry: The entry of the model.
        fields: The fields of the row.
        names: Columns of the texts; ignored by tasks whose columns have fixed names.

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


def entry_of(model: Model, options: RowOptions) -> TaskEntry:
    """Return the entry of a model.

    Raises:
        UserInputError: An option does not apply to its task.
    """
    entry = TASKS[type(model)]
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
    return entry


def text_columns(
    entry: TaskEntry,
    options: RowOptions,
    *,
    path: str,
    names: Sequence[str],
    head: Sequence[tuple[int, dict[str, Any]]] = (),
    has_names: bool = True,
) -> tuple[str, ...]:
    """Find the columns of the texts; none for tasks whose columns have fixed names.

    Args:
        entry: The entry of the model.
        options: Options of the call.
        path: What has the columns, for messages.
        names: Names of the columns.
        head: Numbers and fields of the first rows.
        has_names: Whether columns have names. They are inferred by their places otherwise.

    Raises:
        UserInputError: A column does not exist or cannot be inferred.
    """
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
    entry: TaskEntry, options: RowOptions, *, path: str, names: Collection[str]
) -> tuple[Column, ...]:
    """Return the columns of the answers, called `predicted_NAME` if the rows have a column `NAME`.

    Args:
        entry: The entry of the model.
        options: Options of the call.
        path: What has the columns, for messages.
        names: Names of the columns of the rows.

    Raises:
        DataFileError: The rows have columns of both names.
    """
    columns = tuple(
        dataclasses.replace(each, name=_PREFIX + each.name) if each.name in names else each
        for each in entry.columns(options)
    )
    clash = next((each.name for each in columns if each.name in names), None)
    if clash is not None:
        raise DataFileError(
            f"{path} has the columns {clash.removeprefix(_PREFIX)!r} and {clash!r}, which are the "
            "names of an answer. Rename one of them.",
            argument="input",
        )
    return columns
