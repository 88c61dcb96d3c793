"""Convert a float32 graph to float16, and keep float32 where float16 would be wrong.

    every float32 constant and value        ->  float16
    an output of the graph                  ->  Cast to float32
    what is computed from an output         ->  float32: it reads that Cast
    an unknown head of an .onnx file        ->  float32, and all that is computed from it
    the length of a vector                  ->  float32, and all that is computed from it
    a sum over tokens, as in pooling        ->  float32, and all that is computed from it
    the lowest float32, as in a mask        ->  -32768

Inputs and integers keep their types. Pooling divides by 1e-9 where there are no tokens. A mask is
added to scores, so it leaves half of float16's range to them: a row of sums that are all -inf would
become NaN.

Refuses a constant that float16 cannot represent, a scale that it represents with an error above
1 %, and nodes that contain graphs.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnx_ir.passes import common

from qdqbert.common.errors import GraphError
from qdqbert.graphs.edit import add_constant, apply_passes, constant_array, tidy
from qdqbert.graphs.tail_nodes import TAIL

# Replaces the lowest float32. Its exponential is 0 in every float type.
MASK = np.float16(-32768)

_LOWEST = np.finfo(np.float32).min
_HIGHEST_HALF = float(np.finfo(np.float16).max)
_SCALE_ERROR = 0.01
_PAIR = ("QuantizeLinear", "DequantizeLinear")


def to_half_precision(model: ir.Model) -> ir.Model:
    """Apply the rewrite; change and return `model`.

    Raises:
        GraphError: The graph cannot be converted; see above.
    """
    for node in model.graph:
        if any(each.type == ir.AttributeType.GRAPH for each in node.attributes.values()):
            raise GraphError(
                f"Node `{node.name}` ({node.op_type}) contains a graph, which cannot be converted "
                "to float16. Use target 'portable'."
            )
    # The type of every value is needed.
    model = apply_passes(model, common.ShapeInferencePass())
    graph = model.graph
    kept = _kept_in_float(graph)
    nodes = list(graph)
    floats = {
        value for node in nodes for value in node.outputs if value.dtype == ir.DataType.FLOAT
    } | {value for value in graph.inputs if value.dtype == ir.DataType.FLOAT}
    _convert_constants(graph, kept)
    for node in nodes:
        if node not in kept:
            _convert_node(node)
    halves = {
        value for value in floats if value.producer() is not None and value.producer() not in kept
    }
    for value in halves:
        # Other values may share the type object, so it is replaced.
        value.type = ir.TensorType(ir.DataType.FLOAT16)
    for value in sorted(floats, key=lambda value: value.name or ""):
        _cast_readers(graph, value, kept, is_half=value in halves)
    return tidy(model)


def _kept_in_float(graph: ir.Graph) -> set[ir.Node]:
    """Return the nodes whose float32 values stay float32."""
    nodes = list(graph)
    # The nodes after an output, those of an unknown head, and the nodes that only these read.
    tail = {node for node in nodes if str(node.name).startswith(TAIL)}
    tail |= _descendants([*graph.outputs, *(value for node in tail for value in node.outputs)])
    for node in reversed(nodes):
        readers = [reader for value in node.outputs for reader in value.consumers()]
        is_output = any(value.is_graph_output() for value in node.outputs)
        if readers and not is_output and tail.issuperset(readers):
            tail.add(node)
    # Vectors of tokens are divided by their lengths, which are at least 1e-12.
    found = {node for node in nodes if node.op_type == "ReduceL2"} | _sums(nodes)
    return tail | found | _descendants(value for node in found for value in node.outputs)


def _sums(nodes: Iterable[ir.Node]) -> set[ir.Node]:
    """Return the sums of floats, with the products that they add and what these are weighed by."""
    found = {
        node
        for node in nodes
        if node.op_type == "ReduceSum" and node.outputs[0].dtype == ir.DataType.FLOAT
    }
    for kind in ("Mul", "Cast"):
        values = [value for node in found for value in node.inputs if value is not None]
        makers = (value.producer() for value in values)
        found |= {node for node in makers if node is not None and node.op_type == kind}
    return found


def _descendants(values: Iterable[ir.Value]) -> set[ir.Node]:
    found: set[ir.Node] = set()
    waiting = [node for value in values for node in value.consumers()]
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            waiting += [reader for value in node.outputs for reader in value.consumers()]
    return found


def _convert_constants(graph: ir.Graph, kept: set[ir.Node]) -> None:
    for value in list(graph.initializers.values()):
        array = constant_array(value)
        if array is None or array.dtype != np.float32:
            continue
        uses = [use for use in value.uses() if use.node not in kept]
        if not uses:
            continue
        is_scale = any(use.node.op_type in _PAIR and use.idx == 1 for use in uses)
        half = _half(value.name or "", array, is_scale=is_scale)
        if len(uses) == len(list(value.uses())) and not value.is_graph_output():
            value.const_value = ir.tensor(half, name=value.name)
            value.type = ir.TensorType(ir.DataType.FLOAT16)
            continue
        constant = add_constant(graph, f"{value.name}.half", half)
        for use in uses:
            use.node.replace_input_with(use.idx, constant)


def _half(name: str, stored: NDArray[np.generic], *, is_scale: bool) -> NDArray[np.float16]:
    """Return a constant in float16."""
    array = stored.astype(np.float32)
    too_large = np.isfinite(array) & (np.abs(array) > _HIGHEST_HALF)
    masks = array == _LOWEST
    if (too_large & ~masks).any():
        raise GraphError(
            f"Constant `{name}` contains {array[too_large & ~masks].flat[0]:.4g}, and float16 ends "
            f"at {_HIGHEST_HALF:.0f}. Use target 'portable', which stays in float32."
        )
    half: NDArray[np.float16] = np.where(masks, MASK, np.where(masks, 0, array).astype(np.float16))
    if is_scale:
        _check_scale(name, array, half)
    elif array.size == 1 and not half.any() and array.any():
        raise GraphError(
            f"Constant `{name}` is {array.flat[0]:.4g}, which becomes 0 in float16. Use target "
            "'portable', which stays in float32."
        )
    return half


def _check_scale(name: str, scale: NDArray[np.float32], half: NDArray[np.float16]) -> None:
    error = np.abs(half.astype(np.float64) / scale - 1)
    worst = int(np.argmax(error))
    if error.flat[worst] > _SCALE_ERROR:
        raise GraphError(
            f"Scale `{name}` is {scale.flat[worst]:.4g}, which becomes {half.flat[worst]:.4g} in "
            f"float16: an error above {_SCALE_ERROR:.0%}. Leave this tensor in float with "
            "`quant_disable_keyword`, or use target 'portable'."
        )


def _convert_node(node: ir.Node) -> None:
    """Change the float32 type in the attributes of a node to float16."""
    to = node.attributes.get("to")
    if node.op_type == "Cast" and to is not None and to.as_int() == ir.DataType.FLOAT:
        node.attributes["to"] = ir.AttrInt64("to", ir.DataType.FLOAT16)
    fill = node.attributes.get("value")
    if node.op_type in ("Constant", "ConstantOfShape") and fill is not None:
        array = fill.as_tensor().numpy()
        if array.dtype == np.float32:
            half = _half(node.outputs[0].name or "", array, is_scale=False)
            node.attributes["value"] = ir.AttrTensor("value", ir.tensor(half))


def _cast_readers(graph: ir.Graph, value: ir.Value, kept: set[ir.Node], *, is_half: bool) -> None:
    """Cast a value for readers of the other float type, and outputs of the graph to float32."""
    uses = [use for use in value.uses() if (use.node in kept) == is_half]
    is_output = is_half and value.is_graph_output()
    if not uses and not is_output:
        return
    to = ir.DataType.FLOAT if is_half else ir.DataType.FLOAT16
    cast = ir.node("Cast", [value], {"to": to}, name=f"{value.name}.cast")
    made = cast.outputs[0]
    made.shape, made.type = value.shape, ir.TensorType(to)
    producer = value.producer()
    if producer is None:
        graph.insert_before(next(iter(graph)), cast)
    else:
        graph.insert_after(producer, cast)
    if is_output:
        name = value.name
        for index, output in enumerate(graph.outputs):
            if output is value:
                graph.outputs[index] = made
        value.name, made.name = f"{name}.half", name
    else:
        made.name = f"{value.name}.{'float' if is_half else 'half'}"
    for use in uses:
        use.node.replace_input_with(use.idx, made)
