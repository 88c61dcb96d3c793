"""Texts on which an exported model is compared with the folder that it comes from."""

from __future__ import annotations

import itertools

from qdqbert.data.texts import heldout_examples
from qdqbert.encoders.checkpoint.sample_texts import HARD

_PLAIN_TEXTS = 12


def plain_texts() -> list[str]:
    """Return ordinary texts of different lengths."""
    texts = [example.text for example in heldout_examples()]
    step = len(texts) // _PLAIN_TEXTS
    chosen = texts[: step * _PLAIN_TEXTS : step]
    return [" ".join([text] * (1 + index % 4)) for index, text in enumerate(chosen)]


def check_texts() -> list[str]:
    """Return all texts that results are compared on."""
    return [*HARD.values(), *plain_texts()]


def check_pairs() -> list[tuple[str, str]]:
    """Return pairs of a short text and each hard text, and of ordinary texts.

    Both texts of a pair are not empty: OpenVINO's tokenizers fail for pairs of empty texts.
    """
    plain = plain_texts()
    hard = [text for text in HARD.values() if text]
    return [*((plain[0], text) for text in hard), *itertools.pairwise(plain)]
