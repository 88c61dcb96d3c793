"""How close an exported model is to its folder."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class Agreement:
    """How close an output of an exported model is to the folder's.

    Attributes:
        output: Name of the output.
        texts: Number of texts or pairs that were compared.
        sqnr_db: SQNR over all of them, dB; infinite if all results are equal.
        worst_sqnr_db: Mean signal of all texts to the largest noise of any text, dB.
    """

    output: str
    texts: int
    sqnr_db: float
    worst_sqnr_db: float
