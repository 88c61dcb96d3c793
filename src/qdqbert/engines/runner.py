"""The protocol between an engine and the code that uses it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

Outputs = dict[str, NDArray[np.float32]]


@runtime_checkable
class SharesPrefixes(Protocol):
    """A `Runner` that can compute once what several texts begin with.

    The results have the bits of those without sharing.
    """

    def shares_prefixes(self, wanted: Collection[str] | None = None) -> bool:
        """Return whether the model's outputs `wanted` can be computed after a prefix."""

    def read_prefix(self, ids: NDArray[np.int32]) -> Any:
        """Return the keys and values of token ids `(tokens,)` that several texts begin with."""

    def run_after(
        self, prefix: Any, inputs: Mapping[str, NDArray[Any]], wanted: Collection[str] | None = None
    ) -> Outputs:
        """Return the outputs of texts that go on after a prefix, whose tokens `inputs` lack.

        `prefix` is what `read_prefix` returned.
        """


class Runner(Protocol):
    """A loaded model that maps inputs by name to outputs by name.

    Callers use the three attributes and `run`, and nothing else of an engine. They can rely on:

    - `run` takes exactly the inputs in `input_names`. The batch and sequence length may change from
      call to call.
    - `run` returns when the result is complete. The arrays of one call are not overwritten by the
      next.
    - Row `i` of each output belongs to row `i` of the inputs.
    - `run` can be called from several threads at once. At most `streams` inferences, as given to
      `open_runner`, run at the same time; further callers wait.

    Attributes:
        input_names: Names of the inputs, each `(batch, seq)`, int64. Multiple choice has `(batch,
            choices, seq)`.
        output_names: Names of the outputs, in the order of the graph.
        precision: Float type that the engine computes in between int8 operators.
    """

    input_names: tuple[str, ...]
    output_names: tuple[str, ...]
    precision: str

    def run(
        self, inputs: Mapping[str, NDArray[Any]], wanted: Collection[str] | None = None
    ) -> Outputs:
        """Return the outputs of one forward pass by name, as float32.

        Args:
            inputs: The inputs by name.
            wanted: Names of the outputs that are needed; all of them if `None`. The others may be
                left out.
        """
