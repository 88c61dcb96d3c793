"""Functions of the toolkit's modules."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class ClipFunction(torch.autograd.Function):
    """Clips, with gradients for learned ends."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, low: Tensor, high: Tensor) -> Tensor:
        """Shape of `x`; the ends broadcast."""
        ctx.save_for_backward(x, low, high)
        return torch.minimum(torch.maximum(x, low.to(x.dtype)), high.to(x.dtype))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Passes inside of the ends; theirs are the sums of what lies outside."""
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
    """Limits values to a range whose ends can be learned.

    Args:
        input: Any shape.
        clip_value_min: Lowest value; broadcasts. Its gradient is the sum of those below it.
        clip_value_max: Highest value; broadcasts.

    Raises:
        ValueError: In backward, an end is not a scalar.

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
