"""How close a model is to another, in words, wherever an SQNR is shown."""

from __future__ import annotations

FAR_DB = 10.0
"""SQNR below which a model is hardly usable."""

# The lowest SQNR of each word, dB, and the worst of what single answers may show with it: a cosine,
# the share of entities that changed, and the difference of a probability. At 20 dB, the error has
# a tenth of the outputs' magnitude. A single answer makes no model broken.
_SCALE = (
    (30.0, 0.999, 0.0, 0.05, "very close"),
    (20.0, 0.99, 0.05, 0.2, "close"),
    (FAR_DB, -1.0, 1.0, 1.0, "look at your own data"),
)
_BROKEN = "broken"


def in_words(
    sqnr_db: float,
    *,
    worst_cosine: float = 1.0,
    changed_share: float = 0.0,
    largest_difference: float = 0.0,
) -> str:
    """Return how close a model is by the worst of what was measured. NaN is broken.

    Args:
        sqnr_db: SQNR of its outputs, dB.
        worst_cosine: Lowest cosine of a vector.
        changed_share: Part of the entities that changed.
        largest_difference: Largest difference of a probability.
    """
    return next(
        (
            word
            for least_db, least_cosine, most_changed, most_different, word in _SCALE
            if sqnr_db >= least_db
            and worst_cosine >= least_cosine
            and changed_share <= most_changed
            and largest_difference <= most_different
        ),
        _BROKEN,
    )
