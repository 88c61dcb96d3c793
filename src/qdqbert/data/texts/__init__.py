"""Texts that were written for this package and are part of it, under Apache-2.0."""

from __future__ import annotations

from importlib import resources

from qdqbert.data.rows.data import Example


def calibration_examples() -> tuple[Example, ...]:
    """Return 400 varied English texts for calibration."""
    return _read("calibration.txt")


def heldout_examples() -> tuple[Example, ...]:
    """Return 120 similar texts, none of them above, on which INT8 is compared with float."""
    return _read("heldout.txt")


def _read(name: str) -> tuple[Example, ...]:
    text = resources.files(__name__).joinpath(name).read_text(encoding="utf-8")
    return tuple(Example(text=line) for line in text.splitlines())
