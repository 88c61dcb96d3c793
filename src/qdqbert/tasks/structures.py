"""Structures whose fields a call names, as `GLiNER2.extract_json` finds them.

A structure may be in a text several times, each with values of its fields: spans of words, or some
of the choices that the call lists. Choices are read as the first words of the text.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbert.common.errors import CheckpointError, UserInputError
from qdqbert.common.json_files import parse_object, shown
from qdqbert.data.tables.rows import Column, Kind
from qdqbert.encoders.checkpoint.gliner2 import FIELD, Schema
from qdqbert.encoders.model import Floats
from qdqbert.runtime.batches import Results
from qdqbert.runtime.inputs import check_text, described, is_text
from qdqbert.runtime.options import AnswerOptions
from qdqbert.runtime.rows import RowFormat
from qdqbert.runtime.scheduler import EncodedItem
from qdqbert.tasks.extraction import Span, WindowReader, Words, chosen, places_of_words
from qdqbert.tasks.gliner2_scores import SchemaScorer
from qdqbert.tasks.hypotheses import STATES
from qdqbert.tasks.logits import apply
from qdqbert.tasks.span_layers import fitting
from qdqbert.tasks.span_scores import SpanScorer

_KEYS = ("name", "dtype", "choices", "description")
_KINDS = ("str", "list")

Value = str | dict[str, Any]
Instance = dict[str, Value | list[Value] | None]
"""Values of a structure's fields: one or `None`, or a list of them."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Field:
    """A field of a structure.

    Attributes:
        name: Its name.
        is_list: Whether it has any number of values, and not one at most.
        choices: What a value is one of; none for words of the text.
        description: What the model reads about it; `None` for nothing.
    """

    name: str
    is_list: bool = True
    choices: tuple[str, ...] = ()
    description: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Structure:
    """A structure, by its name and its fields."""

    name: str
    fields: tuple[Field, ...]

    @property
    def schema(self) -> Schema:
        """What is read about it."""
        said = {each.name: each.description for each in self.fields if each.description}
        return Schema(self.name, [each.name for each in self.fields], said, FIELD)

    def choices(self) -> list[str]:
        """Return the words that its choices are read as."""
        inner: list[str] = []
        for each in self.fields:
            if each.choices:
                listed = [word for choice in each.choices for word in ("|", choice)][1:]
                inner += [",", each.name, "(", *listed, ")"]
        return ["(", f"{self.name}:", *inner[1:], ")"] if inner else []


def read_structures(given: Any) -> list[Structure]:
    """Return the structures of a call: fields by name, as `GLiNER2.extract_json` takes them.

    A field is "name", with "::str" for one value, "::[a|b]" for choices, and "::" with a
    description; or an object with `name`, `dtype`, `choices` and `description`.

    Raises:
        UserInputError: There is none, or one is not as described.
    """
    if not isinstance(given, Mapping) or not given:
        raise _refused(f"expected lists of fields by name, got {described(given)}")
    found = []
    for name, fields in given.items():
        if not is_text(name) or not name.strip():
            raise _refused(f"names have to be texts, got {described(name)}")
        if not isinstance(fields, Sequence) or isinstance(fields, str) or not fields:
            raise _refused(f"{name!r} has to be a list of fields, got {described(fields)}")
        made = tuple(_field(each, name) for each in fields)
        if len({each.name for each in made}) < len(made):
            raise _refused(f"{name!r} has a field twice")
        found.append(Structure(name=name, fields=made))
    return found


def structures_of_json(text: str) -> list[Structure]:
    """Return the structures of a call, of their JSON; see `read_structures`."""
    return read_structures(_object(text))


def _object(text: str) -> dict[str, Any]:
    try:
        return parse_object(text, "`structures`")
    except CheckpointError as error:
        why = "" if error.__cause__ is None else f" ({error.__cause__})"
        raise _refused(f"{shown(text)} is no JSON object{why}") from error


