"""Settings of checkpoints of gliclass: as in the package, or refused by their names and values."""

from __future__ import annotations

from typing import Any

import pytest

from qdqbert.encoders.checkpoint.gliclass import LabelHead, encoder_values, label_head
from qdqbert.encoders.checkpoint.own_layers import GLICLASS
from settings_refusals import check_refusal

NO_COUNT: tuple[Any, ...] = ("", "24", "x", 2.5, True, [], {}, -(10**9), 10**12)
NO_CHOICE: tuple[Any, ...] = (None, "", "x", 0, 2.5, True, [], {})
NO_TRUTH: tuple[Any, ...] = ("", "x", 0, 1, 2.5, [], {})
# Values that are refused, by the setting.
REFUSED: dict[str, tuple[Any, ...]] = {
    "architecture_type": NO_CHOICE,
    "calibrator_beta_max": (None, "", "24", -1, True, [], {}),
    "class_token_index": (None, *NO_COUNT),
    "class_token_pooling": NO_CHOICE,
    "embed_class_token": NO_TRUTH,
    "encoder_layer_id": (None, "", 0, "x"),
    "multimodal": (1, True, "x"),
    "pooling_strategy": NO_CHOICE,
    "projector_hidden_act": NO_CHOICE,
    "prompt_first": NO_TRUTH,
    "scorer_num_heads": (None, 0, -1, *NO_COUNT),
    "scorer_type": NO_CHOICE,
    "squeeze_layers": (1, True, "x"),
    "text_token_index": (None, *NO_COUNT),
    "use_lstm": NO_TRUTH,
    "vocab_size": NO_COUNT,
}
# Values that are taken, with the attribute that they become.
TAKEN: tuple[tuple[str, Any, str, Any], ...] = (
    ("class_token_index", -1, "label_id", 100),
    ("class_token_index", 24.0, "label_id", 24),
    ("text_token_index", -1, "sep_id", 101),
    ("embed_class_token", None, "reads_marker", False),
    ("encoder_layer_id", -1, "reads_marker", True),
    ("multimodal", None, "reads_marker", True),
    ("squeeze_layers", 0, "reads_marker", True),
    ("use_lstm", None, "has_lstm", False),
    ("vocab_size", None, "reads_marker", True),
)


def head_of(**values: Any) -> LabelHead:
    """Return what is read of settings."""
    return label_head({"vocab_size": 100, **values})


@pytest.mark.parametrize("name", REFUSED)
def test_a_wrong_value_is_refused_by_name(name) -> None:
    for value in REFUSED[name]:
        check_refusal(head_of, name, value)


@pytest.mark.parametrize(("name", "value", "attribute", "expected"), TAKEN)
def test_a_value_means_what_it_means_in_gliclass(name, value, attribute, expected) -> None:
    assert getattr(head_of(**{name: value}), attribute) == expected


def test_settings_that_are_not_there_are_as_in_gliclass() -> None:
    found = head_of()
    assert (found.label_id, found.sep_id, found.heads, found.largest_scale) == (100, 101, 16, 3)
    assert (found.scorer, found.text_pooling, found.label_pooling) == ("simple", "first", "first")
    assert found.reads_marker
    assert not found.has_lstm


def test_ids_of_tokens_follow_the_vocabulary_of_the_encoder() -> None:
    for given in ({}, {"vocab_size": None}):
        found = encoder_values({"encoder_config": {"vocab_size": 90}, **given})
        assert (found["vocab_size"], label_head(found[GLICLASS]).sep_id) == (90, 91)
