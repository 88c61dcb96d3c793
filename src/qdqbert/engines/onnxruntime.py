"""Run a graph on ONNX Runtime."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from qdqbert.common.errors import CheckpointError, one_line
from qdqbert.engines.index_limits import check_ids, index_limits
from qdqbert.engines.providers import (
    check_provider,
    check_started,
    float_type,
    is_plugin,
    plugin_devices,
    provider_list,
)
from qdqbert.engines.runner import Outputs


class OnnxRuntimeRunner:
    """A loaded session; see `Runner`."""

    def __init__(
        self,
        model: Path,
        *,
        threads: int | None = None,
        exact: bool = False,
        provider: str = "cpu",
        low_memory: bool = False,
    ) -> None:
        """Load a graph; see `registry.open_runner`."""
        check_provider(provider)
        options = _options(threads)
        # The arena keeps up to twice the memory of the largest run.
        options.enable_cpu_mem_arena = not low_memory
        if exact:
            # On CPUs without VNNI, pairs of u8 x s8 products are summed in 16 bits and can
            # saturate. This selects u8 x u8 kernels there, which are slower and cannot saturate.
            options.add_session_config_entry("session.x64quantprecision", "1")
        given: dict[str, Any] = {}
        if is_plugin(provider):
            options.add_provider_for_devices(plugin_devices(provider)[:1], {})
        else:
            given["providers"] = provider_list(provider)
        with _loading(repr(str(model))):
            self._session = onnxruntime.InferenceSession(str(model), options, **given)
        self._limits = index_limits(model)
        check_started(provider, self._session.get_providers())
        self.precision = float_type(provider)
        self.input_names = tuple(value.name for value in self._session.get_inputs())
        self.output_names = tuple(value.name for value in self._session.get_outputs())

    def run(
        self, inputs: Mapping[str, NDArray[Any]], wanted: Collection[str] | None = None
    ) -> Outputs:
        """Return the outputs of one forward pass. float16 outputs are cast to float32.

        Raises:
            UserInputError: A token id is outside of the vocabulary.
        """
        check_ids(inputs, self._limits)
        names = [each for each in self.output_names if wanted is None or each in wanted]
        values = self._session.run(names, dict(inputs))
        return {
            name: value.astype(np.float32) if value.dtype == np.float16 else value
            for name, value in zip(names, values, strict=True)
        }


def _options(threads: int | None) -> onnxruntime.SessionOptions:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = threads or 0
    return options


@contextlib.contextmanager
def _loading(what: str) -> Iterator[None]:
    """Raise what ONNX Runtime raises, whose classes have no common parent, as `CheckpointError`."""
    try:
        yield
    except Exception as error:
        raise CheckpointError(f"ONNX Runtime cannot load {what}: {one_line(error)}.") from error


def load_graph(
    graph: bytes, *, threads: int | None = None
) -> Callable[[Mapping[str, NDArray[Any]]], Outputs]:
    """Return a function that runs a small float graph on the CPU, given a `ModelProto` as bytes.

    Raises:
        CheckpointError: ONNX Runtime cannot load the graph.
    """
    with _loading("a head"):
        session = onnxruntime.InferenceSession(
            graph, _options(threads), providers=["CPUExecutionProvider"]
        )
    names = [value.name for value in session.get_outputs()]

    def run(inputs: Mapping[str, NDArray[Any]]) -> Outputs:
        return dict(zip(names, session.run(None, dict(inputs)), strict=True))

    return run
