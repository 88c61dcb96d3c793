"""Build the TensorRT engine of a quantized folder, and measure its latency."""

from __future__ import annotations

import importlib
import importlib.util
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from qdqbert.artifact import Artifact, open_artifact, size_bytes
from qdqbert.encoders.heads import choices_of
from qdqbert.errors import GraphError, MissingExtraError, UserInputError, naming
from qdqbert.evidence.reports import TensorRTReport, TensorRTTiming
from qdqbert.files import write_bytes
from qdqbert.progress import Progress
from qdqbert.targets.tensorrt import TENSORRT, Shape, trtexec_command, version_numbers
from qdqbert.verbs.build_tensorrt.options import BuildTensorRTOptions
from qdqbert.verbs.settings import check_sequences

ENGINE_FILE = "model.engine"

_SEQUENCES = (32, 128)
_WARM_UP = 10
_DEVICE = "cuda"


def run(options: BuildTensorRTOptions, progress: Progress) -> TensorRTReport:
    """Build and time the TensorRT engine of a folder.

    Raises:
        UserInputError: The folder has no graph for TensorRT, or torch finds no GPU.
        MissingExtraError: TensorRT is not installed.
        GraphError: TensorRT cannot read the graph, or cannot build it.
    """
    with naming("model"):
        artifact = open_artifact(Path(options.model))
    model = _graph_of(artifact)
    sequences = options.sequences or tuple(
        sorted({min(each, artifact.max_length) for each in _SEQUENCES})
    )
    check_sequences(sequences, options.model, artifact.max_length)
    path = Path(options.output) if options.output is not None else model.with_name(ENGINE_FILE)
    profile = _profile(artifact, options.batches, sequences)
    version = options.tensorrt_version or _installed_version()
    if version is not None:
        version_numbers(version)
    if options.dry_run:
        return TensorRTReport(
            engine=str(path),
            size_bytes=None,
            model_size_bytes=size_bytes(model),
            tensorrt=version,
            gpu=None,
            trtexec=trtexec_command(model, version=version, shapes=profile, engine=path),
            timings=(),
        )
    _check_machine()
    trt: Any = importlib.import_module("tensorrt")
    with progress.stage("Building the TensorRT engine"):
        plan = build_engine(trt, model, profile)
        _write_engine(path, plan)
    timings = _time(
        trt, plan, artifact, profile, options.batches, sequences, options.runs, progress
    )
    found = str(trt.__version__)
    return TensorRTReport(
        engine=str(path),
        size_bytes=path.stat().st_size,
        model_size_bytes=size_bytes(model),
        tensorrt=found,
        gpu=torch.cuda.get_device_name(),
        trtexec=trtexec_command(model, version=found, shapes=profile, engine=path),
        timings=timings,
    )


def _time(
    trt: Any,
    plan: bytes,
    artifact: Artifact,
    profile: dict[str, tuple[Shape, Shape, Shape]],
    batches: Sequence[int],
    sequences: Sequence[int],
    runs: int,
    progress: Progress,
) -> tuple[TensorRTTiming, ...]:
    timings = []
    pairs = [(batch, sequence) for batch in batches for sequence in sequences]
    with progress.stage("Timing", len(pairs)) as advance:
        runner = _Timer(trt, plan)
        for batch, sequence in pairs:
            shapes = {name: _shape(artifact, batch, sequence) for name in profile}
            times = runner.times(shapes, runs)
            timings.append(
                TensorRTTiming(
                    batch=batch,
                    sequence=sequence,
                    median_ms=statistics.median(times),
                    best_ms=min(times),
                    runs=len(times),
                )
            )
            advance()
    return tuple(timings)


def _installed_version() -> str | None:
    if importlib.util.find_spec("tensorrt") is None:
        return None
    return str(importlib.import_module("tensorrt").__version__)


def _write_engine(path: Path, plan: bytes) -> None:
    try:
        write_bytes(path, plan)
    except OSError as error:
        raise UserInputError(
            f"`output={str(path)!r}` cannot be written: {error.strerror}.", argument="output"
        ) from error


