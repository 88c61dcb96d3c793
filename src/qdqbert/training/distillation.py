"""Settings of distillation, importable without torch."""

from __future__ import annotations

import dataclasses
import math

from qdqbert.errors import UserInputError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Distillation:
    """How a student learns from its teacher.

    Attributes:
        temperature: The logits of both models are divided by it, so that small ones count too.
        alpha: Share of the teacher's loss in the total; the rest is the loss of the task. With 1,
            no labels are needed.
        hidden_weight: Factor of the mean squared difference of the hidden states of all layers.
    """

    temperature: float = 2.0
    alpha: float = 1.0
    hidden_weight: float = 0.0

    def __post_init__(self) -> None:
        if not 0 < self.temperature < math.inf:
            raise UserInputError(
                f"`temperature` must be above 0 and finite, got {self.temperature}.",
                argument="temperature",
            )
        if not 0 <= self.alpha <= 1:
            raise UserInputError(
                f"`distill_alpha` must be from 0 to 1, got {self.alpha}.", argument="distill_alpha"
            )
        if not 0 <= self.hidden_weight < math.inf:
            raise UserInputError(
                f"`distill_hidden` must be at least 0 and finite, got {self.hidden_weight}.",
                argument="distill_hidden",
            )
