"""Compute a quantized linear layer in one ONNX Runtime kernel, with its bias.

    Add(MatMul(DequantizeLinear(x), DequantizeLinear(W)), b)  ->  MatMulIntegerToFloat(x, W, b)

ONNX Runtime makes the same fusion when it loads a Q/DQ graph, but leaves the bias out. Applies to a
per-tensor x, static or dynamic, and a constant int8 W, per tensor or per column, both with zero
points. The add is fused only if it adds one constant to each column and nothing else reads the
result of the matmul. Values do not change: int8 products are summed in int32 and scaled once.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from qdqbert.graph.edit import (
    MICROSOFT,
    bias_of,
    constant_array,
    producer_of,
    replace,
    tidy,
)


def fuse_integer_matmul(model: ir.Model) -> ir.Model:
    """Apply the rewrite; change and return `model`."""
    model.opset_imports[MICROSOFT] = 1
    for node in list(model.graph):
        if node.op_type == "MatMul":
            _fuse(model.graph, node)
    return tidy(model)


def _fuse(graph: ir.Graph, matmul: ir.Node) -> None:
    x, weight = (producer_of(value, "DequantizeLinear") for value in matmul.inputs)
    if x is None or weight is None:
        return
    codes = constant_array(weight.inputs[0])
    if codes is None or codes.dtype != np.int8 or not _is_per_tensor(x):
        return
    if len(x.inputs) != 3 or len(weight.inputs) != 3 or not _is_by_column(weight):
        return
    bias, add = bias_of(matmul, columns=codes.shape[1])
    inputs = [
        x.inputs[0],
        weight.inputs[0],
        x.inputs[1],
        weight.inputs[1],
        x.inputs[2],
        weight.inputs[2],
        *([bias] if bias is not None else []),
    ]
    last = add if add is not None else matmul
    fused = ir.node("MatMulIntegerToFloat", inputs, domain=MICROSOFT, name=f"{weight.name}.matmul")
    replace(graph, last, fused, old=last.outputs[0])


def _is_per_tensor(x: ir.Node) -> bool:
    if producer_of(x.inputs[0], "DynamicQuantizeLinear") is not None:
        return True
    scale = constant_array(x.inputs[1])
    return scale is not None and scale.size == 1


def _is_by_column(weight: ir.Node) -> bool:
    """Return whether a 2-D weight has a single scale or one for each column."""
    codes, scale = constant_array(weight.inputs[0]), constant_array(weight.inputs[1])
    if codes is None or scale is None or codes.ndim != 2:
        return False
    return scale.size == 1 or weight.attributes.get_int("axis", 1) in (1, -1)
