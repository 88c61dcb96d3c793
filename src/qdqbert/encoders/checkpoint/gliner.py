"""Checkpoints of the package `gliner`: an encoder, and layers that score spans of words by labels.

A text is read behind its labels, `<<ENT>> person <<ENT>> drug <<SEP>> words`, each label and word
tokenized by itself. The state of a word, and of the marker before each label, go through layers of
their own, which are not part of the graph: which tokens they read depends on the call.

Source: Zaratiana et al. 2024, arXiv:2311.08526; config.py, modeling/ of gliner 0.2.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

import numpy as np
import tokenizers

from qdqbert.common.errors import CheckpointError
from qdqbert.common.json_files import Fields, parse_object
from qdqbert.encoders.checkpoint.own_layers import OwnLayers, found_weights
from qdqbert.encoders.checkpoint.sentence_files import FindFile, ReadFile
from qdqbert.encoders.model import Floats
from qdqbert.encoders.task_kinds import TaskName
from qdqbert.encoders.tensor_files import write_tensors
from qdqbert.encoders.weights import Weights

GLINER_CONFIG = "gliner_config.json"
"""Settings of a checkpoint of gliner."""

SPAN_WEIGHTS = "span_head.safetensors"
"""Weights after the encoder, in a folder with graphs, in float32."""

SpanMode = Literal["marker", "markerV0", "markerV1", "token_level"]
SubtokenPooling = Literal["first", "last", "mean", "max"]

# Prefixes of the tensors after the encoder.
_HEAD = ("rnn.", "span_rep_layer.", "prompt_rep_layer.", "scorer.", "token_rep_layer.projection.")
_SAVE_AGAIN = (
    "Save the checkpoint again with the package: `GLiNER.from_pretrained(folder)."
    "save_pretrained(new_folder)` of gliner 0.2 writes it, with the tokenizer."
)
# gliner adds it before the others.
_FLERT = "[FLERT]"
# Settings of layers that are not computed: their names, and what they ask for.
_MISSING = {
    "labels_decoder": "a language model that writes labels",
    "labels_encoder": "a second encoder for the labels",
    "relations_layer": "relations between entities",
    "span_encoder_config": "an encoder of the words after the encoder of the tokens",
    "fuse_layers": "the states of all layers",
    "post_fusion_schema": "attention between words and labels after the encoder",
    "precomputed_prompts_mode": "labels that are stored in the checkpoint",
}
# Distances of an encoder with relative positions only, so that gliner cuts at no number of tokens.
_LONGEST = 1024


@dataclasses.dataclass(frozen=True, kw_only=True)
class SpanHead(OwnLayers):
    """How spans of words are scored by labels.

    Attributes:
        span_mode: How the vector of a span is made of the states of its words; "token_level" scores
            each word as the first, the last and any word of an entity instead.
        max_width: Most words of an entity.
        max_words: Most words of a text that are read together.
        subtoken_pooling: Which token of a word has its state.
        ent_token: The token before each label.
        sep_token: The token after the labels.
        reads_marker: Whether the state of a label is that of the token before it, and not that of
            its own first token.
        recurrent_layers: Layers of the LSTM over the words.
        ent_id: Id of the token before each label, by which it is checked; `None` if it is not
            known.
        max_length: `None`: the tokenizer's limit counts.
    """

    task: ClassVar[TaskName] = "entity-extraction"
    body: ClassVar[str] = "token_rep_layer.bert_layer.model."
    max_length: int | None = None
    span_mode: SpanMode
    max_width: int
    max_words: int
    subtoken_pooling: SubtokenPooling = "first"
    ent_token: str = "<<ENT>>"
    sep_token: str = "<<SEP>>"
    reads_marker: bool = True
    recurrent_layers: int = 0
    ent_id: int | None = None

    def prepare_tokenizer_(self, backend: tokenizers.Tokenizer) -> None:
        """Add the tokens around labels to a tokenizer, as gliner adds them, if it lacks them.

        Raises:
            CheckpointError: The token before a label would have another id than in training.
        """
        super().prepare_tokenizer_(backend)
        if backend.token_to_id(self.ent_token) is None:
            backend.add_special_tokens([_FLERT, self.ent_token, self.sep_token])
        found = backend.token_to_id(self.ent_token)
        if self.ent_id not in (None, found):
            raise CheckpointError(
                f"{GLINER_CONFIG} gives {self.ent_token!r} the id {self.ent_id} "
                f"(`class_token_index`), and the tokenizer the id {found}. {_SAVE_AGAIN}"
            )

    def tensors(self, find: FindFile) -> dict[str, Floats]:
        """Return the weights after the encoder by name, of the files of a checkpoint.

        Raises:
            CheckpointError: There is no such file, or it is damaged.
        """
        weights = found_weights(find)
        return {name: weights.read(name) for name in weights if name.startswith(_HEAD)}

    def write_settings(self, folder: Path, find: FindFile) -> None:
        """Write the weights after the encoder to a folder; see `read_span_weights`."""
        write_tensors(folder / SPAN_WEIGHTS, self.tensors(find))


def read_span_head(read: ReadFile) -> SpanHead | None:
    """Read the settings of a checkpoint of gliner; `None` for other checkpoints.

    Raises:
        CheckpointError: A setting has a wrong value, or asks for layers that are not computed.
    """
    text = read(GLINER_CONFIG)
    if text is None:
        return None
    fields = Fields.of_text(text, GLINER_CONFIG)
    if fields.values.get("model_type") == "gliner_streaming_span":
        raise _not_computed("model_type", fields, "a text that is read as it comes")
    for name, what in _MISSING.items():
        if fields.values.get(name):
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
    index = fields.values.get("class_token_index")
    return SpanHead(
        ent_id=index if type(index) is int and index >= 0 else None,
        span_mode=mode,  # type: ignore[arg-type]
        max_width=fields.integer("max_width") if fields.has("max_width") else 12,
        max_words=fields.integer("max_len") if fields.has("max_len") else 384,
        subtoken_pooling=pooling,
        ent_token=fields.optional(fields.text, "ent_token") or "<<ENT>>",
        sep_token=fields.optional(fields.text, "sep_token") or "<<SEP>>",
        reads_marker=fields.truth("embed_ent_token") if fields.has("embed_ent_token") else True,
        recurrent_layers=max(
            fields.integer("num_rnn_layers", -1, 16) if fields.has("num_rnn_layers") else 1, 0
        ),
        files={GLINER_CONFIG: text},
    )


def encoder_config(
    text: str, base: Mapping[str, Any] | None = None, *, vocab_size: int | None = None
) -> dict[str, Any]:
    """Return the config of the encoder, as transformers writes it.

    Args:
        text: The text of GLINER_CONFIG.
        base: The config of the model that it names, for files without `encoder_config`.
        vocab_size: Number of tokens with those that gliner adds, if the file does not say it.
    """
    values = parse_object(text, GLINER_CONFIG)
    given = values.get("encoder_config")
    found = {"model_type": "deberta-v2", **(given if isinstance(given, Mapping) else base or {})}
    # gliner adds tokens to the table, and says so here.
    size = values.get("vocab_size")
    if type(size) is int and size > 0:
        found["vocab_size"] = size
    elif vocab_size is not None:
        found["vocab_size"] = vocab_size
    return _without_limit(found)


def _without_limit(values: dict[str, Any]) -> dict[str, Any]:
    """Return a config that reads texts as long as gliner does, with the same buckets of distances.

    DeBERTa has no positions but relative ones, so that transformers' model has no limit.
    """
    limit = values.get("max_position_embeddings", 512)
    is_relative = values.get("relative_attention") and not values.get("position_biased_input", True)
    if values["model_type"] != "deberta-v2" or not is_relative or type(limit) is not int:
        return values
    distances = values.get("max_relative_positions", -1)
    if type(distances) is int and distances < 1:
        values["max_relative_positions"] = limit
    return {**values, "max_position_embeddings": max(limit, _LONGEST)}


def read_span_weights(folder: Path) -> dict[str, Floats]:
    """Return the weights after the encoder, which `SpanHead.write_settings` wrote, by name.

    Raises:
        CheckpointError: The file is missing or damaged.
    """
    weights = Weights(folder, names=(SPAN_WEIGHTS,))
    return {name: np.ascontiguousarray(weights.read(name)) for name in weights}


def _not_computed(name: str, fields: Fields, what: str) -> CheckpointError:
    return CheckpointError(
        f"`{name}={fields.values.get(name)!r:.60}` in {GLINER_CONFIG} asks for {what}, which is "
        "not supported. Known are models that score spans of words, and words, by labels that are "
        "read with the text."
    )
