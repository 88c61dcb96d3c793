"""How many words a graph's table of word embeddings has."""

from __future__ import annotations

import onnx_ir as ir

# What leaves ids, or a table, as they are but for their type or shape.
_PASSING = ("Cast", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "DequantizeLinear")
_LONGEST = 16
# Where an operator reads ids, and where the table.
_READS = {
    "Gather": (1, 0),
    "GatherBlockQuantized": (1, 0),
    "EmbedLayerNormalization": (0, 2),
    "QEmbedLayerNormalization": (0, 2),
}


def vocabulary_size(model: ir.Model) -> int | None:
    """Rows of the table that `input_ids` choose from; `None` where no such table is found.

    Args:
        model: A float or quantized graph with transformers' names of inputs.
    """
    wanted = [value for value in model.graph.inputs if value.name == "input_ids"]
    while wanted:
        value = wanted.pop()
        for use in value.uses():
            node, (ids, table) = use.node, _READS.get(use.node.op_type, (None, 0))
            if use.idx == ids:
                rows = _rows(node.inputs[table])
                if rows is not None:
                    return rows
            elif use.idx == 0 and node.op_type in _PASSING:
                wanted += node.outputs
    return None


def _rows(value: ir.Value | None) -> int | None:
    # Damaged files have circles.
    for _ in range(_LONGEST):
        node = None if value is None or value.const_value is not None else value.producer()
        if node is None or node.op_type not in _PASSING:
            break
        value = node.inputs[0]
    shape = None if value is None or value.const_value is None else value.const_value.shape
    if shape is None or len(shape) != 2 or not isinstance(shape[0], int):
        return None
    return shape[0]
