"""How close an SQNR is, in words, wherever one is shown."""

from __future__ import annotations

FAR_DB = 10.0
"""SQNR below which a model is hardly usable."""

# The lowest SQNR of each word, dB. At 20 dB, the error has a tenth of the outputs' magnitude.
_SCALE = (
    (30.0, "very close"),
    (20.0, "close"),
    (FAR_DB, "look at your own data"),
)
_BROKEN = "broken"


def in_words(sqnr_db: float) -> str:
    """Return how close an SQNR in dB is. NaN is broken."""
    return next((word for least, word in _SCALE if sqnr_db >= least), _BROKEN)
