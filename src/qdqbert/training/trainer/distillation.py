"""Options of distillation, importable without torch."""

from __future__ import annotations

import math

from qdqbert.common.objects import OptionalInput
from qdqbert.common.options.declared import Options, option


class Distillation(Options):
    """Distillation.

    Attributes:
        teacher: Float checkpoint of the teacher. No teacher by default.
        temperature: Temperature that divides the logits of both models.
        alpha: Weight of the teacher in the loss, from 0 to 1; the rest is the weight of the
            labels. With 1, no labels are needed.
        hidden: Weight of the mean squared distance between the hidden states.
    """

    teacher: OptionalInput = option(default=None, flat="distill_from")
    temperature: float = option(default=2.0, above=0, below=math.inf)
    alpha: float = option(default=1.0, flat="distill_alpha", at_least=0, at_most=1)
    hidden: float = option(default=0.0, flat="distill_hidden", at_least=0, below=math.inf)
