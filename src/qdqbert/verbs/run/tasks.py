"""What `run` reads and writes for each kind of model: one entry of a table each."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Literal

from qdqbert.errors import UserInputError
from qdqbert.inference.classification import TextClassifier
from qdqbert.inference.embedding import Embedder
from qdqbert.inference.model import Model
from qdqbert.inference.reranking import Reranker
from qdqbert.inference.scheduler import Job
from qdqbert.tables.rows import Column
from qdqbert.verbs.run.options import AnswerOptions, RunOptions


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskEntry:
    """Columns and options of a kind of model.

    Attributes:
        name: What the model is, for messages.
        pair: Whether a row has a second text.
        options: Names of the options that apply.
        columns: Returns the columns that are written.
        job: Returns the job of the model for the options of a call. Its inputs are texts, or
            tuples of two texts.
        values: Returns the values of the columns, in their order, from an answer of the job.
    """

    name: str
    pair: Literal["never", "optional", "required"]
    options: tuple[str, ...]
    columns: Callable[[RunOptions], tuple[Column, ...]]
    job: Callable[[Any, RunOptions], Job[Any, Any]]
    values: Callable[[Any, RunOptions], tuple[Any, ...]]


def _embed(model: Embedder, options: RunOptions) -> Job[Any, Any]:
    return model.job(
        prompt_name=options.prompt_name,
        prompt=options.prompt,
        normalize_embeddings=options.normalize,
        truncate_dim=options.truncate_dim,
    )


def _classes(options: RunOptions) -> tuple[Column, ...]:
    if options.top_k in (None, 1):
        return Column(name="label", kind="text"), Column(name="score", kind="number")
    return Column(name="labels", kind="texts"), Column(name="scores", kind="numbers")


def _best_classes(answer: Any, options: RunOptions) -> tuple[Any, ...]:
    labels = [each["label"] for each in answer]
    scores = [each["score"] for each in answer]
    return (labels[0], scores[0]) if options.top_k in (None, 1) else (labels, scores)


TASKS: Mapping[type[Model], TaskEntry] = {
    Embedder: TaskEntry(
        name="an embedder",
        pair="never",
        options=("normalize", "truncate_dim", "prompt", "prompt_name"),
        columns=lambda _: (Column(name="embedding", kind="numbers"),),
        job=_embed,
        values=lambda answer, _: (answer,),
    ),
    TextClassifier: TaskEntry(
        name="a classifier",
        pair="optional",
        options=("top_k",),
        columns=_classes,
        job=lambda model, options: model.job(top_k=options.top_k or 1),
        values=_best_classes,
    ),
    Reranker: TaskEntry(
        name="a reranker",
        pair="required",
        options=(),
        columns=lambda _: (Column(name="score", kind="number"),),
        job=lambda model, _: model.scoring_job(),
        values=lambda answer, _: (float(answer[0]),),
    ),
}


def entry_of(model: Model, options: RunOptions) -> TaskEntry:
    """Return the entry of a model.

    Raises:
        UserInputError: `run` does not support the task, or an option does not apply to it.
    """
    entry = TASKS.get(type(model))
    if entry is None:
        raise UserInputError(
            f"`model={options.model!r}`: `run` does not support task {model.task!r}. Use "
            "qdqbert.load.",
            argument="model",
        )
    for field in dataclasses.fields(AnswerOptions):
        value = getattr(options, field.name)
        if value != field.default and field.name not in entry.options:
            raise UserInputError(
                f"`{field.name}={value!r}` does not apply to {entry.name}, which "
                f"`model={options.model!r}` is. Leave it out.",
                argument=field.name,
            )
    if options.text_pair_column is not None and entry.pair == "never":
        raise UserInputError(
            f"`text_pair_column={options.text_pair_column!r}` does not apply to {entry.name}, "
            "which reads one text per row. Leave it out.",
            argument="text_pair_column",
        )
    return entry
