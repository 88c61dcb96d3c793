"""Collect the nodes and constants of a graph that is written node by node."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

Array = NDArray[Any]

# Arrays from this size are apart from the graph.
_EXTERNAL_BYTES = 1024


class Nodes:
    """The nodes and constants of a graph."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[TensorProto] = []
        self.arrays: dict[str, Array] = {}
        self._small: dict[tuple[str, tuple[int, ...], bytes], str] = {}
        self._large: dict[int, str] = {}
        self._taken: set[str] = set()
        self._made: dict[str, list[str]] = {}

    def __call__(
        self, operator: str, *inputs: str | Array | np.float32, name: str = "", **attributes: Any
    ) -> str:
        """Add a node, and return the name of its output. Arrays are constants."""
        return self.several(operator, *inputs, count=1, name=name, **attributes)[0]

    def several(
        self,
        operator: str,
        *inputs: str | Array | np.float32,
        count: int,
        name: str = "",
        **attributes: Any,
    ) -> list[str]:
        """Add a node, and return the names of its outputs. Equal nodes are one."""
        names = [each if isinstance(each, str) else self.constant(each) for each in inputs]
        key = repr((operator, names, name, sorted(attributes.items())))
        if key not in self._made:
            name = name or f"{operator.lower()}_{len(self.nodes)}"
            outputs = [name, *(f"{name}.{index}" for index in range(1, count))]
            self.nodes.append(helper.make_node(operator, names, outputs, name=name, **attributes))
            self._made[key] = outputs
        return self._made[key]

    def constant(self, array: Array | np.float32, name: str = "") -> str:
        """Add an array, and return its name.

        An array is added once, and so are small equal ones without a name.

        Args:
            array: The array.
            name: Its name, made unique if it is taken.
        """
        array = np.asarray(array)
        if array.nbytes >= _EXTERNAL_BYTES:
            if id(array) in self._large:
                return self._large[id(array)]
            tensor = TensorProto(
                dims=array.shape,
                data_type=helper.np_dtype_to_tensor_dtype(array.dtype),
                data_location=TensorProto.EXTERNAL,
            )
            # Readers need a place, which `write_graph` changes.
            tensor.external_data.add(key="location", value="-")
            made = self._named(tensor, name)
            # It stays alive, so that no other array gets its id.
            self.arrays[made] = array
            self._large[id(array)] = made
            return made
        if name:
            return self._named(onnx.numpy_helper.from_array(array), name)
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self._small:
            self._small[key] = self._named(onnx.numpy_helper.from_array(array), "")
        return self._small[key]

    def _named(self, tensor: TensorProto, name: str) -> str:
        count, tensor.name = 0, name or f"constant_{len(self.initializers)}"
        while tensor.name in self._taken:
            count += 1
            tensor.name = f"{name}.{count}"
        self._taken.add(tensor.name)
        self.initializers.append(tensor)
        return tensor.name
