"""Build small ONNX graphs: nodes with names that are unique in a model, also in nested graphs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import onnx_ir as ir

EXTENSIONS = "ai.onnx.contrib"
"""Domain of the operators of onnxruntime-extensions."""


class Nodes:
    """The nodes of a graph that is being built, in order.

    Attributes:
        nodes: The nodes so far.
    """

    def __init__(self, numbers: Iterator[int]) -> None:
        """Start a graph.

        Args:
            numbers: Numbers that make names unique, the same iterator for all parts of a model.
        """
        self.nodes: list[ir.Node] = []
        self._numbers = numbers

    def add(
        self, op_type: str, *inputs: ir.Value | None, domain: str = "", **attributes: object
    ) -> ir.Value:
        """Add a node, and return its first output.

        Args:
            op_type: The operator.
            inputs: Its inputs.
            domain: Domain of the operator.
            attributes: Its attributes.
        """
        return self.add_all(op_type, *inputs, count=1, domain=domain, **attributes)[0]

    def add_all(
        self,
        op_type: str,
        *inputs: ir.Value | None,
        count: int,
        domain: str = "",
        **attributes: object,
    ) -> Sequence[ir.Value]:
        """Add a node, and return all of its `count` outputs; see `add`."""
        outputs = [self.value() for _ in range(count)]
        node = ir.node(
            op_type,
            inputs,
            attributes=attributes,  # type: ignore[arg-type]
            domain=domain,
            outputs=outputs,
            name=f"text_{next(self._numbers)}",
        )
        self.nodes.append(node)
        return outputs

    def value(self) -> ir.Value:
        """Return a new value with a name of its own."""
        return ir.Value(name=f"text_{next(self._numbers)}")

    def integers(self, *values: int) -> ir.Value:
        """Return a constant `(len(values),)`, int64."""
        return self.add("Constant", value_ints=list(values))

    def strings(self, *values: str) -> ir.Value:
        """Return a constant `(len(values),)` of strings."""
        return self.add("Constant", value_strings=list(values))

    def slice(self, value: ir.Value, start: ir.Value, end: ir.Value, axis: int = 0) -> ir.Value:
        """Return a part of an axis; `start` and `end` are `(1,)`, int64."""
        return self.add("Slice", value, start, end, self.integers(axis))

    def matches(self, text: ir.Value, pattern: str) -> ir.Value:
        """Return whether a text `(1,)` matches a regular expression as a whole, as a scalar."""
        found = self.add("RegexFullMatch", text, pattern=pattern)
        return self.add("Squeeze", found, self.integers(0))

    def replace(self, text: ir.Value, pattern: str, replacement: str) -> ir.Value:
        """Replace all matches of a regular expression of RE2 in a text `(1,)`."""
        return self.add(
            "StringRegexReplace",
            text,
            self.strings(pattern),
            self.strings(replacement),
            domain=EXTENSIONS,
            global_replace=1,
        )

    def where(
        self,
        condition: ir.Value,
        then: Callable[[Nodes], ir.Value],
        otherwise: Callable[[Nodes], ir.Value],
    ) -> ir.Value:
        """Compute one of two values.

        Args:
            condition: A scalar, bool.
            then: Adds the nodes of the value if `condition` is true.
            otherwise: Adds those of the other value.
        """
        graphs = [self._branch(build) for build in (then, otherwise)]
        return self.add("If", condition, then_branch=graphs[0], else_branch=graphs[1])

    def nested(self) -> Nodes:
        """Return the start of a nested graph."""
        return Nodes(self._numbers)

    def _branch(self, build: Callable[[Nodes], ir.Value]) -> ir.Graph:
        inner = self.nested()
        # The value can be one of the outer graph, which cannot be an output itself.
        output = inner.add("Identity", build(inner))
        return ir.Graph([], [output], nodes=inner.nodes, name=f"text_{next(self._numbers)}")


AddTokenizer = Callable[[Nodes, ir.Value], ir.Value]
"""Adds the nodes that turn a text `(1,)` into ids without special tokens, `(tokens,)`, int64."""
