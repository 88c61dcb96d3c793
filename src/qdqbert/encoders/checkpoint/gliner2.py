"""Checkpoints of the package `gliner2`: an encoder, and layers for entities and for classes.

A text is read behind a schema, whose words are each tokenized by itself:

    ( [P] entities ( [E] person [E] drug ) ) [SEP_TEXT] words of the text
    ( [P] mood ( [L] glad [L] sad ) ) [SEP_STRUCT] ( [P] topic ( [L] a [L] b ) ) [SEP_TEXT] words
    ( [P] order ( [C] name [C] size ) ) [SEP_TEXT] ( order: size ( small | large ) ) words

The states of the marks and the words go through layers of their own, which are not part of the
graph: which tokens they read depends on the call.

Source: Zaratiana et al. 2025, arXiv:2507.18546; processor.py, configuration.py, models/span/ of
gliner2 2.1.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import re
import sys
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple, get_args

import tokenizers

from qdqbert.common.errors import CheckpointError
from qdqbert.common.file_names import CONFIG
from qdqbert.common.json_files import Fields, parse_object
from qdqbert.encoders.checkpoint.own_layers import (
    GLINER2,
    PromptWords,
    SpanHead,
    found_weights,
    whole_numbers,
)
from qdqbert.encoders.checkpoint.sentence_files import FindFile, ReadFile
from qdqbert.encoders.left_out import refuse_adapter
from qdqbert.encoders.model import Floats
from qdqbert.encoders.task_kinds import LABELS, TaskName

# That of transformers, whose config.json has the encoder's.
_OF_TRANSFORMERS = "gliner2"

GLINER2_CONFIG = "gliner2_config.json"
"""Settings of such a checkpoint with those of its encoder, in a folder with graphs."""

ENCODER_CONFIG = "encoder_config/config.json"
"""Settings of the encoder, in a checkpoint."""

Architecture = Literal["boundary", "span"]
CountingLayer = Literal["count_lstm", "count_lstm_moe", "count_lstm_v2"]

FIELD = "[C]"
"""The token before each field of a structure."""

_TASK, _ENTITY, _LABEL = "[P]", "[E]", "[L]"
_BETWEEN, _TEXT, _DESCRIPTION = "[SEP_STRUCT]", "[SEP_TEXT]", "[DESCRIPTION]"
# In the order in which gliner2 adds them.
_MARKS = (
    *(_BETWEEN, _TEXT, _TASK, FIELD, _ENTITY, "[R]", _LABEL),
    *("[EXAMPLE]", "[OUTPUT]", _DESCRIPTION),
)
_ENTITIES = "entities"

CLASSIFIER = "classifier"
"""Start of the names of the layers that score classes."""


class Schema(NamedTuple):
    """What a text is asked for.

    Attributes:
        name: Name of the task.
        labels: The labels.
        descriptions: Descriptions of some labels, by label.
        mark: The token before each label.
    """

    name: str
    labels: Sequence[str]
    descriptions: Mapping[str, str]
    mark: str = _LABEL

    def words(self) -> list[str]:
        """Return the words that are read. Marks are the second one, and those before labels."""
        said = "".join(f" {_DESCRIPTION} {name}: {x}" for name, x in self.descriptions.items())
        marked = [word for label in self.labels for word in (self.mark, label)]
        return ["(", _TASK, f"{self.name}{said}", "(", *marked, ")", ")"]


def prompt_of(schemas: Sequence[Schema], choices: Sequence[str] = ()) -> PromptWords:
    """Return the words before a text. Of each schema, the mark of the task is the first one.

    `choices` are words that are read as the first ones of the text.
    """
    words: list[str] = []
    marks: list[int] = []
    for each in schemas:
        words += [_BETWEEN] if words else []
        first = len(words) + 4
        marks += [len(words) + 1, *range(first, first + 2 * len(each.labels), 2)]
        words += each.words()
    count = sum(len(each.labels) for each in schemas)
    every = [*words, _TEXT, *choices]
    return PromptWords(every, marks, count, has_ends=False, after=len(choices))


@functools.cache
def _words() -> re.Pattern[str]:
    """Return the words of gliner2's splitter "whitespace": marks of letters are parts of words."""
    codes = map(chr, range(sys.maxunicode + 1))
    marks = "".join(each for each in codes if unicodedata.category(each).startswith("M"))
    letter = rf"[\w{marks}\u200c\u200d]"
    places = r"https?://\S+|www\.\S+|[a-z0-9._%+-]+@[a-z0-9.-]+\.[a-z]{2,}|@[a-z0-9_]+"
    return re.compile(rf"{places}|{letter}+(?:[-_]{letter}+)*|\S", re.IGNORECASE)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gliner2Head(SpanHead):
    """How gliner2 scores spans of words and classes by labels.

    Attributes:
        architecture: Whether spans of words are scored; of "boundary", the layers for classes are
            computed, and those that score the first and the last word of a span are not.
        counting_layer: The layers that make vectors of labels, which spans are compared with.
        temperature: Divides logits of classes.
    """

    package: ClassVar[str] = "gliner2"
    file: ClassVar[str] = GLINER2_CONFIG
    body: ClassVar[str] = "encoder."
    layers: ClassVar[Mapping[str, str]] = {
        "span_rep.": "span_mode",
        "count_pred.": "architecture",
        "count_embed.": "counting_layer",
        f"{CLASSIFIER}.": "architecture",
    }
    lower_words: ClassVar[bool] = True
    ends: ClassVar[tuple[str, ...]] = (".", "!", "?")
    describes: ClassVar[bool] = True
    separates_labels: ClassVar[bool] = True
    keeps_empty_words: ClassVar[bool] = True
    # Whether there is an entity at all.
    extra_scores: ClassVar[int] = 1
    architecture: Architecture
    counting_layer: CountingLayer
    temperature: float

    @property
    def task(self) -> TaskName:  # type: ignore[override]  # depends on the architecture
        """The usual task."""
        return self.tasks[0]

    @property
    def tasks(self) -> tuple[TaskName, ...]:
        """Tasks of the layers, the usual one first."""
        return (SpanHead.task, LABELS) if self.finds_spans else (LABELS,)

    @property
    def finds_spans(self) -> bool:
        """Whether the layers that find spans of words are computed."""
        return self.architecture == "span"

    @property
    def word(self) -> re.Pattern[str]:  # type: ignore[override]  # made when it is needed
        """Words of a text."""
        return _words()

    @classmethod
    def save_again(cls) -> str:
        """Return a sentence on how the package saves a checkpoint that has all files."""
        return (
            "Save the checkpoint again with the package: `GLiNER2.from_pretrained(folder)."
            "save_pretrained(new_folder)` of gliner2 writes it, with the tokenizer."
        )

    def prompt(self, labels: Mapping[str, str | None]) -> PromptWords:
        """Return the words that are read before a text."""
        said = {name: text for name, text in labels.items() if text is not None}
        return prompt_of([Schema(_ENTITIES, list(labels), said, _ENTITY)])

    def encoder_values(
        self, base: Mapping[str, Any] | None = None, *, vocab_size: int | None = None
    ) -> dict[str, Any]:
        """Return the config of the encoder, which says what is after it."""
        return {**super().encoder_values(base, vocab_size=vocab_size), GLINER2: True}

    def config_place(self, name: str) -> str:
        """Return the file with the config of the encoder, of a checkpoint, for messages."""
        return f"{name}/{ENCODER_CONFIG if self.values['model_type'] == GLINER2 else CONFIG}"

    def prepare_tokenizer_(self, backend: tokenizers.Tokenizer) -> None:
        """Add the marks to a tokenizer, as gliner2 adds them, if it lacks them."""
        super().prepare_tokenizer_(backend)
        backend.add_special_tokens([x for x in _MARKS if backend.token_to_id(x) is None])

    def tensors(self, find: FindFile) -> dict[str, Floats]:
        """Return the weights after the encoder by name, of the files of a checkpoint.

        Raises:
            CheckpointError: There is no such file, it is damaged, or it has other weights.
        """
        weights = found_weights(find)
        refuse_adapter(str(weights.path), weights)
        if not self.finds_spans:
            names = (name for name in weights if name.startswith(f"{CLASSIFIER}."))
            return {name: weights.read(name) for name in names}
        known = (self.body, *self.layers)
        other = next((name for name in weights if not name.startswith(known)), None)
        if other is not None:
            raise CheckpointError(
                f"{str(weights.path)!r} has the tensor `{other}`, which gliner2's models of "
                f"architecture 'span' do not have. {self.save_again()}"
            )
        return super().tensors(find)


