"""Tags of words: named entities, parts of speech. The first token of a word predicts its tag.

The model has the interface of transformers' pipeline "token-classification".
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypedDict, Unpack, get_args, overload

import numpy as np
from numpy.typing import NDArray

from qdqbert.common.choices import AggregationStrategy as Strategy
from qdqbert.common.errors import DataFileError, UserInputError
from qdqbert.common.keywords import suggest_keywords
from qdqbert.data.rows.conll import OUTSIDE, TokenExample, read_sentences
from qdqbert.data.rows.data import Dataset, check_each, labels_place
from qdqbert.data.rows.lines import counted
from qdqbert.data.tables.rows import Column, Kind
from qdqbert.data.tokenizing.chunks import in_chunks
from qdqbert.data.tokenizing.encoding import feature_of
from qdqbert.runtime.batches import Results
from qdqbert.runtime.inputs import check_choice, check_whole, listed, lower_case
from qdqbert.runtime.model import Model
from qdqbert.runtime.options import AnswerOptions
from qdqbert.runtime.routes import TaskRoute
from qdqbert.runtime.rows import RowFormat
from qdqbert.tasks.class_names import class_of, name_classes, new_names
from qdqbert.tasks.entities import counts_of, find_entities
from qdqbert.tasks.entity_scores import entity_scores
from qdqbert.tasks.logits import probabilities
from qdqbert.tasks.tagging import Entity, Tag
from qdqbert.tasks.task import (
    IGNORED,
    Answer,
    Decisions,
    Entities,
    Features,
    Labels,
    Outcome,
    Prediction,
    Score,
    Task,
    Tokenization,
    share_score,
)

_Places = NDArray[np.int32]
_Classes = NDArray[np.int64]


def _name_labels(dataset: Dataset, id2label: Mapping[int, str]) -> Dataset:
    tags = {tag for example in dataset.examples for tag in example.tags or ()}
    naming = name_classes(tags, id2label, where=labels_place(dataset), noun="Tag")
    if not naming.names:
        return dataset
    examples = tuple(
        each
        if each.tags is None
        else dataclasses.replace(each, tags=tuple(naming.names.get(tag, tag) for tag in each.tags))
        for each in dataset.examples
    )
    notices = (*dataset.notices, *naming.notices)
    return dataclasses.replace(dataset, examples=examples, notices=notices)


def _check_labels(dataset: Dataset, id2label: Mapping[int, str]) -> None:
    check_each(dataset, _reader_of_classes(id2label))


def _encode(examples: Sequence[TokenExample], how: Tokenization) -> Features:
    """Make one feature of each sentence.

    An item of `places` holds the position of the first token of each word, -1 for a word without
    tokens. Shape `(words,)`.
    """
    cutting = how.tokenizer.cutting(how.max_length, words=True)
    inputs: list[dict[str, NDArray[np.int32]]] = []
    places: list[_Places] = []
    truncated = beyond = 0
    for chunk in in_chunks(examples):
        sentences = [list(example.words) for example in chunk]
        for words, each in zip(sentences, cutting.encode_batch(sentences, words=True), strict=True):
            inputs.append(feature_of(each, how.input_names))
            places.append(_places(each.word_ids, len(words)))
            truncated += bool(each.overflowing)
            rest = {word for part in each.overflowing for word in part.word_ids} - {None}
            beyond += len(rest.difference(each.word_ids))
    count = sum(len(example.words) for example in examples)
    notice = (
        f"{beyond} of {counted(count, 'word')} {'is' if beyond == 1 else 'are'} beyond the first "
        f"{how.max_length} tokens: tag {OUTSIDE} is predicted there."
    )
    return Features(
        examples=tuple(examples),
        encoded=how.encoded(inputs, truncated),
        places=tuple(places),
        notices=(notice,) if beyond else (),
    )


def _places(word_ids: Sequence[int | None], words: int) -> _Places:
    places: _Places = np.full(words, -1, dtype=np.int32)
    for place in reversed(range(len(word_ids))):
        word = word_ids[place]
        if word is not None:
            places[word] = place
    return places


def _predictions(results: Results) -> list[Prediction]:
    """Return the logits of the first token of each word, zeros for a word without tokens."""
    return [
        np.where(places[:, None] < 0, np.float32(0), logits[places])
        for logits, places in zip(results.outputs["logits"], results.places, strict=True)
    ]


def _scores(outcome: Outcome) -> list[Score]:
    """Return F1, precision and recall of entities, and the accuracy of tags.

    `O` is predicted for a word without a token, as usual: the model cannot find what it does not
    see. If the model's tags are not of entities (parts of speech), only the accuracy is returned.
    """
    names = outcome.id2label
    labels = [[names[int(each)] for each in known] for known in _classes(outcome.features, names)]
    tags = _all_tags(outcome)
    scores = []
    pairs = list(zip(tags, labels, strict=True))
    if _are_entity_tags(names.values()):
        scores = entity_scores(
            [counts_of({*find_entities(own)}, {*find_entities(known)}) for own, known in pairs]
        )
    right = [sum(map(operator.eq, own, known)) for own, known in pairs]
    return [*scores, share_score("accuracy", right, [len(known) for known in labels])]


def _all_tags(outcome: Outcome) -> list[list[str]]:
    """Return the tag of each word of each sentence."""
    pairs = zip(outcome.predictions, outcome.features.places, strict=True)
    return [_tags(prediction, places, outcome.id2label) for prediction, places in pairs]


def _tags(prediction: Prediction, places: _Places, id2label: Mapping[int, str]) -> list[str]:
    return [
        id2label[int(best)] if place >= 0 else OUTSIDE
        for best, place in zip(prediction.argmax(axis=1), places, strict=True)
    ]


def _are_entity_tags(names: Iterable[str]) -> bool:
    """Return whether tags mark entities: some like `B-PER`, or all letters of BIOES."""
    tags = set(names)
    return tags <= {OUTSIDE, *"BIES"} or any(
        tag.startswith(("B-", "I-", "E-", "S-")) for tag in tags
    )


def _decisions(outcome: Outcome) -> Decisions:
    """Return the class of each word of all sentences, leaving out words without a token."""
    return [
        tuple(map(int, prediction[places >= 0].argmax(axis=1)))
        for prediction, places in zip(outcome.predictions, outcome.features.places, strict=True)
    ]


def _entities(outcome: Outcome) -> Entities | None:
    """Return the entities of each sentence."""
    if not _are_entity_tags(outcome.id2label.values()):
        return None
    return [set(find_entities(tags)) for tags in _all_tags(outcome)]


def _answers(outcome: Outcome) -> list[Answer]:
    """Return the tag of each word and its probability, which is `None` without a token."""
    answers = []
    for logits, places, example in zip(
        outcome.predictions, outcome.features.places, outcome.examples, strict=True
    ):
        is_seen = places >= 0
        found = probabilities(logits)
        tags = {} if example.tags is None else {"labels": list(example.tags)}
        answers.append(
            Answer(
                given={"row": example.row, "words": list(example.words), **tags},
                found={
                    "prediction": _tags(logits, places, outcome.id2label),
                    "scores": [
                        float(each.max()) if seen else None
                        for each, seen in zip(found, is_seen, strict=True)
                    ],
                },
                numbers=found[is_seen],
            )
        )
    return answers


def _labels(features: Features, id2label: Mapping[int, str]) -> list[Labels]:
    """Return the class of each word at its first token; other tokens are ignored by the loss."""
    labels: list[Labels] = []
    for classes, places, length in zip(
        _classes(features, id2label), features.places, features.encoded.lengths, strict=True
    ):
        label = np.full(length, IGNORED, dtype=np.int64)
        label[places[places >= 0]] = classes[places >= 0]
        labels.append({"labels": label})
    return labels


def _classes(features: Features, id2label: Mapping[int, str]) -> list[_Classes]:
    """Return the class of each word. Shape `(words,)` for each sentence."""
    return list(map(_reader_of_classes(id2label), features.examples))


def _reader_of_classes(id2label: Mapping[int, str]) -> Callable[[TokenExample], _Classes]:
    """Return a function that returns the class of each word of a sentence; see `class_of`."""
    number = functools.cache(lambda tag: class_of(tag, id2label, noun="Tag"))
    return lambda example: np.array(list(map(number, _tags_of(example))), dtype=np.int64)


def _tags_of(example: TokenExample) -> tuple[str, ...]:
    if example.tags is None:
        raise DataFileError(
            "The sentence has no tags to compare with. Write the tag in the last column of each "
            "line, or a list `ner_tags`, `tags` or `labels` in each row."
        )
    return example.tags


def _class_names(dataset: Dataset) -> list[str]:
    """Return all tags, sorted; numbers by their value."""
    tags = new_names(dataset, _tags_of)
    return sorted(tags, key=lambda tag: (len(tag) if tag.isdecimal() else 0, tag))


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


class TagOptions(TypedDict, total=False):
    """Options of a call."""

    aggregation_strategy: Strategy
    ignore_labels: Sequence[str]
    stride: int | None
    is_split_into_words: bool
    batch_size: int | None


class TokenClassifier(Model):
    """Tags the tokens of texts: named entities, parts of speech."""

    rows = RowFormat(
        name="a model for token classification",
        options=("aggregation_strategy",),
        columns=_entity_columns,
        job=lambda model, options: model.job(
            aggregation_strategy=options.aggregation_strategy or "simple"
        ),
        values=lambda answer, _: (answer,),
    )

    reads_windows = True

    @property
    def labels(self) -> list[str]:
        """Names of the classes, in the order of the outputs."""
        return self._loaded.labels

    @overload
    def __call__(self, inputs: str, **options: Unpack[TagOptions]) -> list[Entity]: ...

    @overload
    def __call__(
        self, inputs: Sequence[Any], **options: Unpack[TagOptions]
    ) -> list[list[Entity]]: ...

    @suggest_keywords
    def __call__(
        self,
        inputs: Any,
        *,
        aggregation_strategy: Strategy = "none",
        ignore_labels: Sequence[str] = ("O",),
        stride: int | None = None,
        is_split_into_words: bool = False,
        batch_size: int | None = None,
    ) -> Any:
        """Tag tokens, as transformers' pipeline "token-classification" does.

        A text that is longer than `max_length` is read in windows that share tokens.

        Args:
            inputs: A text, or a list of texts. With `is_split_into_words`, a list of words, or a
                list of such lists.
            aggregation_strategy: How tokens are joined to entities: not at all ("none"), tokens
                with the same tag ("simple"), or words with the same tag, where the tag of a word is
                the tag of its first token ("first"), of its most confident token ("max"), or the
                one with the highest mean score ("average").
            ignore_labels: Names of classes that are left out.
            stride: Number of tokens that neighboring windows share. A quarter of `max_length` by
                default. Where windows overlap, the longer entity counts, and the more confident one
                of two that are equally long. Without aggregation, the tag of a token comes from the
                window in which it is farther from the ends.
            is_split_into_words: Whether inputs are lists of words. Positions then refer to the
                words joined by spaces.
            batch_size: Has no effect. It is there for code that passes it to transformers.

        Returns:
            For each text a list of `{"entity": ..., "score": ..., "index": ..., "word": ...,
            "start": ..., "end": ...}`. With aggregation, of `{"entity_group": ..., "score": ...,
            "word": ..., "start": ..., "end": ...}`. As in transformers, the result for one list of
            words is in a list, too.

        Raises:
            UserInputError: An input is not a text or a list of words, or an option has a wrong
                value.

        Example:
            >>> model("Ada lived in London", aggregation_strategy="simple")
            [{'entity_group': 'PER', 'score': 0.99, 'word': 'Ada', 'start': 0, 'end': 3},
             {'entity_group': 'LOC', 'score': 0.98, 'word': 'London', 'start': 13, 'end': 19}]
        """
        check_whole("batch_size", batch_size, at_least=1)
        is_one = isinstance(inputs, str)
        wanted = "a list of words" if is_split_into_words else "a text"
        items = [inputs] if is_one else listed(inputs, "inputs", f"{wanted} or a list of them")
        if is_split_into_words and not all(isinstance(each, list | tuple) for each in items):
            items = [items]
        job = self.job(
            aggregation_strategy=aggregation_strategy,
            ignore_labels=ignore_labels,
            stride=stride,
            is_split_into_words=is_split_into_words,
        )
        answers = self._all(job, items)
        return answers[0] if is_one else answers

    @suggest_keywords
    def job(
        self,
        *,
        aggregation_strategy: Strategy = "none",
        ignore_labels: Sequence[str] = ("O",),
        stride: int | None = None,
        is_split_into_words: bool = False,
    ) -> Tag:
        """Return the job of a call with these options, for `stream`."""
        aggregation_strategy = lower_case(aggregation_strategy)
        check_choice("aggregation_strategy", aggregation_strategy, get_args(Strategy))
        check_whole("stride", stride, at_least=0)
        tokenizer = self._loaded.tokenizer
        room = self.max_length - tokenizer.backend.num_special_tokens_to_add(is_pair=False)
        shared = self.max_length // 4 if stride is None else stride
        if shared >= room:
            raise UserInputError(
                f"`stride` must be below {room}, the number of tokens of a text "
                f"that fit into {self.max_length}; got {shared}.",
                argument="stride",
            )
        return Tag(
            tokenizer=tokenizer.cutting(self.max_length, stride=shared, words=is_split_into_words),
            input_names=self._loaded.artifact.input_names,
            id2label=self._loaded.id2label,
            strategy=aggregation_strategy,
            ignore_labels=tuple(ignore_labels),
            stride=shared,
            words=is_split_into_words,
        )


TOKEN_CLASSIFICATION = Task(
    name="token-classification",
    read=read_sentences,
    encode=_encode,
    name_labels=_name_labels,
    check_labels=_check_labels,
    predictions=_predictions,
    scores=_scores,
    decided="word",
    decisions=_decisions,
    entities=_entities,
    labels=_labels,
    answers=_answers,
    class_names=_class_names,
    reads_texts=False,
    model=TokenClassifier,
    route=TaskRoute(
        inputs=(str,),
        example="Ada Lovelace lived in London.",
        parameters={"aggregation_strategy": "simple", "ignore_labels": ("O",), "stride": None},
    ),
)
