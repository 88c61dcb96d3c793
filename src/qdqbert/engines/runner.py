"""The protocol between an engine and the code that uses it."""

from __future__ import annotations

import importlib.util
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from qdqbert.choices import ENGINE_NAMES, EngineName
from qdqbert.engines.providers import check_provider
from qdqbert.errors import MissingExtraError, UserInputError

Outputs = dict[str, NDArray[np.float32]]


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
        ...


# Packages that engines need, where their names differ. The native engine compiles its kernels.
_PACKAGES: Mapping[str, str] = {"native": "llvmlite"}

# Engines that run no .onnx files. INT8 on them is compared with float on ONNX Runtime.
RUNS_NO_ONNX: frozenset[str] = frozenset({"native"})


def float_engine(engine: str) -> str:
    """Return the engine for the float baseline of an engine."""
    return "onnxruntime" if engine in RUNS_NO_ONNX else engine


def is_installed(engine: str) -> bool:
    """Return whether an engine can be imported."""
    return importlib.util.find_spec(_PACKAGES.get(engine, engine)) is not None


def install_command(engine: str) -> str:
    """Return the command that installs an engine."""
    if engine == "openvino":
        return "pip install 'qdqbert[openvino]'"
    # The packages of the other engines are dependencies of this one.
    return f"pip install {_PACKAGES.get(engine, engine)}"


def check_engine(engine: str, *, provider: str | None = None, kernel: str | None = None) -> None:
    """Refuse an engine that is unknown, not installed, or without the provider or kernel.

    Raises:
        UserInputError: The name is unknown, the engine has no execution providers or kernels, or
            this CPU does not have the kernel.
        MissingExtraError: The engine is not installed. The message has the command that installs
            it.
    """
    if engine not in ENGINE_NAMES:
        raise UserInputError(
            f"Engine {engine!r} is unknown. Known: {', '.join(ENGINE_NAMES)}.", argument="engine"
        )
    if not is_installed(engine):
        raise MissingExtraError(
            f"Engine {engine!r} is not installed. Install it with: {install_command(engine)}",
            argument="engine",
        )
    if provider is not None and engine != "onnxruntime":
        raise UserInputError(
            f"`provider={provider!r}` is an execution provider of ONNX Runtime; engine {engine!r} "
            "has none. Leave `provider` out, or use engine 'onnxruntime'.",
            argument="provider",
        )
    if provider is not None:
        check_provider(provider)
    if kernel is not None and engine != "native":
        raise UserInputError(
            f"`kernel={kernel!r}` is a kernel of the native engine; engine {engine!r} has none. "
            "Leave `kernel` out, or use engine 'native'.",
            argument="kernel",
        )
    if kernel is not None:
        from qdqbert.engines.native.instruction_sets import choose_set

        choose_set(kernel)


def open_runner(
    engine: EngineName,
    model: Path,
    *,
    threads: int | None = None,
    streams: int = 1,
    names: Collection[str] = (),
    precision: str | None = None,
    exact: bool = False,
    provider: str | None = None,
    low_memory: bool = False,
    kernel: str | None = None,
) -> Runner:
    """Load a graph into an engine.

    Args:
        engine: The engine.
        model: The .onnx file, or the file of the target `native` for the native engine.
        threads: Number of threads for one inference; the engine's own choice if `None`.
        streams: Number of inferences that run at the same time, each on `threads` threads. They
            share the weights.
        names: Names of the graph's inputs and outputs, if they are known. OpenVINO, which can lose
            them, otherwise needs the package `onnx` to find them.
        precision: Float type between int8 operators, for engines that offer a choice.
        exact: Use integer arithmetic that cannot saturate, if the engine has it. It is slower on
            CPUs without VNNI and gives the same numbers on every CPU.
        provider: Execution provider of ONNX Runtime; the CPU provider if `None`.
        low_memory: Free memory after each run, for engines that would keep it. Runs are slower.
        kernel: Instruction set of the native engine; the fastest one of this CPU if `None`.

    Raises:
        UserInputError: The engine is unknown, has no execution providers or kernels, or does not
            run such a file; or this CPU does not have the kernel.
        MissingExtraError: The engine or the provider is not installed.
    """
    check_engine(engine, provider=provider, kernel=kernel)
    if engine == "native":
        return _open_native(model, threads=threads, streams=streams, kernel=kernel)
    if engine == "onnxruntime":
        from qdqbert.engines.onnxruntime import OnnxRuntimeRunner

        return OnnxRuntimeRunner(
            model,
            threads=threads,
            exact=exact,
            provider=provider or "cpu",
            low_memory=low_memory,
        )
    from qdqbert.engines.openvino import OpenVinoRunner

    return OpenVinoRunner(
        model,
        threads=threads,
        streams=streams,
        names=names,
        precision=precision,
        low_memory=low_memory,
    )


def _open_native(model: Path, *, threads: int | None, streams: int, kernel: str | None) -> Runner:
    from qdqbert.engines.native.runner import NativeRunner

    if model.suffix.lower() == ".onnx":
        raise UserInputError(
            "Engine 'native' does not run .onnx files. It runs folders that `quantize` wrote with "
            "'native' among the `targets`.",
            argument="engine",
        )
    return NativeRunner(model, threads=threads, streams=streams, kernel=kernel)
