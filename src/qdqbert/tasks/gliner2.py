"""Entities, labels and decisions of a call for checkpoints of gliner2, each by the same model.

A text is read behind the labels of all questions at once. As in `GLiNER2.classify_text`, what
labels are about, the name of a question, is read before them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypedDict, Unpack, overload

import numpy as np
from numpy.typing import NDArray

from qdqbert.common.keywords import suggest_keywords
from qdqbert.encoders.checkpoint.gliner2 import Gliner2Head, Schema, prompt_of
from qdqbert.encoders.checkpoint.text_heads import stored_head
from qdqbert.encoders.model import Floats
from qdqbert.runtime.inputs import check_text, listed_texts
from qdqbert.runtime.model import Loaded
from qdqbert.runtime.options import AnswerOptions
from qdqbert.runtime.routes import TaskRoute
from qdqbert.runtime.rows import RowFormat
from qdqbert.runtime.scheduler import EncodedItem
from qdqbert.tasks.decisions import Question
from qdqbert.tasks.entity_extraction import (
    ENTITY_EXTRACTION,
    THRESHOLD,
    EntityExtractor,
    check_threshold,
)
from qdqbert.tasks.extraction import WindowReader, Words
from qdqbert.tasks.gliner2_scores import class_scores
from qdqbert.tasks.hypotheses import LABELED_ROWS, Reading, ReadsLabels, ReadsTogether
from qdqbert.tasks.span_layers import Tensors
from qdqbert.tasks.structures import STRUCTURE_ROWS, Fill, Instance, read_structures
from qdqbert.tasks.takes_labels import TakesLabelsTogether
from qdqbert.tasks.task import Task, Tokenization, tokenization_of
from qdqbert.tasks.zero_shot_classification import (
    ZeroShotClassifier,
    joint_label_task,
    of_reader,
)

Structures = Mapping[str, Sequence[str | Mapping[str, Any]]]
"""Fields of structures by their names."""


class JsonOptions(TypedDict, total=False):
    """Options of `extract_json`."""

    threshold: float
    include_confidence: bool
    include_spans: bool


TASK_NAME = "category"
"""What labels are about, unless a call says it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReadSchemas(ReadsTogether):
    """Reads a text behind the labels of questions.

    Attributes:
        reader: Makes features of texts.
        labels: Positions of the marks of all labels. Shape `(labels,)`.
        score_marks: Returns the logits of labels, of the states of their marks.
    """

    reader: WindowReader
    labels: NDArray[np.int64]
    score_marks: Callable[[Floats], Floats]

    @classmethod
    def of(
        cls,
        schemas: Sequence[Schema],
        head: Gliner2Head,
        score: Callable[[Floats], Floats],
        how: Tokenization,
    ) -> ReadSchemas:
        """Tokenize labels.

        Raises:
            UserInputError: They leave no room for a text.
        """
        words = prompt_of(schemas)
        reader = WindowReader.of(words, head, how, argument="candidate_labels")
        # The first mark of each question is that of its name.
        is_label = [place > 0 for each in schemas for place in range(1 + len(each.labels))]
        return cls(reader=reader, labels=reader.prompt.marks[is_label], score_marks=score)

    def encode(self, items: Sequence[Any]) -> list[EncodedItem]:
        """Return the model input of each text with the labels."""
        head = self.reader.head
        return list(
            self.reader.read_starts([Words.of_text(check_text(each), head) for each in items])
        )

    def score(self, states: Floats, ids: NDArray[np.integer]) -> NDArray[np.float32]:
        """Return the logits of the labels of a text, `(labels,)`."""
        del ids
        return self.score_marks(states[self.labels])


class _ReadsSchemas(TakesLabelsTogether):
    """A model that reads labels of a call as gliner2 does."""

    def __init__(self, loaded: Loaded) -> None:
        """Read the layers after the encoder.

        Raises:
            CheckpointError: Their file or their settings are missing or damaged.
        """
        super().__init__(loaded)
        folder = loaded.artifact.directory
        self._schema_head = head = stored_head(folder, Gliner2Head)
        self._class_scores = class_scores(Tensors.of_folder(folder, head), head)

    def _joint_reader(self, asked: Mapping[str, Question], how: Reading) -> ReadsLabels:
        schemas = [
            _schema(name or how.task_name or TASK_NAME, question)
            for name, question in asked.items()
        ]
        tokenization = tokenization_of(self._loaded)
        return ReadSchemas.of(schemas, self._schema_head, self._class_scores, tokenization)


def _schema(name: str, question: Question) -> Schema:
    """Return what is read of a question: options with descriptions, or what all options say."""
    if question.kind != "choice":
        return Schema(name, question.texts, {})
    pairs = zip(question.options, question.texts, strict=True)
    return Schema(name, question.options, {label: text for label, text in pairs if label != text})


