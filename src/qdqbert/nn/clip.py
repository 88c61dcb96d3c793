"""Clipping to a range that can be learned."""

from __future__ import annotations

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
        """Makes a clip.

        Args:
            clip_value_min: Lowest value; a number if it is learned.
            clip_value_max: Highest value; a number if it is learned.
            learn_min: Make the lowest value a parameter.
            learn_max: Make the highest value a parameter.

        Raises:
            ValueError: A learned end is no scalar.
        """
        super().__init__()
        self.clip_value_min = _end("clip_value_min", clip_value_min, learn_min)
        self.clip_value_max = _end("clip_value_max", clip_value_max, learn_max)

    def forward(self, inputs: Tensor) -> Tensor:
        """Shape of `inputs`."""
        return clip(inputs, self.clip_value_min, self.clip_value_max)


def _end(name: str, value: float | Tensor, learn: bool) -> nn.Parameter | float | Tensor:
    if not learn:
        return value
    # A tensor could be anything's output: a parameter starts from a number, as upstream.
    if isinstance(value, Tensor) or np.size(value) != 1:
        raise ValueError(f"{name} must be scalar for initilizing learnable range.")
    return nn.Parameter(torch.tensor(float(np.asarray(value).item())))
