"""The common parts of models in PyTorch: their call, and the conversion of their outputs."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from qdqbert.encoders.model import Activation, Head, Later, Linear, Norm, Pooling, Step

ACTIVATIONS: Mapping[Activation, Callable[[Tensor], Tensor]] = {
    "gelu": functional.gelu,
    "gelu_tanh": functools.partial(functional.gelu, approximate="tanh"),
    "relu": functional.relu,
    "silu": functional.silu,
    "tanh": torch.tanh,
}


TensorOf = Callable[[NDArray[Any] | Later], Tensor]
"""Returns the tensor of an array."""


class Body(Protocol):
    """A model that returns a tuple of tensors, like a graph.

    Attributes:
        output_names: Names of the tensors, in order.
    """

    output_names: tuple[str, ...]

    def __call__(self, *args: Tensor, **kwargs: Tensor) -> tuple[Tensor, ...]:
        """Run the model on inputs by name."""

    def parameters(self) -> Iterator[nn.Parameter]:
        """Return its parameters."""


def pool(states: Tensor, mask: Tensor, poolings: Sequence[Pooling]) -> Tensor:
    """Pool token states `(texts, seq, hidden)` into one vector per text, unless there is "none".

    Args:
        states: Token states.
        mask: `(texts, seq)`, 0 for [PAD].
        poolings: How they are pooled. The vectors of several poolings are joined.

    Source: sentence-transformers, `Pooling.forward`.
    """
    pooled = [_pool(states, mask, each) for each in poolings]
    return pooled[0] if len(pooled) == 1 else torch.cat(pooled, dim=-1)


def _pool(states: Tensor, mask: Tensor, pooling: Pooling) -> Tensor:
    match pooling:
        case "none":
            return states
        case "first":
            return states[:, 0]
        case "max":
            lowest = torch.finfo(states.dtype).min
            return states.masked_fill((mask == 0)[..., None], lowest).amax(dim=1)
    weights = mask.to(states.dtype)
    # Counted from 1.
    position = mask.cumsum(dim=1)
    if pooling == "weightedmean":
        weights = weights * position
    elif pooling == "last":
        weights = weights * (position == position[:, -1:])
    total = (states * weights[..., None]).sum(dim=1)
    if pooling in ("sum", "last"):
        return total
    count = weights.sum(dim=1, keepdim=True).clamp(min=1e-9)
    return total / (count.sqrt() if pooling == "mean_sqrt_len_tokens" else count)


def run_head(states: Tensor, mask: Tensor, head: Head, tensor: TensorOf) -> Tensor:
    """Return the result of a head on token states `(texts, seq, hidden)`.

    `mask` is `(texts, seq)`, 0 for [PAD], and `tensor` returns the tensor of an array.
    """
    x = run_steps(states, head.steps[: head.token_steps], tensor)
    return run_steps(pool(x, mask, head.poolings), head.steps[head.token_steps :], tensor)


def run_steps(x: Tensor, steps: Sequence[Step], tensor: TensorOf) -> Tensor:
    """Run the steps of a head on vectors `(..., channels)`.

    `tensor` returns the tensor of an array.
    """
    for step in steps:
        if isinstance(step, Linear):
            x = functional.linear(x, tensor(step.weight), tensor(step.bias))
        elif isinstance(step, Norm):
            x = run_norm(x, step, tensor)
        elif step == "normalize":
            x = functional.normalize(x, dim=-1)
        elif step == "log1p":
            x = x.log1p()
        else:
            x = ACTIVATIONS[step](x)
    return x


def tensor_of(array: NDArray[np.generic] | Later) -> Tensor:
    """Return the tensor of an array, which shares its memory."""
    with warnings.catch_warnings():
        # Arrays of files are read-only, and nothing is written to them.
        warnings.simplefilter("ignore", UserWarning)
        return torch.from_numpy(np.ascontiguousarray(array))


def run_norm(x: Tensor, norm: Norm, tensor: TensorOf) -> Tensor:
    """Return normalized vectors. See `run_steps`."""
    weight, bias = tensor(norm.weight), tensor(norm.bias)
    if norm.subtracts_mean:
        return functional.layer_norm(x, weight.shape, weight, bias, norm.epsilon)
    return functional.rms_norm(x, weight.shape, weight, norm.epsilon) + bias


def to_numpy(outputs: tuple[Tensor, ...], names: Sequence[str]) -> dict[str, Any]:
    """Return outputs as arrays by name, like an engine's."""
    return {name: output.cpu().numpy() for name, output in zip(names, outputs, strict=True)}