class SchemaExtractor(_ReadsSchemas, EntityExtractor):
    """Finds entities, chooses among labels of a call, and fills structures, as gliner2 does."""

    # `row_format` has other columns for structures.
    rows = dataclasses.replace(
        EntityExtractor.rows,
        name="a model for entities or structures that are named in the call",
        needs=("labels", "structures"),
    )

    @overload
    def extract_json(
        self, inputs: str, structures: Structures, **options: Unpack[JsonOptions]
    ) -> dict[str, list[Instance]]: ...

    @overload
    def extract_json(
        self, inputs: Sequence[Any], structures: Structures, **options: Unpack[JsonOptions]
    ) -> list[dict[str, list[Instance]]]: ...

    @suggest_keywords
    def extract_json(
        self,
        inputs: Any,
        structures: Structures,
        *,
        threshold: float = THRESHOLD,
        include_confidence: bool = False,
        include_spans: bool = False,
    ) -> Any:
        """Fill structures, as `GLiNER2.extract_json` does.

        Args:
            inputs: A text, or a list of texts. What does not fit is cut off.
            structures: Fields of each structure by its name. A field is "name", for any number of
                values, "name::str" for one, "name::[a|b]" for one of some choices, and may have a
                description, "name::str::what it is"; or it is a dictionary with `name`, `dtype`
                ("str" or "list"), `choices` and `description`.
            threshold: Values are more probable than this, from 0 to below 1.
            include_confidence: Whether values are dictionaries with their probability,
                `confidence`.
            include_spans: Whether values are dictionaries with their place, `start` and `end`.

        Returns:
            For each text the instances of each structure, a dictionary of values each: texts, or
            dictionaries with `text`. A single value that is not found is `None`.

        Raises:
            UserInputError: An input is no text, a structure is not as described or leaves no room
                for a text, or an option has a wrong value.

        Example:
            >>> model.extract_json("Two large pizzas!", {"order": ["item", "size::[small|large]"]})
            {'order': [{'item': ['pizzas'], 'size': 'large'}]}
        """
        job = self.json_job(
            structures=structures,
            threshold=threshold,
            include_confidence=include_confidence,
            include_spans=include_spans,
        )
        answers = self._all(job, listed_texts(inputs, "inputs"))
        return answers[0] if isinstance(inputs, str) else answers

    @suggest_keywords
    def json_job(
        self,
        *,
        structures: Structures,
        threshold: float = THRESHOLD,
        include_confidence: bool = False,
        include_spans: bool = False,
    ) -> Fill:
        """Return the job of `extract_json` with these options, for `stream`."""
        check_threshold(threshold)
        found = read_structures(structures)
        words = prompt_of(
            [each.schema for each in found], [word for each in found for word in each.choices()]
        )
        schemas = self._scorer.schemas
        assert schemas is not None, "the head is one of gliner2"
        return Fill(
            reader=WindowReader.of(
                words,
                self._schema_head,
                tokenization_of(self._loaded),
                argument="structures",
                what="field",
            ),
            scorer=self._scorer,
            schemas=schemas,
            structures=found,
            threshold=threshold,
            has_scores=include_confidence,
            has_places=include_spans,
        )

    def row_format(self, options: AnswerOptions) -> RowFormat:
        """Return the columns for what a call asks: structures, one of `labels`, or entities."""
        if options.structures is not None:
            return STRUCTURE_ROWS
        return self.rows if options.task_name is None else LABELED_ROWS


class SchemaClassifier(_ReadsSchemas, ZeroShotClassifier):
    """Chooses among labels that a call names, of which all are read at once with a text."""

    @property
    def facts(self) -> dict[str, Any]:
        """What divides logits in decisions, and how far INT8 is from float; see `Model.facts`."""
        temperature = self._loaded.artifact.task_options.decision_temperature
        return {"decision_temperature": temperature, **self._loaded.closeness}


EXTRACT_JSON = TaskRoute(
    inputs=(str,),
    parameters={
        "structures": ...,
        "threshold": THRESHOLD,
        "include_confidence": False,
        "include_spans": False,
    },
    method="json_job",
    example="Two large pizzas, please!",
    example_parameters={"structures": {"order": ["item", "size::[small|large]"]}},
)
"""The route of structures."""

GLINER2 = dataclasses.replace(ENTITY_EXTRACTION, model=SchemaExtractor)
"""Entities by checkpoints of gliner2."""


def schema_task(head: Gliner2Head, tensors: Tensors) -> Task:
    """Return zero-shot classification by a checkpoint whose layers after the encoder are known."""
    score = class_scores(tensors, head)
    return of_reader(
        GLINER2_LABELS,
        lambda labels, how: ReadSchemas.of([Schema(TASK_NAME, labels, {})], head, score, how),
    )


GLINER2_LABELS = joint_label_task("gliner2", SchemaClassifier)
"""Zero-shot classification by checkpoints of gliner2."""
