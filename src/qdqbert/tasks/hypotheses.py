"""Labels of a call for classifiers of entailment: each label is a sentence that a text may entail.

A text with 10 labels is 10 pairs, of which only the text is cut. It is tokenized once, and its
pairs run together, as they are of similar length. Source: the pipeline "zero-shot-classification"
of transformers, whose numbers these are.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypedDict

import numpy as np
from numpy.typing import NDArray

from qdqbert.common.errors import UserInputError
from qdqbert.data.tables.rows import Column
from qdqbert.data.tokenizing.encoding import feature_of
from qdqbert.data.tokenizing.tokenizer import Tokenizer
from qdqbert.encoders.model import Floats
from qdqbert.encoders.task_kinds import Entailment, entailment_of
from qdqbert.runtime.batches import Results
from qdqbert.runtime.inputs import check_text, described, is_text, listed_labels
from qdqbert.runtime.model import Loaded
from qdqbert.runtime.options import AnswerOptions
from qdqbert.runtime.rows import LABEL, SCORE, RowFormat, is_one
from qdqbert.runtime.scheduler import EncodedItem
from qdqbert.tasks.logits import apply

STATES = "last_hidden_state"
_PLACE = "{}"


class LabelScores(TypedDict):
    """A text, and the labels of a call with their scores, the best one first."""

    sequence: str
    labels: list[str]
    scores: list[float]


class LabelLogits(NamedTuple):
    """What a model says about labels, `(labels,)` each.

    Attributes:
        own: Logits, whose softmax is the probability of each label.
        alone: Logits, whose sigmoid is the probability that a label fits, whatever the others.
        scores_one_alone: Whether a single label is scored so, too, and is not certain.
    """

    own: NDArray[Any]
    alone: NDArray[Any]
    scores_one_alone: bool = True

    def scores(self, *, multi_label: bool) -> NDArray[Any]:
        """Return the score of each label."""
        if multi_label or (len(self.own) == 1 and self.scores_one_alone):
            return apply("sigmoid", self.alone)
        return apply("softmax", self.own)


class Reading(NamedTuple):
    """How a call wants its labels to be read, `None` for the usual way.

    Attributes:
        hypothesis_template, entailment_label: For classifiers of entailment.
        task_name: What the labels are about, for models of gliner2.
    """

    hypothesis_template: str | None = None
    entailment_label: str | None = None
    task_name: str | None = None

    def refuse(self, model: str, why: str, *names: str) -> None:
        """Refuse some of these arguments, which are for other kinds of models than `model` is.

        Raises:
            UserInputError: One of them is given.
        """
        for name in names:
            value = getattr(self, name)
            if value is not None:
                raise UserInputError(
                    f"`{name}={value!r:.100}` is for {why}, and {model!r} is another model. Leave "
                    "it out.",
                    argument=name,
                )

    def check(self) -> None:
        """Refuse arguments that are no texts."""
        for name, value in self._asdict().items():
            if value is not None and not (is_text(value) and value.strip()):
                raise UserInputError(
                    f"`{name}` has to be a text, got {described(value)}.", argument=name
                )


class ReadsLabels(Protocol):
    """The steps of a job up to what the model says about its labels; see `Job`."""

    def encode(self, items: Sequence[Any]) -> list[EncodedItem]:
        """Return the model inputs of each text with the labels."""

    def split(self, results: Results) -> Sequence[Any]:
        """Return the part of a batch's outputs that is kept of each feature."""

    def logits(self, encoded: EncodedItem, values: Sequence[Any]) -> LabelLogits:
        """Return what the model says about the labels, from the values of a text's features."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Hypotheses:
    """Reads labels as sentences that a text may entail; see `ReadsLabels`.

    Attributes:
        tokenizer: The tokenizer.
        input_names: Inputs of the graph.
        sentences: A sentence about each label.
        entailment: The classes of the model that are read.
    """

    tokenizer: Tokenizer
    input_names: Sequence[str]
    sentences: Sequence[str]
    entailment: Entailment

    def encode(self, items: Sequence[Any]) -> list[EncodedItem]:
        """Return the model inputs of each text with each sentence."""
        texts = list(map(check_text, items))
        return [
            EncodedItem(
                features=tuple(feature_of(each, self.input_names) for each in pairs),
                truncated=any(each.truncated for each in pairs),
            )
            for pairs in self.tokenizer.encode_each(texts, self.sentences)
        ]

    def split(self, results: Results) -> Sequence[NDArray[np.float32]]:
        """Return the logits of each pair, `(classes,)`."""
        return list(results.outputs["logits"])

    def logits(self, _: EncodedItem, values: Sequence[NDArray[np.float32]], /) -> LabelLogits:
        """Return the logits of entailment, alone minus those of contradiction."""
        return label_logits(np.stack(values), self.entailment)


class ReadsTogether:
    """The steps of models that read all labels with a text; see `ReadsLabels`."""

    def encode(self, items: Sequence[Any]) -> list[EncodedItem]:
        """Return the model input of each text with the labels."""
        raise NotImplementedError

    def score(self, states: Floats, ids: NDArray[np.integer]) -> NDArray[np.float32]:
        """Return the logits of the labels, `(labels,)`, of states of tokens and their ids."""
        raise NotImplementedError

    def split(self, results: Results) -> Sequence[NDArray[np.float32]]:
        """Return the logits of the labels of each text, `(labels,)`."""
        return [self.score(*each) for each in states_of(results)]

    def logits(self, _: EncodedItem, values: Sequence[NDArray[np.float32]], /) -> LabelLogits:
        """Return the logits, which are those of each label alone, too."""
        return joint_logits(values[0])


def states_of(results: Results) -> Iterator[tuple[Floats, NDArray[np.integer]]]:
    """Return the states of the tokens of each feature, `(tokens, hidden)`, and their ids."""
    ids = (feature["input_ids"] for feature in results.features)
    return zip(results.rows(STATES), ids, strict=True)


def joint_logits(logits: NDArray[Any]) -> LabelLogits:
    """Return what a model that reads all labels together says, from its logits `(labels,)`."""
    return LabelLogits(logits, logits, scores_one_alone=False)


def label_logits(logits: NDArray[Any], entailment: Entailment) -> LabelLogits:
    """Return what a model says about labels, from its logits `(labels, classes)`."""
    own = logits[:, entailment.own]
    return LabelLogits(own, own - logits[:, entailment.opposite])


@dataclasses.dataclass(frozen=True, kw_only=True)
class LabelJob:
    """The steps of a job that asks about labels, before its answer; see `Job`.

    Attributes:
        reader: Reads the labels.
    """

    reader: ReadsLabels

    def encode(self, items: Sequence[Any]) -> list[EncodedItem]:
        """Return the model inputs of each text with the labels."""
        return self.reader.encode(items)

    def split(self, results: Results) -> Sequence[Any]:
        """Return the part of a batch's outputs that is kept of each feature."""
        return self.reader.split(results)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScoreLabels(LabelJob):
    """The job whose answer is `LabelScores` of each text.

    Attributes:
        labels: The labels.
        multi_label: Whether each label is scored alone.
    """

    labels: Sequence[str]
    multi_label: bool

    def answer(self, item: str, encoded: EncodedItem, values: Sequence[Any], /) -> LabelScores:
        """Return the labels with their scores."""
        scores = self.reader.logits(encoded, values).scores(multi_label=self.multi_label)
        order = np.argsort(-scores, kind="stable").tolist()
        return LabelScores(
            sequence=item,
            labels=[self.labels[index] for index in order],
            scores=[float(scores[index]) for index in order],
        )


