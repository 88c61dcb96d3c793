"""TensorRT on NVIDIA GPUs: a strongly typed float16 graph with symmetric int8 Q/DQ pairs.

TensorRT 11 builds only strongly typed networks. What is not int8 runs in the type that the graph
specifies, so a float32 graph with Q/DQ would run in float32 between its int8 matmuls.
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
    # ONNX Runtime has no float16 matmuls on most CPUs and casts around them: correct, but slow.
    engines=("onnxruntime",),
    is_proxy=True,
    # `linear` is the most faithful. `full` also quantizes residual adds, which TensorRT fuses into
    # the matmul before them only if both sides are int8 (NVIDIA/TensorRT#3243, #1604). On one GPU
    # `ffn` was faster than that (NVIDIA/TensorRT-Model-Optimizer#159). So compare their latency.
    recipe="linear",
    # A Q/DQ pair in front of a LayerNormalization or a softmax would keep TensorRT from fusing it.
    refused_groups=("output",),
    zero_points="linear_inputs",
    unsigned=False,
    rewrites=("absorb_zero_points_in_half", "to_half_precision"),
    checks=("check_tensorrt_rules",),
    last_bits=2.0**-11,
    calibration_cache="calibration.cache",
)

# The parser of older versions has no LayerNormalization.
OLDEST = (8, 6)

Shape = tuple[int, ...]


def version_numbers(version: str) -> tuple[int, ...]:
    """Return `"10.13.2.6"` as a tuple of numbers.

    Raises:
        UserInputError: It does not start with two numbers, or is older than 8.6.
    """
    parts = version.split(".")
    if len(parts) < 2 or not all(part.isdigit() for part in parts[:2]):
        raise UserInputError(
            f"{version!r} is not a version of TensorRT. Expected a version such as 10.13.",
            argument="tensorrt_version",
        )
    numbers = tuple(int(part) for part in parts[:4] if part.isdigit())
    if numbers < OLDEST:
        raise UserInputError(
            f"TensorRT {version} is too old. Version 8.6 and newer read these graphs.",
            argument="tensorrt_version",
        )
    return numbers


def typing_flags(version: str | None) -> tuple[str, ...]:
    """Return the options that make trtexec take types from the graph.

    Args:
        version: Version of TensorRT; `None` if unknown. TensorRT 11 accepts the option of version
            10 and ignores it.

    Raises:
        UserInputError: The version cannot be read, or is older than 8.6.

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
    """Return the command that builds and times a TensorRT engine.

    Args:
        model: The .onnx file.
        version: Version of TensorRT; `None` if unknown.
        shapes: Smallest, most common and largest shape of each input, by name.
        engine: File to write the TensorRT engine to. `None` writes it next to the model.

    Raises:
        UserInputError: The version cannot be read, or is older than 8.6.
    """
    words = ["trtexec", f"--onnx={model}", *typing_flags(version)]
    for index, flag in enumerate(("minShapes", "optShapes", "maxShapes")):
        each = ",".join(
            f"{name}:{'x'.join(map(str, triple[index]))}" for name, triple in shapes.items()
        )
        words.append(f"--{flag}={each}")
    words.append(f"--saveEngine={engine or model.with_suffix('.engine')}")
    return shlex.join(words)
