"""Recognize LayerNorm and GELU by the values that they compute, and replace each with one node.

Exporters write LayerNorm with one subtraction or two, with Pow or Mul, Div or Reciprocal, with
casts, and, as TensorFlow does, with scale and shift folded together. A part of the graph that
returns LayerNorm's values for several random vectors is a LayerNorm.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from qdqbert.graph.edit import add_constant, only_consumer, replace, tidy
from qdqbert.graph.imported.arithmetic import COMPUTABLE, Array, compute, constant, find_region

# Width of the probe where the graph does not contain it.
_WIDTH = 64
# Tolerance for GELU: some exporters round constants such as the root of 2, others to float16.
_CLOSE = 3e-4


def fuse_layer_norms(model: ir.Model) -> ir.Model:
    """Replace each LayerNorm with one LayerNormalization, and return `model`."""
    for node in list(model.graph):
        if node.op_type == "ReduceMean" and not node.domain and node.graph is not None:
            assert node.inputs[0] is not None
            # Parallel blocks normalize one value twice.
            while _fuse_layer_norm(model.graph, node.inputs[0]):
                model = tidy(model)
                if node.graph is None:
                    break
    return tidy(model)


def _fuse_layer_norm(graph: ir.Graph, x: ir.Value) -> bool:
    nodes = find_region(x, COMPUTABLE)
    if not any(node.op_type == "ReduceMean" for node in nodes):
        return False
    probe = _probe(_width(x, nodes))
    try:
        values = compute(nodes, x, probe)
    except ValueError:
        return False
    found: dict[ir.Node, tuple[Array, Array, float]] = {}
    for node in nodes:
        fitted = _fit(probe, values[node.outputs[0]], nodes)
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
            add_constant(graph, f"{stem}.scale", _exact(scale, nodes).astype(np.float32)),
            add_constant(graph, f"{stem}.shift", shift.astype(np.float32)),
        ],
        {"axis": -1, "epsilon": epsilon},
        name=f"{stem}.layer_norm",
    )
    replace(graph, end, named, old=end.outputs[0])
    return True


def _probe(width: int) -> Array:
    """Return a row of zeros, which shows the shift, common values, and small ones for epsilon."""
    generator = np.random.default_rng(0)
    rows = generator.normal(size=(1, 10, width))
    scales = np.array([3, 3, 3, 3, 3, 3, 0.1, 0.01, 1e-3, 1e-4])[:, None]
    return np.concatenate([np.zeros((1, 1, width)), rows * scales + 0.2 * scales], axis=1)


def _fit(probe: Array, made: Array, nodes: list[ir.Node]) -> tuple[Array, Array, float] | None:
    """Return scale, shift and epsilon with which LayerNorm maps the probe to `made`, if any do."""
    if made.shape != probe.shape or not np.isfinite(made).all():
        return None
    shift = made[0, 0]
    centered = probe - probe.mean(axis=-1, keepdims=True)
    variance = (centered**2).mean(axis=-1, keepdims=True)
    for epsilon in _epsilons(nodes):
        with np.errstate(all="ignore"):
            normal = centered / np.sqrt(variance + epsilon)
        scale = np.median((made[0, 1:7] - shift) / normal[0, 1:7], axis=0)
        expected = normal[0, 1:] * scale + shift
        if np.allclose(made[0, 1:], expected, rtol=1e-4, atol=1e-5):
            return scale, shift, epsilon
    return None


def _exact(scale: Array, nodes: list[ir.Node]) -> Array:
    """Return the graph's constant that equals the measured scale, or the measured scale."""
    for node in nodes:
        for value in node.inputs:
            array = constant(value)
            if array is not None and array.size == scale.size and array.size > 1:
                flat = array.reshape(-1)
                if np.allclose(flat, scale, rtol=1e-4, atol=1e-5):
                    return flat
    return scale


def _width(x: ir.Value, nodes: list[ir.Node]) -> int:
    sizes = {
        array.shape[-1]
        for node in nodes
        for value in node.inputs
        if (array := constant(value)) is not None and array.ndim and array.shape[-1] > 1
    }
    if len(sizes) == 1:
        return int(sizes.pop())
    last = x.shape[-1] if x.shape is not None and len(x.shape) else None
    return last if isinstance(last, int) else _WIDTH


def _epsilons(nodes: list[ir.Node]) -> list[float]:
    """Return candidates for epsilon: positive constants of an Add, and 0."""
    found = [
        float(array.reshape(-1)[0])
        for node in nodes
        if node.op_type == "Add"
        for value in node.inputs
        if (array := constant(value)) is not None and array.size == 1
    ]
    return [*dict.fromkeys(each for each in found if each > 0), 0.0]


def _gelu(x: Array) -> Array:
    return np.array([value * 0.5 * (1 + math.erf(value / math.sqrt(2))) for value in x.flat])


def _tanh_gelu(x: Array) -> Array:
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    result: Array = 0.5 * x * (1 + np.tanh(inner))
    return result.reshape(-1)


_ACTIVATIONS: tuple[tuple[str, str, Callable[[Array], Array]], ...] = (
    ("Erf", "none", _gelu),
    ("Tanh", "tanh", _tanh_gelu),
)


def fuse_gelus(model: ir.Model) -> ir.Model:
    """Replace each GELU, exact or by tanh, with one Gelu, and return `model`."""
    for core, approximate, formula in _ACTIVATIONS:
        for node in list(model.graph):
            if node.op_type == core and not node.domain and node.graph is not None:
                _fuse_gelu(model.graph, node, approximate, formula)
    return tidy(model)


def _fuse_gelu(
    graph: ir.Graph, core: ir.Node, approximate: str, formula: Callable[[Array], Array]
) -> None:
    probe = np.linspace(-6, 6, 49)
    expected = formula(probe)
    elementwise = COMPUTABLE - {"ReduceMean", "ReduceSum"}
    for start in _before(core):
        nodes = find_region(start, elementwise)
        try:
            values = compute(nodes, start, probe)
        # A bias may differ from the probe in width.
        except ValueError:
            continue
        for node in nodes:
            made = values[node.outputs[0]]
            if made.shape == probe.shape and np.allclose(made, expected, atol=_CLOSE):
                stem = node.name or node.outputs[0].name or "gelu"
                named = ir.node("Gelu", [start], {"approximate": approximate}, name=f"{stem}.gelu")
                replace(graph, node, named, old=node.outputs[0])
                return


def _before(core: ir.Node) -> list[ir.Value]:
    """Return the possible inputs of a function around `core`, nearest first."""
    found: list[ir.Value] = []
    waiting = [core.inputs[0]]
    while waiting and len(found) < 12:
        value = waiting.pop(0)
        if value is None or value in found or constant(value) is not None:
            continue
        found.append(value)
        node = value.producer()
        if node is not None and node.op_type in COMPUTABLE and not node.domain:
            waiting += list(node.inputs)
    return found
