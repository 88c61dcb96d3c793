"""Follow values of a graph back to the parts of an encoder, and mark nodes as read.

Linear layers, attention matmuls, Softmax, LayerNormalization, and residual adds that several
nodes read are parts of an encoder. The nodes between them split heads, mask scores, apply an
activation function and so on. Exporters write these in many ways, so they are not matched node by
node: they are computed on an example, and the result is compared with the functions that are
possible.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import numpy as np
import onnx_ir as ir
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from qdqbert.graph.edit import constant_array
from qdqbert.graph.encoder.functions import ACTIVATIONS, erf
from qdqbert.graph.encoder.linear_layers import LinearNodes, linear_ends, read_linear
from qdqbert.graph.encoder.probe import Array, Probe, make_probe
from qdqbert.graph.encoder.refusal import refuse
from qdqbert.graph.encoder.residuals import residual_sums

_PARTS = ("MatMul", "Gemm", "Softmax", "LayerNormalization")
# Operators whose output has the shape of their first input.
_KEEPS_SHAPE = (
    *("LayerNormalization", "Softmax"),
    *("Cast", "Identity", "Gelu", "Erf", "Tanh", "Relu", "Sigmoid", "Sqrt", "Neg"),
)
_BROADCASTS = ("Add", "Sub", "Mul", "Div", "Pow", "Sum")


class Gelu(OpRun):
    """GELU, which onnx's evaluator does not have."""

    op_domain = ""

    def _run(self, x: Array, approximate: str) -> tuple[Array]:
        function = ACTIVATIONS["gelu_tanh" if approximate == "tanh" else "gelu"]
        return (function(x.astype(np.float64)).astype(x.dtype),)


class Erf(OpRun):
    """Erf, which onnx's evaluator computes an element at a time."""

    op_domain = ""

    def _run(self, x: Array) -> tuple[Array]:
        return (erf(x),)


class GatherElements(OpRun):
    """GatherElements, which onnx's evaluator computes for small tensors only."""

    op_domain = ""

    def _run(self, data: Array, indices: Array, axis: int) -> tuple[Array]:
        return (np.take_along_axis(data, indices, axis),)


