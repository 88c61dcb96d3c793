"""Clipping to a range that can be learned."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn

from qdqbert.nn.functional import clip


class Clip(nn.Module):
    """Limits values to `[clip_value_min, clip_value_max]`.

    Attributes:
        clip_value_min: Lowest value; a parameter if it is learned.
        clip_value_max: Highest value; a parameter if it is learned.

    Source: pytorch-quantization's `nn.Clip`.
    """

    def __init__(
        self,
        clip_value_min: float | Tensor,
        clip_value_max: float | Tensor,
        learn_min: bool = False,
        learn_max: bool = False,
    ) -> None:
        super().__init__()
        self.clip_value_min = _end("clip_value_min", clip_value_min, learn_min)
        self.clip_value_max = _end("clip_value_max", clip_value_max, learn_max)

    def forward(self, inputs: Tensor) -> Tensor:
        """Shape of `inputs`."""
        return clip(inputs, self.clip_value_min, self.clip_value_max)


def _end(name: str, value: float | Tensor, learn: bool) -> nn.Parameter | float | Tensor:
    if not learn:
        return value
    number = value.detach().cpu() if isinstance(value, Tensor) else np.asarray(value)
    if math.prod(number.shape) != 1:
        raise ValueError(f"{name} must be scalar for initilizing learnable range.")
    return nn.Parameter(torch.tensor(float(number.item())))
