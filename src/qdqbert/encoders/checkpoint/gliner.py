"""Checkpoints of the package `gliner`: an encoder, and layers that score spans of words by labels.

A text is read behind its labels, `<<ENT>> person <<ENT>> drug <<SEP>> words`, each label and word
tokenized by itself. The state of a word, and of the marker before each label, go through layers of
their own, which are not part of the graph: which tokens they read depends on the call. Checkpoints
with a second encoder read texts alone; the vector of a label is the mean of its states in it.

Source: Zaratiana et al. 2024, arXiv:2311.08526; config.py, modeling/ of gliner 0.2.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, get_args

import tokenizers

from qdqbert.common.errors import CheckpointError
from qdqbert.common.file_names import CONFIG
from qdqbert.common.json_files import Fields, damaged, parse_object
from qdqbert.encoders.checkpoint.own_layers import (
    LARGEST_ID,
    PromptWords,
    SpanHead,
    SubtokenPooling,
    count_or_none,
    whole_numbers,
)
from qdqbert.encoders.checkpoint.sentence_files import ReadFile

GLINER_CONFIG = "gliner_config.json"
"""Settings of a checkpoint of gliner."""

LABELS_FOLDER = "labels_encoder"
"""Folder of the second encoder, in a folder with graphs."""

ENCODER_FIELDS = ("encoder_config", "model_name")
LABELS_FIELDS = ("labels_encoder_config", "labels_encoder")
"""Settings of each encoder: its config, and the name of a model that has it."""

SpanMode = Literal["marker", "markerV0", "markerV1", "token_level"]

# gliner adds it before the others.
_FLERT = "[FLERT]"
# Settings of layers that are not computed: their names, and what they ask for.
_MISSING = {
    "labels_decoder": "a language model that writes labels",
    "relations_layer": "relations between entities",
    "span_encoder_config": "an encoder of the words after the encoder of the tokens",
    "fuse_layers": "the states of all layers",
    "post_fusion_schema": "attention between words and labels after the encoder",
    "precomputed_prompts_mode": "labels that are stored in the checkpoint",
}
# Those that null alone turns off; others are off if they are 0, false or empty, too.
_NULL_IS_OFF = ("labels_decoder", "relations_layer", "span_encoder_config")


@dataclasses.dataclass(frozen=True, kw_only=True)
class GlinerHead(SpanHead):
    """How gliner scores spans of words by labels.

    Attributes:
        span_mode: How the vector of a span is made of the states of its words; "token_level" scores
            each word as the first, the last and any word of an entity instead.
        ent_token: The token before each label.
        sep_token: The token after the labels.
        reads_marker: Whether the state of a label is that of the token before it, and not that of
            its own first token.
        recurrent_layers: Layers of the LSTM over the words.
        has_labels_encoder: Whether a second encoder reads the labels, each alone.
        ent_id: Id of the token before each label, by which it is checked; `None` if it is not
            known.
    """

    package: ClassVar[str] = "gliner"
    file: ClassVar[str] = GLINER_CONFIG
    body: ClassVar[str] = "token_rep_layer.bert_layer.model."
    layers: ClassVar[Mapping[str, str]] = {
        "rnn.": "num_rnn_layers",
        **dict.fromkeys(("span_rep_layer.", "prompt_rep_layer.", "scorer."), "span_mode"),
        "token_rep_layer.projection.": "hidden_size",
        "token_rep_layer.labels_projection.": "labels_encoder",
    }
    # As its splitter "whitespace" finds them.
    word: ClassVar[re.Pattern[str]] = re.compile(r"\w+(?:[-_]\w+)*|\S")
    span_mode: SpanMode
    ent_token: str = "<<ENT>>"
    sep_token: str = "<<SEP>>"
    reads_marker: bool = True
    recurrent_layers: int = 0
    ent_id: int | None = None
    has_labels_encoder: bool = False

    @property
    def is_of_words(self) -> bool:
        """Whether words are scored as parts of entities, and not spans."""
        return self.span_mode == "token_level"

    @property
    def shown(self) -> dict[str, Any]:
        """Settings that are shown with a model."""
        return {"max_words": self.max_words} if self.is_of_words else super().shown

    @classmethod
    def save_again(cls) -> str:
        """Return a sentence on how the package saves a checkpoint that has all files."""
        return (
            "Save the checkpoint again with the package: `GLiNER.from_pretrained(folder)."
            "save_pretrained(new_folder)` of gliner 0.2 writes it, with the tokenizer."
        )

    def prompt(self, labels: Mapping[str, str | None]) -> PromptWords:
        """Return the words before a text: the description of each label, or else its name."""
        if self.has_labels_encoder:
            return PromptWords([], [], 0, has_ends=True)
        words: list[str] = []
        marks = []
        for name, description in labels.items():
            marks.append(len(words))
            said = name if description is None else description
            words += [self.ent_token, said] if said else [self.ent_token]
        every = [*words, self.sep_token]
        return PromptWords(every, marks, len(marks), has_ends=True, reads_marks=self.reads_marker)

    def encoder_values(
        self, base: Mapping[str, Any] | None = None, *, vocab_size: int | None = None
    ) -> dict[str, Any]:
        """Return the config of the encoder of texts; see `SpanHead.encoder_values`."""
        # gliner adds no rows to its table next to a second encoder.
        size = None if self.has_labels_encoder else vocab_size
        return super().encoder_values(base, vocab_size=size)

    def config_place(self, name: str, fields: tuple[str, str] = ENCODER_FIELDS) -> str:
        """Return the file with the config of an encoder: of the model that is named without it."""
        config, base = map(self.values.get, fields)
        return super().config_place(name) if isinstance(config, Mapping) else f"{base}/{CONFIG}"

    def labels_encoder_values(self, base: Mapping[str, Any]) -> dict[str, Any]:
        """Return the config of the encoder of labels; `base` is that of the model that is named."""
        given = self.values.get("labels_encoder_config")
        if isinstance(given, Mapping):
            return {"model_type": "deberta-v2", **given}
        # gliner gives both encoders this size.
        size = count_or_none(self.values.get("vocab_size"))
        return {**base, **({"vocab_size": size} if size else {})}

    def prepare_tokenizer_(self, backend: tokenizers.Tokenizer) -> None:
        """Add the tokens around labels to a tokenizer, as gliner adds them, if it lacks them.

        Raises:
            CheckpointError: The token before a label would have another id than in training.
        """
        super().prepare_tokenizer_(backend)
        if self.has_labels_encoder:
            return
        if backend.token_to_id(self.ent_token) is None:
            backend.add_special_tokens([_FLERT, self.ent_token, self.sep_token])
        found = backend.token_to_id(self.ent_token)
        if self.ent_id not in (None, found):
            raise CheckpointError(
                f"{GLINER_CONFIG} gives {self.ent_token!r} (`ent_token`) the id {self.ent_id} "
                f"(`class_token_index`), and the tokenizer the id {found}. {self.save_again()}"
            )


def read_gliner_head(read: ReadFile) -> GlinerHead | None:
    """Read the settings of a checkpoint of gliner; `None` for other checkpoints.

    Raises:
        CheckpointError: A setting has a wrong value, or asks for layers that are not computed.
    """
    text = read(GLINER_CONFIG)
    if text is None:
        return None
    known = whole_numbers(parse_object(text, GLINER_CONFIG))
    fields = Fields(known, lambda reason: damaged(GLINER_CONFIG, reason))
    if fields.values.get("model_type") == "gliner_streaming_span":
        raise _not_computed("model_type", fields, "a text that is read as it comes")
    for name, what in _MISSING.items():
        if fields.has(name) if name in _NULL_IS_OFF else fields.values.get(name):
            raise _not_computed(name, fields, what)
    splitter = fields.values.get("words_splitter_type", "whitespace")
    if splitter != "whitespace":
        raise CheckpointError(
            f"`words_splitter_type={splitter!r}` in {GLINER_CONFIG} splits texts into words by "
            "another package, which is not supported: expected 'whitespace'. Set it in a copy of "
            "the folder if the texts have spaces between words."
        )
    # Files of older versions of gliner have "token-level", too.
    mode = str(fields.values.get("span_mode", "markerV0")).replace("token-level", "token_level")
    if mode not in get_args(SpanMode):
        raise CheckpointError(
            f"`span_mode={mode!r}` in {GLINER_CONFIG} is not supported; expected one of "
            f"{', '.join(get_args(SpanMode))}."
        )
    if mode == "token_level" and fields.values.get("represent_spans"):
        raise _not_computed("represent_spans", fields, "scores of spans next to those of words")
    pooling = fields.values.get("subtoken_pooling", "first")
    if pooling not in get_args(SubtokenPooling):
        raise fields.refuse("subtoken_pooling", pooling, ", ".join(get_args(SubtokenPooling)))
    fields.optional(fields.child, ENCODER_FIELDS[0])
    labels_config, labels_name = LABELS_FIELDS
    if fields.optional(fields.child, labels_config) is not None:
        # gliner looks at the name alone, and reads no weights of this encoder without one.
        fields.text(labels_name)
    has_labels_encoder = fields.optional(fields.text, labels_name) is not None
    layers = fields.given(fields.integer, "num_rnn_layers", 1, -1, 16)
    ent_id = fields.given(fields.integer, "class_token_index", -1, -1, LARGEST_ID)
    return GlinerHead(
        ent_id=None if ent_id < 0 else ent_id,
        span_mode=mode,  # type: ignore[arg-type]
        max_width=fields.given(fields.integer, "max_width", 12),
        max_words=fields.given(fields.integer, "max_len", 384),
        subtoken_pooling=pooling,
        ent_token=_token(fields, "ent_token", "<<ENT>>"),
        sep_token=_token(fields, "sep_token", "<<SEP>>"),
        # gliner takes 0 and null for false.
        reads_marker=bool(fields.values.get("embed_ent_token", True)),
        # gliner stores them next to a second encoder, too, and does not use them.
        recurrent_layers=0 if has_labels_encoder else max(layers, 0),
        has_labels_encoder=has_labels_encoder,
        files={GLINER_CONFIG: text},
    )


def _token(fields: Fields, name: str, usual: str) -> str:
    found = fields.given(fields.text, name, usual)
    if not found:
        raise fields.refuse(name, found, "a text that is not empty")
    return found


def _not_computed(name: str, fields: Fields, what: str) -> CheckpointError:
    return CheckpointError(
        f"`{name}={fields.values.get(name)!r:.60}` in {GLINER_CONFIG} asks for {what}, which is "
        "not supported. Known are models that score spans of words, and words, by labels."
    )
