"""Build TensorRT engines of .onnx files, and time them. Needs TensorRT 10 or newer, and a GPU."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

WARM_UP = 10

Shape = tuple[int, ...]


def build_engine(model: Path, shapes: Mapping[str, Shape]) -> bytes:
    """Return the serialized TensorRT engine of a graph, for one shape of each input.

    Source: TensorRT's "Python API Documentation", the build phase.
    """
    trt: Any = importlib.import_module("tensorrt")
    logger = trt.Logger(trt.Logger.WARNING)
    builder = trt.Builder(logger)
    # Networks of TensorRT 11 are always strongly typed, and the flag is deprecated.
    is_typed = int(trt.__version__.split(".")[0]) >= 11
    flags = 0 if is_typed else 1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED)
    network = builder.create_network(flags)
    parser = trt.OnnxParser(network, logger)
    if not parser.parse_from_file(str(model)):
        errors = "; ".join(str(parser.get_error(index)) for index in range(parser.num_errors))
        raise RuntimeError(f"TensorRT {trt.__version__} cannot read {str(model)!r}: {errors}")
    config = builder.create_builder_config()
    profile = builder.create_optimization_profile()
    for name, shape in shapes.items():
        profile.set_shape(name, shape, shape, shape)
    config.add_optimization_profile(profile)
    plan = builder.build_serialized_network(network, config)
    if plan is None:
        raise RuntimeError(f"TensorRT {trt.__version__} cannot build {str(model)!r}; see its log.")
    return bytes(plan)


def times_of(plan: bytes, shapes: Mapping[str, Shape], runs: int) -> list[float]:
    """Return the milliseconds of each run, between two events on one stream."""
    trt: Any = importlib.import_module("tensorrt")
    engine = trt.Runtime(trt.Logger(trt.Logger.WARNING)).deserialize_cuda_engine(plan)
    context = engine.create_execution_context()
    held = bind(trt, engine, context, shapes)
    stream: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    for _ in range(WARM_UP):
        context.execute_async_v3(stream.cuda_stream)
    times = []
    for _ in range(runs):
        start, end = event(), event()
        start.record(stream)
        context.execute_async_v3(stream.cuda_stream)
        end.record(stream)
        end.synchronize()
        times.append(start.elapsed_time(end))
    # The engine used these tensors until now.
    del held
    return times


def bind(trt: Any, engine: Any, context: Any, shapes: Mapping[str, Shape]) -> list[torch.Tensor]:
    """Bind inputs and outputs. The inputs hold one token everywhere, without padding."""
    tensors = []
    names = [engine.get_tensor_name(index) for index in range(engine.num_io_tensors)]
    for name in [*shapes, *(name for name in names if name not in shapes)]:
        if name in shapes:
            context.set_input_shape(name, shapes[name])
        shape = tuple(context.get_tensor_shape(name))
        # Some models have one segment only.
        fill = 0 if name == "token_type_ids" else 1
        kind = trt.nptype(engine.get_tensor_dtype(name))
        tensor = torch.from_numpy(np.full(shape, fill, dtype=kind)).to("cuda")
        context.set_tensor_address(name, tensor.data_ptr())
        tensors.append(tensor)
    return tensors


def event() -> Any:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
