"""Rewrite an existing ONNX model into the canonical form that `graphs.encoder` reads.

In canonical form constants are initializers, floats are float32, there is no Dropout,
onnxruntime's fused operators and ONNX's Attention are decomposed, a Gemm is a MatMul and an Add,
and LayerNorm is one node. The graph computes the same values as before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import common

from qdqbert.graphs.edit import apply_passes, constant_array, producer_of
from qdqbert.graphs.imported.fused_operators import decompose_fused_operators
from qdqbert.graphs.imported.layer_norm import fuse_layer_norms
from qdqbert.graphs.imported.node_builder import Build, Builder, replace_nodes

_WIDENED = {ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.DOUBLE}


def lift_constants(model: ir.Model) -> ir.Model:
    """Make each Constant an initializer, and return the result; `model` is changed, too."""
    lift = common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)
    return apply_passes(model, lift)


def _without_dropout(b: Builder) -> dict[int, ir.Value] | None:
    """Drop a Dropout, which does nothing in inference, unless its mask is read."""
    is_plain = not any(list(each.uses()) or each.is_graph_output() for each in b.node.outputs[1:])
    return {0: b("Identity", b.node.inputs[0])} if is_plain else None


def _with_float_mask(b: Builder) -> dict[int, ir.Value] | None:
    """Convert a bool mask that is added to scores to 0 and the lowest float.

    torch 2.13's dynamo exporter adds the bool mask itself at opset 23, which no runtime accepts.
    """
    terms = [
        b("Where", each, 0.0, float(np.finfo(np.float32).min))
        if each is not None and each.dtype == ir.DataType.BOOL
        else each
        for each in b.node.inputs
    ]
    return None if terms == list(b.node.inputs) else {0: b("Add", *terms)}


def _without_flatten(b: Builder) -> dict[int, ir.Value] | None:
    """Drop the reshapes around a Softmax over the last axis.

    Softmax of opset 11 flattens its input, and conversion to newer opsets writes this out.
    """
    softmax = producer_of(b.node.inputs[0], "Softmax")
    flatten = None if softmax is None else producer_of(softmax.inputs[0], "Flatten")
    source = None if flatten is None else flatten.inputs[0]
    if softmax is None or flatten is None or source is None:
        return None
    last = None if source.shape is None else len(source.shape) - 1
    is_over_last = flatten.attributes.get_int("axis", 1) in (-1, last)
    is_plain = is_over_last and softmax.attributes.get_int("axis", -1) == -1
    return {0: b("Softmax", source, axis=-1)} if is_plain else None


def _split_gemm(b: Builder) -> dict[int, ir.Value] | None:
    """Replace a Gemm of a constant weight with MatMul and Add."""
    x, weight, bias = b.inputs(3)
    array, attributes = constant_array(weight), b.attributes
    factors = {attributes.get_float(each, 1.0) for each in ("alpha", "beta")}
    is_plain = factors == {1.0} and not attributes.get_int("transA", 0)
    if array is None or not is_plain:
        return None
    product = b("MatMul", x, array.T if attributes.get_int("transB", 0) else array)
    return {0: product if bias is None else b("Add", product, bias)}


_PLAIN: Mapping[tuple[str, str], Build] = {
    ("", "Dropout"): _without_dropout,
    ("", "Add"): _with_float_mask,
    ("", "Reshape"): _without_flatten,
    ("", "Gemm"): _split_gemm,
}


def write_plainly(model: ir.Model) -> ir.Model:
    """Write what operators compute with fewer kinds of them, and return the result."""
    return replace_nodes(model, _PLAIN)


def widen_floats(model: ir.Model) -> ir.Model:
    """Make every float a float32: CPUs have no fast float16 kernels, and ranges are float32."""
    graph = model.graph
    for value in graph.initializers.values():
        if value.const_value is not None and value.const_value.dtype in _WIDENED:
            array = value.const_value.numpy().astype(np.float32)
            value.const_value = ir.tensor(array, name=value.name)
            value.dtype = ir.DataType.FLOAT
    for value in (*graph.inputs, *graph.outputs):
        if value.dtype in _WIDENED:
            value.dtype = ir.DataType.FLOAT
    for node in graph:
        for name, attribute in list(node.attributes.items()):
            if attribute.type == ir.AttributeType.TENSOR:
                tensor = attribute.as_tensor()
                if tensor.dtype in _WIDENED:
                    wide = ir.tensor(tensor.numpy().astype(np.float32))
                    node.attributes[name] = ir.AttrTensor(name, wide)
            elif (node.op_type, name) == ("Cast", "to") and attribute.as_int() in _WIDENED:
                node.attributes[name] = ir.AttrInt64(name, ir.DataType.FLOAT)
        for value in node.outputs:
            if value.dtype in _WIDENED:
                value.dtype = ir.DataType.FLOAT
    return model


def _folded_cast(b: Builder) -> dict[int, ir.Value] | None:
    source, kind = b.node.inputs[0], ir.DataType(b.attributes["to"].as_int())
    array = constant_array(source)
    if array is not None:
        return {0: b.constant(array.astype(kind.numpy()))}
    # Widening leaves casts from float32 to float32.
    is_same = source is not None and source.dtype == kind == ir.DataType.FLOAT
    return {0: b("Identity", source)} if is_same else None


def _folded_transpose(b: Builder) -> dict[int, ir.Value] | None:
    array = constant_array(b.node.inputs[0])
    axes = b.attributes["perm"].as_ints() if "perm" in b.attributes else None
    return None if array is None else {0: b.constant(array.transpose(axes))}


def fold_constants(model: ir.Model) -> ir.Model:
    """Compute each cast and each transpose of a constant, and return the result."""
    return replace_nodes(model, {("", "Cast"): _folded_cast, ("", "Transpose"): _folded_transpose})


REWRITES: tuple[Callable[[ir.Model], ir.Model], ...] = (
    lift_constants,
    write_plainly,
    decompose_fused_operators,
    widen_floats,
    fold_constants,
    fuse_layer_norms,
)


def find_shapes(model: ir.Model) -> ir.Model:
    """Infer shapes that were unknown behind fused operators, and return the result.

    OpenVINO needs the rank of each value, and onnx's checker the rank of each output.
    """
    if any(value.shape is None for node in model.graph for value in node.outputs):
        infer = common.ShapeInferencePass(check_type=False, strict_mode=False)
        model = apply_passes(model, infer)
    return model


def to_canonical_form(model: ir.Model) -> ir.Model:
    """Apply all rewrites in order and return the result; `model` is changed, too.

    The result is a copy that shares the weights. onnx_ir 1.1 keeps every value that ever was an
    input of a graph, which weights are while onnx converts a model and infers its shapes, so that
    replaced weights would stay in memory.
    """
    for rewrite in REWRITES:
        model = rewrite(model)
    return find_shapes(model).clone()
