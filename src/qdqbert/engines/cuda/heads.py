"""Heads on the last hidden states, in float32, on the device."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import torch
import triton
from numpy.typing import NDArray

from qdqbert.engines.cuda import kernels
from qdqbert.engines.cuda.program import Launch, linear_launch
from qdqbert.engines.cuda.tiles import FLOAT_TILE
from qdqbert.engines.cuda.weights import LinearTensors, NormTensors, Tensors, spread_of

# Scores of a vocabulary for the tokens of a block of texts have up to this number of values, if it
# is more than one text.
_MOST_SCORES = 2**28
_CHANNELS = 256


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rows:
    """Rows of a head.

    Attributes:
        values: `(rows, channels)` float32, with padding of channels.
        width: Number of channels.
        starts: `(texts + 1,)` int32 on the device, the first row of each text, and the end.
        bounds: The same on the host.
    """

    values: torch.Tensor
    width: int
    starts: torch.Tensor
    bounds: NDArray[np.int32]


class Heads:
    """The heads of a model. The result of a row does not depend on the other rows.

    Attributes:
        output_names: Names of the outputs, in order.
    """

    def __init__(self, tensors: Tensors) -> None:
        """Copy the arrays of the heads to the device."""
        self._tensors, self._heads = tensors, tensors.settings["heads_of_model"]
        self.output_names: tuple[str, ...] = tuple(
            each["name"] for head in self._heads for each in head["outputs"]
        )
        self._none = tensors.none()
        self._linears: dict[str, LinearTensors] = {}
        self._norms: dict[str, NormTensors] = {}
        for name, step in self._steps():
            if step["kind"] == "linear":
                self._linears[name] = tensors.float_linear(name, step)
            elif step["kind"] == "norm":
                found = tensors.norm(name, step)
                assert found is not None
                self._norms[name] = found

    def _steps(self) -> list[tuple[str, dict[str, Any]]]:
        return [
            (f"heads.{index}.{number}", step)
            for index, head in enumerate(self._heads)
            for number, step in enumerate(head["steps"])
        ]

    def run(
        self,
        states: torch.Tensor,
        starts: torch.Tensor,
        bounds: NDArray[np.int32],
        wanted: Collection[str],
    ) -> dict[str, tuple[bool, torch.Tensor]]:
        """Return outputs, and whether each has a row for each token or for each text.

        Args:
            states: Last hidden states, `(tokens, hidden)`, with padding of channels.
            starts: Index of the first token of each text, and of the end, on the device.
            bounds: The same on the host.
            wanted: Names of the outputs.
        """
        found: dict[str, tuple[bool, torch.Tensor]] = {}
        all_rows = Rows(
            values=states, width=self._tensors.settings["hidden"], starts=starts, bounds=bounds
        )
        for index, head in enumerate(self._heads):
            outputs = [each for each in head["outputs"] if each["name"] in wanted]
            if not outputs:
                continue
            steps = [(f"heads.{index}.{n}", step) for n, step in enumerate(head["steps"])]
            count, poolings = head["token_steps"], head["poolings"]
            is_of_tokens = poolings == ["none"]
            if is_of_tokens:
                rows, width = self._take(steps, states, all_rows.width)
                # The states of the next texts will be in the same place.
                rows = rows.clone() if rows is states else rows
            else:
                pooled = [
                    self._joined(self._stepped(steps[:count], part), poolings)
                    for part in _blocks(all_rows, self._widest(steps[:count], all_rows.width))
                ]
                width = pooled[0][1]
                rows, width = self._take(steps[count:], torch.cat([p for p, _ in pooled]), width)
            for output in outputs:
                column = output["column"]
                values = rows[:, :width] if column is None else rows[:, column]
                found[output["name"]] = (is_of_tokens, values)
        return found

    def _widest(self, steps: Sequence[tuple[str, Any]], width: int) -> int:
        return max([width, *(self._linears[n].columns for n, _ in steps if n in self._linears)])

    def _stepped(self, steps: Sequence[tuple[str, dict[str, Any]]], rows: Rows) -> Rows:
        values, width = self._take(steps, rows.values, rows.width)
        return dataclasses.replace(rows, values=values, width=width)

    def _take(
        self, steps: Sequence[tuple[str, dict[str, Any]]], rows: torch.Tensor, width: int
    ) -> tuple[torch.Tensor, int]:
        """Return rows after some steps, and their width."""
        for name, step in steps:
            if step["kind"] == "linear":
                linear = self._linears[name]
                out = torch.zeros((len(rows), -(-linear.columns // 64) * 64), device=rows.device)
                linear_launch(
                    linear,
                    rows,
                    out,
                    count=self._count(rows),
                    scales=self._none,
                    tile=FLOAT_TILE,
                )()
                rows, width = out, linear.columns
            elif step["kind"] == "norm":
                rows = self._normalize(self._norms[name], rows, width)
            else:
                rows = self._function(step["name"], rows, width)
        return rows, width

    def _count(self, rows: torch.Tensor) -> torch.Tensor:
        return torch.full((1,), len(rows), dtype=torch.int32, device=rows.device)

    def _normalize(self, norm: NormTensors, rows: torch.Tensor, width: int) -> torch.Tensor:
        out, spread = torch.zeros_like(rows), spread_of(width, None, rows.device)
        of_norms = ("local_weight", "local_bias", "again_weight", "again_bias")
        tensors = dict.fromkeys(
            ("local", *of_norms, "multiplier", "matrix", "codes", "scales"), self._none
        )
        of_local = ("normalizes_local", "local_subtracts_mean")
        flags = dict.fromkeys(("adds", *of_local, "adds_again", "keeps_sum", "writes_codes"), False)
        Launch(
            kernel=kernels.add_norm,
            grid=(len(rows),),
            arguments={
                **tensors,
                **flags,
                **spread.constants,
                **norm.arguments,
                "count": self._count(rows),
                "states": rows,
                "sums": out,
                "width": width,
                "stride": rows.shape[1],
                "local_epsilon": 0.0,
                "again_epsilon": 0.0,
                "normalizes": True,
                "writes_states": True,
            },
        )()
        return out

    @staticmethod
    def _function(name: str, rows: torch.Tensor, width: int) -> torch.Tensor:
        """Return a function of each value, or rows of length 1."""
        if name == "normalize":
            # Sums of torch have an order that depends on the number of rows.
            rows = rows.clone()
            Launch(
                kernel=kernels.scale_to_one,
                grid=(len(rows),),
                arguments={
                    "rows": rows,
                    "width": width,
                    "stride": rows.shape[1],
                    "size": triton.next_power_of_2(width),
                },
            )()
            return rows
        functional = torch.nn.functional
        if name == "gelu_tanh":
            return functional.gelu(rows, approximate="tanh")
        if name in ("tanh", "log1p"):
            found: torch.Tensor = getattr(torch, name)(rows)
            return found
        found = getattr(functional, name)(rows)
        return found

    def _joined(self, rows: Rows, poolings: Sequence[str]) -> tuple[torch.Tensor, int]:
        """Return a row for each text, with the results of the poolings, and its width."""
        found = [self._pooled(rows, each) for each in poolings]
        if len(found) == 1:
            return found[0], rows.width
        total = rows.width * len(found)
        together = torch.cat([each[:, : rows.width] for each in found], dim=1)
        return torch.nn.functional.pad(together, (0, -total % 64)), total

    def _pooled(self, rows: Rows, pooling: str) -> torch.Tensor:
        if pooling in ("first", "last"):
            places = rows.starts[:-1] if pooling == "first" else rows.starts[1:] - 1
            return rows.values.index_select(0, places)
        texts = len(rows.bounds) - 1
        out = torch.zeros((texts, rows.values.shape[1]), device=rows.values.device)
        Launch(
            kernel=kernels.pool,
            grid=(texts, triton.cdiv(rows.width, _CHANNELS)),
            arguments={
                "states": rows.values,
                "starts": rows.starts,
                "out": out,
                "width": rows.width,
                "stride": rows.values.shape[1],
                "out_stride": out.shape[1],
                "pooling": pooling,
                "size": _CHANNELS,
            },
        )()
        return out


def _blocks(rows: Rows, widest: int) -> list[Rows]:
    """Return rows by blocks of whole texts, whose steps need a limited number of values."""
    most, bounds = max(_MOST_SCORES // widest, 1), rows.bounds
    ends, first = [0], 0
    for text in range(1, len(bounds)):
        if bounds[text] - bounds[first] > most and text - 1 > first:
            first = text - 1
            ends.append(first)
    ends.append(len(bounds) - 1)
    if len(ends) == 2:
        return [rows]
    return [
        Rows(
            values=rows.values[bounds[a] : bounds[b]],
            width=rows.width,
            starts=rows.starts[a : b + 1] - int(bounds[a]),
            bounds=bounds[a : b + 1] - bounds[a],
        )
        for a, b in itertools.pairwise(ends)
    ]
