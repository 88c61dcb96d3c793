"""Settings of checkpoints of gliner: as in the package, or refused by their names and values."""

from __future__ import annotations

import json
from typing import Any

import pytest

from qdqbert.common.errors import CheckpointError
from qdqbert.encoders.checkpoint.gliner import GLINER_CONFIG, GlinerHead, read_gliner_head
from settings_refusals import check_refusal

NO_TEXT: tuple[Any, ...] = (0, 1, -1, 2.5, True, [], {})
NO_COUNT: tuple[Any, ...] = (None, "", "24", "x", 2.5, True, [], {}, -(10**9), 10**12)
NO_OBJECT: tuple[Any, ...] = ("", "x", 0, 1, 2.5, True, [])
# Values that are refused, by the setting.
REFUSED: dict[str, tuple[Any, ...]] = {
    "class_token_index": NO_COUNT,
    "encoder_config": NO_OBJECT,
    "ent_token": (None, "", *NO_TEXT),
    "labels_decoder": ("", 0, [], {}),
    "labels_encoder": NO_TEXT,
    "labels_encoder_config": NO_OBJECT,
    "max_len": (*NO_COUNT, 0, -1),
    "max_width": (*NO_COUNT, 0, -1),
    "num_rnn_layers": NO_COUNT,
    "relations_layer": ("", 0, [], {}),
    "sep_token": (None, "", *NO_TEXT),
    "span_encoder_config": ("", 0, [], {}),
    "span_mode": (None, "", 0, [], "x"),
    "subtoken_pooling": (None, "", 0, "x"),
}
# Values that are taken, with the attribute that they become.
TAKEN: tuple[tuple[str, Any, str, Any], ...] = (
    ("class_token_index", -1, "ent_id", None),
    ("class_token_index", 24.0, "ent_id", 24),
    ("embed_ent_token", None, "reads_marker", False),
    ("embed_ent_token", False, "reads_marker", False),
    ("embed_ent_token", 0, "reads_marker", False),
    ("embed_ent_token", "x", "reads_marker", True),
    ("encoder_config", None, "max_width", 12),
    ("fuse_layers", 0, "max_width", 12),
    ("labels_encoder", "", "has_labels_encoder", True),
    ("labels_encoder", None, "has_labels_encoder", False),
    ("max_len", 24.0, "max_words", 24),
    ("num_rnn_layers", -1, "recurrent_layers", 0),
    ("post_fusion_schema", None, "max_width", 12),
)


def head_of(**values: Any) -> GlinerHead:
    """Return what is read of settings."""
    found = read_gliner_head({GLINER_CONFIG: json.dumps(values)}.get)
    assert found is not None
    return found


@pytest.mark.parametrize("name", REFUSED)
def test_a_wrong_value_is_refused_by_name(name) -> None:
    for value in REFUSED[name]:
        check_refusal(head_of, name, value)


@pytest.mark.parametrize(("name", "value", "attribute", "expected"), TAKEN)
def test_a_value_means_what_it_means_in_gliner(name, value, attribute, expected) -> None:
    assert getattr(head_of(**{name: value}), attribute) == expected


def test_settings_that_are_not_there_are_as_in_gliner() -> None:
    found = head_of()
    assert (found.max_width, found.max_words, found.recurrent_layers) == (12, 384, 1)
    assert (found.ent_token, found.sep_token, found.ent_id) == ("<<ENT>>", "<<SEP>>", None)
    assert found.reads_marker
    assert not found.has_labels_encoder


def test_an_encoder_of_labels_without_a_name_is_refused() -> None:
    with pytest.raises(CheckpointError, match="'labels_encoder' is None and has to be a text"):
        head_of(labels_encoder=None, labels_encoder_config={"model_type": "bert"})
