"""The unknown operations behind the last hidden states of an .onnx file, run by ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbert.common.extras import require
from qdqbert.encoders.model import TAIL_STATES
from qdqbert.engines.native.program import Program
from qdqbert.engines.runner import Outputs


class TailRunner:
    """The tail of a packed model; see `encoders.model.Tail`."""

    def __init__(self, program: Program, threads: int) -> None:
        """Load the graph.

        Raises:
            CheckpointError: ONNX Runtime cannot load the graph.
            MissingExtraError: It is not installed.
        """
        require("A model with operations that are not known", "onnxruntime", "onnxruntime")
        # Models without a tail need no ONNX Runtime.
        from qdqbert.engines.onnxruntime import load_graph

        settings = program.settings["tail"]
        graph = program.arrays["tail"][: settings["bytes"]].tobytes()
        self._run, self._inputs = load_graph(graph, threads=threads), settings["inputs"]
        self.output_names = tuple(settings["outputs"])

    def add_outputs(self, inputs: Mapping[str, NDArray[Any]], outputs: Outputs) -> Outputs:
        """Return the outputs of the heads, without the last hidden states, and of the tail."""
        known: dict[str, NDArray[Any]] = {
            **{name: np.asarray(value, np.int64) for name, value in inputs.items()},
            **outputs,
        }
        if TAIL_STATES in known:
            # Each choice is a text of its own.
            states = known[TAIL_STATES]
            known[TAIL_STATES] = states.reshape(-1, *states.shape[-2:])
        made = self._run({name: known[name] for name in self._inputs})
        return {name: each for name, each in outputs.items() if name != TAIL_STATES} | made
