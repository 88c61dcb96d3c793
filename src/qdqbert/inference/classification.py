"""Classes of texts, with the interface of transformers' pipeline "text-classification"."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from qdqbert.checkpoint.cross_encoder import Activation
from qdqbert.errors import UserInputError
from qdqbert.runtime.batches import Results
from qdqbert.runtime.inputs import check_batch_size, described, is_text, listed
from qdqbert.runtime.model import Model, TextEncoder
from qdqbert.runtime.options import AnswerOptions
from qdqbert.runtime.rows import LABEL, SCORE, RowFormat, classes, is_one
from qdqbert.runtime.scheduler import Encoded
from qdqbert.tables.rows import Column

Function = Activation
Scores = NDArray[np.float32]
Text = str | tuple[str, str]


class Scored(NamedTuple):
    """Scores of one text, and the logits that they are made of. Shape `(classes,)` each.

    An order comes from the logits: float32 scores of large logits are equal.
    """

    logits: Scores
    scores: Scores


@dataclasses.dataclass(frozen=True, kw_only=True)
class Classify(TextEncoder):
    """The job whose answer is the scores `(classes,)` of each text or pair; see `Job`.

    Attributes:
        function: What turns logits into scores.
    """

    function: Function

    def encode(self, items: Sequence[Any]) -> list[Encoded]:
        """Return the model inputs of each text or pair."""
        return super().encode([text_or_pair(item) for item in items])

    def split(self, results: Results) -> Sequence[Scored]:
        """Return the scores of each feature."""
        logits = results.outputs["logits"]
        return list(map(Scored, logits, apply(self.function, logits)))

    def answer(self, item: Any, encoded: Encoded, values: Sequence[Scored]) -> Any:
        """Return the scores."""
        del item, encoded
        return values[0].scores


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

    def answer(self, item: Any, encoded: Encoded, values: Sequence[Scored]) -> Any:
        """Return the best classes with their scores."""
        del item, encoded
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


class TextClassifier(Model):
    """Classifies texts or pairs of texts."""

    rows = RowFormat(
        name="a classifier",
        pair="optional",
        options=("top_k", "threshold"),
        columns=_class_columns,
        job=lambda model, options: model.job(top_k=options.top_k or 1, threshold=options.threshold),
        values=classes,
    )

    def __call__(
        self,
        inputs: Any,
        *,
        top_k: int | None = 1,
        function_to_apply: Function | None = None,
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
            top_k: Number of classes to return for each text, best first; `None` for all.
            function_to_apply: What turns logits into scores. By default "softmax"; "sigmoid" for
                multi-label models and models with one output; "none" for regression.
            threshold: If given, all classes whose score is above it are returned, best first,
                instead of `top_k` classes. `evaluate` uses 0.5 for multi-label models.
            truncation: True or "longest_first": longer inputs are always cut.
            max_length: Longest input in tokens, special tokens included. The model's by default,
                which is also the limit.
            batch_size: Has no effect. It is there for code that passes it to transformers.

        Returns:
            With `top_k=1`, one `{"label": ..., "score": ...}` for each text. Otherwise a list of
            them for each text. As in transformers, the result for one text is in a list, too, if
            `top_k` is 1. With `threshold`, a list of classes for each text, which can be empty.

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
        check_batch_size(batch_size)
        job = self.job(
            top_k=top_k,
            function_to_apply=function_to_apply,
            threshold=threshold,
            truncation=truncation,
            max_length=max_length,
        )
        answers = self._all(job, items, max_length=max_length)
        if top_k == 1 and threshold is None:
            return [each[0] for each in answers]
        return answers[0] if is_one else answers

    def job(
        self,
        *,
        top_k: int | None = 1,
        function_to_apply: Function | None = None,
        threshold: float | None = None,
        truncation: bool | str = True,
        max_length: int | None = None,
    ) -> Classify:
        """Return the job of a call with these options, for `stream`.

        Its answers are lists of `{"label": ..., "score": ...}`, also for `top_k=1`.
        """
        if truncation not in (True, "longest_first"):
            raise UserInputError(
                f"`truncation={truncation!r}` cannot be used: inputs that are longer than "
                "`max_length` are always cut, the longer text of a pair first. Leave it out.",
                argument="truncation",
            )
        tokenizer = self._loaded.tokenizer
        special = tokenizer.backend.num_special_tokens_to_add(is_pair=True)
        if max_length is not None and not special < max_length <= self.max_length:
            raise UserInputError(
                f"`max_length` must be above {special}, the number of special tokens, and at most "
                f"{self.max_length}, the longest input of {self.name!r}, got {max_length}.",
                argument="max_length",
            )
        return Label(
            tokenizer=tokenizer if max_length is None else tokenizer.cutting(max_length),
            input_names=self._loaded.artifact.input_names,
            function=check_function(function_to_apply, "function_to_apply") or self._function,
            id2label=self._loaded.id2label,
            top_k=top_k,
            threshold=threshold,
        )

    @property
    def _function(self) -> Function:
        problem = self._loaded.config.get("problem_type")
        if problem == "regression":
            return "none"
        if problem == "multi_label_classification" or len(self._loaded.id2label) == 1:
            return "sigmoid"
        return "softmax"


def apply(function: Function, logits: Scores) -> Scores:
    """Return scores `(texts, classes)` from logits, computed in float32 as transformers does."""
    if function == "sigmoid":
        # Large negative logits have the score 0.
        with np.errstate(over="ignore"):
            return np.asarray(1 / (1 + np.exp(-logits)), dtype=np.float32)
    if function == "softmax":
        powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
        return np.asarray(powers / powers.sum(axis=-1, keepdims=True), dtype=np.float32)
    return logits


def check_function(function: Function | None, argument: str) -> Function | None:
    """Return the name of a function; raise `UserInputError` if it is unknown."""
    if function is not None and function not in get_args(Function):
        raise UserInputError(
            f"`{argument}={function!r}` is unknown. Known: {', '.join(get_args(Function))}.",
            argument=argument,
        )
    return function


def text_or_pair(value: Any) -> Text:
    """Return a text, or a pair given as a mapping, a tuple or a list.

    Raises:
        UserInputError: It is something else.
    """
    if is_text(value):
        return str(value)
    parts: Any = value
    if isinstance(value, Mapping) and not value.keys() - {"text", "text_pair"}:
        parts = (value.get("text"), value.get("text_pair"))
        if parts[1] is None and is_text(parts[0]):
            return str(parts[0])
    if not is_pair(parts) or not all(map(is_text, parts)):
        raise UserInputError(
            "Each input has to be a text or a pair of texts, as (first, second) or {'text': ..., "
            f"'text_pair': ...}}; got {described(value)}."
        )
    return parts[0], parts[1]


def is_pair(value: Any) -> bool:
    """Return whether a value is a sequence of two strings."""
    return (
        isinstance(value, Sequence)
        and not isinstance(value, str)
        and len(value) == 2
        and all(isinstance(each, str) for each in value)
    )
