"""Follow values of a graph back to the parts of an encoder, and compute what is between them.

Linear layers, attention matmuls, Softmax, LayerNormalization, and residual adds that several
nodes read are parts of an encoder. The nodes between them split heads, mask scores, apply an
activation function and so on. Exporters write these in many ways, so they are not matched node by
node: they are computed on an example, and the result is compared with the functions that are
possible.
"""

from __future__ import annotations

import collections
from collections.abc import Collection, Mapping

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from qdqbert.encoders.model import Linear, Norm, Rotary
from qdqbert.graphs.edit import bias_of, constant_array
from qdqbert.graphs.encoder.node_runner import NodeRunner
from qdqbert.graphs.encoder.probe import Array, Probe, make_probe
from qdqbert.graphs.encoder.refusal import refuse

_PARTS = ("MatMul", "Gemm", "Softmax", "LayerNormalization")
_ADDS = ("Add", "Sum")


class GraphView:
    """A graph, and its parts.

    Attributes:
        graph: The graph. It is not changed.
        fixed: Values that are computed from constants only.
        linear_layers: MatMul of each linear layer, by the layer's output.
        residual_sums: States that a residual add computes and several nodes read.
        ends: Outputs of all parts.
        probe: Several short texts, most of them padded.
        has_choices: Whether inputs are `(batch, choices, seq)`.
        ir_version: Version of the format.
        tokens: Length of all texts, if the graph fixes it.
    """

    def __init__(self, model: ir.Model) -> None:
        self.graph = model.graph
        self.fixed = _fixed_values(model.graph)
        self.linear_layers = _linear_layers(model.graph, self.fixed)
        self.residual_sums = _residual_sums(model.graph, self.linear_layers)
        parts = {
            value
            for node in model.graph
            if node.op_type in _PARTS and not node.domain
            for value in node.outputs
        }
        self.ends = parts.union(self.linear_layers, self.residual_sums) - self.fixed
        shapes = [value.shape for value in model.graph.inputs]
        self.has_choices = all(shape is not None and len(shape) == 3 for shape in shapes)
        last = shapes[0][-1] if shapes[0] else None
        self.tokens = last if isinstance(last, int) else None
        self.ir_version = model.ir_version
        self.rotations: list[Rotary] = []
        self._run = NodeRunner(model.opset_imports)
        self._long_probes: dict[int, Probe] = {}
        self.probe = make_probe(model.graph, texts=6, tokens=5)

    def long_probe(self, tokens: int) -> Probe:
        """Return one text with a number of tokens, the same in each call, without padding.

        Values that depend on nothing else are computed once.
        """
        if tokens not in self._long_probes:
            self._long_probes[tokens] = make_probe(self.graph, texts=1, tokens=tokens, padded=False)
        return self._long_probes[tokens]

    def before(
        self, value: ir.Value, ends: Collection[ir.Value] = (), *, through_shapes: bool = True
    ) -> list[ir.Value]:
        """Return a value and all values before it, nearest first.

        Values before `ends` are left out and, unless `through_shapes`, those of which only the
        shape is read.
        """
        found = dict.fromkeys([value])
        waiting = collections.deque(found)
        while waiting:
            current = waiting.popleft()
            node = None if current in ends else current.producer()
            if node is not None and (through_shapes or node.op_type != "Shape"):
                new = [each for each in node.inputs if each is not None and each not in found]
                found |= dict.fromkeys(new)
                waiting += dict.fromkeys(new)
        return list(found)

    def sources(self, value: ir.Value) -> tuple[ir.Value, ...]:
        """Return the outputs of the nearest parts of the encoder before a value, nearest first."""
        found = self.before(value, self.ends, through_shapes=False)
        return tuple(each for each in found if each in self.ends)

    def source(self, value: ir.Value, what: str) -> ir.Value:
        """Return the output of the only part in front of a value.

        Messages name the value as `what`, such as "the scores".

        Raises:
            GraphError: It is computed from several parts, or from none.
        """
        found = self.sources(value)
        if not found:
            raise refuse(value.producer(), f"does not compute {what} from states of the encoder")
        if len(found) > 1:
            parts = ", ".join(
                repr(node.name) for each in found if (node := each.producer()) is not None
            )
            raise refuse(value.producer(), f"computes {what} from several parts: {parts}")
        return found[0]

    def state(self, value: ir.Value, what: str) -> ir.Value:
        """Return the output of the part that a value is, apart from its shape and padding.

        Raises:
            GraphError: It is computed from several parts.
        """
        # The sum of the embeddings has no part before it.
        if value in self.ends or not self.sources(value):
            return value
        return self.source(value, what)

    def linear(self, end: ir.Value, module: str = "") -> tuple[Linear, ir.Value]:
        """Read the linear layer with a value as output; return it and the value that it reads."""
        matmul = self.linear_layers[end]
        matrix, source = constant_array(matmul.inputs[1]), matmul.inputs[0]
        assert matrix is not None
        assert source is not None
        weight = np.ascontiguousarray(matrix.T, np.float32)
        given = constant_array(bias_of(matmul, columns=len(weight))[0])
        bias = np.zeros(len(weight), np.float32) if given is None else given.astype(np.float32)
        return Linear(weight=weight, bias=bias, module=module), source

    def norm(self, node: ir.Node) -> tuple[Norm, ir.Value]:
        """Read a LayerNormalization, and return it and the value that it reads.

        Raises:
            GraphError: It has no constant weight.
        """
        source = node.inputs[0]
        assert source is not None
        weight = constant_array(node.inputs[1])
        given = node.inputs[2] if len(node.inputs) > 2 else None
        bias = constant_array(given)
        if weight is None or weight.ndim != 1 or (given is not None and bias is None):
            raise refuse(node, "has no constant weight and bias")
        norm = Norm(
            weight=weight.astype(np.float32),
            bias=np.zeros_like(weight, np.float32) if bias is None else bias.astype(np.float32),
            epsilon=node.attributes.get_float("epsilon", 1e-5),
        )
        return norm, source

    def evaluate(
        self,
        value: ir.Value,
        known: Mapping[ir.Value, Array] | None = None,
        probe: Probe | None = None,
    ) -> Array:
        """Compute a value.

        `known` has arrays of the parts that it is computed from. The inputs of the graph are those
        of a probe, `self.probe` by default.

        Raises:
            GraphError: A node cannot be computed.
        """
        return self._array(value, dict(known or {}), probe or self.probe)

    def _array(self, value: ir.Value, own: dict[ir.Value, Array], probe: Probe) -> Array:
        """Compute a value. Add all arrays to `own` that depend on it, and others to the probe."""
        for kept in (own, probe.arrays):
            if value in kept:
                return kept[value]
        node = value.producer()
        if node is None:
            array = constant_array(value)
            assert array is not None
            return array
        if value in self.ends:
            raise refuse(node, "is read where only shapes and masks are expected")
        inputs = [each for each in node.inputs if each is not None]
        if node.op_type == "Shape":
            (source,) = inputs
            shape = own[source].shape if source in own else self.shape(source, probe)
            first, last = node.attributes.get_int("start", 0), node.attributes.get_int("end", None)
            sizes = np.array(shape[first:last], np.int64)
            (own if source in own else probe.arrays)[value] = sizes
            return sizes
        given = [self._array(each, own, probe) for each in inputs]
        kept = own if any(each in own for each in inputs) else probe.arrays
        try:
            made = self._run(node, given)
        # onnx raises many classes, some of them not public.
        except Exception as error:
            raise refuse(node, f"cannot be computed on an example ({error})") from error
        kept.update(zip(node.outputs, made, strict=False))
        return kept[value]

    def shape(self, value: ir.Value, probe: Probe | None = None) -> tuple[int, ...]:
        """Return the shape of a value for the inputs of a probe.

        Raises:
            GraphError: It is not declared, and a node cannot be computed.
        """
        probe = probe or self.probe
        if value not in probe.shapes:
            # Each part needs the shapes of those just before it, and not of all.
            for node in self.graph:
                if node is value.producer():
                    break
                for end in self.ends.intersection(node.outputs):
                    self._shape(end, probe)
        return self._shape(value, probe)

    def _shape(self, value: ir.Value, probe: Probe) -> tuple[int, ...]:
        if value not in probe.shapes:
            probe.shapes[value] = self._find_shape(value, probe)
        return probe.shapes[value]

    def _find_shape(self, value: ir.Value, probe: Probe) -> tuple[int, ...]:
        """Return a shape that is not declared."""
        node = value.producer()
        # Tables may lack rows that a sum of embeddings would read.
        if node is None or (value not in self.ends and node.op_type not in _ADDS):
            ends = {end: self._shape(end, probe) for end in self.sources(value)}
            known = {end: np.zeros(shape, np.float32) for end, shape in ends.items()}
            return self.evaluate(value, known, probe).shape
        shapes = [self._shape(each, probe) for each in node.inputs if each is not None]
        if node.op_type == "MatMul":
            first, second = shapes
            return (*np.broadcast_shapes(first[:-2], second[:-2]), first[-2], second[-1])
        return np.broadcast_shapes(*shapes)


