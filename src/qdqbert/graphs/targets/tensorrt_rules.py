"""TensorRT's rules for Q/DQ graphs, as a table of small checks.

TensorRT reports broken rules one at a time, when it parses or builds on the machine with the GPU.
These checks find all of them before a graph is written.

Source: NVIDIA's "Working with Quantized Types" and "Strongly Typed Networks", the operator pages
of Quantize and Dequantize, and onnx-tensorrt's importer of QuantizeLinear and DequantizeLinear.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import onnx_ir as ir

from qdqbert.common.errors import GraphError
from qdqbert.graphs.edit import constant_array

# Q/DQ have float16 scales since opset 19. TensorRT 11's parser reads opsets up to 25.
OLDEST_OPSET, NEWEST_OPSET = 19, 25

_PAIR = ("QuantizeLinear", "DequantizeLinear")
_MATMULS = ("MatMul", "Gemm")
_NEVER_INT8 = ("LayerNormalization", "Softmax")
_FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16)
# Operators that may read and write different float types.
_MIXED = (*_PAIR, "Cast", "CastLike")


def check_tensorrt_rules(model: ir.Model) -> None:
    """Refuse a graph that TensorRT would not build, or not run in int8.

    Raises:
        GraphError: The graph breaks rules. The message lists all of them with the nodes' names.
    """
    broken = [line for rule in RULES for line in rule(model)]
    if broken:
        lines = " ".join(f"({number}) {line}" for number, line in enumerate(broken, start=1))
        raise GraphError(f"The graph breaks TensorRT's rules in {len(broken)} places: {lines}")


def opset_is_read(model: ir.Model) -> Iterator[str]:
    """Check that the opset has float16 scales, and that the parser reads it."""
    opset = model.opset_imports.get("", 0)
    if not OLDEST_OPSET <= opset <= NEWEST_OPSET:
        yield (
            f"The graph has opset {opset}; expected {OLDEST_OPSET} to {NEWEST_OPSET}. Export it "
            "with `opset_version=21`."
        )


def operators_are_standard(model: ir.Model) -> Iterator[str]:
    """Check that every operator is in ONNX's own domain."""
    for node in model.graph:
        if node.domain:
            yield (
                f"`{node.name}` is {node.domain}::{node.op_type}; TensorRT reads standard ONNX "
                "only. Leave out the rewrite that makes it."
            )


def zero_points_are_zero(model: ir.Model) -> Iterator[str]:
    """Check that zero points are constant int8 zeros."""
    for node in _pairs(model):
        if len(node.inputs) < 3 or node.inputs[2] is None:
            if node.op_type == "QuantizeLinear":
                yield f"`{node.name}` has no zero point, which makes it uint8. Add an int8 zero."
            continue
        zero_point = constant_array(node.inputs[2])
        if zero_point is None or zero_point.dtype != np.int8 or zero_point.any():
            yield (
                f"`{node.name}` has a zero point that is not constant int8 zeros. Quantize with a "
                "symmetric signed spec, for example with `recipe='full'`."
            )


def scales_are_positive(model: ir.Model) -> Iterator[str]:
    """Check that scales are constants above zero."""
    for node in _pairs(model):
        scale = constant_array(node.inputs[1])
        if scale is None:
            yield f"`{node.name}` has a scale that is computed. Make it a constant."
        elif not (np.isfinite(scale.astype(np.float32)) & (scale.astype(np.float32) > 0)).all():
            yield f"`{node.name}` has a scale that is not above 0 and finite. Calibrate it again."


def scales_fit_their_axis(model: ir.Model) -> Iterator[str]:
    """Check for one scale, or one for each index of the axis, and as many zero points."""
    for node in _pairs(model):
        scale, data = constant_array(node.inputs[1]), node.inputs[0]
        if scale is None or data is None:
            continue
        zero_point = constant_array(node.inputs[2]) if len(node.inputs) > 2 else None
        if zero_point is not None and zero_point.size != scale.size:
            yield f"`{node.name}` has {scale.size} scales and {zero_point.size} zero points."
        if scale.size == 1:
            continue
        array, axis = constant_array(data), _axis(node)
        shape = array.shape if array is not None else tuple(data.shape or ())
        if scale.ndim != 1 or not -len(shape) <= axis < len(shape) or shape[axis] != scale.size:
            yield (
                f"`{node.name}` has scales of shape {scale.shape} for axis {axis} of {shape}. Give "
                "one scale, or one for each index of that axis."
            )


def activations_are_per_tensor(model: ir.Model) -> Iterator[str]:
    """Check that only constants have more than one scale."""
    for node in _pairs(model):
        scale = constant_array(node.inputs[1])
        if scale is None or scale.size == 1 or _is_of_constant(node):
            continue
        yield f"`{node.name}` quantizes an activation per channel. Use a spec with `axis=None`."


def weights_are_per_output(model: ir.Model) -> Iterator[str]:
    """Check that the scales of a weight are along the output axis of the matmul that reads it."""
    for node in _pairs(model, "DequantizeLinear"):
        scale = constant_array(node.inputs[1])
        if scale is None or scale.size == 1 or not _is_of_constant(node):
            continue
        codes = constant_array(node.inputs[0])
        rank = 2 if codes is None else codes.ndim
        for use in node.outputs[0].uses():
            output = _output_axis(use.node, rank)
            if use.node.op_type in _MATMULS and (use.idx != 1 or _axis(node) % rank != output):
                yield (
                    f"`{node.name}` has scales along axis {_axis(node)} of a weight that "
                    f"`{use.node.name}` reads as input {use.idx}; expected input 1 and its output "
                    f"axis, {output}."
                )