def _columns(options: AnswerOptions) -> tuple[Column, ...]:
    """Return a column for each structure, with a list of instances."""
    kinds: Mapping[bool, Kind] = {True: "texts", False: "text"}
    return tuple(
        Column(
            name=each.name,
            kind="records",
            fields=tuple((field.name, kinds[field.is_list]) for field in each.fields),
        )
        for each in structures_of_json(options.structures or "")
    )


def _row_job(model: Any, options: AnswerOptions) -> Fill:
    threshold = {} if options.threshold is None else {"threshold": options.threshold}
    job: Fill = model.json_job(structures=_object(options.structures or ""), **threshold)
    return job


STRUCTURE_ROWS = RowFormat(
    name="a model that fills `structures` of the call",
    options=("structures", "threshold"),
    needs=("structures",),
    columns=_columns,
    job=_row_job,
    values=lambda answer, _: tuple(answer.values()),
)
"""Columns of a model that fills structures which a call names."""


def _field(given: Any, structure: str) -> Field:
    values = _parsed(given) if is_text(given) else given
    if not isinstance(values, Mapping):
        raise _refused(f"a field of {structure!r} is {described(given)}, and has to be a text")
    unknown = next((each for each in values if each not in _KEYS), None)
    if unknown is not None:
        raise _refused(
            f"a field of {structure!r} has {unknown!r:.80}, and {', '.join(_KEYS)} are known"
        )
    name, kind, choices, said = (values.get(each) for each in _KEYS)
    if not isinstance(name, str) or not is_text(name) or not name.strip():
        raise _refused(f"a field of {structure!r} has no name: {described(given)}")
    if kind not in (None, *_KINDS):
        raise _refused(f"`dtype` of {name!r} is {described(kind)}, and has to be str or list")
    if said is not None and not is_text(said):
        raise _refused(f"the description of {name!r} has to be a text, got {described(said)}")
    listed = () if choices is None else choices
    is_several = isinstance(listed, Sequence) and not isinstance(listed, str)
    if not is_several or not all(is_text(each) and each.strip() for each in listed):
        raise _refused(f"`choices` of {name!r} have to be a list of texts, got {described(listed)}")
    return Field(name=name, is_list=kind != "str", choices=tuple(listed), description=said or None)


def _parsed(text: str) -> dict[str, Any]:
    """Return the parts of a field that is one text."""
    name, *parts = text.split("::")
    found: dict[str, Any] = {"name": name}
    for each in parts:
        if each in _KINDS:
            found["dtype"] = each
        elif each.startswith("[") and each.endswith("]"):
            found["choices"] = [choice.strip() for choice in each[1:-1].split("|")]
        else:
            found["description"] = each
    # One of the choices, unless it says otherwise.
    return {"dtype": "str", **found} if "choices" in found else found


def _refused(reason: str) -> UserInputError:
    return UserInputError(
        f"`structures`: {reason}. Expected, for example, "
        '{"order": ["item", "size::[small|large]", "number::str::how many"]}.',
        argument="structures",
    )


