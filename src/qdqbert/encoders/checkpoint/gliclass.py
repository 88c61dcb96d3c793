"""Checkpoints of the package `gliclass`: an encoder, and layers that score labels of a call.

A text is read with all labels at once, `<<LABEL>> sports <<LABEL>> music <<SEP>> text`. The states
of the labels and of the text go through layers of their own, which are not part of the graph: which
tokens they read depends on the call.

Source: config.py, model.py, scorers.py of gliclass 0.1.21.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, get_args

import numpy as np
import tokenizers

from qdqbert.common.errors import CheckpointError
from qdqbert.common.file_names import CONFIG
from qdqbert.common.json_files import Fields
from qdqbert.encoders.checkpoint.own_layers import (
    GLICLASS,
    LARGEST_ID,
    OwnLayers,
    count_or_none,
    whole_numbers,
)
from qdqbert.encoders.checkpoint.sentence_files import FindFile
from qdqbert.encoders.model import Floats
from qdqbert.encoders.task_kinds import TaskName

LABEL_TOKEN, SEP_TOKEN = "<<LABEL>>", "<<SEP>>"
"""The tokens before each label and after the labels."""

TextPooling = Literal["first", "last", "avg", "sum", "max", "rms", "abs_max", "abs_avg", "pass"]
LabelPooling = Literal["first", "average"]
Scorer = Literal["simple", "weighted-dot", "mlp", "hopfield", "cross-attn"]
Projection = Literal["gelu", "relu", "silu", "tanh"]

# Decoders whose tokens see those after them in gliclass.
_BIDIRECTIONAL = ("gemma", "llama", "mistral", "qwen2")
# Settings of layers that are not computed: their names, what changes nothing, and what they add.
_MISSING: Mapping[str, tuple[object, str]] = {
    "squeeze_layers": (False, "the states of all layers"),
    "encoder_layer_id": (-1, "the states of another layer than the last one"),
    "use_segment_embeddings": (False, "embeddings of the segments of a text"),
    "multimodal": (False, "images and sound"),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class LabelHead(OwnLayers):
    """How labels are scored by the states of their tokens and of a text.

    Attributes:
        scorer: How vectors of a text and of a label become a score.
        text_pooling: How the states of a text become one vector; "pass" keeps all.
        label_pooling: Whether a label is its first state or the mean of its states.
        has_lstm: Whether an LSTM reads the states of a text before they are pooled.
        starts_at_text: Whether the states of a text begin at the token after the labels.
        reads_marker: Whether the states of a label have that of the token before it.
        labels_first: Whether labels stand before the text.
        heads: Heads of the scorer "cross-attn".
        activation: Function between the layers that project a vector.
        normalizes: Whether projected vectors have length 1, and scores a scale.
        calibrates: Whether layers scale each score by a temperature of its own.
        largest_scale: Their largest inverse temperature.
        shifts: Whether these layers add to scores, too.
        label_id: Id of the token before each label, by which the tokenizer is checked.
        sep_id: Id of the token after the labels, if the states of a text begin there.
    """

    task: ClassVar[TaskName] = "zero-shot-classification"
    body: ClassVar[str] = "model.encoder_model."
    layers: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("model.text_projector.", "model.classes_projector."), "hidden_size"),
        "model.scorer.": "scorer_type",
        "model.lstm.": "use_lstm",
        "model.logit_scale": "normalize_features",
        "calibrator.": "use_calibrator",
    }
    weights_file: ClassVar[str] = "label_head.safetensors"
    scorer: Scorer
    text_pooling: TextPooling
    label_pooling: LabelPooling
    has_lstm: bool
    starts_at_text: bool
    reads_marker: bool
    labels_first: bool
    heads: int
    activation: Projection
    normalizes: bool
    calibrates: bool
    largest_scale: float
    shifts: bool
    label_id: int
    sep_id: int

    def prepare_tokenizer_(self, backend: tokenizers.Tokenizer) -> None:
        """Check that the tokenizer has the tokens around labels, with the ids of the settings.

        Raises:
            CheckpointError: One is missing, or has another id.
        """
        super().prepare_tokenizer_(backend)
        for token, field, index in (
            (LABEL_TOKEN, "class_token_index", self.label_id),
            (SEP_TOKEN, "text_token_index", self.sep_id),
        ):
            if (found := backend.token_to_id(token)) != index:
                has = "lacks it" if found is None else f"gives it the id {found}"
                raise CheckpointError(
                    f"{CONFIG} of gliclass gives {token!r} the id {index} (`{field}`), and the "
                    f"tokenizer {has}. Save the checkpoint again with its tokenizer."
                )

    def tensors(self, find: FindFile) -> dict[str, Floats]:
        """Return the weights after the encoder by name; see `OwnLayers.tensors`."""
        found = super().tensors(find).items()
        # The scale is a single number.
        return {name.removeprefix("model."): np.atleast_1d(each) for name, each in found}


def is_gliclass(values: Mapping[str, Any]) -> bool:
    """Return whether the content of a config.json is that of a checkpoint of gliclass."""
    return values.get("model_type") == GLICLASS


def label_head(values: Mapping[str, Any]) -> LabelHead:
    """Read the settings of gliclass in the content of a config.json.

    Raises:
        CheckpointError: A setting has a wrong value, or asks for layers that are not computed.
    """
    given = whole_numbers(values)
    fields = Fields(given, lambda reason: CheckpointError(f"{CONFIG} of gliclass: {reason}"))
    kind = given.get("architecture_type", "uni-encoder")
    if kind != "uni-encoder":
        raise CheckpointError(
            f"`architecture_type={kind!r}` of gliclass is not supported, only 'uni-encoder', which "
            "reads a text and its labels together. Use a checkpoint of that kind, or a classifier "
            "of natural language inference."
        )
    for name, (usual, what) in _MISSING.items():
        found = given.get(name, usual)
        if (bool(found) if usual is False else found) != usual:
            raise CheckpointError(
                f"`{name}={given[name]!r:.60}` of gliclass asks for {what}, which is not "
                "supported. Use a checkpoint without it."
            )

    def truth(name: str, usual: bool) -> bool:
        # gliclass takes null for false.
        return fields.truth(name) if fields.has(name) else usual and name not in given

    def choice(name: str, usual: str, choices: Any) -> Any:
        return fields.choice(name, get_args(choices)) if name in given else usual

    scorer = choice("scorer_type", "simple", Scorer)
    pooling = choice("pooling_strategy", "first", TextPooling)
    if (scorer == "cross-attn") != (pooling == "pass"):
        raise CheckpointError(
            f"`scorer_type={scorer!r}` and `pooling_strategy={pooling!r}` of gliclass do not fit: "
            "'cross-attn' reads all states of a text, which 'pass' keeps."
        )
    calibrates = truth("use_calibrator", False)
    if calibrates and pooling == "pass":
        raise CheckpointError(
            "`use_calibrator` of gliclass needs one vector of a text, and "
            "`pooling_strategy='pass'` keeps all states."
        )
    starts_at_text = truth("extract_text_features", False)
    # Older versions wrote -1, and the ids of both tokens.
    size = max(fields.optional(fields.integer, "vocab_size", -1, LARGEST_ID) or 0, 0)

    def index(name: str, after: int) -> int:
        found = fields.given(fields.integer, name, -1, -1, LARGEST_ID)
        return size + after if found < 0 else found

    return LabelHead(
        scorer=scorer,
        text_pooling=pooling,
        label_pooling=choice("class_token_pooling", "first", LabelPooling),
        has_lstm=truth("use_lstm", False),
        starts_at_text=starts_at_text,
        reads_marker=truth("embed_class_token", True),
        labels_first=truth("prompt_first", False),
        heads=fields.given(fields.integer, "scorer_num_heads", 16),
        activation=choice("projector_hidden_act", "gelu", Projection),
        normalizes=truth("normalize_features", False),
        calibrates=calibrates,
        largest_scale=fields.given(fields.number, "calibrator_beta_max", 3.0, 0),
        shifts=truth("calibrator_use_bias", False),
        label_id=index("class_token_index", 0),
        sep_id=index("text_token_index", 1),
    )


def encoder_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config of the encoder, as transformers writes it, with the settings of gliclass.

    Raises:
        CheckpointError: There is none: gliclass would look for it on the hub; or the encoder is a
            decoder that another package changes.
    """
    given = values.get("encoder_config")
    if not isinstance(given, Mapping):
        raise CheckpointError(
            f"{CONFIG} of gliclass has no `encoder_config`. Save the checkpoint again with "
            "`GLiClassModel.save_pretrained` of gliclass 0.1."
        )
    found = {"model_type": "deberta-v2", **given}
    if found["model_type"] in _BIDIRECTIONAL:
        raise CheckpointError(
            f"The encoder is of type `{found['model_type']}`, which gliclass runs by the package "
            "llm2vec, with tokens that see those after them. That is not supported. Use a "
            "checkpoint with an encoder, such as DeBERTa or ModernBERT."
        )
    # gliclass adds tokens to the table, and says so here.
    if size := count_or_none(values.get("vocab_size")):
        found["vocab_size"] = size
    kept = {name: each for name, each in values.items() if name != "encoder_config"}
    if kept.get("vocab_size") is None:
        # The ids of its tokens follow those of the encoder.
        kept["vocab_size"] = found.get("vocab_size")
    return {**found, GLICLASS: kept}
