"""Run graphs that were exported with a fixed batch or sequence, by padding their inputs."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from qdqbert.common.errors import UserInputError
from qdqbert.encoders.heads import EMBEDDING
from qdqbert.encoders.task_kinds import TASK_KINDS
from qdqbert.engines.runner import Outputs, Runner


@dataclasses.dataclass(frozen=True, kw_only=True)
class FixedSizes:
    """Sizes of a graph's inputs, `None` where they are dynamic.

    Attributes:
        batch: Number of rows.
        sequence: Number of tokens per row.
    """

    batch: int | None
    sequence: int | None

    @property
    def are_dynamic(self) -> bool:
        """Whether batch and sequence are both dynamic."""
        return self.batch is None and self.sequence is None

    def __str__(self) -> str:
        return f"({self.batch or 'batch'}, {self.sequence or 'sequence'})"


def fixed_sizes(model: ir.Model) -> FixedSizes:
    """Read the sizes of a graph's inputs.

    Raises:
        UserInputError: The inputs have different sizes, or a fixed number of choices.
    """
    found = set()
    for value in model.graph.inputs:
        dims = [] if value.shape is None else list(value.shape)
        if any(isinstance(dim, int) for dim in dims[1:-1]):
            raise UserInputError(
                f"Input {value.name!r} has shape {value.shape}; expected a dynamic number of "
                "choices. Export the graph with dynamic axes."
            )
        ends = [dims[0], dims[-1]] if dims else [None, None]
        found.add(tuple(dim if isinstance(dim, int) else None for dim in ends))
    if len(found) != 1:
        raise UserInputError(
            "The graph's inputs have different fixed shapes. Export it with dynamic axes."
        )
    ((batch, sequence),) = found
    return FixedSizes(batch=batch, sequence=sequence)


class FixedShapeRunner:
    """A `Runner` that takes any shape up to the fixed shape of a graph.

    Texts are padded with [PAD], which the attention mask excludes, and batches are split.
    """

    def __init__(self, runner: Runner, sizes: FixedSizes, task: str) -> None:
        self._runner, self._sizes, self._task = runner, sizes, task
        self.input_names, self.output_names = runner.input_names, runner.output_names
        self.precision = runner.precision

    def run(
        self, inputs: Mapping[str, NDArray[Any]], wanted: Collection[str] | None = None
    ) -> Outputs:
        """Run as many forward passes as the batch needs.

        Raises:
            UserInputError: There are more tokens than the graph takes.
        """
        rows, tokens = inputs["input_ids"].shape[0], inputs["input_ids"].shape[-1]
        sequence = self._sizes.sequence or tokens
        if tokens > sequence:
            raise UserInputError(
                f"The graph takes {sequence} tokens, and a text has {tokens}.",
                argument="max_length",
            )
        batch = self._sizes.batch or rows
        parts = []
        for start in range(0, rows, batch):
            part = {name: each[start : start + batch] for name, each in inputs.items()}
            given = {name: self._pad(each, batch, sequence) for name, each in part.items()}
            count = min(batch, rows - start)
            outputs = self._runner.run(given, wanted)
            parts.append(
                {name: self._cut(name, each, count, tokens) for name, each in outputs.items()}
            )
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    @staticmethod
    def _pad(array: NDArray[Any], batch: int, sequence: int) -> NDArray[Any]:
        wide = np.pad(array, [*[(0, 0)] * (array.ndim - 1), (0, sequence - array.shape[-1])])
        # Rows are repeated: attention to nothing but [PAD] may be undefined.
        return np.concatenate([wide, *[wide[:1]] * (batch - len(wide))])

    def _cut(self, name: str, array: NDArray[Any], rows: int, tokens: int) -> NDArray[Any]:
        is_per_token = name != EMBEDDING and TASK_KINDS[self._task].of_tokens
        return array[:rows, :tokens] if is_per_token else array[:rows]
