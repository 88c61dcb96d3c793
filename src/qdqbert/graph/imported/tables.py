"""Find the tables of embeddings of a graph: the number of token ids, and the longest input."""

from __future__ import annotations

import warnings

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnx.reference import ReferenceEvaluator

from qdqbert.graph.encoder.probe import INPUTS

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
# Tokens of the first of two inputs of which the rows are compared.
_FEW = 7


def vocabulary_size(model: ir.Model) -> int | None:
    """Return the number of rows of the table that `input_ids` select from, `None` if not found.

    Args:
        model: A float or quantized graph whose inputs have transformers' names.
    """
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


def longest_input(model: ir.Model, *, choices: bool = False) -> int | None:
    """Return the longest input in tokens that all tables of positions allow.

    The numbers of the positions are computed as the graph does, because they depend on the family:
    RoBERTa's begin after the id of its padding token.

    Args:
        model: A float or quantized graph with dynamic sizes whose inputs have transformers' names.
        choices: Whether its inputs are `(batch, choices, tokens)`.

    Returns:
        The number, or `None` if no table limits it.
    """
    limits = [_limit_of(model, node, 3 if choices else 2) for node in model.graph]
    return min(filter(None, limits), default=None)


def _limit_of(model: ir.Model, node: ir.Node, rank: int) -> int | None:
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
    evaluator = None if index.is_graph_input() else _evaluator_of(model, index)
    if evaluator is None:
        return None
    short, longer = (_rows_read(evaluator, tokens, rank) for tokens in (_FEW, _FEW + 1))
    if short is None or longer is None or longer.size <= 2:
        return None
    # Row of the first token. Tables of distances have an index for each pair of tokens.
    first = int(longer.max()) - longer.size // 2 + 1
    if (
        longer.size not in (short.size, short.size + 2)
        or short.max() != first + short.size // 2 - 1
    ):
        return None
    lengths = range(max(rows - first, 0), 0, -1)
    # A constant list of positions may be shorter than the text.
    fits = (
        tokens
        for tokens in lengths
        if (read := _rows_read(evaluator, tokens, rank)) is not None and read.size == 2 * tokens
    )
    return next(fits, None)


def _rows_read(evaluator: ReferenceEvaluator, tokens: int, rank: int) -> NDArray[np.int64] | None:
    """Return the rows that texts of a length read, `None` if they cannot be computed."""
    shape = (1,) * (rank - 1) + (tokens,)
    found = []
    # One of the two may be the padding token, which is not counted.
    for token in (1, 2):
        inputs = {
            "input_ids": np.full(shape, token),
            "attention_mask": np.ones(shape, np.int64),
            "token_type_ids": np.zeros(shape, np.int64),
        }
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                (rows,) = evaluator.run(
                    None, {name: inputs[name] for name in evaluator.input_names}
                )
        # The reference has no class of its own, and a text that is too long may fail before.
        except Exception:
            return None
        found.append(np.asarray(rows, np.int64).reshape(-1))
    return np.concatenate(found)


def _evaluator_of(model: ir.Model, value: ir.Value) -> ReferenceEvaluator | None:
    """Return an evaluator of a value by the inputs; `None` if it is no plain arithmetic of them."""
    nodes: set[ir.Node] = set()
    needed: set[ir.Value] = set()
    waiting = [value]
    while waiting and len(nodes) <= _MAX_NODES:
        each = waiting.pop()
        node = each.producer()
        if node is None:
            needed |= {each} if each.is_graph_input() else set()
        elif node not in nodes:
            nodes.add(node)
            waiting += [given for given in node.inputs if given is not None]
    if len(nodes) > _MAX_NODES or any(
        node.domain not in ("", "ai.onnx")
        or any(
            each.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)
            for each in node.attributes.values()
        )
        for node in nodes
    ):
        return None
    inputs = [each for each in model.graph.inputs if each in needed]
    if any(each.name not in INPUTS for each in inputs):
        return None
    part = ir.convenience.extract(model.graph, inputs, [value])
    whole = ir.Model(part, ir_version=model.ir_version)
    return ReferenceEvaluator(ir.to_proto(whole))


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
