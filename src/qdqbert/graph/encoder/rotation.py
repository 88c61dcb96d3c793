"""Read rotary position embeddings of queries and keys."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from qdqbert.encoders.model import Floats, Rotary
from qdqbert.graph.encoder.attention import HeadNodes
from qdqbert.graph.encoder.probe import Array, Probe
from qdqbert.graph.encoder.refusal import refuse
from qdqbert.graph.encoder.view import GraphView


def read_rotary(
    view: GraphView,
    query: HeadNodes,
    key: HeadNodes,
    *,
    limit: int,
    known: dict[frozenset[ir.Value], Rotary],
) -> Rotary | None:
    """Return the rotation of queries and keys.

    Args:
        view: The graph.
        query: The queries.
        key: The keys.
        limit: Longest text in tokens.
        known: Rotations that were read, by the values that they are computed from. A new one is
            added.

    Raises:
        GraphError: They are changed in another way, or not by the same rotation.
    """
    if not query.is_rotated and not key.is_rotated:
        return None
    found: list[Rotary] = []
    for heads in (query, key):
        angles = view.inputs_beside(heads.value, heads.end)
        if angles not in known:
            known[angles] = _read(view, heads, limit)
            _check(view, heads, known[angles], view.long_probe(limit))
        _check(view, heads, known[angles], view.probe)
        found.append(known[angles])
    of_query, of_key = found
    if of_query is not of_key and not (
        np.array_equal(of_query.cos, of_key.cos) and np.array_equal(of_query.sin, of_key.sin)
    ):
        raise refuse(key.value.producer(), "rotates keys by other angles than queries")
    return of_query


def _read(view: GraphView, heads: HeadNodes, limit: int) -> Rotary:
    probe = view.long_probe(limit)
    half = heads.width // 2
    shape = view.shape(heads.end, probe)
    # Ones in the first half of each head, and zeros in the second one.
    first = np.zeros(shape[-1], np.float32)
    first[heads.columns.reshape(-1, heads.width)[:, :half]] = 1
    made = _rotated(view, heads, np.broadcast_to(first, shape), probe)[0, 0] / heads.factor
    return Rotary(cos=_floats(made[:, :half]), sin=_floats(made[:, half:]))


def _check(view: GraphView, heads: HeadNodes, rotary: Rotary, probe: Probe) -> None:
    """Refuse queries or keys that are not rotated as given."""
    x = np.random.default_rng(0).standard_normal(view.shape(heads.end, probe), np.float32)
    expected = rotate(_split(heads, x), rotary) * np.float32(heads.factor)
    actual = _rotated(view, heads, x, probe)
    if heads.width % 2 or not np.allclose(actual, expected, rtol=1e-4, atol=1e-4):
        raise refuse(
            heads.value.producer(), "computes heads that are not outputs of a linear layer"
        )


def rotate(x: Array, rotary: Rotary) -> Array:
    """Rotate heads `(..., tokens, head size)` of texts that start at the first position."""
    cos, sin = (each[: x.shape[-2]] for each in (rotary.cos, rotary.sin))
    a, b = np.split(x, 2, axis=-1)
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


def _rotated(view: GraphView, heads: HeadNodes, x: Array, probe: Probe) -> Array:
    """Compute the heads `(batch, heads, tokens, width)`, given the linear layer's outputs."""
    return np.moveaxis(view.evaluate(heads.value, {heads.end: x}, probe), heads.tokens_axis, 2)


def _split(heads: HeadNodes, x: Array) -> Array:
    """Return outputs of the linear layer as heads, without rotating them."""
    taken = x.reshape(*x.shape[:2], -1)[..., heads.columns]
    return taken.reshape(*taken.shape[:2], heads.heads, heads.width).swapaxes(1, 2)


def _floats(array: Array) -> Floats:
    return np.ascontiguousarray(array, np.float32)
