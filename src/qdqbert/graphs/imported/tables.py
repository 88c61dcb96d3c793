"""Find the tables of embeddings of a graph: the number of token ids, and the longest input."""

from __future__ import annotations

import bisect
import warnings

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnx.reference import ReferenceEvaluator

from qdqbert.graphs.encoder.probe import INPUTS

# Operators that change only the type or shape of ids or of a table.
_VALUE_PRESERVING = (
    *("Cast", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "DequantizeLinear"),
)
# Damaged files may have cycles.
_MAX_STEPS = 16
# Inputs that are token ids and their table, by type of node.
_WORDS = {
    "Gather": (1, 0),
    "GatherBlockQuantized": (1, 0),
    "EmbedLayerNormalization": (0, 2),
    "QEmbedLayerNormalization": (0, 2),
}
# Inputs that are rows to read and the table of positions. A fused node without the former reads a
# row for each token, in order.
_POSITIONS = {
    "Gather": (1, 0),
    "GatherBlockQuantized": (1, 0),
    "EmbedLayerNormalization": (8, 3),
    "QEmbedLayerNormalization": (8, 3),
}
# Positions are computed from sizes and ids by a few dozen nodes. A longer chain is something else.
_MAX_NODES = 200


def vocabulary_size(model: ir.Model) -> int | None:
    """Return the number of rows of the table that `input_ids` select from, `None` if not found."""
    wanted = [value for value in model.graph.inputs if value.name == "input_ids"]
    while wanted:
        value = wanted.pop()
        for use in value.uses():
            node, (ids, table) = use.node, _WORDS.get(use.node.op_type, (None, 0))
            if use.idx == ids:
                rows = _rows_of(node.inputs[table])
                if rows is not None:
                    return rows
            elif use.idx == 0 and node.op_type in _VALUE_PRESERVING:
                wanted += node.outputs
    return None


def longest_input(model: ir.Model) -> int | None:
    """Return the longest input in tokens that all tables of positions allow; `None` for any.

    The numbers of the positions are computed as the graph does, because they depend on the family:
    RoBERTa's begin after the id of its padding token.
    """
    return min(filter(None, (_limit_of(model, node) for node in model.graph)), default=None)


def _limit_of(model: ir.Model, node: ir.Node) -> int | None:
    """Return the longest input in tokens that the table of a lookup node allows."""
    if node.op_type not in _POSITIONS or node.attributes.get_int("axis", 0) != 0:
        return None
    index, table = (
        node.inputs[place] if place < len(node.inputs) else None
        for place in _POSITIONS[node.op_type]
    )
    rows = _rows_of(table)
    if rows is None or index is None:
        return rows
    inputs = list(model.graph.inputs)
    if index in inputs or any(each.name not in INPUTS for each in inputs):
        return None
    part = ir.convenience.extract(model.graph, inputs, [index])
    if len(part) > _MAX_NODES:
        return None
    try:
        evaluator = ReferenceEvaluator(ir.to_proto(ir.Model(part, ir_version=model.ir_version)))
    # The reference has no class of its own, and knows no operators of other domains.
    except Exception:
        return None
    leading = (1,) * (len(inputs[0].shape or "12") - 1)

    def is_too_long(tokens: int) -> bool:
        # One of the two may be the padding token, which is not counted.
        return not all(
            read is not None and read.size == tokens and read.max() < rows
            for read in (_rows_read(evaluator, (*leading, tokens), token) for token in (1, 2))
        )

    # Tables of distances have an index for each pair of tokens, and those of ids take any length.
    limit = bisect.bisect_left(range(2, rows + 2), True, key=is_too_long) + 1
    return limit if 1 < limit <= rows else None


def _rows_read(
    evaluator: ReferenceEvaluator, shape: tuple[int, ...], token: int
) -> NDArray[np.int64] | None:
    """Return the rows that a text of equal tokens reads, `None` if they cannot be computed."""
    values = (token, 1, 0)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            (rows,) = evaluator.run(
                None,
                {name: np.full(shape, each) for name, each in zip(INPUTS, values, strict=True)},
            )
    # A text that is too long may fail before the rows are read.
    except Exception:
        return None
    return np.asarray(rows, np.int64)


def _rows_of(value: ir.Value | None) -> int | None:
    """Return the number of rows of a table, also behind nodes that keep its rows; else `None`."""
    for _ in range(_MAX_STEPS):
        node = None if value is None or value.const_value is not None else value.producer()
        if node is None or node.op_type not in _VALUE_PRESERVING:
            break
        value = node.inputs[0]
    shape = None if value is None or value.const_value is None else value.const_value.shape
    if shape is None or len(shape) != 2 or not isinstance(shape[0], int):
        return None
    return shape[0]