def _graph_of(artifact: Artifact) -> Path:
    targets = artifact.quantization["targets"]
    if TENSORRT.name not in targets:
        raise UserInputError(
            f"`model={str(artifact.directory)!r}` contains no graph for TensorRT, only for target "
            f"{', '.join(targets)}. Quantize the model for the target 'tensorrt'.",
            argument="model",
        )
    return artifact.directory / str(targets[TENSORRT.name]["model"])


def _shape(artifact: Artifact, batch: int, sequence: int) -> Shape:
    choices = choices_of(artifact.task)
    return (batch, sequence) if choices is None else (batch, choices, sequence)


def _profile(
    artifact: Artifact, batches: Sequence[int], sequences: Sequence[int]
) -> dict[str, tuple[Shape, Shape, Shape]]:
    """Return the smallest, the optimal and the largest shape of each input."""
    largest = _shape(artifact, max(batches), max(sequences))
    return {name: (_shape(artifact, 1, 1), largest, largest) for name in artifact.input_names}


def _check_machine() -> None:
    """Refuse a machine that cannot build."""
    hint = "With `dry_run=True`, you get the trtexec command line for a machine that has both."
    if importlib.util.find_spec("tensorrt") is None:
        raise MissingExtraError(
            f"TensorRT is not installed. Install it with: pip install tensorrt. {hint}"
        )
    if not torch.cuda.is_available():
        raise UserInputError(
            f"torch finds no GPU, and TensorRT builds an engine on the GPU that runs it. {hint}"
        )


def build_engine(trt: Any, model: Path, shapes: dict[str, tuple[Shape, Shape, Shape]]) -> bytes:
    """Return the serialized TensorRT engine of a graph.

    Args:
        trt: The module `tensorrt`, version 8.6 or newer.
        model: The .onnx file.
        shapes: Smallest, optimal and largest shape of each input, by name.

    Raises:
        GraphError: TensorRT cannot read the graph, or cannot build it.

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
    if major < 10:
        # Weak typing: the flags allow types, and TensorRT chooses among them.
        config.set_flag(trt.BuilderFlag.FP16)
        config.set_flag(trt.BuilderFlag.INT8)
    profile = builder.create_optimization_profile()
    for name, (smallest, best, largest) in shapes.items():
        profile.set_shape(name, smallest, best, largest)
    config.add_optimization_profile(profile)
    plan = builder.build_serialized_network(network, config)
    if plan is None:
        raise GraphError(
            f"TensorRT {trt.__version__} cannot build {str(model)!r}; see its log on stderr."
        )
    return bytes(plan)


def _creation_flags(trt: Any, major: int) -> int:
    flags = trt.NetworkDefinitionCreationFlag
    if major >= 11:
        # Networks are always strongly typed, and the flag is deprecated.
        return 0
    return 1 << int(flags.STRONGLY_TYPED if major == 10 else flags.EXPLICIT_BATCH)


class _Timer:
    """Runs a TensorRT engine on the GPU."""

    def __init__(self, trt: Any, plan: bytes) -> None:
        self._trt = trt
        self._engine = trt.Runtime(trt.Logger(trt.Logger.WARNING)).deserialize_cuda_engine(plan)
        self._context = self._engine.create_execution_context()

    def times(self, shapes: dict[str, Shape], runs: int) -> list[float]:
        """Return the milliseconds of each run, between two events on one stream."""
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
        # The engine used these tensors until now.
        del held
        return times

    def _bind(self, shapes: dict[str, Shape]) -> list[torch.Tensor]:
        """Bind inputs and outputs. The inputs hold one token everywhere, without padding."""
        tensors = []
        names = [self._engine.get_tensor_name(i) for i in range(self._engine.num_io_tensors)]
        for name in [*shapes, *(name for name in names if name not in shapes)]:
            if name in shapes:
                self._context.set_input_shape(name, shapes[name])
            shape = tuple(self._context.get_tensor_shape(name))
            # int64 inputs are int32 before TensorRT 10.
            kind = self._trt.nptype(self._engine.get_tensor_dtype(name))
            # Some models have one segment only.
            fill = 0 if name == "token_type_ids" else 1
            tensor = torch.from_numpy(np.full(shape, fill, dtype=kind)).to(_DEVICE)
            self._context.set_tensor_address(name, tensor.data_ptr())
            tensors.append(tensor)
        return tensors


def _event() -> Any:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
