"""Read disentangled attention: products of queries and keys with tables of relative positions."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from qdqbert.encoders.model import Floats, RelativePositions
from qdqbert.graph.encoder.attention import AttentionNodes, HeadNodes, read_projection
from qdqbert.graph.encoder.probe import Array, Probe
from qdqbert.graph.encoder.refusal import refuse
from qdqbert.graph.encoder.scores import ScoreNodes, allowed_keys, distances
from qdqbert.graph.encoder.view import GraphView


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Table:
    """A table of positions that queries or keys are multiplied by.

    Attributes:
        of_queries: Whether queries read it.
        rows: `(heads, rows, head size)`, in units of the products of queries and keys.
        by_distance: The row for key minus query, `(2 * limit - 1,)`.
    """

    of_queries: bool
    rows: Floats
    by_distance: NDArray[np.int32]


def read_relative(
    view: GraphView, nodes: AttentionNodes, *, limit: int, window: int | None
) -> RelativePositions | None:
    """Return the tables of relative positions of an attention; `None` if it has none.

    Args:
        view: The graph.
        nodes: The attention.
        limit: Longest text in tokens.
        window: As in `Attention.window`.

    Raises:
        GraphError: What is added to the scores is something else.
    """
    if not nodes.scores.relative:
        return None
    tables = [_read_table(view, nodes, end, limit, window) for end in nodes.scores.relative]
    first = tables[0]
    for each in tables[1:]:
        if each.rows.shape != first.rows.shape or (each.by_distance != first.by_distance).any():
            raise refuse(
                nodes.scores.softmax, "reads other rows of positions for queries than for keys"
            )
    of_queries, of_keys = (
        [each.rows for each in tables if each.of_queries == wanted] for wanted in (True, False)
    )
    if len(of_queries) > 1 or len(of_keys) > 1:
        raise refuse(nodes.scores.softmax, "multiplies queries or keys by two tables of positions")
    return RelativePositions(
        keys=of_queries[0] if of_queries else None,
        queries=of_keys[0] if of_keys else None,
        rows=first.by_distance,
    )


def _read_table(
    view: GraphView, nodes: AttentionNodes, end: ir.Value, limit: int, window: int | None
) -> _Table:
    matmul = end.producer()
    assert matmul is not None
    heads = read_projection(view, matmul, 0, tokens_axis=2)
    of_queries = _is_same(heads, nodes.query)
    if heads.is_rotated or not (of_queries or _is_same(heads, nodes.key)):
        raise refuse(matmul, "multiplies a table of positions by neither queries nor keys")
    second = matmul.inputs[1]
    assert second is not None
    view.region(second)
    view.mark_read(matmul)
    texts = len(view.probe.ids)
    table = view.evaluate(second).reshape(texts, heads.heads, heads.width, -1)
    if (table != table[:1]).any():
        raise refuse(matmul, "has another table of positions for each text")
    factor, by_distance = _rows_by_distance(view, nodes.scores, end, limit)
    for probe in (view.probe, view.long_probe(limit)):
        allowed = allowed_keys(probe, nodes.attention.causal, window)
        _check(view, nodes.scores, end, probe, allowed, factor, by_distance, of_queries=of_queries)
    scale = heads.factor * factor / nodes.attention.scale
    rows = table[0].swapaxes(1, 2) * np.float32(scale)
    return _Table(
        of_queries=of_queries,
        rows=np.ascontiguousarray(rows, np.float32),
        by_distance=by_distance.astype(np.int32),
    )


def _is_same(one: HeadNodes, other: HeadNodes) -> bool:
    return one.end is other.end and np.array_equal(one.columns, other.columns)


def _rows_by_distance(
    view: GraphView, nodes: ScoreNodes, end: ir.Value, limit: int
) -> tuple[float, NDArray[np.int64]]:
    """Return the factor of products with a table, and the row for key minus query."""
    probe = view.long_probe(limit)
    shape = view.shape(end, probe)
    none = np.zeros((1, 1, 1, 1), np.float32)
    ones = np.ones(shape, np.float32)
    numbers = np.broadcast_to(np.arange(shape[-1], dtype=np.float32), shape)
    factors, rows = (
        nodes.evaluate(view, none, {end: given}, probe)[0, 0] for given in (ones, numbers)
    )
    # The first and the last query have all distances.
    both = [np.concatenate([each[-1, :-1], each[0]]) for each in (factors, rows)]
    factor = float(both[0][limit - 1])
    if not factor > 0:
        raise refuse(nodes.softmax, "subtracts products with positions")
    return factor, np.clip(np.rint(both[1] / factor), 0, shape[-1] - 1).astype(np.int64)


def _check(
    view: GraphView,
    nodes: ScoreNodes,
    end: ir.Value,
    probe: Probe,
    allowed: NDArray[np.bool_],
    factor: float,
    by_distance: NDArray[np.int64],
    *,
    of_queries: bool,
) -> None:
    """Refuse scores that are not products with the rows of each distance."""
    texts, tokens = probe.ids.shape
    shape = view.shape(end, probe)
    x = np.random.default_rng(0).standard_normal(shape, np.float32)
    made = nodes.evaluate(view, np.zeros((1, 1, 1, 1), np.float32), {end: x}, probe)
    limit = len(by_distance) // 2 + 1
    rows = by_distance[distances(tokens) + limit - 1]
    products = x.reshape(texts, -1, *shape[1:])
    expected = _taken(products, rows, of_queries=of_queries) * np.float32(factor)
    kept = np.broadcast_to(allowed, made.shape)
    if not np.allclose(made[kept], expected[kept], rtol=1e-4, atol=1e-5):
        raise refuse(nodes.softmax, "adds products with positions that are not of the distance")


def _taken(products: Array, rows: NDArray[np.int64], *, of_queries: bool) -> Array:
    """Return what is added to the score of each query and key.

    Args:
        products: `(texts, heads, tokens, rows)`, of each query or each key with each row.
        rows: The row for each query and key, `(tokens, tokens)`.
        of_queries: Whether the products are those of queries.
    """
    if of_queries:
        return np.take_along_axis(products, rows[None, None], axis=-1)
    return np.take_along_axis(products, rows.T[None, None], axis=-1).swapaxes(2, 3)
