from __future__ import annotations

import pytest

from qdqbert.errors import DataFileError, QdqBertError, naming, shortened


def test_a_message_quotes_no_name_of_any_length() -> None:
    name = "x" * 1_000_000
    with pytest.raises(DataFileError) as caught, naming("data"):
        raise DataFileError(f"Column {name!r} is missing. Pass another `text_column`.")
    message = str(caught.value)
    assert message.startswith("`data`: Column 'xxx")
    assert "x [...] x" in message
    assert message.endswith("x' is missing. Pass another `text_column`.")
    assert len(message) < 2100


def test_a_message_of_usual_length_is_kept() -> None:
    text = "The graph has a cycle. " * 80
    assert str(QdqBertError(text)) == shortened(text) == text
