"""`qdqbert engine`: builds a TensorRT engine of a quantized folder, and times it."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from qdqbert.artifact import Artifact, open_artifact, size_bytes
from qdqbert.errors import GraphError, MissingExtraError, UserInputError
from qdqbert.graph.export import choices_of
from qdqbert.progress import Progress, Silent
from qdqbert.targets.tensorrt import TENSORRT, Shape, trtexec_command, version_numbers

ENGINE = "model.engine"

_SEQUENCES = (32, 128)
_WARM_UP = 10
_DEVICE = "cuda"


@dataclasses.dataclass(frozen=True, kw_only=True)
class EngineTiming:
    """Latency at one shape.

    Attributes:
        batch: Texts at once.
        sequence: Tokens a text.
        median_ms: Median of all runs, inputs and outputs on the GPU.
        best_ms: The fastest run.
        runs: How many were timed.
    """

    batch: int
    sequence: int
    median_ms: float
    best_ms: float
    runs: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class EngineReport:
    """What was built and measured.

    Attributes:
        engine: The file.
        size_bytes: Its size.
        model_size_bytes: That of the graph.
        tensorrt: Version of TensorRT.
        gpu: Name of the GPU.
        trtexec: The line that does the same.
        timings: One for each shape.
    """

    engine: str
    size_bytes: int
    model_size_bytes: int
    tensorrt: str
    gpu: str
    trtexec: str
    timings: tuple[EngineTiming, ...]


def engine(
    directory: str | Path,
    output: str | Path | None = None,
    *,
    batches: Sequence[int] = (1, 8),
    sequences: Sequence[int] | None = None,
    runs: int = 100,
    version: str | None = None,
    progress: Progress | None = None,
) -> EngineReport:
    """Builds and times the TensorRT engine of a folder that was quantized for it.

    The engine takes any shape up to the largest that is asked for, which it is tuned for.

    Args:
        directory: What `quantize` wrote with target `tensorrt`.
        output: The engine's file; `model.engine` beside the graph if `None`.
        batches: Texts at once.
        sequences: Tokens a text; 32 and 128, or as many as the model takes, if `None`.
        runs: Timed runs of each shape.
        version: TensorRT's version, for the line to run elsewhere; the installed one if `None`.
        progress: Shows stages; silent if `None`.

    Raises:
        UserInputError: The folder has no such graph, or there is no GPU; the message has the
            line to run where there is one.
        MissingExtraError: TensorRT is not installed; likewise.
        GraphError: TensorRT cannot read the graph, or build it.
    """
    artifact = open_artifact(Path(directory))
    model = _graph_of(artifact)
    if sequences is None:
        sequences = sorted({min(each, artifact.max_length) for each in _SEQUENCES})
    if not batches or not sequences or min([*batches, *sequences, runs]) < 1:
        raise UserInputError("`engine` needs batches, sequences and runs of at least 1.")
    if max(sequences) > artifact.max_length:
        raise UserInputError(
            f"`--sequence {max(sequences)}` is more than the {artifact.max_length} tokens that "
            f"{str(directory)!r} takes."
        )
    path = Path(output) if output is not None else model.with_name(ENGINE)
    shapes = _profile(artifact, batches, sequences)
    if version is not None:
        version_numbers(version)
    _check_machine(trtexec_command(model, version=version, shapes=shapes, engine=path))
    trt: Any = importlib.import_module("tensorrt")
    found = str(trt.__version__)
    line = trtexec_command(model, version=found, shapes=shapes, engine=path)
    progress = progress or Silent()
    with progress.stage("Building the engine"):
        plan = build_engine(trt, model, shapes)
        write_whole(path, plan)
    timings = []
    pairs = [(batch, sequence) for batch in batches for sequence in sequences]
    with progress.stage("Timing", len(pairs)) as advance:
        runner = _Timer(trt, plan)
        for batch, sequence in pairs:
            given = {name: _shape(artifact, batch, sequence) for name in shapes}
            times = runner.times(given, runs)
            timings.append(
                EngineTiming(
                    batch=batch,
                    sequence=sequence,
                    median_ms=statistics.median(times),
                    best_ms=min(times),
                    runs=len(times),
                )
            )
            advance()
    return EngineReport(
        engine=str(path),
        size_bytes=path.stat().st_size,
        model_size_bytes=size_bytes(model),
        tensorrt=found,
        gpu=torch.cuda.get_device_name(),
        trtexec=line,
        timings=tuple(timings),
    )


def _graph_of(artifact: Artifact) -> Path:
    targets = artifact.quantization["targets"]
    if TENSORRT.name not in targets:
        raise UserInputError(
            f"{str(artifact.directory)!r} holds no graph for TensorRT, only for target "
            f"{', '.join(targets)}. Quantize with `--target tensorrt`."
        )
    return artifact.directory / str(targets[TENSORRT.name]["model"])


def _shape(artifact: Artifact, batch: int, sequence: int) -> Shape:
    choices = choices_of(artifact.task)
    return (batch, sequence) if choices is None else (batch, choices, sequence)


def _profile(
    artifact: Artifact, batches: Sequence[int], sequences: Sequence[int]
) -> dict[str, tuple[Shape, Shape, Shape]]:
    """Smallest, best and largest shape of each input."""
    largest = _shape(artifact, max(batches), max(sequences))
    return {name: (_shape(artifact, 1, 1), largest, largest) for name in artifact.input_names}


def _check_machine(line: str) -> None:
    """Refuses a machine that builds no engines; says what does it elsewhere."""
    if importlib.util.find_spec("tensorrt") is None:
        raise MissingExtraError(
            "TensorRT is not installed. Install it with: pip install tensorrt. "
            f"Or run where it is: {line}"
        )
    if not torch.cuda.is_available():
        raise UserInputError(
            "There is no GPU that torch can use here, and TensorRT builds an engine on the GPU "
            f"that will run it. Run there: {line}"
        )


def build_engine(trt: Any, model: Path, shapes: dict[str, tuple[Shape, Shape, Shape]]) -> bytes:
    """The serialized engine of a graph.

    Args:
        trt: The module `tensorrt`, 8.6 or newer.
        model: The .onnx file.
        shapes: Smallest, best and largest shape of each input, by name.

    Raises:
        GraphError: TensorRT cannot read the graph, or build it.

    Source: TensorRT's "Python API Documentation", the build phase.
    """
    major = version_numbers(str(trt.__version__))[0]
    logger = trt.Logger(trt.Logger.WARNING)
    builder = trt.Builder(logger)
    network = builder.create_network(_creation_flags(trt, major))
    parser = trt.OnnxParser(network, logger)
    if not parser.parse_from_file(str(model)):
        errors = "; ".join(str(parser.get_error(index)) for index in range(parser.num_errors))
        raise GraphError(f"TensorRT {trt.__version__} cannot read {str(model)!r}: {errors}")
    config = builder.create_builder_config()
    if major < 10:  # weak typing: types are allowed, not told
        config.set_flag(trt.BuilderFlag.FP16)
        config.set_flag(trt.BuilderFlag.INT8)
    profile = builder.create_optimization_profile()
    for name, (smallest, best, largest) in shapes.items():
        profile.set_shape(name, smallest, best, largest)
    config.add_optimization_profile(profile)
    plan = builder.build_serialized_network(network, config)
    if plan is None:
        raise GraphError(
            f"TensorRT {trt.__version__} cannot build {str(model)!r}; its log on stderr says why."
        )
    return bytes(plan)


def _creation_flags(trt: Any, major: int) -> int:
    flags = trt.NetworkDefinitionCreationFlag
    if major >= 11:  # always strongly typed; the flag is deprecated
        return 0
    return 1 << int(flags.STRONGLY_TYPED if major == 10 else flags.EXPLICIT_BATCH)


def write_whole(path: Path, content: bytes) -> None:
    """Writes a file whole or not at all.

    Raises:
        UserInputError: It cannot be written.
    """
    partial = path.with_name(f".{path.name}.partial")
    try:
        partial.write_bytes(content)
        partial.replace(path)
    except OSError as error:
        raise UserInputError(f"{str(path)!r} cannot be written: {error.strerror}.") from error
    finally:
        partial.unlink(missing_ok=True)


class _Timer:
    """An engine on the GPU."""

    def __init__(self, trt: Any, plan: bytes) -> None:
        self._trt = trt
        self._engine = trt.Runtime(trt.Logger(trt.Logger.WARNING)).deserialize_cuda_engine(plan)
        self._context = self._engine.create_execution_context()

    def times(self, shapes: dict[str, Shape], runs: int) -> list[float]:
        """Milliseconds of each run, between two events on one stream."""
        held = self._bind(shapes)
        stream: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        for _ in range(_WARM_UP):
            self._context.execute_async_v3(stream.cuda_stream)
        times = []
        for _ in range(runs):
            start, end = _event(), _event()
            start.record(stream)
            self._context.execute_async_v3(stream.cuda_stream)
            end.record(stream)
            end.synchronize()
            times.append(start.elapsed_time(end))
        del held  # until now the engine used them
        return times

    def _bind(self, shapes: dict[str, Shape]) -> list[torch.Tensor]:
        """Gives the engine memory: the same token everywhere, and no [PAD]."""
        tensors = []
        names = [self._engine.get_tensor_name(i) for i in range(self._engine.num_io_tensors)]
        for name in [*shapes, *(name for name in names if name not in shapes)]:
            if name in shapes:
                self._context.set_input_shape(name, shapes[name])
            shape = tuple(self._context.get_tensor_shape(name))
            # int64 inputs are int32 before TensorRT 10.
            kind = self._trt.nptype(self._engine.get_tensor_dtype(name))
            fill = 0 if name == "token_type_ids" else 1  # some models know no other segment
            tensor = torch.from_numpy(np.full(shape, fill, dtype=kind)).to(_DEVICE)
            self._context.set_tensor_address(name, tensor.data_ptr())
            tensors.append(tensor)
        return tensors


def _event() -> Any:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