def numbered(shape: tuple[int, ...]) -> Array:
    """Return a float32 array of a shape, with elements 0, 1, 2 and so on."""
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


def terms_of(value: ir.Value) -> tuple[ir.Value, ...]:
    """Return the terms of the Add or Sum that computes a value; nothing for other values."""
    node = value.producer()
    if node is None or node.op_type not in _ADDS or node.domain:
        return ()
    return tuple(each for each in node.inputs if each is not None)


def _fixed_values(graph: ir.Graph) -> set[ir.Value]:
    """Return the values that are computed from constants only."""
    fixed: set[ir.Value] = set()
    for node in graph:
        inputs = [each for each in node.inputs if each is not None]
        if all(each in fixed or constant_array(each) is not None for each in inputs):
            fixed.update(node.outputs)
    return fixed


def _linear_layers(graph: ir.Graph, fixed: Collection[ir.Value]) -> dict[ir.Value, ir.Node]:
    """Return the MatMul of each linear layer, by the output of it or of the Add of its bias."""
    found = {}
    for node in graph:
        matrix: NDArray[np.generic] | None = None
        if node.op_type == "MatMul" and not node.domain:
            matrix = constant_array(node.inputs[1])
        if matrix is not None and matrix.ndim == 2:
            _, add = bias_of(node, columns=matrix.shape[1])
            end = (add or node).outputs[0]
            if end not in fixed:
                found[end] = node
    return found


def _residual_sums(graph: ir.Graph, linear_layers: Collection[ir.Value]) -> set[ir.Value]:
    """Return the sums of a linear layer's output and earlier states that several nodes read.

    In layers that normalize first, these are a LayerNorm and the next residual add. After BERT's
    residual adds, only a LayerNorm reads the sum.
    """
    found: set[ir.Value] = set()
    for node in graph:
        total = node.outputs[0]
        terms = terms_of(total)
        if len(terms) == 2 and total not in linear_layers:
            readers = {use.node for use in total.uses() if use.node.op_type != "Shape"}
            is_constant = any(constant_array(term) is not None for term in terms)
            adds_linear = any(term in linear_layers for term in terms)
            if len(readers) > 1 and adds_linear and not is_constant:
                found.add(total)
    return found
