"""Find the longest input of a graph, given its tables of positions."""

from __future__ import annotations

import warnings

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnx.reference import ReferenceEvaluator

from qdqbert.graph.imported.vocabulary import table_rows

# Positions are computed from sizes and ids by a few dozen nodes. A longer chain is something else.
_MAX_NODES = 200
# Tokens of the input that tells one position per token from a table of distances, which has an
# index for each pair of tokens.
_FEW = 8
# Inputs that are rows to read and the table, by type of node. A fused node without the former reads
# a row for each token, in order.
_ROWS_AND_TABLE = {
    "Gather": (1, 0),
    "GatherBlockQuantized": (1, 0),
    "EmbedLayerNormalization": (8, 3),
    "QEmbedLayerNormalization": (8, 3),
}
_INPUTS = ("input_ids", "attention_mask", "token_type_ids")


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
    limits = [
        limit
        for node in model.graph
        if (limit := _limit_of(model, node, 3 if choices else 2)) is not None
    ]
    return min(limits, default=None)


def _limit_of(model: ir.Model, node: ir.Node, rank: int) -> int | None:
    """Return the longest input in tokens that the table of a lookup node allows."""
    if node.op_type not in _ROWS_AND_TABLE or node.attributes.get_int("axis", 0) != 0:
        return None
    index, table = (_input(node, place) for place in _ROWS_AND_TABLE[node.op_type])
    rows = table_rows(table)
    if rows is None or index is None:
        return rows
    if index.is_graph_input():
        return None
    evaluator = _evaluator_of(model, index)
    if evaluator is None:
        return None
    few = _rows_read(evaluator, _FEW, rank)
    if few is None or few.size > 2 * _FEW:
        return None

    def fits(tokens: int) -> bool:
        read = _rows_read(evaluator, tokens, rank)
        # A constant list of positions may be shorter than the text.
        is_complete = read is not None and read.size in (2, 2 * tokens)
        return read is not None and is_complete and -rows <= read.min() and read.max() < rows

    if fits(rows + 1):
        return None
    low, high = 0, rows + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low or None


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
    if any(each.name not in _INPUTS for each in inputs):
        return None
    part = ir.convenience.extract(model.graph, inputs, [value])
    whole = ir.Model(part, ir_version=model.ir_version)
    return ReferenceEvaluator(ir.to_proto(whole))


def _input(node: ir.Node, position: int) -> ir.Value | None:
    return node.inputs[position] if position < len(node.inputs) else None
