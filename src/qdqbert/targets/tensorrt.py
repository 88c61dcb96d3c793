"""TensorRT on NVIDIA GPUs: a strongly typed float16 graph with symmetric int8 Q/DQ pairs.

TensorRT 11 builds strongly typed networks only: what is not int8 runs in the type that the graph
says, so that a float32 graph with Q/DQ would run in float32 between its int8 products.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from qdqbert.errors import UserInputError
from qdqbert.targets.target import Target

TENSORRT = Target(
    name="tensorrt",
    summary="TensorRT 10 and newer: strongly typed float16 with symmetric int8",
    # ONNX Runtime has no float16 products on most CPUs and casts around them: right, and slow.
    engines=("onnxruntime",),
    is_proxy=True,
    # The most faithful. `full` has residual adds too, which TensorRT fuses into the product before
    # only if both sides are int8 (NVIDIA/TensorRT#3243, #1604); `ffn` was faster than that on one
    # GPU (NVIDIA/TensorRT-Model-Optimizer#159). So time them.
    recipe="linear",
    zero_points="linears",
    rewrites=("absorb_zero_points_in_half", "to_half_precision"),
    checks=("check_tensorrt_rules",),
    last_bits=2.0**-11,
    calibration_cache="calibration.cache",
)

OLDEST = (8, 6)
"""Before this, TensorRT's parser has no LayerNormalization."""

Shape = tuple[int, ...]


def version_numbers(version: str) -> tuple[int, ...]:
    """`"10.13.2.6"` as numbers.

    Raises:
        UserInputError: It does not start with two numbers, or is older than 8.6.
    """
    parts = version.split(".")
    if len(parts) < 2 or not all(part.isdigit() for part in parts[:2]):
        raise UserInputError(f"TensorRT version {version!r} is none; expected such as 10.13.")
    numbers = tuple(int(part) for part in parts[:4] if part.isdigit())
    if numbers < OLDEST:
        raise UserInputError(f"TensorRT {version} is too old; 8.6 and newer read these graphs.")
    return numbers


def typing_flags(version: str | None) -> tuple[str, ...]:
    """What makes trtexec take types from the graph.

    Args:
        version: TensorRT's; `None` if unknown. TensorRT 11 takes 10's flag, and ignores it.

    Raises:
        UserInputError: The version is none, or older than 8.6.

    Source: TensorRT's migration guide from 10.x to 11.x, "trtexec Command-Line Usage".
    """
    major = None if version is None else version_numbers(version)[0]
    if major is None or major == 10:
        return ("--stronglyTyped",)
    return () if major > 10 else ("--fp16", "--int8")


def trtexec_command(
    model: Path,
    *,
    version: str | None = None,
    shapes: Mapping[str, Sequence[Shape]],
    engine: Path | None = None,
) -> str:
    """The line that builds and times an engine where TensorRT is installed.

    Args:
        model: The .onnx file.
        version: TensorRT's; `None` if unknown.
        shapes: Smallest, best and largest shape of each input, by name.
        engine: Where to write the engine; beside the model if `None`.

    Raises:
        UserInputError: The version is none, or older than 8.6.
    """
    words = ["trtexec", f"--onnx={model}", *typing_flags(version)]
    for index, flag in enumerate(("minShapes", "optShapes", "maxShapes")):
        each = ",".join(
            f"{name}:{'x'.join(map(str, triple[index]))}" for name, triple in shapes.items()
        )
        words.append(f"--{flag}={each}")
    words.append(f"--saveEngine={engine or model.with_suffix('.engine')}")
    return shlex.join(words)
