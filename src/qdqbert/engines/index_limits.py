"""Limits of a graph's ids: the numbers of rows of its embedding tables.

OpenVINO answers an id beyond a table with some number. ONNX Runtime counts a negative id from the
end of the table. The tables are found in the file itself, since settings next to it can be wrong.
"""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from qdqbert.common.errors import UserInputError
from qdqbert.common.protobuf_messages import fields_of, number_at, text_of

# Fields of the messages of ONNX.
_GRAPH = 7
_NODE, _INITIALIZER, _INPUT = 1, 5, 11
_NODE_INPUT, _NODE_OUTPUT, _OPERATOR, _ATTRIBUTE = 1, 2, 4, 5
_DIMENSIONS, _TENSOR_NAME = 1, 8

# Operators whose output has the values of the first input.
_SAME_VALUES = frozenset({"Cast", "Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"})
# Operators whose output has the rows of the first input.
_SAME_ROWS = frozenset({"Cast", "DequantizeLinear", "Identity", "QuantizeLinear"})


def check_ids(inputs: Mapping[str, NDArray[Any]], limits: Mapping[str, int]) -> None:
    """Refuse ids beyond the last row of a table, given the number of ids of each input.

    Raises:
        UserInputError: An input has another id.
    """
    for name, end in limits.items():
        values = inputs.get(name)
        if values is None or not values.size:
            continue
        if values.min() < 0 or values.max() >= end:
            wrong = values[(values < 0) | (values >= end)][0]
            raise UserInputError(
                f"`{name}` has the value {wrong}; the model takes 0 to {end - 1}. Is this the "
                "model's tokenizer?",
                argument=name,
            )


def index_limits(model: Path) -> dict[str, int]:
    """Return the number of ids of each input of an .onnx file that is looked up in a table.

    An input is left out if the graph does something else with it. The file is not checked: nothing
    is returned of one that is damaged, or has another format.
    """
    if model.suffix.lower() != ".onnx" or not model.stat().st_size:
        return {}
    with model.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        try:
            with memoryview(data) as view:
                return _limits(view)
        except ValueError:
            return {}


def _limits(data: memoryview) -> dict[str, int]:
    nodes: list[memoryview] = []
    rows: dict[str, int] = {}
    # The input whose values a value has.
    sources: dict[str, str] = {}
    for number, graph in fields_of(data):
        for inner, content in fields_of(graph) if number == _GRAPH else ():
            if inner == _NODE:
                nodes.append(content)
            elif inner == _INITIALIZER:
                name, length = _table(content)
                rows[name] = length
            elif inner == _INPUT:
                name = next((text_of(each) for field, each in fields_of(content) if field == 1), "")
                sources[name] = name
    found: dict[str, int] = {}
    for each in nodes:
        operator, inputs, outputs, has_attributes = _node(each)
        if operator in _SAME_ROWS and inputs and inputs[0] in rows and outputs:
            rows[outputs[0]] = rows[inputs[0]]
        if operator in _SAME_VALUES and inputs and inputs[0] in sources and outputs:
            sources[outputs[0]] = sources[inputs[0]]
        is_lookup = operator == "Gather" and len(inputs) == 2 and inputs[1] in sources
        if is_lookup and not has_attributes and inputs[0] in rows:
            source = sources[inputs[1]]
            found[source] = min(rows[inputs[0]], found.get(source, rows[inputs[0]]))
    return found


def _table(tensor: memoryview) -> tuple[str, int]:
    """Return name and first dimension of a tensor."""
    name, dimensions = "", []
    for number, value in fields_of(tensor):
        if number == _TENSOR_NAME:
            name = text_of(value)
        elif number == _DIMENSIONS:
            dimensions.append(value if isinstance(value, int) else number_at(value, 0)[0])
    return name, dimensions[0] if dimensions else 0


def _node(node: memoryview) -> tuple[str, list[str], list[str], bool]:
    """Return operator, inputs, outputs, and whether it has an attribute that is not zero."""
    operator, has_attributes = "", False
    inputs: list[str] = []
    outputs: list[str] = []
    for number, value in fields_of(node):
        if number == _NODE_INPUT:
            inputs.append(text_of(value))
        elif number == _NODE_OUTPUT:
            outputs.append(text_of(value))
        elif number == _OPERATOR:
            operator = text_of(value)
        elif number == _ATTRIBUTE:
            # The axis of a lookup is an integer, field 3.
            has_attributes |= any(field == 3 and each for field, each in fields_of(value))
    return operator, inputs, outputs, has_attributes
