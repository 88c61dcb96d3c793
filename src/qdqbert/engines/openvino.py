"""Run a graph on OpenVINO's CPU plugin, which reads the .onnx file."""

from __future__ import annotations

import contextlib
import functools
import os
import queue
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbert.common.errors import CheckpointError, one_line
from qdqbert.common.forks import keep_forever, repair_in_child
from qdqbert.common.machine import usable_cores
from qdqbert.engines.index_limits import check_ids, index_limits
from qdqbert.engines.runner import Outputs
from qdqbert.engines.telemetry import openvino_telemetry_disabled

with openvino_telemetry_disabled():
    import openvino

# The first `Tensor.data` of a process initializes OpenVINO's bindings to numpy. Two streams that do
# so at the same time can wait for each other forever: one has the interpreter's lock and waits for
# the initialization, the other one initializes and waits for the lock (seen with OpenVINO 2026.4).
# An import runs in one thread only.
openvino.Tensor(openvino.Type.f32, [1]).data  # noqa: B018

_KERNELS = "ONEDNN_PRIMITIVE_CACHE_CAPACITY"


class OpenVinoRunner:
    """A compiled model; see `Runner`."""

    def __init__(
        self,
        model: Path,
        *,
        threads: int | None = None,
        streams: int = 1,
        names: Collection[str] = (),
        precision: str | None = None,
        low_memory: bool = False,
    ) -> None:
        """Load and compile a graph; see `registry.open_runner`.

        `precision` is a hint, bf16 if `None`. CPUs without bf16 use float32. The attribute
        `precision` has the type that is used. With `low_memory`, no kernels are kept: OpenVINO
        makes them for each new shape of the inputs, 10 MB or more for BERT-base, and keeps those of
        5,000 shapes.
        """
        settings: dict[str, object] = {
            "PERFORMANCE_HINT": "LATENCY" if streams == 1 else "THROUGHPUT",
            "INFERENCE_PRECISION_HINT": precision or "bf16",
        }
        if streams > 1:
            settings["NUM_STREAMS"] = streams
        if threads:
            settings["INFERENCE_NUM_THREADS"] = threads * streams
            # OpenVINO binds threads to the first cores, which several processes would then share.
            settings["ENABLE_CPU_PINNING"] = threads * streams >= usable_cores()
        if low_memory:
            settings["CPU_RUNTIME_CACHE_CAPACITY"] = 0
        try:
            with _few_kernels() if low_memory else contextlib.nullcontext():
                compiled = core().compile_model(model, "CPU", settings)
        except RuntimeError as error:
            reason = one_line(error)
            raise CheckpointError(f"OpenVINO cannot load {str(model)!r}: {reason}.") from error
        self._limits = index_limits(model)
        self.precision = str(compiled.get_property("INFERENCE_PRECISION_HINT").to_string())
        # A tensor has several names where a Cast was removed. Prefer the name in the file.
        own = names or _port_names(model)
        self.input_names, self.output_names = (
            tuple(
                next((name for name in own if name in value.names), value.any_name)
                for value in values
            )
            for values in (compiled.inputs, compiled.outputs)
        )
        self._free: queue.SimpleQueue[openvino.InferRequest] = queue.SimpleQueue()
        for _ in range(streams):
            self._free.put(compiled.create_infer_request())

    def run(
        self, inputs: Mapping[str, NDArray[Any]], wanted: Collection[str] | None = None
    ) -> Outputs:
        """Return the outputs of one forward pass.

        Raises:
            UserInputError: A token id is outside of the vocabulary.
        """
        check_ids(inputs, self._limits)
        with self._request() as request:
            results = request.infer(dict(inputs))
            # The request overwrites its results in the next call.
            return {
                name: np.array(results[index], dtype=np.float32)
                for index, name in enumerate(self.output_names)
                if wanted is None or name in wanted
            }

    @contextlib.contextmanager
    def _request(self) -> Iterator[openvino.InferRequest]:
        """Wait for a free request, of which there is one for each stream."""
        request = self._free.get()
        try:
            yield request
        finally:
            self._free.put(request)


@functools.cache
def core() -> openvino.Core:
    """Return the one `Core` of this process.

    The CPU plugin gives the thread that loads it another stack for signals. It frees this stack
    when it is unloaded, in whatever thread that is: the next signal ended the process (seen with
    OpenVINO 2026.4.1). A plugin that is kept is never unloaded.
    """
    made = openvino.Core()
    repair_in_child(made, _replace)
    return made


def _replace(core_of_parent: openvino.Core) -> None:
    keep_forever(core_of_parent)
    core.cache_clear()


@contextlib.contextmanager
def _few_kernels() -> Iterator[None]:
    """Let oneDNN keep kernels for one shape of inputs, so that the layers of a model share them.

    By default, it keeps 1,024 kernels until the process ends. It reads the variable when OpenVINO
    compiles the first model of a process; later, this has no effect.
    """
    if _KERNELS in os.environ:
        yield
        return
    os.environ[_KERNELS] = "64"
    try:
        yield
    finally:
        del os.environ[_KERNELS]


def _port_names(model: Path) -> list[str]:
    """Return the names of an .onnx file's inputs and outputs; none for other formats."""
    if model.suffix.lower() != ".onnx":
        return []
    import onnx

    graph = onnx.load(model, load_external_data=False).graph
    return [value.name for value in (*graph.input, *graph.output)]
