"""Classes of texts or pairs of texts.

The model has the interface of transformers' pipeline "text-classification".
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict, Unpack, overload

import numpy as np

from qdqbert.common.errors import UserInputError
from qdqbert.common.keywords import suggest_keywords
from qdqbert.data.rows.columns import is_number
from qdqbert.data.rows.data import Dataset, labels_place, read_dataset
from qdqbert.data.tables.rows import Column
from qdqbert.encoders.checkpoint.cross_encoder import Activation
from qdqbert.runtime.inputs import check_whole, is_pair, listed
from qdqbert.runtime.options import AnswerOptions
from qdqbert.runtime.routes import Pair, TaskRoute
from qdqbert.runtime.rows import LABEL, SCORE, RowFormat, classes, is_one
from qdqbert.runtime.scheduler import EncodedItem
from qdqbert.tasks.class_names import class_of, name_classes, new_names, plain_number, sorted_names
from qdqbert.tasks.hypotheses import LABELED_ROWS
from qdqbert.tasks.logits import (
    check_function,
    class_answers,
    extreme_classes,
    logit_predictions,
    most_likely_classes,
    score_of_pairs,
)
from qdqbert.tasks.metrics import accuracy, f1_binary, f1_macro, matthews
from qdqbert.tasks.pair_scores import Classify, PairScorer, Scored
from qdqbert.tasks.takes_labels import TakesLabels
from qdqbert.tasks.task import Outcome, Score, Task
from qdqbert.tasks.texts import check_label_column, checking, encode_texts, label_of


def _name_labels(dataset: Dataset, id2label: Mapping[int, str]) -> Dataset:
    labels = [(each.label or "").strip() for each in dataset.examples]
    naming = name_classes(filter(None, labels), id2label, where=labels_place(dataset))
    if not naming.names:
        return dataset
    examples = tuple(
        dataclasses.replace(each, label=naming.names.get(label, each.label))
        for each, label in zip(dataset.examples, labels, strict=True)
    )
    notices = (*dataset.notices, *naming.notices)
    return dataclasses.replace(dataset, examples=examples, notices=notices)


def _scores(outcome: Outcome) -> list[Score]:
    """Return accuracy first. `f1` is the F1 score of class 1, as in GLUE."""
    logits = np.stack(outcome.predictions)
    labels = [class_of(label_of(each), outcome.id2label) for each in outcome.examples]
    classes, extremes = logits.argmax(axis=1), extreme_classes(logits.shape[1])
    f1 = {"f1": f1_binary} if logits.shape[1] == 2 else {"f1_macro": f1_macro}
    metrics = {"accuracy": accuracy, **f1, "mcc": matthews}
    return [
        score_of_pairs(name, classes, labels, metric, extremes) for name, metric in metrics.items()
    ]


def _class_names(dataset: Dataset) -> list[str]:
    """Return all labels, sorted, integers by value; or one `score` if some are fractions."""
    check_label_column(dataset)
    names = new_names(dataset, lambda example: [plain_number(label_of(example))])
    if all(map(is_number, names)) and not all(float(name).is_integer() for name in names):
        return ["score"]
    return sorted_names(names)


def usual_function(config: Mapping[str, Any]) -> Activation:
    """Return the function from logits to scores that transformers' pipeline applies."""
    problem = config.get("problem_type")
    if problem == "regression":
        return "none"
    is_sigmoid = problem == "multi_label_classification" or len(config["id2label"]) == 1
    return "sigmoid" if is_sigmoid else "softmax"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Label(Classify):
    """The job whose answer is the best classes of each text or pair.

    Attributes:
        id2label: Names of the classes.
        top_k: Number of classes, best first; `None` for all.
        threshold: Lowest score, exclusive, if classes are chosen by it.
    """

    id2label: Mapping[int, str]
    top_k: int | None
    threshold: float | None = None

    def answer(self, _: Any, __: EncodedItem, values: Sequence[Scored]) -> Any:
        """Return the best classes with their scores."""
        logits, scores = values[0]
        order = np.argsort(-logits, kind="stable")
        if self.threshold is None:
            order = order[: self.top_k]
        else:
            order = order[scores[order] > self.threshold]
        return [
            {"label": self.id2label[int(index)], "score": float(scores[index])} for index in order
        ]


def _class_columns(options: AnswerOptions) -> tuple[Column, ...]:
    if is_one(options):
        return LABEL, SCORE
    return Column(name="labels", kind="texts"), Column(name="scores", kind="numbers")


class Class(TypedDict):
    """A class of an input, and its score."""

    label: str
    score: float


class ClassifyOptions(TypedDict, total=False):
    """Options of a call that do not change the type of its result."""

    function_to_apply: Activation | None
    truncation: bool | str
    max_length: int | None
    batch_size: int | None


