"""What training and evaluation know of a task: examples -> features -> rows -> metrics."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from qdqbert.encoding import Batch, Encoded
from qdqbert.errors import UserInputError
from qdqbert.tasks.data import Columns, Dataset

Prediction = NDArray[np.float32]
"""What a model says of one input row: `(features,)`, or `(positions, features)` without padding."""

Predictions = Sequence[Prediction]
"""One for each input row, in their order."""

Labels = Mapping[str, int | float | NDArray[np.int64]]
"""What a model of transformers is trained with, by name of argument; of one input row."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskOptions:
    """Settings of tasks, under transformers' names; each task reads its own.

    Attributes:
        doc_stride: Tokens that two windows of one context share. Question answering.
        n_best_size: How many start and end positions are paired. Question answering.
        max_answer_length: Longest answer in tokens. Question answering.
        null_score_diff_threshold: "No answer" is given if its score is more than this above that
            of the best answer. Question answering with unanswerable questions.
        mlm_probability: Share of the tokens that are masked. Masked language models.
        seed: Draws the masked tokens.
    """

    doc_stride: int = 128
    n_best_size: int = 20
    max_answer_length: int = 30
    null_score_diff_threshold: float = 0.0
    mlm_probability: float = 0.15
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("doc_stride", 0), ("n_best_size", 1), ("max_answer_length", 1)):
            if getattr(self, name) < least:
                raise UserInputError(
                    f"`{name}` must be at least {least}, got {getattr(self, name)}.", argument=name
                )
        if not 0 < self.mlm_probability < 1:
            raise UserInputError(
                f"`mlm_probability` must be between 0 and 1, got {self.mlm_probability}.",
                argument="mlm_probability",
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Metric:
    """A number with its name and the number of examples that it is taken over.

    Attributes:
        name: For people and for JSON: `accuracy`, `spearman`.
        value: On the scale that its literature uses; percent here, but for perplexity.
        examples: How many were scored.
        is_error: Whether lower is better, as for perplexity.
    """

    name: str
    value: float
    examples: int
    is_error: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Features:
    """Examples as input rows of a model. A long one may make several rows, a pair two.

    Attributes:
        examples: What they were made of.
        encoded: The rows.
        places: What the task needs to go back from a row to its example; one a row, or empty.
        notices: Sentences on what was cut or left out, for the user to see.
    """

    examples: tuple[Any, ...]
    encoded: Encoded
    places: tuple[Any, ...] = ()
    notices: tuple[str, ...] = ()


class Reader(Protocol):
    """Reads a file, a folder or a named data set into a task's examples."""

    def __call__(self, path: str, *, columns: Columns, max_examples: int | None) -> Dataset:
        """The examples; raises `DataFileError` where they are not what the task reads."""
        ...


class Encoder(Protocol):
    """Makes features of examples."""

    def __call__(
        self,
        examples: Sequence[Any],
        tokenizer: Any,
        *,
        input_names: Sequence[str],
        max_length: int,
        options: TaskOptions,
    ) -> Features:
        """The features: input rows of at most `max_length` tokens, with those inputs."""
        ...


IGNORED = -100
"""transformers' label of a position that no loss is taken of."""


def whole(row: Prediction) -> Prediction:
    """The row itself."""
    return row


def no_classes(examples: Sequence[Any]) -> None:
    """What heads whose outputs are no classes of the data say of them."""
    del examples


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
    """One task.

    Attributes:
        name: transformers' name.
        read: From a file to examples.
        encode: From examples to features.
        rows: From a model's outputs `(batch, ...)` by name, for one batch of the features, to one
            row for each of the batch's.
        metrics: From rows, features, the config's `id2label` and options to metrics, the main one
            first; raises `DataFileError` if the examples have no labels or ones that the model
            does not know.
        decisions: From rows, features and options to what the model answers, one an example or
            position: two models are compared by how many differ. `None` if answers are no choices.
        labels: From features and `id2label` to what a model is trained with, one a row, `None` for
            a row that nothing can be learned from; raises as `metrics`.
        class_names: From examples to the classes of a new head; `None` for heads without classes.
        reads_texts: Whether plain texts, as those that are built in, can stand for examples when
            ranges are taken.
        max_length: Longest row in tokens, unless asked otherwise; `None` is the checkpoint's.
        is_embedding: Whether rows are vectors whose direction counts.
        signal: What of a row is compared by SQNR.
        files: From rows, features and options to the files that are usual for the task: content
            to be written as JSON, by file name.
    """

    name: str
    read: Reader
    encode: Encoder
    rows: Callable[[Mapping[str, NDArray[np.float32]], Batch, Features], list[Prediction]]
    metrics: Callable[[Predictions, Features, Mapping[int, str], TaskOptions], list[Metric]]
    decisions: Callable[[Predictions, Features, TaskOptions], Sequence[Hashable] | None]
    labels: Callable[[Features, Mapping[int, str]], Sequence[Labels | None]]
    class_names: Callable[[Sequence[Any]], list[str] | None] = no_classes
    max_length: int | None = None
    reads_texts: bool = True
    is_embedding: bool = False
    signal: Callable[[Prediction], Prediction] = whole
    files: Callable[[Predictions, Features, TaskOptions], dict[str, Any]] | None = None