def read_gliner2_head(read: ReadFile) -> Gliner2Head | None:
    """Read the settings of a checkpoint of gliner2, or of a folder made of one.

    Returns:
        The settings; `None` for other checkpoints.

    Raises:
        CheckpointError: A setting has a wrong value, or asks for layers that are not computed.
    """
    text = read(GLINER2_CONFIG)
    if text is None:
        config = read(CONFIG)
        values = {} if config is None else parse_object(config, CONFIG)
        if values.get("model_type") not in (GLINER2, _OF_TRANSFORMERS):
            return None
        encoder = read(ENCODER_CONFIG)
        if encoder is not None:
            values["encoder_config"] = parse_object(encoder, ENCODER_CONFIG)
        if not isinstance(values.get("encoder_config"), Mapping):
            raise CheckpointError(
                f"The checkpoint of gliner2 has no {ENCODER_CONFIG}, which says what its encoder "
                f"is. {Gliner2Head.save_again()}"
            )
        text = json.dumps(values, indent=2)
    given = whole_numbers(parse_object(text, GLINER2_CONFIG))
    known = {name: value for name, value in given.items() if value is not None}
    fields = Fields(known, lambda reason: CheckpointError(f"{CONFIG} of gliner2: {reason}"))
    version = fields.values.get("architecture_version", 1)
    if version != 1:
        raise _not_computed("architecture_version", version, "1")
    places = [*([fields.child("span_head")] if fields.has("span_head") else ()), fields]
    widths = [each for each in places if each.has("max_width")]
    _choice(places[0], "span_mode", "markerV0", ("markerV0",))
    return Gliner2Head(
        max_width=widths[0].integer("max_width") if widths else 8,
        # The package cuts texts at it in training alone.
        max_words=None,
        # gliner2 reads no other layer of a word's tokens.
        subtoken_pooling=_choice(fields, "token_pooling", "first", ("first", "mean", "max")),
        architecture=_choice(fields, "architecture", "span", get_args(Architecture)),
        counting_layer=_choice(fields, "counting_layer", "count_lstm", get_args(CountingLayer)),
        temperature=_temperature(fields),
        files={GLINER2_CONFIG: text},
    )


def _choice(fields: Fields, name: str, usual: str, choices: Sequence[str]) -> Any:
    """Return one of the values of a setting that are computed."""
    found = fields.values.get(name, usual)
    if found not in choices:
        raise _not_computed(name, found, ", ".join(choices))
    return found


def _temperature(fields: Fields) -> float:
    """Return what divides logits of classes: of gliner2 in the second architecture only."""
    boundary = next((x for x in ("boundary_head", "boundary_config") if fields.has(x)), None)
    places = [fields.child(boundary)] if boundary is not None else []
    if fields.values.get("model_type") == _OF_TRANSFORMERS:
        places.insert(0, fields)
    name = "classification_temperature"
    found = next((each.number(name) for each in places if each.has(name)), 1.0)
    if found <= 0:
        raise _not_computed(name, found, "a number above 0")
    return found


def _not_computed(name: str, value: object, wanted: str) -> CheckpointError:
    return CheckpointError(
        f"`{name}={value!r:.60}` in {CONFIG} of gliner2 is not supported; expected {wanted}. Use a "
        "checkpoint of that kind."
    )
