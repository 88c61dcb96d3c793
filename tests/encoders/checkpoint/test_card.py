"""Metadata of a checkpoint's model card."""

from __future__ import annotations

import pytest

from qdqbert.encoders.checkpoint.card import read_card_data


def test_metadata_are_those_between_the_dashes(tmp_path) -> None:
    (tmp_path / "README.md").write_text("---\nlicense: mit\nlanguage: [en, de]\n---\n# Title\n")
    data = read_card_data(str(tmp_path))
    assert (data["license"], data["language"]) == ("mit", ["en", "de"])


@pytest.mark.parametrize(
    "card",
    [
        None,
        "",
        "# Only text",
        "---\nlicense: [mit\n---\n",
        "---\n- a list\n---\n",
        "---\nmodel-index: 3\n---\n",
        b"---\nlicense: \xff\n---\n",
    ],
    ids=["missing", "empty", "text", "no YAML", "a list", "wrong results", "no UTF-8"],
)
def test_a_card_that_cannot_be_read_says_nothing(tmp_path, card) -> None:
    if card is not None:
        content = card if isinstance(card, bytes) else card.encode()
        (tmp_path / "README.md").write_bytes(content)
    assert read_card_data(str(tmp_path)) == {}


def test_a_model_that_cannot_be_downloaded_has_no_card() -> None:
    assert read_card_data("no-such-owner/no-such-model") == {}
