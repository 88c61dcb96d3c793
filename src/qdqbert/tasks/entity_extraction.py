"""Entities of kinds that are named in the call, as gliner's and gliner2's models find them."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict, Unpack, overload

import numpy as np

from qdqbert.common.errors import CheckpointError, DataFileError, UserInputError
from qdqbert.common.keywords import suggest_keywords
from qdqbert.data.rows.conll import OUTSIDE, TokenExample, read_sentences
from qdqbert.data.rows.data import Dataset, check_each
from qdqbert.data.tables.rows import Column, Kind
from qdqbert.encoders.checkpoint.gliner import LABELS_FOLDER, GlinerHead
from qdqbert.encoders.checkpoint.own_layers import OwnLayers, SpanHead
from qdqbert.encoders.checkpoint.text_heads import stored_head
from qdqbert.encoders.model import Floats
from qdqbert.runtime.batches import Results
from qdqbert.runtime.inputs import check_whole, described, is_text, listed_labels, listed_texts
from qdqbert.runtime.model import Loaded, Model
from qdqbert.runtime.options import AnswerOptions
from qdqbert.runtime.routes import TaskRoute
from qdqbert.runtime.rows import RowFormat, always
from qdqbert.tasks.embedder import Embedder
from qdqbert.tasks.entities import Entity, counts_of, find_entities
from qdqbert.tasks.entity_scores import entity_scores
from qdqbert.tasks.extraction import (
    Extract,
    FoundEntity,
    Span,
    Window,
    WindowReader,
    Words,
    chosen,
    merged,
)
from qdqbert.tasks.hypotheses import STATES
from qdqbert.tasks.label_vectors import EmbedLabels, KeptLabels
from qdqbert.tasks.logits import apply
from qdqbert.tasks.span_layers import Tensors
from qdqbert.tasks.span_scores import Found, SpanScorer
from qdqbert.tasks.task import (
    Answer,
    Decisions,
    Entities,
    Features,
    Outcome,
    Prediction,
    Score,
    Task,
    Tokenization,
    tokenization_of,
)

SAMPLE_LABELS = ("person", "organization", "location", "date", "product")
"""Labels that models are compared with on texts without tags."""

THRESHOLD = 0.5
"""Entities are more probable than this, unless a call says otherwise."""

Labels = Sequence[str] | Mapping[str, str]
"""Kinds of entities; or for each kind, by its name, what the model reads."""


class ExtractOptions(TypedDict, total=False):
    """Options of a call."""

    threshold: float
    flat_ner: bool
    multi_label: bool | None
    batch_size: int | None


_FIELDS: tuple[tuple[str, Kind], ...] = (
    ("start", "integer"),
    ("end", "integer"),
    ("text", "text"),
    ("label", "text"),
    ("score", "number"),
)


def _row_job(model: EntityExtractor, options: AnswerOptions) -> Extract:
    return model.job(
        labels=listed_labels(dict.fromkeys(options.labels), "labels"),
        threshold=THRESHOLD if options.threshold is None else options.threshold,
        flat_ner=options.flat_ner,
        multi_label=options.multi_label,
    )


class EntityExtractor(Model):
    """Finds entities of any kinds in texts."""

    rows = RowFormat(
        name="a model for entities that are named in the call",
        options=("labels", "threshold", "flat_ner", "multi_label"),
        needs=("labels",),
        columns=always(Column(name="entities", kind="records", fields=_FIELDS)),
        job=_row_job,
        values=lambda answer, _: (answer,),
    )

    reads_windows = True

    def __init__(self, loaded: Loaded) -> None:
        """Read the layers after the encoder.

        Raises:
            CheckpointError: Their file is missing or damaged.
        """
        super().__init__(loaded)
        folder = loaded.artifact.directory
        self._head = head = stored_head(folder, SpanHead)
        self._scorer = SpanScorer.of(head, Tensors.of_folder(folder, head))
        self._labels: Embedder | None = None
        check_encoder_of_labels(head, loaded.labels_encoder, folder)
        if loaded.labels_encoder is not None:
            self._labels = Embedder(loaded.labels_encoder)
            self._vectors = KeptLabels(self._labels.encode)

    def close(self) -> None:
        """Close the model, and its encoder of labels; see `Model.close`."""
        super().close()
        if self._labels is not None:
            self._labels.close()

    @property
    def facts(self) -> dict[str, Any]:
        """The longest entity and text in words, and how far INT8 is from float."""
        return {**self._head.shown, **self._loaded.closeness}

    @overload
    def __call__(
        self, inputs: str, labels: Labels, **options: Unpack[ExtractOptions]
    ) -> list[FoundEntity]: ...

    @overload
    def __call__(
        self, inputs: Sequence[Any], labels: Labels, **options: Unpack[ExtractOptions]
    ) -> list[list[FoundEntity]]: ...

    @suggest_keywords
    def __call__(
        self,
        inputs: Any,
        labels: Labels,
        *,
        threshold: float = THRESHOLD,
        flat_ner: bool = True,
        multi_label: bool | None = None,
        batch_size: int | None = None,
    ) -> Any:
        """Find entities, as `GLiNER.predict_entities` or `GLiNER2.extract_entities` does.

        A text that is longer than the model reads at once is read in windows that share words.

        Args:
            inputs: A text, or a list of texts.
            labels: Kinds of entities, in any language; or a mapping from their names to
                descriptions. Models of gliner read descriptions in place of names, and those of
                gliner2 both.
            threshold: Entities are more probable than this, from 0 to below 1.
            flat_ner: Whether no word is in two entities. Otherwise one may be inside of another.
            multi_label: Whether the same words may be entities of several kinds. By default what
                the package does: not in models of gliner. Those of gliner2 find each kind alone, so
                that its entities may be anywhere in those of another one, and `flat_ner` holds for
                each kind.
            batch_size: Has no effect. It is there for code that passes it to gliner.

        Returns:
            For each text a list of `{"start": ..., "end": ..., "text": ..., "label": ..., "score":
            ...}`, by `start`: `text == inputs[start:end]`. It is empty for a text without words,
            and without labels.

        Raises:
            UserInputError: An input or a label is no text, the labels leave no room for a text, or
                an option has a wrong value.

        Example:
            >>> model("Ada lived in London", labels=["person", "city"])
            [{'start': 0, 'end': 3, 'text': 'Ada', 'label': 'person', 'score': 0.97},
             {'start': 13, 'end': 19, 'text': 'London', 'label': 'city', 'score': 0.95}]
        """
        check_whole("batch_size", batch_size, at_least=1)
        job = self.job(
            labels=labels, threshold=threshold, flat_ner=flat_ner, multi_label=multi_label
        )
        answers = self._all(job, listed_texts(inputs, "inputs"))
        return answers[0] if isinstance(inputs, str) else answers

    @suggest_keywords
    def job(
        self,
        *,
        labels: Labels,
        threshold: float = THRESHOLD,
        flat_ner: bool = True,
        multi_label: bool | None = None,
    ) -> Extract:
        """Return the job of a call with these options, for `stream`."""
        check_threshold(threshold)
        described_labels = _descriptions(labels, self._head)
        reader = None
        if described_labels:
            words = self._head.prompt(described_labels)
            reader = WindowReader.of(words, self._head, tokenization_of(self._loaded))
        said = [name if text is None else text for name, text in described_labels.items()]
        return Extract(
            reader=reader,
            scorer=self._scorer,
            labels=list(described_labels),
            vectors=self._vectors(said) if said and self._labels is not None else None,
            threshold=threshold,
            flat=flat_ner,
            multi_label=multi_label,
        )


def check_threshold(threshold: Any) -> None:
    """Refuse a threshold that is no probability below 1."""
    if type(threshold) not in (int, float) or not 0 <= threshold < 1:
        raise UserInputError(
            f"`threshold` must be a number from 0 to below 1, got {threshold!r:.100}.",
            argument="threshold",
        )


def _descriptions(labels: Labels, head: SpanHead) -> dict[str, str | None]:
    """Return the labels of a call, each once, with their descriptions, `None` for none."""
    if not isinstance(labels, str | Sequence | Mapping):
        raise UserInputError(
            f"`labels` must be a list of texts, or texts by name, got {described(labels)}.",
            argument="labels",
        )
    given = [labels] if isinstance(labels, str) else list(labels)
    for each in (*given, *(labels.values() if isinstance(labels, Mapping) else ())):
        if not is_text(each):
            raise UserInputError(
                f"Each of `labels` has to be a text; got {described(each)}.", argument="labels"
            )
    if not isinstance(labels, Mapping):
        return dict.fromkeys(given)
    if not head.describes and len(set(labels.values())) < len(labels):
        raise UserInputError(
            "`labels` gives two kinds of entities the same text. The model cannot tell them apart.",
            argument="labels",
        )
    return dict(labels)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Place:
    """What the scores of a feature are made of.

    Attributes:
        window: The words of the feature.
        labels: Names of the labels.
        scorer: Scores spans.
        vectors: Vectors of the labels, of a model with an encoder for them.
    """

    window: Window
    labels: tuple[str, ...]
    scorer: SpanScorer
    vectors: Floats | None

    def found(self, prediction: Prediction) -> Found:
        """Return the probable spans."""
        words, head = len(self.window.tokens.words), self.scorer.head
        shape = (words, -1, head.extra_scores + len(self.labels))
        if head.is_of_words:
            shape = (words, len(self.labels), 3)
        return self.scorer.spans(prediction.reshape(shape), threshold=THRESHOLD)


def check_encoder_of_labels(head: OwnLayers, found: object, folder: Path) -> None:
    """Refuse a folder without its encoder of labels, `found`, if the layers `head` read them so."""
    if found is None and isinstance(head, GlinerHead) and head.has_labels_encoder:
        raise CheckpointError(f"{str(folder)!r} is incomplete: {LABELS_FOLDER} is missing.")


def of_scorer(scorer: SpanScorer, embed: EmbedLabels | None = None) -> Task:
    """Return the task of a model whose layers after the encoder are known.

    `embed` makes vectors of labels, for a model with an encoder for them.
    """
    encode = functools.partial(_encode, scorer, embed)
    return dataclasses.replace(ENTITY_EXTRACTION, encode=encode)


def _unbound(examples: Sequence[Any], how: Tokenization) -> Features:
    """Refuse examples for a model without the layers after the encoder."""
    del examples, how
    raise CheckpointError(
        "The model has no settings of the layers that entities are found by. Pass the folder of "
        "the checkpoint, or one that `quantize` made of it."
    )


def _encode(
    scorer: SpanScorer, embed: EmbedLabels | None, examples: Sequence[Any], how: Tokenization
) -> Features:
    """Make features of sentences or texts, behind the kinds of all entities that tags mark."""
    kinds = {each.type for example in examples for each in _known(example)}
    labels = tuple(sorted(kinds)) or SAMPLE_LABELS
    reader = WindowReader.of(scorer.head.prompt(dict.fromkeys(labels)), scorer.head, how)
    vectors = None if embed is None else embed(labels)
    inputs: list[Any] = []
    places: list[_Place] = []
    owners: list[int] = []
    words = [Words.of_words(_words(each, scorer.head), scorer.head) for each in examples]
    for number, (features, windows) in enumerate(reader.read(words)):
        inputs += features
        places += [
            _Place(window=each, labels=labels, scorer=scorer, vectors=vectors) for each in windows
        ]
        owners += [number] * len(features)
    return Features(
        examples=tuple(examples),
        encoded=how.encoded(inputs, 0),
        places=tuple(places),
        owners=tuple(owners),
    )


def _words(example: Any, head: SpanHead | None) -> list[str]:
    if isinstance(example, TokenExample):
        return list(example.words)
    return [] if head is None else [each.group() for each in head.word.finditer(example.text)]


def _head_of(outcome: Outcome) -> SpanHead | None:
    """Return how spans are scored; `None` if no example has a word."""
    return next((each.scorer.head for each in outcome.features.places), None)


def _known(example: Any) -> list[Entity]:
    """Return the entities that the tags of an example mark; none without tags."""
    tags = example.tags if isinstance(example, TokenExample) else None
    return [] if tags is None else find_entities(tags)


def _check_labels(dataset: Dataset, id2label: Mapping[int, str]) -> None:
    del id2label

    def check(example: Any) -> None:
        if example.labels is None:
            raise DataFileError(
                "The sentence has no tags to compare with. Write the tag in the last column of "
                "each line, or a list `ner_tags`, `tags` or `labels` in each row."
            )
        if any(str(each).isdigit() for each in example.labels):
            raise DataFileError(
                "The tags are numbers, and the model finds entities by their names. Write names, "
                "such as B-person, in their place."
            )

    check_each(dataset, check)


def _predictions(results: Results) -> list[Prediction]:
    """Return the logits of spans, or of words, by their first word. `(words, values)`."""
    found = []
    for states, place in zip(results.rows(STATES), results.places, strict=True):
        logits = place.scorer.logits(states, place.window.tokens, place.vectors)
        found.append(logits.reshape(len(logits), -1))
    return found


def _spans(outcome: Outcome) -> list[list[tuple[Span, str]]]:
    """Return the entities of each example, and the names of their labels."""
    features, found = outcome.features, []
    for indices in features.by_example():
        places = [features.places[each] for each in indices]
        windows = [each.window for each in places]
        values = [
            place.found(outcome.predictions[index])
            for index, place in zip(indices, places, strict=True)
        ]
        spans = chosen(merged(windows, values), flat=True, multi_label=False)
        found.append([(each, places[0].labels[each.label]) for each in spans])
    return found


def _entities(outcome: Outcome) -> Entities:
    """Return the entities of each example."""
    return [
        {Entity(label, span.first, span.last) for span, label in spans} for spans in _spans(outcome)
    ]


def _decisions(outcome: Outcome) -> Decisions:
    """Return the kind of the entity that each word of each example is in."""
    found = []
    head = _head_of(outcome)
    for example, spans in zip(outcome.examples, _spans(outcome), strict=True):
        kinds = [OUTSIDE] * len(_words(example, head))
        for span, label in spans:
            kinds[span.first : span.last + 1] = [label] * (span.last + 1 - span.first)
        found.append(tuple(kinds))
    return found


def _scores(outcome: Outcome) -> list[Score]:
    """Return F1, precision and recall of entities."""
    pairs = zip(_entities(outcome), outcome.examples, strict=True)
    return entity_scores([counts_of(own, set(_known(example))) for own, example in pairs])


def _answers(outcome: Outcome) -> list[Answer]:
    """Return the entities of each example, with the probabilities of all spans."""
    answers = []
    for example, spans, indices in zip(
        outcome.examples, _spans(outcome), outcome.features.by_example(), strict=True
    ):
        words = _words(example, _head_of(outcome))
        tags = {} if example.labels is None else {"labels": list(example.labels)}
        own = [apply("sigmoid", outcome.predictions[each]).reshape(-1) for each in indices]
        answers.append(
            Answer(
                given={"row": example.row, "words": words, **tags},
                found={
                    "entities": [
                        {
                            "label": label,
                            "words": words[span.first : span.last + 1],
                            "score": span.score,
                        }
                        for span, label in spans
                    ]
                },
                numbers=np.concatenate([np.zeros(0), *own]),
            )
        )
    return answers


ENTITY_EXTRACTION = Task(
    name="entity-extraction",
    read=read_sentences,
    encode=_unbound,
    check_labels=_check_labels,
    predictions=_predictions,
    scores=_scores,
    decided="word",
    decisions=_decisions,
    entities=_entities,
    labels=None,
    answers=_answers,
    model=EntityExtractor,
    route=TaskRoute(
        inputs=(str,),
        example="Ada Lovelace lived in London.",
        example_parameters={"labels": ["person", "city"]},
        parameters={
            "labels": ...,
            "threshold": THRESHOLD,
            "flat_ner": True,
            "multi_label": None,
        },
    ),
)
