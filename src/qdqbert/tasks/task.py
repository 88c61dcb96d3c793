"""The interface of a task: what training and evaluation need to know about it.

A task defines what a prediction is, and what the model decides by it. Metrics, changed predictions
and SQNR of all tasks and engines are computed from these two.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from qdqbert.data.rows.data import Columns, Dataset, labels_place
from qdqbert.data.rows.lines import counted, cut_notice
from qdqbert.data.tokenizing.encoding import Batch, Encoded, encode, padding_of
from qdqbert.encoders.task_kinds import TASK_KINDS, TaskSettings
from qdqbert.runtime.batches import Results
from qdqbert.runtime.model import Loaded, Model
from qdqbert.runtime.routes import TaskRoute

if TYPE_CHECKING:
    from qdqbert.common import objects
    from qdqbert.data.tokenizing.tokenizer import Tokenizer

Prediction = NDArray[np.float32]
"""Output of a model for one feature: `(values,)`, or `(positions, values)` without padding."""

Predictions = Sequence[Prediction]
"""One prediction for each feature, in the order of the features."""

Decisions = Sequence[Sequence[Hashable]]
"""What a model decides, for each of its answers: one value or several, or none."""

Entities = Sequence[Set[Hashable]]
"""The entities that a model finds in each text."""

Labels = Mapping[str, int | float | NDArray[np.int64] | NDArray[np.float32]]
"""Labels of one feature, under the argument names of transformers' models."""

_USUAL = TaskSettings()

# Examples that are drawn for the extremes of a metric: as many as an interval has samples.
_DRAWN = 1000

IGNORED = -100
"""transformers' label of a position that is left out of the loss."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Metric:
    """A metric of a whole data set.

    Attributes:
        name: `accuracy`, `spearman` and so on.
        value: In the unit of the literature: percent, except for perplexity.
        examples: Number of examples that were scored.
        is_error: Whether lower is better, as for perplexity.
    """

    name: str
    value: float
    examples: int
    is_error: bool = False


Rows = NDArray[np.float64]
"""The numbers that a metric reads of each example. Shape `(examples, values)`."""

Extremes = tuple[NDArray[np.float64], NDArray[np.float64]]
"""Rows of other examples whose predictions make a metric as low as they can, and as high.

Shape `(kinds, examples, values)` each. An example has equal labels in both. The kind that changes
the metric most counts, and its examples are equally likely.
"""

Compute = Callable[[Rows, NDArray[np.float64]], NDArray[np.float64]]
"""Returns a metric of rows for each of several weights of them, `(samples, examples)`.

The result is `(samples,)`.

Raises `ValueError` if it is undefined.
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Score:
    """A metric, and the results for single examples that it is computed from.

    The rows are independent of each other. So the metric with random weights of them shows how much
    it depends on the choice of the examples; see `evidence.intervals`.

    Attributes:
        rows: The numbers that the metric reads of each answer: of an example, or of a query if it
            ranks documents.
        compute: Returns the metric of rows.
        extremes: Returns rows of examples that may be drawn next to some rows, also if these have
            no such labels.
        is_error: Whether lower is better.
        answers: Index of the answer of each row; `None` if all answers have a row.
    """

    name: str
    rows: Rows
    compute: Compute
    extremes: Callable[[Rows], Extremes]
    is_error: bool = False
    answers: Sequence[int] | None = None

    def metric(self) -> Metric:
        """Return the metric of all rows."""
        return Metric(
            name=self.name,
            value=float(self.compute(self.rows, np.ones((1, len(self.rows))))[0]),
            examples=len(self.rows),
            is_error=self.is_error,
        )


def mean_score(name: str, values: ArrayLike, answers: Sequence[int] | None = None) -> Score:
    """Return the mean of values from 0 to 1, one for each answer or some of them, in percent."""
    return Score(
        name=name,
        rows=np.asarray(values, dtype=np.float64)[:, None],
        compute=lambda rows, weights: 100.0 * (weights @ rows[:, 0]) / weights.sum(axis=-1),
        extremes=lambda rows: (np.zeros((1, 1, 1)), np.ones((1, 1, 1))),
        answers=answers,
    )


