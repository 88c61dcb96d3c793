"""Quantize a float graph with the tools of ONNX Runtime and NNCF, for comparisons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
from numpy.typing import NDArray

from qdqbert.engines.telemetry import openvino_telemetry_disabled

Inputs = Sequence[Mapping[str, NDArray[Any]]]


def quantize_dynamic(source: Path, target: Path, inputs: Inputs) -> None:
    """Run ONNX Runtime's `quantize_dynamic`, with one scale for each channel of a weight."""
    del inputs
    from onnxruntime import quantization

    quantization.quantize_dynamic(source, target, per_channel=True)


def quantize_nncf(source: Path, target: Path, inputs: Inputs) -> None:
    """Run NNCF with its preset for transformers."""
    with openvino_telemetry_disabled():
        import nncf
        import openvino
    quantized = nncf.quantize(
        openvino.Core().read_model(source),
        nncf.Dataset(inputs),
        model_type=nncf.ModelType.TRANSFORMER,
        subset_size=len(inputs),
    )
    openvino.save_model(quantized, target, compress_to_fp16=False)


def without_value_info(source: Path, target: Path) -> Path:
    """Write a copy of a graph without inferred shapes, and return its path.

    ONNX Runtime's quantizers transpose the weights of Gemm and fail if shapes are recorded.
    """
    model = onnx.load(source)
    del model.graph.value_info[:]
    onnx.save(model, target)
    return target