def hypotheses_of(loaded: Loaded, labels: Sequence[str], how: Reading) -> Hypotheses:
    """Return what reads labels of a call; settings of the folder stand for those left out.

    Raises:
        UserInputError: The template has no place for labels, or the model has no class of
            entailment.
    """
    settings = loaded.artifact.task_options
    named = how.entailment_label or settings.entailment_label
    return Hypotheses(
        tokenizer=loaded.tokenizer,
        input_names=loaded.artifact.input_names,
        sentences=hypotheses(labels, how.hypothesis_template or settings.hypothesis_template),
        entailment=found_entailment(loaded.id2label, where=loaded.name, named=named),
    )


def found_entailment(names: Mapping[int, str], *, where: str, named: str | None) -> Entailment:
    """Return the classes of a model; see `entailment_of`.

    Raises:
        UserInputError: There is no class of entailment, or it is not known.
    """
    found = entailment_of(names, where=where, named=named)
    if found is None:
        raise UserInputError(
            f"The classes of {where!r} have no names: {', '.join(map(str, names.values()))}. Name "
            "the one of entailment with `entailment_label`.",
            argument="entailment_label",
        )
    return found


def hypotheses(labels: Iterable[str], template: str) -> list[str]:
    """Return a sentence about each label.

    Raises:
        UserInputError: The template has no place for a label.
    """
    # Other braces would be fields of `str.format`, which transformers calls.
    if _PLACE not in template or {*"{}"} & {*template.replace(_PLACE, "")}:
        raise UserInputError(
            f"`hypothesis_template={template!r:.100}` needs `{_PLACE}` in the place of a label, "
            "and no other braces.",
            argument="hypothesis_template",
        )
    return [template.replace(_PLACE, each) for each in labels]


def _columns(options: AnswerOptions) -> tuple[Column, ...]:
    if _is_one(options):
        return LABEL, SCORE
    return Column(name="labels", kind="texts"), Column(name="scores", kind="numbers")


def _is_one(options: AnswerOptions) -> bool:
    return is_one(options) and not options.multi_label


def _values(answer: LabelScores, options: AnswerOptions) -> tuple[Any, ...]:
    if _is_one(options):
        return answer["labels"][0], answer["scores"][0]
    count = options.top_k
    if options.threshold is not None:
        count = sum(score > options.threshold for score in answer["scores"])
    return answer["labels"][:count], answer["scores"][:count]


LABELED_ROWS = RowFormat(
    name="a model that chooses among `labels` of the call",
    options=(
        *("labels", "multi_label", "hypothesis_template", "entailment_label", "task_name"),
        *("top_k", "threshold"),
    ),
    needs=("labels",),
    columns=_columns,
    job=lambda model, options: model.zero_shot_job(
        candidate_labels=listed_labels(options.labels, "labels"),
        multi_label=bool(options.multi_label),
        hypothesis_template=options.hypothesis_template,
        entailment_label=options.entailment_label,
        task_name=options.task_name,
    ),
    values=_values,
)
"""Columns of a model whose labels a call names."""