class GraphView:
    """A graph, and which of its nodes have been read.

    Attributes:
        graph: The graph. It is not changed.
        linear_layers: MatMul of each linear layer, by the layer's output.
        residual_sums: States that a residual add computes and several nodes read.
        fixed: Values that are computed from constants only.
        probe: Several short texts, most of them padded.
        has_choices: Whether inputs are `(batch, choices, seq)`.
        ir_version: Version of the format.
        tokens: Length of all texts, if the graph fixes it.
    """

    def __init__(self, model: ir.Model) -> None:
        self.graph = model.graph
        self.fixed = _fixed_values(model.graph)
        ends = linear_ends(model.graph)
        self.linear_layers = {end: node for end, node in ends.items() if end not in self.fixed}
        self.residual_sums = residual_sums(model.graph, self.linear_layers)
        shapes = [value.shape for value in model.graph.inputs]
        self.has_choices = all(shape is not None and len(shape) == 3 for shape in shapes)
        last = shapes[0][-1] if shapes[0] else None
        self.tokens = last if isinstance(last, int) else None
        self._opsets = dict(model.opset_imports)
        self.ir_version = model.ir_version
        self._read: set[ir.Node] = set()
        self._evaluators: dict[ir.Node, ReferenceEvaluator] = {}
        self._long_probes: dict[int, Probe] = {}
        self.probe = self.make_probe(texts=6, tokens=5)

    def make_probe(
        self, *, texts: int, tokens: int, padded: bool = True, ids: Array | None = None
    ) -> Probe:
        """Return random inputs of the graph; see `probe.make_probe`."""
        return make_probe(self.graph.inputs, texts=texts, tokens=tokens, padded=padded, ids=ids)

    def long_probe(self, tokens: int) -> Probe:
        """Return one text with a number of tokens, the same in each call, without padding.

        Values that depend on nothing else are computed once.
        """
        if tokens not in self._long_probes:
            self._long_probes[tokens] = self.make_probe(texts=1, tokens=tokens, padded=False)
        return self._long_probes[tokens]

    def mark_read(self, *nodes: ir.Node) -> None:
        """Remember that nodes have been read."""
        self._read.update(nodes)

    def before(self, value: ir.Value, ends: Collection[ir.Value] = ()) -> set[ir.Value]:
        """Return a value and all values before it, back to some values, which are included."""
        waiting, seen = [value], {value}
        while waiting:
            current = waiting.pop()
            node = None if current in ends else current.producer()
            inputs = () if node is None else node.inputs
            new = {each for each in inputs if each is not None} - seen
            waiting += new
            seen |= new
        return seen

    def check_all_read(self) -> None:
        """Refuse the graph if a node has not been read.

        Raises:
            GraphError: There is one.
        """
        for node in self.graph:
            if node not in self._read:
                raise refuse(node, "is not part of the encoder or of a head")

    def linear(self, end: ir.Value) -> LinearNodes:
        """Read the linear layer that a value is the output of."""
        found = read_linear(self.linear_layers[end])
        self.mark_read(*found.nodes)
        return found

    def is_end(self, value: ir.Value) -> bool:
        """Return whether a value is the output of a part of the encoder."""
        node = value.producer()
        if value in self.fixed:
            return False
        is_part = node is not None and node.op_type in _PARTS and not node.domain
        return is_part or value in self.linear_layers or value in self.residual_sums

    def sources(self, value: ir.Value, *, mark: bool = True) -> tuple[ir.Value, ...]:
        """Return the outputs of the nearest parts of the encoder before a value, nearest first.

        Args:
            value: The value.
            mark: Whether to mark the nodes in between as read. They include those that only a Shape
                node reads, which lead to no source.
        """
        sources: dict[ir.Value, None] = {}
        nodes: list[ir.Node] = []
        # Values, and whether only their shape matters.
        waiting: list[tuple[ir.Value | None, bool]] = [(value, False)]
        seen: set[tuple[ir.Value, bool]] = set()
        while waiting:
            current, for_shape = waiting.pop(0)
            if current is None or (current, for_shape) in seen:
                continue
            seen.add((current, for_shape))
            node = current.producer()
            if self.is_end(current):
                if not for_shape:
                    sources[current] = None
            elif node is not None:
                nodes.append(node)
                for_shape = for_shape or node.op_type == "Shape"
                waiting += [(each, for_shape) for each in node.inputs]
        if mark:
            self.mark_read(*nodes)
        return tuple(sources)

    def source(self, value: ir.Value, what: str) -> ir.Value:
        """Return the output of the only part in front of a value.

        Args:
            value: The value.
            what: Its name for messages, such as "the scores".

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
        """Return the output of a part that equals a value, apart from its shape and padding.

        Args:
            value: The value.
            what: Its name for messages.

        Raises:
            GraphError: There is a computation in between.
        """
        # The sum of the embeddings has no part before it.
        if self.is_end(value) or not self.sources(value, mark=False):
            return value
        source = self.source(value, what)
        x = numbered(self.shape(source))
        made = self.evaluate(value, {source: x})
        # XLM multiplies by the mask.
        is_of_tokens = x.shape[:2] == self.probe.is_text.shape and made.size == x.size
        kept = self.probe.is_text if is_of_tokens else ...
        if made.size != x.size or not np.array_equal(made.reshape(x.shape)[kept], x[kept]):
            raise refuse(value.producer(), f"changes {what}")
        return source

    def depends_on(self, value: ir.Value, earlier: ir.Value) -> bool:
        """Return whether a value is computed from another one."""
        return value is not earlier and earlier in self.before(value, {earlier})

    def inputs_beside(self, value: ir.Value, earlier: ir.Value) -> frozenset[ir.Value]:
        """Return the other inputs on the paths from an earlier value to a value.

        Constants do not count, nor the inputs of these inputs.
        """
        found: set[ir.Value] = set()
        waiting, seen = [value], {value}
        while waiting:
            node = waiting.pop().producer()
            for each in () if node is None else node.inputs:
                if each is None or each in seen or each is earlier:
                    continue
                seen.add(each)
                if self.depends_on(each, earlier):
                    waiting.append(each)
                elif constant_array(each) is None:
                    found.add(each)
        return frozenset(found)

    def evaluate(
        self,
        value: ir.Value,
        known: Mapping[ir.Value, Array] | None = None,
        probe: Probe | None = None,
    ) -> Array:
        """Compute a value.

        Args:
            value: The value.
            known: Arrays of the parts that it is computed from.
            probe: Inputs of the graph; `self.probe` by default.

        Raises:
            GraphError: A node cannot be computed.
        """
        run = _Evaluation(self, probe or self.probe, known or {})
        with np.errstate(all="ignore"):
            return run.array(value)

    def shape(self, value: ir.Value, probe: Probe | None = None) -> tuple[int, ...]:
        """Return the shape of a value for the inputs of a probe.

        Raises:
            GraphError: It is not declared, and a node cannot be computed.
        """
        probe = probe or self.probe
        if probe.resolve(value.shape) is None and value not in probe.shapes:
            # Each part needs the shapes of those just before it, and not of all.
            for end in self._ends_before(value):
                self._known_shape(end, probe)
        return self._known_shape(value, probe)

    def _ends_before(self, value: ir.Value) -> Iterator[ir.Value]:
        """Yield the outputs of the parts before a value, in the order of the graph."""
        for node in self.graph:
            if node is value.producer():
                return
            yield from filter(self.is_end, node.outputs)

    def _known_shape(self, value: ir.Value, probe: Probe) -> tuple[int, ...]:
        if value not in probe.shapes:
            probe.shapes[value] = self._find_shape(value, probe)
        return probe.shapes[value]

    def _find_shape(self, value: ir.Value, probe: Probe) -> tuple[int, ...]:
        if value.is_graph_input() or constant_array(value) is not None:
            return self.evaluate(value, probe=probe).shape
        declared = probe.resolve(value.shape)
        if declared is not None:
            return declared
        node = value.producer()
        assert node is not None
        inputs = [each for each in node.inputs if each is not None]
        if node.op_type in _KEEPS_SHAPE:
            return self._known_shape(inputs[0], probe)
        if node.op_type in _BROADCASTS:
            return np.broadcast_shapes(*(self._known_shape(each, probe) for each in inputs))
        if node.op_type == "MatMul":
            first, second = (self._known_shape(each, probe) for each in inputs)
            return (*np.broadcast_shapes(first[:-2], second[:-2]), first[-2], second[-1])
        ends = self.sources(value, mark=False)
        return self.evaluate(
            value, {end: np.zeros(self._known_shape(end, probe), np.float32) for end in ends}, probe
        ).shape

    def evaluator(self, node: ir.Node) -> ReferenceEvaluator:
        """Return an evaluator of a node."""
        if node not in self._evaluators:
            proto = ir.serde.serialize_node(node)
            self._evaluators[node] = ReferenceEvaluator(
                proto, opsets=self._opsets, new_ops=[Erf, Gelu, GatherElements]
            )
        return self._evaluators[node]


def numbered(shape: tuple[int, ...]) -> Array:
    """Return a float32 array of a shape, with elements 0, 1, 2 and so on."""
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


def _fixed_values(graph: ir.Graph) -> set[ir.Value]:
    """Return the values that are computed from constants only."""
    fixed: set[ir.Value] = set()
    for node in graph:
        inputs = [each for each in node.inputs if each is not None]
        if all(each in fixed or constant_array(each) is not None for each in inputs):
            fixed.update(node.outputs)
    return fixed


class _Evaluation:
    """Arrays of values for one probe.

    Args:
        view: The graph.
        probe: The inputs.
        known: Arrays of parts of the encoder.
    """

    def __init__(self, view: GraphView, probe: Probe, known: Mapping[ir.Value, Array]) -> None:
        self._view, self._probe = view, probe
        # Those that depend on `known`. The probe keeps the other ones.
        self._arrays = dict(known)

    def array(self, value: ir.Value) -> Array:
        for kept in (self._arrays, self._probe.arrays):
            if value in kept:
                return kept[value]
        if value.is_graph_input():
            return self._probe.inputs[str(value.name)]
        constant = constant_array(value)
        if constant is not None:
            return constant
        node = value.producer()
        assert node is not None
        if self._view.is_end(value):
            raise refuse(node, "is read where only shapes and masks are expected")
        if node.op_type == "Shape":
            assert node.inputs[0] is not None
            start, end = node.attributes.get_int("start", 0), node.attributes.get_int("end", None)
            sizes = np.array(self._shape(node.inputs[0])[start:end], np.int64)
            # An array in `known` may have given the shape.
            self._arrays[value] = sizes
            return sizes
        return self._compute(node)[value]

    def _compute(self, node: ir.Node) -> dict[ir.Value, Array]:
        inputs = {str(each.name): self.array(each) for each in node.inputs if each is not None}
        try:
            made = self._view.evaluator(node).run(None, inputs)
        # onnx raises many classes, some of them not public.
        except Exception as error:
            raise refuse(node, f"cannot be computed on an example ({error})") from error
        depends = any(each in self._arrays for each in node.inputs if each is not None)
        kept = self._arrays if depends else self._probe.arrays
        kept.update(zip(node.outputs, map(np.asarray, made), strict=False))
        return kept

    def _shape(self, value: ir.Value) -> tuple[int, ...]:
        if value in self._arrays:
            return tuple(self._arrays[value].shape)
        return self._view.shape(value, self._probe)
