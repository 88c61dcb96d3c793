"""Rewrite an existing ONNX model into the canonical form that `graph.encoder` reads.

In canonical form constants are initializers, floats are float32, there is no Dropout,
onnxruntime's fused operators and ONNX's Attention are decomposed, a Gemm is a MatMul and an Add,
and LayerNorm is one node. The graph computes the same values as before.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir
from onnx.reference import ReferenceEvaluator
from onnx_ir.passes import common

from qdqbert.graph.edit import (
    add_constant,
    constant_array,
    only_consumer,
    producer_of,
    replace,
    tidy,
)
from qdqbert.graph.imported.fused_operators import decompose_fused_operators
from qdqbert.graph.imported.layer_norm import fuse_layer_norms

_WIDENED = {ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.DOUBLE}
_FOLDED = ("Cast", "Transpose")


def lift_constants(model: ir.Model) -> ir.Model:
    """Make each Constant an initializer, drop Identity and Dropout nodes, and return `model`.

    Dropout does nothing in inference.
    """
    for node in list(model.graph):
        if node.op_type == "Dropout" and not node.domain:
            plain = ir.node("Identity", [node.inputs[0]])
            replace(model.graph, node, plain, old=node.outputs[0])
    for step in (
        common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
        common.RemoveUnusedNodesPass(),
        common.IdentityEliminationPass(),
    ):
        model = step(model).model
    return model


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
    _drop_float_casts(model)
    return tidy(model)


def _drop_float_casts(model: ir.Model) -> None:
    """Drop casts from float32 to float32, which widening leaves."""
    for node in list(model.graph):
        source = node.inputs[0] if node.inputs else None
        if (
            node.op_type == "Cast"
            and source is not None
            and source.dtype == ir.DataType.FLOAT
            and ir.DataType(node.attributes["to"].as_int()) == ir.DataType.FLOAT
            and not node.outputs[0].is_graph_output()
        ):
            node.outputs[0].replace_all_uses_with(source)


def split_gemms(model: ir.Model) -> ir.Model:
    """Replace each Gemm of a constant weight with MatMul and Add, and return `model`."""
    graph = model.graph
    for node in list(graph):
        if node.op_type != "Gemm" or node.domain:
            continue
        weight = constant_array(node.inputs[1])
        flags = {name: attribute.value for name, attribute in node.attributes.items()}
        plain = flags.get("alpha", 1.0) == flags.get("beta", 1.0) == 1.0
        if weight is None or not plain or flags.get("transA", 0):
            continue
        stem = node.name or node.outputs[0].name or "gemm"
        if flags.get("transB", 0):
            weight = weight.T
        matmul = ir.node(
            "MatMul",
            [node.inputs[0], add_constant(graph, f"{stem}.weight", weight)],
            name=f"{stem}.matmul",
        )
        matmul.outputs[0].name = f"{stem}.product"
        if len(node.inputs) > 2 and node.inputs[2] is not None:
            added = ir.node("Add", [matmul.outputs[0], node.inputs[2]], name=f"{stem}.add")
            replace(graph, node, added, old=node.outputs[0], also=[matmul])
        else:
            replace(graph, node, matmul, old=node.outputs[0])
    return tidy(model)


def fold_constants(model: ir.Model) -> ir.Model:
    """Compute each cast and each transpose of a constant, and return `model`."""
    graph = model.graph
    for node in list(graph):
        source = node.inputs[0] if node.inputs else None
        array = constant_array(source)
        result = node.outputs[0]
        if node.op_type not in _FOLDED or node.domain or array is None or result.is_graph_output():
            continue
        assert source is not None
        evaluator = ReferenceEvaluator(
            ir.serde.serialize_node(node), opsets=dict(model.opset_imports)
        )
        (made,) = evaluator.run(None, {str(source.name): array})
        folded = add_constant(graph, f"{source.name}.folded", np.asarray(made))
        folded.shape, folded.type = result.shape, result.type
        result.replace_all_uses_with(folded)
    return tidy(model)


def convert_bool_masks(model: ir.Model) -> ir.Model:
    """Convert bool masks that are added to scores to 0 and the lowest float; return `model`.

    torch 2.13's dynamo exporter adds the bool mask itself at opset 23, which no runtime accepts.
    """
    graph = model.graph
    for node in list(graph):
        if node.op_type != "Add" or node.domain:
            continue
        for index, value in enumerate(node.inputs):
            if value is not None and value.dtype == ir.DataType.BOOL:
                stem = node.name or node.outputs[0].name or "mask"
                ends = [
                    add_constant(graph, f"{stem}.{name}", np.array(number, np.float32))
                    for name, number in (("text", 0.0), ("padding", np.finfo(np.float32).min))
                ]
                added = ir.node("Where", [value, *ends], name=f"{stem}.mask")
                graph.insert_before(node, added)
                node.replace_input_with(index, added.outputs[0])
    return model


def unflatten_softmaxes(model: ir.Model) -> ir.Model:
    """Drop the reshapes around a Softmax over the last axis, and return `model`.

    Softmax of opset 11 flattens its input, and conversion to newer opsets writes this out.
    """
    for node in list(model.graph):
        flatten = producer_of(node.inputs[0], "Flatten") if node.op_type == "Softmax" else None
        if flatten is None or node.domain or node.attributes["axis"].as_int() != -1:
            continue
        source, back = flatten.inputs[0], only_consumer(node.outputs[0])
        rank = None if source is None or source.shape is None else len(source.shape)
        axis = flatten.attributes.get_int("axis", 1)
        if back is None or back.op_type != "Reshape" or axis not in (-1, rank and rank - 1):
            continue
        plain = ir.node("Softmax", [source], {"axis": -1}, name=node.name)
        replace(model.graph, back, plain, old=back.outputs[0])
    return tidy(model)


REWRITES: tuple[Callable[[ir.Model], ir.Model], ...] = (
    lift_constants,
    convert_bool_masks,
    decompose_fused_operators,
    unflatten_softmaxes,
    widen_floats,
    split_gemms,
    fold_constants,
    fuse_layer_norms,
)


def find_shapes(model: ir.Model) -> ir.Model:
    """Infer shapes that were unknown behind fused operators, and return the result.

    OpenVINO needs the rank of each value, and onnx's checker the rank of each output.
    """
    if any(value.shape is None for node in model.graph for value in node.outputs):
        infer = common.ShapeInferencePass(check_type=False, strict_mode=False)
        model = infer(model).model
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
