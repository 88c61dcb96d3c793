"""Runs a graph on ONNX Runtime's CPU provider."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnxruntime
from numpy.typing import NDArray

from qdqbert.engines.runner import Outputs


class OnnxRuntimeRunner:
    """A loaded session. See `Runner`."""

    precision = "float32"

    def __init__(
        self, model: Path, *, threads: int | None = None, exact: bool = False, literal: bool = False
    ) -> None:
        """Loads a graph; `literal` computes each operator as it is, fusing nothing."""
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        options.intra_op_num_threads = threads or 0
        if literal:
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        if exact:
            # u8 x s8 products are summed in pairs in 16 bits on CPUs without VNNI and can
            # saturate; this asks for the slower u8 x u8 kernels there, which cannot.
            options.add_session_config_entry("session.x64quantprecision", "1")
        self._session = onnxruntime.InferenceSession(
            str(model), options, providers=["CPUExecutionProvider"]
        )
        self.input_names = tuple(value.name for value in self._session.get_inputs())
        self.output_names = tuple(value.name for value in self._session.get_outputs())

    def run(self, inputs: Mapping[str, NDArray[Any]]) -> Outputs:
        """One forward pass."""
        return dict(zip(self.output_names, self._session.run(None, dict(inputs)), strict=True))
