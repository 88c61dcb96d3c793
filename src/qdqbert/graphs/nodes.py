"""Collect the nodes and constants of a graph that is written node by node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

Array = NDArray[Any]

# Equal arrays below this size are one constant.
_SMALL_BYTES = 1024


class Nodes:
    """The nodes and constants of a graph.

    Attributes:
        graph: The graph. It has no outputs yet.
        values: Its values by name.
    """

    def __init__(self, inputs: Sequence[ir.Value], opset: int) -> None:
        self.graph = ir.Graph(inputs, [], nodes=[], opset_imports={"": opset}, name="qdqbert")
        self.values = {str(value.name): value for value in inputs}
        self._constants: dict[object, tuple[str, Array]] = {}
        self._made: dict[str, list[str]] = {}

    def __call__(
        self,
        operator: str,
        *inputs: str | Array | np.float32,
        name: str = "",
        domain: str = "",
        output: tuple[ir.DataType, Sequence[int | str | None]] | None = None,
        **attributes: Any,
    ) -> str:
        """Add a node, and return the name of its output. Arrays are constants.

        A name is that of the node and of its output; by default one is made. `output` is the type
        and shape of the output, where shape inference does not know them.
        """
        (made,) = self.several(operator, *inputs, count=1, name=name, domain=domain, **attributes)
        if output is not None:
            self.values[made].dtype, self.values[made].shape = output[0], ir.Shape(output[1])
        return made

    def several(
        self,
        operator: str,
        *inputs: str | Array | np.float32,
        count: int,
        name: str = "",
        domain: str = "",
        **attributes: Any,
    ) -> list[str]:
        """Add a node, and return the names of its outputs. Equal nodes are one."""
        names = [each if isinstance(each, str) else self.constant(each) for each in inputs]
        key = repr((operator, names, name, sorted(attributes.items())))
        if key not in self._made:
            name = name or f"{operator.lower()}_{len(self.graph)}"
            outputs = [name, *(f"{name}.{index}" for index in range(1, count))]
            read = [self.values[each] for each in names]
            node = ir.node(operator, read, attributes, domain=domain, num_outputs=count, name=name)
            self.graph.opset_imports.setdefault(domain, 1)
            for value, output in zip(node.outputs, outputs, strict=True):
                value.name, self.values[output] = output, value
            self.graph.append(node)
            self._made[key] = outputs
        return self._made[key]

    def rename(self, name: str, new: str) -> str:
        """Give a value another name, and return it. Nodes can be added by both names."""
        self.values[new] = self.values[name]
        self.values[new].name = new
        return new

    def constant(self, array: Array | np.float32, name: str = "") -> str:
        """Add an array, and return its name, made unique if it is taken.

        An array is added once, and so are small equal ones without a name.
        """
        array = np.asarray(array)
        is_small = array.nbytes < _SMALL_BYTES
        key = (array.dtype.str, array.shape, array.tobytes()) if is_small else id(array)
        if key in self._constants and not (is_small and name):
            return self._constants[key][0]
        initializers = self.graph.initializers
        count, unique = 0, name or f"constant_{len(initializers)}"
        while unique in initializers:
            count += 1
            unique = f"{name}.{count}"
        value = ir.val(unique, const_value=ir.tensor(array, name=unique))
        self.graph.register_initializer(value)
        self.values[unique] = value
        if not (is_small and name):
            # The array stays alive, so that no other one gets its id.
            self._constants[key] = unique, array
        return unique
