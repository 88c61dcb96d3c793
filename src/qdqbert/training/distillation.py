"""Settings of distillation, importable without torch."""

from __future__ import annotations

import dataclasses


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
