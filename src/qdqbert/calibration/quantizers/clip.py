"""Clip values to a range whose ends can be learned."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn


class ClipFunction(torch.autograd.Function):
    """Clip values, with gradients for learned ends."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, low: Tensor, high: Tensor) -> Tensor:
        """Clip `x`. The ends broadcast to it."""
        ctx.save_for_backward(x, low, high)
        return torch.minimum(torch.maximum(x, low.to(x.dtype)), high.to(x.dtype))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Pass gradients of values inside the ends, and sum gradients outside for the ends."""
        x, low, high = ctx.saved_tensors
        if low.numel() != 1 or high.numel() != 1:
            raise ValueError(
                f"Learnable min/max can only be scalar, got size {low.size()} and {high.size()}."
            )
        below, above = x <= low, x >= high
        inside = grad * ~(below | above)
        needs = ctx.needs_input_grad
        grad_low = (grad * below).sum().to(low.dtype).view(low.shape) if needs[1] else None
        grad_high = (grad * above).sum().to(high.dtype).view(high.shape) if needs[2] else None
        return inside, grad_low, grad_high


def clip(input: Tensor, clip_value_min: Tensor | float, clip_value_max: Tensor | float) -> Tensor:
    """Limit values to a range whose ends can be learned.

    Args:
        input: Any shape.
        clip_value_min: Lowest value, broadcasts. Its gradient is the sum of the gradients of lower
            values.
        clip_value_max: Highest value, broadcasts.

    Raises:
        ValueError: In the backward pass, if an end is not a scalar.

    Source: pytorch-quantization's `nn.functional.clip`; PACT, Choi et al. 2018, arXiv:1805.06085.
    """
    low, high = (
        torch.as_tensor(end, dtype=input.dtype, device=input.device)
        if not isinstance(end, Tensor)
        else end
        for end in (clip_value_min, clip_value_max)
    )
    result: Tensor = ClipFunction.apply(input, low, high)  # type: ignore[no-untyped-call]
    return result


class Clip(nn.Module):
    """Limit values to `[clip_value_min, clip_value_max]`.

    Attributes:
        clip_value_min: Lowest value. A parameter if it is learned.
        clip_value_max: Highest value. A parameter if it is learned.

    Source: pytorch-quantization's `nn.Clip`.
    """

    def __init__(
        self,
        clip_value_min: float | Tensor,
        clip_value_max: float | Tensor,
        learn_min: bool = False,
        learn_max: bool = False,
    ) -> None:
        """Create a clip.

        Args:
            clip_value_min: Lowest value. A number if it is learned.
            clip_value_max: Highest value. A number if it is learned.
            learn_min: Make the lowest value a parameter.
            learn_max: Make the highest value a parameter.

        Raises:
            ValueError: A learned end is not a scalar.
        """
        super().__init__()
        self.clip_value_min = _end("clip_value_min", clip_value_min, learn_min)
        self.clip_value_max = _end("clip_value_max", clip_value_max, learn_max)

    @property
    def ends(self) -> tuple[nn.Parameter, nn.Parameter]:
        """Lowest and highest value, both learned."""
        low, high = self.clip_value_min, self.clip_value_max
        assert isinstance(low, nn.Parameter)
        assert isinstance(high, nn.Parameter)
        return low, high

    def forward(self, inputs: Tensor) -> Tensor:
        """Clip a tensor of any shape. Keeps its shape."""
        return clip(inputs, self.clip_value_min, self.clip_value_max)


def _end(name: str, value: float | Tensor, learn: bool) -> nn.Parameter | float | Tensor:
    if not learn:
        return value
    # A tensor could be the output of an operation. As upstream, a parameter starts at a number.
    if isinstance(value, Tensor) or np.size(value) != 1:
        raise ValueError(f"{name} must be scalar for initilizing learnable range.")
    return nn.Parameter(torch.tensor(float(np.asarray(value).item())))
