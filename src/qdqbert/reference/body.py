"""The common parts of models in PyTorch: their call, and the conversion of their outputs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from qdqbert.encoders.model import Pooling


class Body(Protocol):
    """A model that returns a tuple of tensors, like a graph.

    Attributes:
        output_names: Names of the tensors, in order.
    """

    output_names: tuple[str, ...]

    def __call__(self, *args: Tensor, **kwargs: Tensor) -> tuple[Tensor, ...]:
        """Run the model on inputs by name."""
        ...

    def parameters(self) -> Iterator[nn.Parameter]:
        """Return its parameters."""
        ...


def pool(states: Tensor, mask: Tensor, pooling: Pooling) -> Tensor:
    """Pool token states `(texts, seq, hidden)` into one vector per text, unless `pooling` is none.

    Args:
        states: Token states.
        mask: `(texts, seq)`, 0 for [PAD].
        pooling: How they are pooled.

    Source: sentence-transformers, `Pooling.forward`.
    """
    match pooling:
        case "none":
            return states
        case "first":
            return states[:, 0]
        case "max":
            lowest = torch.finfo(states.dtype).min
            return states.masked_fill((mask == 0)[..., None], lowest).amax(dim=1)
    count = mask.sum(dim=1, keepdim=True).to(states.dtype).clamp(min=1e-9)
    total = (states * mask[..., None]).sum(dim=1)
    return total / (count if pooling == "mean" else count.sqrt())


def to_numpy(outputs: tuple[Tensor, ...], names: Sequence[str]) -> dict[str, Any]:
    """Return outputs as arrays by name, like an engine's."""
    return {name: output.cpu().numpy() for name, output in zip(names, outputs, strict=True)}