def share_score(name: str, parts: ArrayLike, wholes: ArrayLike) -> Score:
    """Return the sum of parts in percent of the sum of wholes, both with one for each example."""

    def compute(rows: Rows, weights: NDArray[np.float64]) -> NDArray[np.float64]:
        part, whole = (weights @ rows).T
        return np.asarray(100.0 * part / whole)

    def extremes(rows: Rows) -> Extremes:
        sizes = drawn_by_size(rows[:, 1])
        return one_kind(np.zeros_like(sizes), sizes), one_kind(sizes, sizes)

    return Score(
        name=name,
        rows=np.stack([parts, wholes], axis=1).astype(np.float64),
        compute=compute,
        extremes=extremes,
    )


def drawn_by_size(sizes: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return sizes of examples, at least 1, of which each is drawn as often as it matters.

    The variance of a metric depends on the squares of how much of it the examples are. So a single
    example that has most of the labels is drawn, however many have none.
    """
    return np.maximum(sizes[drawn(np.square(sizes))], 1)


def drawn(shares: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return indices of examples, each as often as its share of all, at equal distances."""
    ends = np.cumsum(shares if shares.any() else np.ones_like(shares))
    places = (np.arange(_DRAWN) + 0.5) / _DRAWN * ends[-1]
    found: NDArray[np.int64] = np.searchsorted(ends, places, side="right")
    return found.clip(max=len(ends) - 1)


def one_kind(*columns: ArrayLike) -> NDArray[np.float64]:
    """Return columns as the rows of one kind of examples; see `Extremes`."""
    return np.stack(columns, axis=-1).astype(np.float64)[None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Features:
    """Model inputs made from examples. An example can make several features.

    Attributes:
        examples: The examples.
        encoded: The features. A long context makes several, a pair of texts to embed makes two.
        places: Data that map a feature back to its example; one item for each feature, or empty.
        owners: Index of the example of each feature. By default, the examples make them in turn:
            all first texts, then all second ones.
        notices: Sentences for the user about what was truncated or left out.
    """

    examples: tuple[Any, ...]
    encoded: Encoded
    places: tuple[Any, ...] = ()
    owners: tuple[int, ...] = ()
    notices: tuple[str, ...] = ()

    def by_example(self) -> list[list[int]]:
        """Return the indices of the features that each example made."""
        count = len(self.examples)
        found: list[list[int]] = [[] for _ in range(count)]
        for index in range(len(self.encoded.inputs)):
            found[self.owners[index] if self.owners else index % count].append(index)
        return found

    def results(self, batch: Batch, outputs: Mapping[str, NDArray[np.float32]]) -> Results:
        """Return a batch of the features with a model's outputs for it."""
        return Results(
            outputs=outputs,
            inputs=batch.inputs,
            features=[self.encoded.inputs[index] for index in batch.indices],
            places=[self.places[index] if self.places else None for index in batch.indices],
        )


class Reader(Protocol):
    """Reads a file, a folder, a hub data set or an object into examples of a task."""

    def __call__(
        self, data: str | objects.Rows, *, columns: Columns, max_examples: int | None
    ) -> Dataset:
        """Return the examples; raise `DataFileError` if the task cannot read them."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tokenization:
    """How examples become features.

    Attributes:
        input_names: Inputs of the model, which features have.
        max_length: Longest feature in tokens.
    """

    tokenizer: Tokenizer
    input_names: Sequence[str]
    max_length: int
    settings: TaskSettings

    def encode(self, texts: Sequence[str], pairs: Sequence[str] | None = None) -> Encoded:
        """Tokenize texts, or pairs of texts."""
        return encode(
            self.tokenizer, texts, pairs, input_names=self.input_names, max_length=self.max_length
        )

    def encoded(self, inputs: Iterable[dict[str, NDArray[np.int32]]], truncated: int) -> Encoded:
        """Return model inputs, of which some were truncated."""
        padding = padding_of(self.tokenizer, self.input_names)
        return Encoded(inputs=tuple(inputs), padding=padding, truncated=truncated)

    def features(self, examples: Sequence[Any], encoded: Encoded, texts: int) -> Features:
        """Return features of examples, with a notice if some of their texts were cut."""
        cut, limit = encoded.truncated, f"{self.max_length} tokens"
        notices = (cut_notice(cut, texts, "text", limit),) if cut else ()
        return Features(examples=tuple(examples), encoded=encoded, notices=notices)


def tokenization_of(loaded: Loaded) -> Tokenization:
    """Return how a loaded model makes features of texts."""
    artifact, limit = loaded.artifact, loaded.tokenizer.max_length
    return Tokenization(
        tokenizer=loaded.tokenizer,
        input_names=artifact.input_names,
        max_length=artifact.max_length if limit is None else limit,
        settings=artifact.task_options,
    )


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a model predicts for features, and what is needed to make sense of it.

    Attributes:
        id2label: Names of the classes by number.
        tokenizer: Tokenizer of the model, for answers; metrics need none.
    """

    predictions: Predictions
    features: Features
    id2label: Mapping[int, str] = dataclasses.field(default_factory=dict)
    settings: TaskSettings = _USUAL
    tokenizer: Tokenizer | None = None

    @property
    def examples(self) -> tuple[Any, ...]:
        """The examples that made the features."""
        return self.features.examples


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Answer:
    """The answer of a model to an example, for people.

    Attributes:
        given: The example by names of columns: its texts, and its label if it has one.
        found: The answer by names of columns: `prediction`, `score` and so on.
        numbers: The values that the answer is chosen by: probabilities, cosines or scores, in any
            shape. The largest difference of one of them is how far two models are apart.
    """

    given: Mapping[str, Any]
    found: Mapping[str, Any]
    numbers: NDArray[np.float64]


Encode = Callable[[Sequence[Any], Tokenization], Features]
"""Makes features from examples."""


def identity(prediction: Prediction) -> Prediction:
    """Return the prediction itself."""
    return prediction


def accept_all(dataset: Dataset, _: Mapping[int, str]) -> None:
    """Accept every data set; for tasks whose labels are the texts themselves."""


def keep_labels(dataset: Dataset, _: Mapping[int, str]) -> Dataset:
    """Return the data; for tasks whose labels are not classes of the model."""
    return dataset


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
    """One task.

    Attributes:
        name: transformers' name of the task.
        encode_calibration: Makes features of texts of all kinds, as `load` does, for a model with
            the head that is given, a `TextHead`: with each prompt in turn. `None` if there is one
            kind.
        name_labels: Returns the data with labels that are names of the config's `id2label`, where
            they are numbers, and notices about how these are read. Raises `DataFileError` if they
            can be read in two ways.
        check_labels: Raises `DataFileError` if an example cannot be scored, because its label is
            missing or not one of the config's `id2label`. Names the file, the row and the column,
            so that a wrong label is reported before any work is done.
        check_metrics: Raises `DataFileError` if a metric of the data is not defined, such as a
            correlation with equal scores. Called after `check_labels`, before a model is
            evaluated.
        predictions: Returns the prediction for each feature of a batch that ran.
        scores: Returns the results that metrics are computed from, the main metric's first. The
            labels come from `read_labels`.
        decisions: Returns the decisions of each answer: one, or one for each position. Two models
            are compared by the number of decisions that differ. `None` if the answers are not
            choices.
        entities: Returns the entities in each text; `None` if the model finds none.
        answers: Makes what users read of the predictions: an answer to each example, or to each
            query of several examples.
        decided: Noun for the object of a decision, in the singular: text, word, question.
        labels: Returns what a model is trained with, one for each feature, `None` for a feature
            that nothing can be learned from. Takes features and `id2label`. `None` for tasks that
            `train` does not train.
        leaves_out_unlabeled: Whether examples with a blank label are left out if others have one.
            Not for tasks of which it is a label, or whose labels are the texts.
        class_names: Returns the classes of a new head from a data set; `None` for heads without
            classes.
        max_length: Default of the longest feature in tokens; `None` for the checkpoint's.
        reads_texts: Whether plain texts, such as the built-in ones, can be used for calibration.
        signal: Returns the part of a prediction that is compared by SQNR.
        model: Class that `load` returns; `None` for tasks that it does not run.
        route: Route of a server for the task; `None` if it has other routes only.
        settings: Names of the `TaskSettings` that the task reads.
        fit: Returns settings that labeled examples show, from an outcome of the float model on
            some that ranges are taken from, and a notice about them; `None` if they show none.
        files: Returns the contents of the files that the task writes, as JSON values by file name.
        queries: Returns the indices of the examples of each query, which have one answer together;
            `None` if each example has one.
    """

    name: str
    read: Reader
    encode: Encode
    check_labels: Callable[[Dataset, Mapping[int, str]], None]
    predictions: Callable[[Results], list[Prediction]]
    scores: Callable[[Outcome], list[Score]]
    labels: Callable[[Features, Mapping[int, str]], Sequence[Labels | None]] | None
    answers: Callable[[Outcome], Sequence[Answer]]
    decisions: Callable[[Outcome], Decisions | None] = lambda outcome: None
    name_labels: Callable[[Dataset, Mapping[int, str]], Dataset] = keep_labels
    check_metrics: Callable[[Dataset, Mapping[int, str]], None] = accept_all
    leaves_out_unlabeled: bool = True
    entities: Callable[[Outcome], Entities | None] = lambda outcome: None
    class_names: Callable[[Dataset], list[str]] | None = None
    encode_calibration: Callable[[Any, Sequence[Any], Tokenization], Features] | None = None
    max_length: int | None = None
    reads_texts: bool = True
    decided: str = "text"
    signal: Callable[[Prediction], Prediction] = identity
    model: type[Model] | None = None
    route: TaskRoute | None = None
    settings: tuple[str, ...] = ()
    fit: Callable[[Outcome], tuple[TaskSettings, str] | None] | None = None
    files: Callable[[Outcome], dict[str, Any]] = lambda outcome: {}
    queries: Callable[[Sequence[Any]], list[list[int]]] | None = None

    @property
    def is_embedding(self) -> bool:
        """Whether predictions are embeddings, which have a value in each dimension."""
        return TASK_KINDS[self.name].vectors == "sentence"

    def read_labels(self, dataset: Dataset, id2label: Mapping[int, str]) -> Dataset:
        """Return the data with labels that can be scored; see `name_labels` and `check_labels`.

        A notice says so if all labels are the same, of which metrics show little.

        Raises:
            DataFileError: All labels are missing, or one is not one of the model's, or can be read
                in two ways.
        """
        named = self.name_labels(self.labeled(dataset), id2label)
        self.check_labels(named, id2label)
        labels = {label for each in named.examples for label in each.labels or ()}
        if len(labels) != 1 or len(named) == 1 or not self.leaves_out_unlabeled:
            return named
        notice = (
            f"All labels of {labels_place(named)} are {labels.pop()!r}, and metrics of one label "
            "show little. Add examples with others."
        )
        return dataclasses.replace(named, notices=(*named.notices, notice))

    def labeled(self, dataset: Dataset) -> Dataset:
        """Return the data without the examples that have no label, if others have one."""
        kept = tuple(each for each in dataset.examples if each.labels is not None)
        left_out = len(dataset) - len(kept)
        if not (kept and left_out and self.leaves_out_unlabeled):
            return dataset
        verb = "has no label and is" if left_out == 1 else "have no label and are"
        notice = f"{left_out:,} of {counted(len(dataset), 'example')} {verb} left out."
        return dataclasses.replace(dataset, examples=kept, notices=(*dataset.notices, notice))

    def metrics(self, outcome: Outcome) -> list[Metric]:
        """Return the metrics, the main one first; see `scores`."""
        return [each.metric() for each in self.scores(outcome)]
