"""Heads on the last hidden states, in float32, on the device."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
import triton

from qdqbert.engines.cuda import kernels
from qdqbert.engines.cuda.program import Launch, linear_launch, rows_launch
from qdqbert.engines.cuda.tiles import FLOAT_TILE
from qdqbert.engines.cuda.weights import Linear, Model, Norm, spread_of
from qdqbert.engines.native.memory import padded

_CHANNELS = 256

Step = Callable[[torch.Tensor], torch.Tensor]
"""A function of rows in float32 with padding of channels, whose zeros it keeps."""

Output = tuple[bool, torch.Tensor]
"""Whether an output has a row for each token, not for each text, and the rows."""


class Heads:
    """The heads of a model. The result of a row does not depend on the other rows.

    Attributes:
        output_names: Names of the outputs, in order.
        widest: Most values of a token that a step has.
    """

    def __init__(self, model: Model) -> None:
        """Copy the arrays of the heads to the device."""
        settings = model.settings["heads_of_model"]
        self._heads = [_Head(model, f"heads.{n}", each) for n, each in enumerate(settings)]
        self.output_names = tuple(name for head in self._heads for name in head.columns)
        self.widest = max(head.widest for head in self._heads)

    def run(
        self, states: torch.Tensor, starts: torch.Tensor, wanted: Collection[str]
    ) -> dict[str, Output]:
        """Return outputs by name.

        Args:
            states: Last hidden states, `(tokens, hidden)`, with padding of channels.
            starts: Index of the first token of each text, and of the end, on the device.
            wanted: Names of the outputs.
        """
        found: dict[str, Output] = {}
        for head in self._heads:
            names = [name for name in head.columns if name in wanted]
            if names:
                rows = head.run(states, starts)
                found |= {name: (head.is_of_tokens, rows[:, head.columns[name]]) for name in names}
        return found


class _Head:
    """A head.

    Attributes:
        columns: Columns of its rows by output.
        widest: Most values of a token that a step has.
        is_of_tokens: Whether it has a row for each token.
    """

    def __init__(self, model: Model, name: str, settings: Mapping[str, Any]) -> None:
        count, self._poolings = settings["token_steps"], settings["poolings"]
        steps, widths, width = list[Step](), list[int](), model.settings["hidden"]
        for number, each in enumerate([*settings["steps"], None]):
            widths.append(width)
            # Poolings are between the steps of tokens and those of texts.
            width *= len(self._poolings) if number == count else 1
            if each is not None:
                step, width = _step_of(model, f"{name}.{number}", each, width)
                steps.append(step)
        self._token_steps, self._steps = steps[:count], steps[count:]
        self.widest, self._pooled_width = max(widths[: count + 1]), widths[count]
        self.columns: dict[str, slice | int] = {
            each["name"]: slice(width) if each["column"] is None else each["column"]
            for each in settings["outputs"]
        }
        self.is_of_tokens = self._poolings == ["none"]

    def run(self, states: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
        """Return its rows; see `Heads.run`."""
        rows = _after(self._token_steps, states)
        found = _after(self._steps, rows if self.is_of_tokens else self._pooled(rows, starts))
        # The states of the next texts will be in the same place.
        return found.clone() if found is states else found

    def _pooled(self, rows: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
        """Return a row for each text, with the results of the poolings next to each other."""
        texts, width = len(starts) - 1, self._pooled_width
        out = rows.new_zeros((texts, padded(width * len(self._poolings))))
        for number, pooling in enumerate(self._poolings):
            arguments = {
                "states": rows,
                "starts": starts,
                "out": out[:, number * width :],
                "width": width,
                "stride": rows.shape[1],
                "out_stride": out.shape[1],
                "pooling": pooling,
                "size": _CHANNELS,
            }
            grid = (texts, triton.cdiv(width, _CHANNELS))
            Launch(kernel=kernels.pool, grid=grid, arguments=arguments)()
        return out


def _after(steps: Sequence[Step], rows: torch.Tensor) -> torch.Tensor:
    return functools.reduce(lambda found, step: step(found), steps, rows)


def _step_of(model: Model, name: str, settings: Mapping[str, Any], width: int) -> tuple[Step, int]:
    """Return a step, whose arrays are copied to the device, and the channels after it."""
    if settings["kind"] == "linear":
        linear = model.float_linear(name, settings)
        return functools.partial(_multiplied, linear), linear.columns
    if settings["kind"] == "norm":
        return functools.partial(_normalized, model.norm(name, settings), width), width
    if settings["name"] == "normalize":
        return functools.partial(_normalized, _norm_to_length_1(width, model.device), width), width
    return _FUNCTIONS[settings["name"]], width


def _norm_to_length_1(width: int, device: torch.device) -> Norm:
    """Return the RMSNorm that divides rows by their Euclidean length, at least 1e-12."""
    values = torch.zeros((3, padded(width)), device=device)
    values[0], values[2] = width**-0.5, 1e-24 / width
    return Norm(values=values, subtracts_mean=False)


def _multiplied(linear: Linear, rows: torch.Tensor) -> torch.Tensor:
    out = rows.new_zeros((len(rows), padded(linear.columns)))
    linear_launch(linear, rows, out, count=_count(rows), tile=FLOAT_TILE)()
    return out


def _normalized(norm: Norm, width: int, rows: torch.Tensor) -> torch.Tensor:
    # Sums of torch have an order that depends on the number of rows.
    out, spread = torch.zeros_like(rows), spread_of(width, None, rows.device)
    rows_launch(rows, spread, count=_count(rows), norm=norm, sums=out)()
    return out


def _count(rows: torch.Tensor) -> torch.Tensor:
    return torch.full((1,), len(rows), dtype=torch.int32, device=rows.device)


_FUNCTIONS: Mapping[str, Step] = {
    "gelu": torch.nn.functional.gelu,
    "gelu_tanh": functools.partial(torch.nn.functional.gelu, approximate="tanh"),
    "log1p": torch.log1p,
    "relu": torch.relu,
    "silu": torch.nn.functional.silu,
    "tanh": torch.tanh,
}
