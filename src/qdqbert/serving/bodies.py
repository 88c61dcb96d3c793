"""Types of what requests contain."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field


def _checked(text: str) -> str:
    # JSON can contain half of a surrogate pair, which is no character.
    if not text.isascii() and any("\ud800" <= each <= "\udfff" for each in text):
        raise ValueError("is not valid Unicode: it contains half of a surrogate pair")
    return text


Text = Annotated[str, AfterValidator(_checked)]
"""A text."""

Texts = Annotated[list[Text], Field(min_length=1)]
"""One text or more."""
