"""Files that ONNX Runtime's tools quantize, with faults that are known."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    quantize_dynamic,
    quantize_static,
)
from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer
from transformers import AutoTokenizer

from qdqbert.encoders.checkpoint.load import load_checkpoint
from qdqbert.graphs.check import save_graph
from qdqbert.graphs.of_checkpoint import encoder_of
from qdqbert.graphs.writer import make_graph

# A channel of this layer has weights that are 16 times as large as the others.
LOUD = "bert.encoder.layer.0.output.dense"
SIGNED, UNSIGNED = QuantType.QInt8, QuantType.QUInt8
STATIC: Mapping[str, Any] = {"weight_type": SIGNED, "activation_type": UNSIGNED}
# Arguments of onnxruntime's tools, by the name of the file.
STATICS: Mapping[str, Mapping[str, Any]] = {
    "qdq": {"quant_format": QuantFormat.QDQ, "per_channel": False, **STATIC},
    "qoperator": {"quant_format": QuantFormat.QOperator, "per_channel": True, **STATIC},
}
DYNAMICS: Mapping[str, Mapping[str, Any]] = {
    "dynamic": {"weight_type": SIGNED},
    "dynamic-channels": {"weight_type": SIGNED, "per_channel": True},
    "dynamic-7-bits": {"weight_type": SIGNED, "per_channel": True, "reduce_range": True},
    "dynamic-unsigned": {"weight_type": UNSIGNED},
    "dynamic-linears": {"weight_type": SIGNED, "op_types_to_quantize": ["MatMul"]},
    "dynamic-one": {"weight_type": SIGNED, "nodes_to_exclude": "all but one"},
}
PACKED: Mapping[str, Mapping[str, Any]] = {
    "4-bits": {"block_size": 32, "is_symmetric": True},
    "4-bits-zero-points": {"block_size": 16, "is_symmetric": False},
}
FILES = (*STATICS, *DYNAMICS, *PACKED)


class _Texts(CalibrationDataReader):
    """Inputs of two texts."""

    def __init__(self, checkpoint: Path) -> None:
        tokenizer = AutoTokenizer.from_pretrained(checkpoint)
        texts = ("the cat sat on the book", "rain on the river")
        self._inputs: Iterator[dict[str, Any]] = iter(
            [{name: np.asarray([ids]) for name, ids in tokenizer(text).items()} for text in texts]
        )

    def get_next(self) -> dict[str, Any] | None:
        return next(self._inputs, None)


def write_float(checkpoint: Path, path: Path) -> Path:
    """Write the float graph of a classifier, with the loud channel."""
    loaded = load_checkpoint(str(checkpoint))
    with torch.no_grad():
        loaded.model.get_submodule(LOUD).weight[3] *= 16
    save_graph(make_graph(encoder_of(loaded)), path)
    return path


def write_quantized(name: str, source: Path, checkpoint: Path, path: Path) -> Path:
    """Quantize a float graph as one of `FILES`."""
    logging.disable(logging.WARNING)
    try:
        if name in STATICS:
            quantize_static(str(source), str(path), _Texts(checkpoint), **STATICS[name])
        elif name in DYNAMICS:
            options = dict(DYNAMICS[name])
            if "nodes_to_exclude" in options:
                nodes = [each.name for each in onnx.load(source).graph.node]
                multiplied = [each for each in nodes if "matmul" in each]
                options["nodes_to_exclude"] = multiplied[1:]
            quantize_dynamic(str(source), str(path), **options)
        else:
            packer = MatMulNBitsQuantizer(onnx.load(source), **PACKED[name])
            packer.process()
            onnx.save(packer.model.model, path)
    finally:
        logging.disable(logging.NOTSET)
    return path