_Instances = list[list[Any]]
"""What is found of each instance of a structure, by field: spans above the threshold, or of a field
with choices the probability of each word that choices are read as."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fill:
    """The job whose answer is the instances of structures in each text, by name; see `Job`.

    Attributes:
        reader: Makes features.
        scorer: The layers after the encoder.
        schemas: Those of gliner2.
        structures: The structures.
        threshold: Values are more probable than this.
        has_scores: Whether values have their probability, `confidence`.
        has_places: Whether values have their place in the text, `start` and `end`.
    """

    reader: WindowReader
    scorer: SpanScorer
    schemas: SchemaScorer
    structures: Sequence[Structure]
    threshold: float
    has_scores: bool
    has_places: bool

    @property
    def reads(self) -> tuple[str, ...]:
        """The output that is read."""
        return (STATES,)

    def encode(self, items: Sequence[Any]) -> list[EncodedItem]:
        """Return the model input of the start of each text; none for a text without words."""
        words = [Words.of_text(check_text(each), self.reader.head) for each in items]
        return [
            EncodedItem(features=(*features[:1],), places=windows[:1], truncated=len(windows) > 1)
            for features, windows in self.reader.read(words)
        ]

    def split(self, results: Results) -> Sequence[list[_Instances]]:
        """Return what is found of each structure in each text."""
        found = []
        for states, window in zip(results.rows(STATES), results.places, strict=True):
            with fitting(self.scorer.path, states.shape[1]):
                found.append(list(self._found(states, window.tokens.words)))
        return found

    def _found(self, states: Floats, places: NDArray[np.int64]) -> Iterator[_Instances]:
        prompt = self.reader.prompt
        words = self.scorer.words(states, np.concatenate([prompt.words, places]))
        start, count = 0, len(prompt.words)
        for each in self.structures:
            stop = start + 1 + len(each.fields)
            vectors = self.schemas.answers(states[prompt.marks[start:stop]])
            start = stop
            scores = self.schemas.spans(words, vectors.reshape(-1, states.shape[1]))
            chances = apply("sigmoid", scores).reshape(*scores.shape[:2], *vectors.shape[:2])
            yield [
                [
                    chances[:count, 0, instance, number]
                    if field.choices
                    else self._spans(chances[count:, :, instance, number])
                    for number, field in enumerate(each.fields)
                ]
                for instance in range(len(vectors))
            ]

    def _spans(self, chances: NDArray[np.float32]) -> list[Span]:
        """Return the spans of words above the threshold, of `[first, width - 1]`."""
        pairs = np.argwhere(chances > self.threshold).tolist()
        return [
            Span(first, first + more, 0, float(chances[first, more]))
            for first, more in pairs
            if first + more < len(chances)
        ]

    def answer(
        self, item: str, _: EncodedItem, values: Sequence[list[_Instances]], /
    ) -> dict[str, list[Instance]]:
        """Return the instances of each structure that have a value."""
        places = places_of_words(item, self.reader.head) if values else []
        words = [word.lower() for each in self.structures for word in each.choices()]
        # A text without words has no feature.
        every: list[_Instances] = values[0] if values else [[] for _ in self.structures]
        answers: dict[str, list[Instance]] = {}
        for structure, instances in zip(self.structures, every, strict=True):
            made = answers[structure.name] = []
            for found in instances:
                instance: Instance = {}
                for field, own in zip(structure.fields, found, strict=True):
                    pairs = (
                        self._choices(field, own, words)
                        if field.choices
                        else self._texts(item, places, own)
                    )
                    instance[field.name] = _distinct(pairs) if field.is_list else _first(pairs)
                if any(value is not None and value != [] for value in instance.values()):
                    made.append(instance)
        return answers

    def _texts(
        self, item: str, places: Sequence[tuple[int, int]], spans: Sequence[Span]
    ) -> list[Value]:
        """Return the values that are words of a text, the most probable one first."""
        kept = chosen(spans, flat=True, multi_label=False)
        found: list[Value] = []
        for each in sorted(kept, key=lambda span: -span.score):
            start, end = places[each.first][0], places[each.last][1]
            found.append(self._value(item[start:end], each.score, {"start": start, "end": end}))
        return found

    def _choices(
        self, field: Field, chances: NDArray[np.float32], words: Sequence[str]
    ) -> list[Value]:
        """Return the choices above the threshold, in their order; of a single one the best."""
        listed = [(each, float(chances[words.index(each.lower())])) for each in field.choices]
        kept = [pair for pair in dict(listed).items() if pair[1] > self.threshold]
        if not field.is_list:
            kept.sort(key=lambda pair: -pair[1])
        return [self._value(text, score, {}) for text, score in kept]

    def _value(self, text: str, score: float, place: Mapping[str, int]) -> Value:
        more: dict[str, float] = {"confidence": score} if self.has_scores else {}
        if self.has_places:
            more |= place
        return {"text": text, **more} if more else text


def _first(values: Sequence[Value]) -> Value | None:
    return values[0] if values else None


def _distinct(values: Sequence[Value]) -> list[Value]:
    """Return values, those of equal text and place once."""
    found: dict[tuple[Any, ...], Value] = {}
    for each in values:
        parts = {"text": each} if isinstance(each, str) else each
        key = (parts["text"].lower(), parts.get("start"), parts.get("end"))
        found.setdefault(key, each)
    return list(found.values())
