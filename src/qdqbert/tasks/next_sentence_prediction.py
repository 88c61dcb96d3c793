"""Whether a second text follows the first. As in BERT, class 0 means yes and class 1 means no."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, overload

from qdqbert.common.errors import DataFileError, UserInputError
from qdqbert.common.objects import Rows
from qdqbert.data.rows.data import Columns, Dataset, Example, read_dataset
from qdqbert.runtime.inputs import described, is_pair, listed, text_or_pair
from qdqbert.runtime.model import Model
from qdqbert.runtime.routes import Pair, TaskRoute
from qdqbert.runtime.rows import LABEL, SCORE, RowFormat, always, classes
from qdqbert.runtime.scheduler import EncodedItem
from qdqbert.tasks.logits import (
    accuracy_scores,
    class_answers,
    logit_predictions,
    most_likely_classes,
)
from qdqbert.tasks.task import Task
from qdqbert.tasks.text_classification import Class, Label
from qdqbert.tasks.texts import checking, encode_texts, label_of, require_pairs

NAMES: Mapping[int, str] = {0: "is_next", 1: "not_next"}
"""Names of the two classes in answers."""

# Labels of the two classes, which the config of a checkpoint does not name.
_CLASSES = {
    **dict.fromkeys(("0", "next", "is_next", "isnext", "true"), 0),
    **dict.fromkeys(("1", "random", "not_next", "notnext", "false"), 1),
}


def read_pairs(data: str | Rows, *, columns: Columns, max_examples: int | None) -> Dataset:
    """Read pairs of texts with their labels; see `read_dataset`."""
    dataset = read_dataset(data, columns=columns, max_examples=max_examples)
    require_pairs(dataset, "next-sentence-prediction")
    return dataset


def _name_labels(dataset: Dataset, _: Mapping[int, str]) -> Dataset:
    """Add a notice on the meaning of labels that are numbers or truth values."""
    labels = {(each.label or "").strip().lower().removesuffix(".0") for each in dataset.examples}
    unclear = sorted(labels & {"0", "1", "true", "false"})
    if not unclear:
        return dataset
    listed = ", ".join(f"{each!r} is {NAMES[_CLASSES[each]]!r}" for each in unclear)
    notices = (*dataset.notices, f"Labels are read as in BERT's training: {listed}.")
    return dataclasses.replace(dataset, notices=notices)


def _class_of(example: Example) -> int:
    label = label_of(example)
    name = label.lower().removesuffix(".0")
    if name not in _CLASSES:
        raise DataFileError(
            f"Label {label!r} must be 0, 'next' or 'true' if the second text follows the first, "
            "and 1, 'random' or 'false' if not. Name another column with `label_column`, or "
            "change the labels."
        )
    return _CLASSES[name]


class _Decide(Label):
    """The job whose answer is the decision about each pair; see `Job`."""

    def encode(self, items: Sequence[Any]) -> list[EncodedItem]:
        """Return the model inputs of each pair."""
        for item in items:
            if isinstance(text_or_pair(item), str):
                raise UserInputError(
                    "Each input has to be a pair of texts, as (first, second); got "
                    f"{described(item)}."
                )
        return super().encode(items)


class NextSentencePredictor(Model):
    """Decides whether the second text of a pair follows the first."""

    rows = RowFormat(
        name="a model for next sentence prediction",
        pair="required",
        columns=always(LABEL, SCORE),
        job=lambda model, _: model.job(),
        values=classes,
    )

    @overload
    def __call__(self, inputs: tuple[str, str] | Mapping[str, str]) -> Class: ...

    @overload
    def __call__(self, inputs: Sequence[Any]) -> list[Class]: ...

    def __call__(self, inputs: Any) -> Any:
        """Decide whether the second text of each pair follows the first.

        Args:
            inputs: A pair as `(first, second)` or `{"text": ..., "text_pair": ...}`, or a list of
                pairs.

        Returns:
            `{"label": "is_next" or "not_next", "score": ...}` for each pair. `score` is the
            probability of the label.

        Raises:
            UserInputError: An input is not a pair of texts.

        Example:
            >>> model(("The cat is tired.", "It sleeps."))
            {'label': 'is_next', 'score': 0.99}
        """
        is_one = isinstance(inputs, Mapping) or is_pair(inputs)
        wanted = "a pair of texts or a list of them"
        pairs = [inputs] if is_one else listed(inputs, "inputs", wanted)
        answers = self._all(self.job(), pairs)
        found = [each[0] for each in answers]
        return found[0] if is_one else found

    def job(self) -> Label:
        """Return the job of a call, for `stream`. Its answers are lists of one decision."""
        return _Decide(
            tokenizer=self._loaded.tokenizer,
            input_names=self._loaded.artifact.input_names,
            function="softmax",
            id2label=NAMES,
            top_k=1,
        )


NEXT_SENTENCE_PREDICTION = Task(
    name="next-sentence-prediction",
    read=read_pairs,
    encode=encode_texts,
    name_labels=_name_labels,
    check_labels=checking(lambda each, _: _class_of(each)),
    predictions=logit_predictions,
    scores=lambda outcome: accuracy_scores(outcome, _class_of),
    decisions=most_likely_classes,
    labels=lambda features, _: [{"labels": _class_of(each)} for each in features.examples],
    answers=lambda outcome: class_answers(outcome, NAMES),
    model=NextSentencePredictor,
    route=TaskRoute(
        inputs=(Pair,),
        answer=lambda answer, _: answer[0],
        example={"text": "It rains.", "text_pair": "The street is wet."},
    ),
)
