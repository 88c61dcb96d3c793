"""Texts that ship with the package, written for it; Apache-2.0 as the rest."""

from __future__ import annotations

from importlib import resources

from qdqbert.tasks.data import Example


def calibration_examples() -> tuple[Example, ...]:
    """400 varied English texts to calibrate on."""
    return _read("calibration.txt")


def heldout_examples() -> tuple[Example, ...]:
    """120 others of the same kind, to compare INT8 with float on."""
    return _read("heldout.txt")


def _read(name: str) -> tuple[Example, ...]:
    text = resources.files(__name__).joinpath(name).read_text(encoding="utf-8")
    return tuple(Example(text=line) for line in text.splitlines())
