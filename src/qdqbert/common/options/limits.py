"""How far a quantized model may be from float."""

from __future__ import annotations

from qdqbert.common.options.declared import Options, option


class Limits(Options):
    """Limits.

    A limit is met if it holds for the whole 95 % interval of what was measured. With few examples,
    it is not shown: even if none of 100 predictions changes, 3.6 % of others may.

    Attributes:
        max_drop: Largest loss of the main metric against the reference, in the unit of the metric.
        max_flips: Largest percentage of predictions that differ from the reference's.
        min_sqnr: Lowest SQNR to the reference, in dB.
        min_cosine: Lowest cosine of the embedding of any text to the reference's.
    """

    max_drop: float | None = option(default=None, at_least=0)
    max_flips: float | None = option(default=None, at_least=0, at_most=100)
    min_sqnr: float | None = None
    min_cosine: float | None = option(default=None, at_least=-1, at_most=1)
