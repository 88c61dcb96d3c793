"""Find the size of a graph's table of word embeddings."""

from __future__ import annotations

import onnx_ir as ir

# Operators that change only the type or shape of ids or of a table.
_VALUE_PRESERVING = (
    "Cast",
    "Reshape",
    "Flatten",
    "Squeeze",
    "Unsqueeze",
    "Identity",
    "DequantizeLinear",
)
_MAX_STEPS = 16
# Indices of the inputs that are ids and table.
_IDS_AND_TABLE = {
    "Gather": (1, 0),
    "GatherBlockQuantized": (1, 0),
    "EmbedLayerNormalization": (0, 2),
    "QEmbedLayerNormalization": (0, 2),
}


def vocabulary_size(model: ir.Model) -> int | None:
    """Return the number of rows of the table that `input_ids` select from, `None` if not found.

    Args:
        model: A float or quantized graph whose inputs have transformers' names.
    """
    wanted = [value for value in model.graph.inputs if value.name == "input_ids"]
    while wanted:
        value = wanted.pop()
        for use in value.uses():
            node, (ids, table) = use.node, _IDS_AND_TABLE.get(use.node.op_type, (None, 0))
            if use.idx == ids:
                rows = table_rows(node.inputs[table])
                if rows is not None:
                    return rows
            elif use.idx == 0 and node.op_type in _VALUE_PRESERVING:
                wanted += node.outputs
    return None


def table_rows(value: ir.Value | None) -> int | None:
    """Return the number of rows of a table, also behind nodes that keep its rows; else `None`."""
    # Damaged files may have cycles.
    for _ in range(_MAX_STEPS):
        node = None if value is None or value.const_value is not None else value.producer()
        if node is None or node.op_type not in _VALUE_PRESERVING:
            break
        value = node.inputs[0]
    shape = None if value is None or value.const_value is None else value.const_value.shape
    if shape is None or len(shape) != 2 or not isinstance(shape[0], int):
        return None
    return shape[0]
