"""Recognize LayerNorm by the values that it computes, and replace each with one node.

Exporters write LayerNorm with one subtraction or two, with Pow or Mul, Div or Reciprocal, with
casts, and, as TensorFlow does, with scale and shift folded together. A part of the graph that
returns LayerNorm's values for several random vectors is a LayerNorm.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from qdqbert.graphs.edit import add_constant, constant_array, only_consumer, replace, tidy
from qdqbert.graphs.encoder.node_runner import NodeRunner

Array = NDArray[np.float64]

# Operators that exporters write it with.
_OPERATORS = frozenset(
    {
        *("Add", "Sub", "Mul", "Div", "Pow", "Sqrt", "Reciprocal", "Neg", "Cast"),
        *("ReduceMean", "ReduceSum"),
    }
)
# LayerNorm needs far fewer nodes.
_LARGEST_REGION = 40
# Width of the probe where the graph does not contain it.
_WIDTH = 64


def fuse_layer_norms(model: ir.Model) -> ir.Model:
    """Replace each LayerNorm with one LayerNormalization, and return `model`."""
    for node in list(model.graph):
        if node.op_type == "ReduceMean" and not node.domain and node.graph is not None:
            assert node.inputs[0] is not None
            # Parallel blocks normalize one value twice.
            while _fuse_layer_norm(model, node.inputs[0]):
                model = tidy(model)
                if node.graph is None:
                    break
    return tidy(model)


def _fuse_layer_norm(model: ir.Model, x: ir.Value) -> bool:
    nodes = _find_region(x)
    if not any(node.op_type == "ReduceMean" for node in nodes):
        return False
    constants = [
        array.astype(np.float64)
        for node in nodes
        for value in node.inputs
        if (array := constant_array(value)) is not None and array.dtype.kind == "f"
    ]
    probe = _probe(_width(x, constants))
    try:
        values = _compute(nodes, x, probe.astype(np.float32), NodeRunner(model.opset_imports))
    # onnx raises many classes, some of them not public.
    except Exception:
        return False
    found: dict[ir.Node, tuple[Array, Array, float]] = {}
    for node in nodes:
        fitted = _fit(probe, values[node.outputs[0]], constants)
        if fitted is not None:
            found[node] = fitted
    if not found:
        return False
    end = next(iter(found))
    # Scale and shift belong to it, unless other nodes read the value before them.
    while (reader := only_consumer(end.outputs[0])) is not None and reader in found:
        end = reader
    scale, shift, epsilon = found[end]
    stem = end.name or end.outputs[0].name or "layer_norm"
    named = ir.node(
        "LayerNormalization",
        [
            x,
            add_constant(model.graph, f"{stem}.scale", _exact(scale, constants).astype(np.float32)),
            add_constant(model.graph, f"{stem}.shift", shift.astype(np.float32)),
        ],
        {"axis": -1, "epsilon": epsilon},
        name=f"{stem}.layer_norm",
    )
    replace(model.graph, end, named, old=end.outputs[0])
    return True


def _find_region(start: ir.Value) -> list[ir.Node]:
    """Return the nodes that read only a value, constants and each other, in topological order."""
    inside: set[ir.Value] = {start}
    found: list[ir.Node] = []
    waiting = [use.node for use in start.uses()]
    while waiting and len(found) < _LARGEST_REGION:
        node = waiting.pop(0)
        if node in found or node.op_type not in _OPERATORS or node.domain:
            continue
        # A node that reads something else is visited again once its last input is inside.
        if all(each in inside or constant_array(each) is not None for each in node.inputs if each):
            found.append(node)
            inside.add(node.outputs[0])
            waiting += [use.node for use in node.outputs[0].uses()]
    return found


def _compute(
    nodes: Collection[ir.Node], start: ir.Value, x: NDArray[np.float32], run: NodeRunner
) -> dict[ir.Value, NDArray[Any]]:
    """Compute the outputs of nodes, given the content of the value that they start from."""
    known: dict[ir.Value, NDArray[Any]] = {start: x}
    for node in nodes:
        arrays = (known.get(each, constant_array(each)) for each in node.inputs if each is not None)
        (known[node.outputs[0]],) = run(node, [each for each in arrays if each is not None])
    return known


def _probe(width: int) -> Array:
    """Return a row of zeros, which shows the shift, common values, and small ones for epsilon."""
    generator = np.random.default_rng(0)
    rows = generator.normal(size=(1, 10, width))
    scales = np.array([3, 3, 3, 3, 3, 3, 0.1, 0.01, 1e-3, 1e-4])[:, None]
    return np.concatenate([np.zeros((1, 1, width)), rows * scales + 0.2 * scales], axis=1)


def _fit(
    probe: Array, made: Array, constants: Collection[Array]
) -> tuple[Array, Array, float] | None:
    """Return scale, shift and epsilon with which LayerNorm maps the probe to `made`, if any do."""
    if made.shape != probe.shape or not np.isfinite(made).all():
        return None
    shift = made[0, 0]
    centered = probe - probe.mean(axis=-1, keepdims=True)
    variance = (centered**2).mean(axis=-1, keepdims=True)
    numbers = [float(each.flat[0]) for each in constants if each.size == 1]
    for epsilon in (*dict.fromkeys(each for each in numbers if each > 0), 0.0):
        with np.errstate(all="ignore"):
            normal = centered / np.sqrt(variance + epsilon)
        scale = np.median((made[0, 1:7] - shift) / normal[0, 1:7], axis=0)
        expected = normal[0, 1:] * scale + shift
        if np.allclose(made[0, 1:], expected, rtol=1e-4, atol=1e-5):
            return scale, shift, epsilon
    return None


def _exact(scale: Array, constants: Collection[Array]) -> Array:
    """Return the graph's constant that equals the measured scale, or the measured scale."""
    for array in constants:
        if array.size == scale.size > 1 and np.allclose(array.ravel(), scale, rtol=1e-4, atol=1e-5):
            return array.ravel()
    return scale


def _width(x: ir.Value, constants: Collection[Array]) -> int:
    sizes = {each.shape[-1] for each in constants if each.ndim and each.shape[-1] > 1}
    if len(sizes) == 1:
        return int(sizes.pop())
    last = x.shape[-1] if x.shape is not None and len(x.shape) else None
    return last if isinstance(last, int) else _WIDTH