class TextClassifier(TakesLabels, PairScorer):
    """Classifies texts or pairs of texts."""

    rows = RowFormat(
        name="a classifier",
        pair="optional",
        options=("top_k", "threshold"),
        columns=_class_columns,
        job=lambda model, options: model.job(top_k=options.top_k or 1, threshold=options.threshold),
        values=classes,
    )

    @property
    def labels(self) -> list[str]:
        """Names of the classes, in the order of the outputs."""
        return self._loaded.labels

    @overload
    def __call__(self, inputs: Mapping[str, str], **options: Unpack[ClassifyOptions]) -> Class: ...

    @overload
    def __call__(
        self, inputs: str | Sequence[Any], **options: Unpack[ClassifyOptions]
    ) -> list[Class]: ...

    @overload
    def __call__(
        self,
        inputs: str | Mapping[str, str],
        *,
        top_k: int | None,
        threshold: float | None = None,
        **options: Unpack[ClassifyOptions],
    ) -> list[Class]: ...

    @overload
    def __call__(
        self,
        inputs: Any,
        *,
        top_k: int | Literal[""] | None = "",
        threshold: float | None = None,
        **options: Unpack[ClassifyOptions],
    ) -> Any: ...

    @suggest_keywords
    def __call__(
        self,
        inputs: Any,
        *,
        top_k: int | Literal[""] | None = "",
        function_to_apply: Activation | None = None,
        threshold: float | None = None,
        truncation: bool | str = True,
        max_length: int | None = None,
        batch_size: int | None = None,
    ) -> Any:
        """Classify texts, as transformers' pipeline "text-classification" does.

        Args:
            inputs: A text, a pair as `{"text": ..., "text_pair": ...}`, or a list of them, in
                which a pair can also be `(first, second)`. A single tuple of two texts is refused,
                because it may be a pair or two texts.
            top_k: Number of classes to return for each text, best first; `None` for all. By
                default the best class, without a list around it.
            function_to_apply: Function from logits to scores. By default "softmax"; "sigmoid" for
                multi-label models and models with one output; "none" for regression.
            threshold: If given, all classes whose score is above it are returned, best first,
                instead of `top_k` classes. `evaluate` uses 0.5 for multi-label models.
            truncation: True or "longest_first": longer inputs are always cut.
            max_length: Longest input in tokens, special tokens included. The model's by default,
                which is also the limit.
            batch_size: Has no effect. It is there for code that passes it to transformers.

        Returns:
            `{"label": ..., "score": ...}` for each input. With `top_k`, a list of these for each
            input, best first; with `threshold` too, which can be empty. As in transformers, the
            result for a single text, not for a pair, is in a list without `top_k`, too.

        Raises:
            UserInputError: An input is not a text or a pair, or an option has a wrong value.

        Example:
            >>> model(["great food", "the room was cold"])
            [{'label': 'positive', 'score': 0.998}, {'label': 'negative', 'score': 0.981}]
        """
        is_one = isinstance(inputs, str | Mapping)
        if isinstance(inputs, tuple) and is_pair(inputs):
            raise UserInputError(
                "`inputs` is a tuple of two texts, which may be a pair or two inputs. Pass "
                "[(first, second)] for a pair, and [first, second] for two inputs.",
                argument="inputs",
            )
        items = [inputs] if is_one else listed(inputs, "inputs", "a text or a list of texts")
        check_whole("batch_size", batch_size, at_least=1)
        job = self.job(
            top_k=1 if top_k == "" else top_k,
            function_to_apply=function_to_apply,
            threshold=threshold,
            truncation=truncation,
            max_length=max_length,
        )
        answers = self._all(job, items, max_length=max_length)
        if top_k == "" and threshold is None:
            answers = [each[0] for each in answers]
            return answers[0] if isinstance(inputs, Mapping) else answers
        return answers[0] if is_one else answers

    @suggest_keywords
    def job(
        self,
        *,
        top_k: int | None = 1,
        function_to_apply: Activation | None = None,
        threshold: float | None = None,
        truncation: bool | str = True,
        max_length: int | None = None,
    ) -> Classify:
        """Return the job of a call with these options, for `stream`.

        Its answers are lists of `{"label": ..., "score": ...}`, also for `top_k=1`.
        """
        check_whole("top_k", top_k, at_least=1)
        if truncation not in (True, "longest_first"):
            raise UserInputError(
                f"`truncation={truncation!r}` cannot be used: inputs that are longer than "
                "`max_length` are always cut, the longer text of a pair first. Leave it out.",
                argument="truncation",
            )
        return Label(
            tokenizer=(
                self._loaded.tokenizer
                if max_length is None
                else self._cutting(max_length, "max_length")
            ),
            input_names=self._loaded.artifact.input_names,
            function=check_function(function_to_apply, "function_to_apply")
            or usual_function(self._loaded.config),
            id2label=self._loaded.id2label,
            top_k=top_k,
            threshold=threshold,
        )

    def row_format(self, options: AnswerOptions) -> RowFormat:
        """Return the columns of a model that chooses among `labels`, if there are some."""
        return LABELED_ROWS if options.labels else self.rows


TEXT_CLASSIFICATION = Task(
    name="text-classification",
    read=read_dataset,
    encode=encode_texts,
    name_labels=_name_labels,
    check_labels=checking(lambda each, names: class_of(label_of(each), names)),
    predictions=logit_predictions,
    scores=_scores,
    decisions=most_likely_classes,
    labels=lambda features, id2label: [
        {"labels": class_of(label_of(each), id2label)} for each in features.examples
    ],
    answers=lambda outcome: class_answers(outcome, outcome.id2label),
    class_names=_class_names,
    model=TextClassifier,
    route=TaskRoute(
        inputs=(str, Pair),
        # All classes.
        parameters={"top_k": None, "function_to_apply": None},
        wraps_one=True,
    ),
)