def weights_are_stored_as_codes(model: ir.Model) -> Iterator[str]:
    """Check that constants are stored as int8 and only dequantized."""
    for node in _pairs(model, "QuantizeLinear"):
        if constant_array(node.inputs[0]) is not None:
            yield f"`{node.name}` quantizes a constant. Store its int8 codes instead."


def codes_are_int8(model: ir.Model) -> Iterator[str]:
    """Check that all codes are int8: no uint8, and no int32 biases."""
    for node in _pairs(model, "DequantizeLinear"):
        data = node.inputs[0]
        array = constant_array(data)
        if array is not None and array.dtype != np.int8:
            yield f"`{node.name}` dequantizes {array.dtype}; expected int8. Leave biases in float."
        elif array is None and (data is None or _producer(data) != "QuantizeLinear"):
            yield (
                f"`{node.name}` dequantizes a value that no QuantizeLinear makes. Put both nodes "
                "of a Q/DQ pair at one tensor."
            )


def pairs_are_whole(model: ir.Model) -> Iterator[str]:
    """Check that only DequantizeLinear nodes with the same scale read a QuantizeLinear."""
    for node in _pairs(model, "QuantizeLinear"):
        readers = list(node.outputs[0].consumers())
        scale = constant_array(node.inputs[1])
        others = [each for each in readers if each.op_type != "DequantizeLinear"]
        if others or not readers or node.outputs[0].is_graph_output():
            names = ", ".join(f"`{each.name}`" for each in others) or "no DequantizeLinear"
            yield f"`{node.name}` is read by {names}. Dequantize it with the same scale first."
        for each in readers:
            theirs = constant_array(each.inputs[1])
            if each.op_type != "DequantizeLinear" or scale is None or theirs is None:
                continue
            if not np.array_equal(scale, theirs):
                yield f"`{each.name}` reads `{node.name}`, and their scales differ."


def matmuls_are_int8_or_float(model: ir.Model) -> Iterator[str]:
    """Check that both inputs of a matmul are quantized, or neither.

    Quantizing only one costs time and saves none.
    """
    for node in model.graph:
        if node.op_type not in _MATMULS:
            continue
        sides = [_producer(value) == "DequantizeLinear" for value in node.inputs[:2]]
        if sides[0] != sides[1]:
            yield (
                f"`{node.name}` reads one quantized and one float input, and runs in float. "
                "Quantize both, or neither (`quant_disable_keyword`)."
            )


def norms_read_floats(model: ir.Model) -> Iterator[str]:
    """Check for pairs in front of operators without int8 kernels, where they prevent fusions."""
    for node in model.graph:
        if node.op_type in _NEVER_INT8 and _producer(node.inputs[0]) == "DequantizeLinear":
            yield (
                f"`{node.name}` ({node.op_type}) reads a Q/DQ pair, and has no int8 kernel. Use a "
                "recipe that quantizes inputs of matmuls and adds, for example `recipe='full'`."
            )


def scales_have_the_type_of_values(model: ir.Model) -> Iterator[str]:
    """Check that scales have the type of the values that are quantized or dequantized."""
    for node in _pairs(model):
        value = node.inputs[0] if node.op_type == "QuantizeLinear" else node.outputs[0]
        scale = node.inputs[1]
        types = _dtype(value), _dtype(scale)
        if None not in types and types[0] != types[1]:
            yield (
                f"`{node.name}` has values of {types[0]} and a scale of {types[1]}. Cast one of "
                "them."
            )


def floats_are_of_one_type(model: ir.Model) -> Iterator[str]:
    """Check that the floats that a node reads and writes have one type.

    A strongly typed network has no implicit casts.
    """
    for node in model.graph:
        if node.op_type in _MIXED:
            continue
        types = {_dtype(value) for value in (*node.inputs, *node.outputs)} & set(_FLOATS)
        if len(types) > 1:
            yield f"`{node.name}` ({node.op_type}) mixes float16 and float32. Cast one of them."


RULES: tuple[Callable[[ir.Model], Iterator[str]], ...] = (
    opset_is_read,
    operators_are_standard,
    zero_points_are_zero,
    scales_are_positive,
    scales_fit_their_axis,
    activations_are_per_tensor,
    weights_are_per_output,
    weights_are_stored_as_codes,
    codes_are_int8,
    pairs_are_whole,
    matmuls_are_int8_or_float,
    norms_read_floats,
    scales_have_the_type_of_values,
    floats_are_of_one_type,
)


def _pairs(model: ir.Model, *op_types: str) -> Iterator[ir.Node]:
    """Yield the Q/DQ nodes of a graph, or the nodes of one type only."""
    for node in model.graph:
        if node.op_type in (op_types or _PAIR):
            yield node


def _axis(node: ir.Node) -> int:
    return node.attributes.get_int("axis", 1)


def _output_axis(matmul: ir.Node, rank: int) -> int:
    """Return the axis of a matmul's second input that its output has."""
    is_transposed = matmul.op_type == "Gemm" and matmul.attributes.get_int("transB", 0) == 1
    return 0 if is_transposed else rank - 1


def _is_of_constant(node: ir.Node) -> bool:
    """Return whether a Q/DQ node reads a constant, or the codes of one."""
    data = node.inputs[0]
    if constant_array(data) is not None:
        return True
    maker = data.producer() if data is not None else None
    return (
        maker is not None
        and maker.op_type == "QuantizeLinear"
        and constant_array(maker.inputs[0]) is not None
    )


def _producer(value: ir.Value | None) -> str | None:
    node = value.producer() if value is not None else None
    return None if node is None else node.op_type


def _dtype(value: ir.Value | None) -> ir.DataType | None:
    if value is None:
        return None
    return value.const_value.dtype if value.const_value is not None else value.dtype
