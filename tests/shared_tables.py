"""Read the matrix of a decoder that shares its weights with the embeddings."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from qdqbert.encoders.model import Floats
from qdqbert.encoders.shared_table import STEPS, joined
from qdqbert.graphs.edit import constant_array, producer_of

_OPERATORS = ("Mul", "Mul", "Cast", "Add")


def read_shared_table(value: ir.Value) -> Floats | None:
    """Return the table `(rows, width)` that a value is.

    Return `None` for other values than the matrices of decoders that `graphs.qdq` writes.
    """
    nodes: list[ir.Node] = []
    current: ir.Value | None = value
    for op_type in _OPERATORS:
        node = producer_of(current, op_type)
        if node is None:
            return None
        nodes.append(node)
        current = node.inputs[0]
    upper, lower = producer_of(nodes[-1].inputs[0], "Mul"), producer_of(nodes[-1].inputs[1], "Cast")
    first = None if upper is None else producer_of(upper.inputs[0], "Cast")
    if upper is None or lower is None or first is None:
        return None
    codes, rest = (constant_array(each.inputs[0]) for each in (first, lower))
    steps, scale = constant_array(upper.inputs[1]), constant_array(nodes[0].inputs[1])
    if any(each is None or each.dtype != np.int8 or each.ndim != 2 for each in (codes, rest)):
        return None
    if codes is None or rest is None or scale is None or steps is None or steps != STEPS:
        return None
    return joined(codes.astype(np.int8), rest.astype(np.int8), scale.astype(np.float32))
