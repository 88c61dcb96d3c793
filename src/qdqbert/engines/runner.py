"""What evaluation and benchmarks know of a runtime: one small protocol."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from qdqbert.choices import ENGINE_NAMES, EngineName
from qdqbert.errors import MissingExtraError, UserInputError

Outputs = dict[str, NDArray[np.float32]]


class Runner(Protocol):
    """Anything that maps inputs by name to outputs by name.

    Attributes:
        input_names: What `run` wants, each `(batch, seq)`, int64.
        output_names: What it returns.
        precision: Float type that the engine computes in between int8 operators.
    """

    input_names: tuple[str, ...]
    output_names: tuple[str, ...]
    precision: str

    def run(self, inputs: Mapping[str, NDArray[Any]]) -> Outputs:
        """One forward pass."""
        ...


def engine_version(engine: EngineName) -> str:
    """Version of an installed engine.

    Raises:
        MissingExtraError: It is not installed.
    """
    check_engine(engine)
    return importlib.metadata.version(engine)


def is_installed(engine: EngineName) -> bool:
    """Whether an engine can be imported here."""
    return importlib.util.find_spec(engine) is not None


def check_engine(engine: str) -> None:
    """Refuses an engine that is unknown or not installed.

    Raises:
        UserInputError: The name is unknown.
        MissingExtraError: It is not installed; says how to install it.
    """
    if engine not in ENGINE_NAMES:
        raise UserInputError(f"`--engine {engine}` is unknown. Known: {', '.join(ENGINE_NAMES)}.")
    if importlib.util.find_spec(engine) is None:
        raise MissingExtraError(
            f"Engine `{engine}` is not installed. Install it with: pip install 'qdqbert[{engine}]'"
        )


def open_runner(
    engine: EngineName,
    model: Path,
    *,
    threads: int | None = None,
    precision: str | None = None,
    exact: bool = False,
    provider: str | None = None,
) -> Runner:
    """Loads a graph into an engine.

    Args:
        engine: Which.
        model: The .onnx file.
        threads: Threads for one inference; the engine's own choice if `None`.
        precision: Float type between int8 operators, for engines that offer a choice.
        exact: Ask for integer arithmetic that cannot saturate, where the engine has it: slower
            on CPUs without VNNI, the same numbers everywhere.
        provider: Which of ONNX Runtime's execution providers; its CPU's if `None`.

    Raises:
        UserInputError: The engine is unknown.
        MissingExtraError: It is not installed.
    """
    check_engine(engine)
    if provider is not None and engine != "onnxruntime":
        raise UserInputError(f"`--provider {provider}` is ONNX Runtime's, not that of {engine}.")
    if engine == "onnxruntime":
        from qdqbert.engines.onnxruntime import OnnxRuntimeRunner

        return OnnxRuntimeRunner(model, threads=threads, exact=exact, provider=provider or "cpu")
    from qdqbert.engines.openvino import OpenVinoRunner

    return OpenVinoRunner(model, threads=threads, precision=precision)
