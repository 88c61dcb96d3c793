"""The engines, and how a graph is loaded into one."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from pathlib import Path

from qdqbert.common import extras
from qdqbert.common.choices import ENGINE_NAMES, EngineName
from qdqbert.common.errors import MissingExtraError, UserInputError
from qdqbert.common.files import refuse_pointer
from qdqbert.engines.index_limits import index_limits
from qdqbert.engines.providers import check_provider
from qdqbert.engines.runner import Runner


@dataclasses.dataclass(frozen=True, kw_only=True)
class Engine:
    """What is known of an engine before its library is imported.

    Attributes:
        package: The package that it needs.
        purpose: What it is for, in words.
        extra: Extra that installs the package. `None` if it is a dependency of this package.
        runs_onnx: Whether it runs .onnx files. INT8 on other engines is compared with float on
            ONNX Runtime, if it is installed.
    """

    package: str
    purpose: str
    extra: str | None = None
    runs_onnx: bool = True


ENGINES: Mapping[str, Engine] = {
    "onnxruntime": Engine(
        package="onnxruntime", purpose="runs .onnx graphs on CPUs and GPUs", extra="onnxruntime"
    ),
    "openvino": Engine(
        package="openvino",
        purpose="runs .onnx graphs on CPUs, fastest with VNNI or AMX",
        extra="openvino",
    ),
    # It compiles its kernels.
    "native": Engine(
        package="llvmlite", purpose="runs the target `native`, without padding", runs_onnx=False
    ),
}


def float_engine(engine: str) -> str:
    """Return the engine for the float baseline of an engine."""
    if ENGINES[engine].runs_onnx or not is_installed("onnxruntime"):
        return engine
    return "onnxruntime"


def is_installed(engine: str) -> bool:
    """Return whether an engine can be imported."""
    return extras.is_installed(ENGINES[engine].package)


def install_command(engine: str) -> str:
    """Return the command that installs an engine."""
    package, extra = ENGINES[engine].package, ENGINES[engine].extra
    return f"pip install 'qdqbert[{extra}]'" if extra else f"pip install {package}"


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
    for name, value, owner, what in (
        ("provider", provider, "onnxruntime", "an execution provider of ONNX Runtime"),
        ("kernel", kernel, "native", "a kernel of the native engine"),
    ):
        if value is not None and engine != owner:
            raise UserInputError(
                f"`{name}={value!r}` is {what}; engine {engine!r} has none. Leave `{name}` out, or "
                f"use engine {owner!r}.",
                argument=name,
            )
    if provider is not None:
        check_provider(provider)
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
    for each in (model, model.with_name(f"{model.name}.data")):
        refuse_pointer(each)
    if engine == "native":
        return _open_native(model, threads=threads, streams=streams, kernel=kernel)
    if engine == "onnxruntime":
        from qdqbert.engines.onnxruntime import OnnxRuntimeRunner

        return OnnxRuntimeRunner(
            model, threads=threads, exact=exact, provider=provider or "cpu", low_memory=low_memory
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


def count_ids(engine: str, model: Path) -> int | None:
    """Return the number of token ids that a graph takes; `None` if it has no table of them.

    It is read from the file that `open_runner` loads, since settings next to it can lack it.
    """
    if engine == "native":
        from qdqbert.engines.native.storage import load_packed

        return len(load_packed(model).arrays["words"])
    return index_limits(model).get("input_ids")


def _open_native(model: Path, *, threads: int | None, streams: int, kernel: str | None) -> Runner:
    from qdqbert.engines.native import open_packed

    if model.suffix.lower() == ".onnx":
        raise UserInputError(
            "Engine 'native' does not run .onnx files. It runs folders that `quantize` wrote with "
            "'native' among the `targets`.",
            argument="engine",
        )
    return open_packed(model, threads=threads, streams=streams, kernel=kernel)
