"""Replace nodes of a graph with others, which a function makes of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnx_ir.passes import common

from qdqbert.common.errors import UserInputError
from qdqbert.graphs.edit import add_constant, apply_passes, tidy


class Builder:
    """Inserts the nodes that replace a node in front of it."""

    def __init__(self, graph: ir.Graph, node: ir.Node) -> None:
        self.node, self.attributes = node, node.attributes
        self._graph = graph
        self._stem = node.name or node.outputs[0].name or node.op_type
        self._count = 0

    def __call__(
        self,
        op_type: str,
        *inputs: ir.Value | NDArray[Any] | list[int] | float | None,
        **attributes: Any,
    ) -> ir.Value:
        """Insert a node and return its output.

        Its inputs are values and constants: arrays, floats as float32, and integers as int64.
        """
        values = [
            each if each is None or isinstance(each, ir.Value) else self.constant(each)
            for each in inputs
        ]
        made = ir.node(op_type, values, attributes, name=self._name(op_type))
        made.outputs[0].name = made.name
        self._graph.insert_before(self.node, made)
        return made.outputs[0]

    def constant(self, given: NDArray[Any] | list[int] | float) -> ir.Value:
        """Return a new initializer; see `__call__`."""
        array = np.asarray(given, np.float32 if isinstance(given, float) else None)
        return add_constant(self._graph, self._name("constant"), array)

    def inputs(self, count: int) -> list[ir.Value | None]:
        """Return the inputs of the node, `None` where they are missing.

        Raises:
            UserInputError: It has more than `count`, such as caches.
        """
        given = [*self.node.inputs, *[None] * count]
        for index, each in enumerate(given[count:], count):
            if each is not None:
                raise self._unusual(f"input {index}")
        return given[:count]

    def refuse_attributes(self, *names: str) -> None:
        """Refuse attributes that no encoder has.

        Raises:
            UserInputError: The node has one of them.
        """
        for name in names:
            if name in self.attributes and self.attributes[name].value:
                raise self._unusual(f"`{name}`")

    def _name(self, what: str) -> str:
        self._count += 1
        return f"{self._stem}.{what.lower()}_{self._count}"

    def _unusual(self, what: str) -> UserInputError:
        return UserInputError(
            f"Node {self.node.name!r} ({self.node.op_type}) has {what}, which graphs of encoders "
            "do not have. Export the graph again without fusing it."
        )


Build = Callable[[Builder], Mapping[int, ir.Value] | None]
"""Returns the values that replace outputs of a node, by index; `None` if the node stays."""


def replace_nodes(model: ir.Model, builds: Mapping[tuple[str, str], Build]) -> ir.Model:
    """Replace nodes by other ones, drop Identity nodes, and return the result.

    `builds` says what to do with a node, by its domain and type. The graph is changed in place.

    Raises:
        UserInputError: An output of a node is read, and no value replaces it.
    """
    for node in list(model.graph):
        build = builds.get((node.domain, node.op_type))
        made = None if build is None else build(Builder(model.graph, node))
        for index, old in enumerate(node.outputs if made is not None else ()):
            assert made is not None
            if index in made:
                new, name = made[index], old.name
                new.shape, new.type = old.shape or new.shape, old.type or new.type
                old.replace_all_uses_with(new, replace_graph_outputs=True)
                old.name, new.name = f"{name}_before", name
            elif list(old.uses()) or old.is_graph_output():
                raise UserInputError(
                    f"Output {index} of node {node.name!r} ({node.op_type}) is used, which is not "
                    "supported. Export the graph again without fusing it."
                )
    return apply_passes(tidy(model), common.IdentityEliminationPass())
