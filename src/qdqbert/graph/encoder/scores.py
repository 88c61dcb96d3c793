"""Read what happens to attention scores before Softmax: scale, mask and position bias."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from qdqbert.engines.native.model import Floats
from qdqbert.graph.edit import producer_of
from qdqbert.graph.encoder.probe import Array, Probe
from qdqbert.graph.encoder.refusal import refuse
from qdqbert.graph.encoder.view import GraphView

# A score that leaves a probability of 0.
_LOW = -1e4


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scores:
    """What a Softmax reads.

    Attributes:
        matmul: The matmul of queries and keys.
        factor: What its output is multiplied by.
        is_causal: Whether a token attends only to itself and those before it.
    """

    matmul: ir.Node
    factor: float
    is_causal: bool


def read_scores(view: GraphView, softmax: ir.Node) -> Scores:
    """Read the scale and the mask of scores.

    Raises:
        GraphError: Something else is done to them.
    """
    made, end = _input_of(view, softmax)
    matmul = producer_of(end, "MatMul")
    if matmul is None or end in view.linear_layers:
        raise refuse(end.producer(), "is where the matmul of queries and keys should be")
    probe = view.probe
    texts, tokens = probe.ids.shape
    x = np.random.default_rng(0).normal(size=(texts, 1, tokens, tokens)).astype(np.float32)
    zero, one = (view.evaluate(made, {end: scores}) for scores in (np.zeros_like(x), x))
    if zero.ndim != 4:
        raise refuse(softmax, "does not read scores (batch, heads, queries, keys)")
    is_causal = _is_causal(softmax, zero, probe)
    allowed = np.broadcast_to(_allowed(probe, is_causal), one.shape)
    # Masked scores may be infinite.
    x, zero, one = (np.broadcast_to(each, one.shape)[allowed] for each in (x, zero, one))
    factor = float(np.median((one - zero) / x))
    if not factor > 0 or not np.allclose(one - zero, x * factor, rtol=1e-4, atol=1e-5):
        raise refuse(softmax, "reads scores that are not multiplied by one factor")
    return Scores(matmul=matmul, factor=factor, is_causal=is_causal)


def read_position_bias(
    view: GraphView, softmax: ir.Node, *, limit: int, heads: int, is_causal: bool
) -> Floats | None:
    """Return what is added to scores by the distance of query and key.

    Args:
        view: The graph.
        softmax: The Softmax of the attention.
        limit: Longest text in tokens.
        heads: Number of heads.
        is_causal: Whether the attention is causal.

    Returns:
        `(heads, 2 * limit - 1)` as in `Attention.position_bias`; `None` if nothing is added.

    Raises:
        GraphError: Something else is added.
    """
    made, end = _input_of(view, softmax)
    probe = view.make_probe(texts=1, tokens=limit, padded=False)
    # One score of zero stands for all. What is added has other sizes than 1 only where it differs.
    added = view.evaluate(made, {end: np.zeros((1, 1, 1, 1), np.float32)}, probe)[0]
    if added.any() or is_causal:
        table = _by_distance(softmax, added, limit=limit, is_causal=is_causal)
    else:
        table = np.zeros((1, 2 * limit - 1), np.float32)
    _check_padded(view, softmax, table, is_causal=is_causal, limit=limit)
    return np.array(np.broadcast_to(table, (heads, 2 * limit - 1))) if table.any() else None


def _by_distance(softmax: ir.Node, added: Array, *, limit: int, is_causal: bool) -> Floats:
    """Return what is added to scores, by key minus query, `(heads or 1, 2 * limit - 1)`."""
    added = np.broadcast_to(added, (len(added), limit, limit))
    allowed = np.tri(limit, dtype=bool) if is_causal else np.ones((limit, limit), bool)
    if ((added > _LOW) != allowed).any():
        raise refuse(softmax, "masks tokens by their distance")
    # The last row of the scores, and the first one.
    table = np.concatenate([added[:, -1, :-1], added[:, 0, :]], axis=-1)
    if is_causal:
        table[:, limit:] = 0
    distance = np.arange(limit) - np.arange(limit)[:, None] + limit - 1
    for bias, row in zip(added, table, strict=True):
        if (bias != row[distance])[allowed].any():
            raise refuse(softmax, "adds a bias that is not one of the distance of two tokens")
    return table


def _check_padded(
    view: GraphView, softmax: ir.Node, table: Floats, *, is_causal: bool, limit: int
) -> None:
    """Check that the same is added in a batch of short and padded texts."""
    made, end = _input_of(view, softmax)
    texts, tokens = view.probe.ids.shape
    if tokens > limit:
        raise refuse(softmax, f"is in a graph for at most {limit} tokens")
    added = view.evaluate(made, {end: np.zeros((texts, 1, tokens, tokens), np.float32)})
    distance = np.arange(tokens) - np.arange(tokens)[:, None] + limit - 1
    expected = np.broadcast_to(
        table[:, distance], (*added.shape[:1], *table.shape[:1], tokens, tokens)
    )
    allowed = np.broadcast_to(_allowed(view.probe, is_causal), added.shape)
    if (added != np.broadcast_to(expected, added.shape))[allowed].any():
        raise refuse(softmax, "adds a bias that differs between texts")


def _input_of(view: GraphView, softmax: ir.Node) -> tuple[ir.Value, ir.Value]:
    """Return the input of a Softmax, and the output of the matmul that it is computed from."""
    value = softmax.inputs[0]
    assert value is not None
    end, pairs = view.source(value, "the scores")
    if pairs:
        raise refuse(pairs[0], "quantizes the scores, which the engine keeps in float")
    return value, end


def _allowed(probe: Probe, is_causal: bool) -> NDArray[np.bool_]:
    """Return which keys each query of a text reads, `(texts, 1, queries, keys)`."""
    allowed = probe.is_text[:, None, None, :] & probe.is_text[:, None, :, None]
    if is_causal:
        allowed &= np.tri(probe.ids.shape[1], dtype=bool)
    return allowed


def _is_causal(softmax: ir.Node, added: NDArray[np.float32], probe: Probe) -> bool:
    """Return whether a mask is causal; refuse those that are neither causal nor of padding only."""
    queries = np.broadcast_to(probe.is_text[:, None, :, None], added.shape)
    for is_causal in (False, True):
        expected = np.broadcast_to(_allowed(probe, is_causal), added.shape)
        if ((added > _LOW) == expected)[queries].all():
            return is_causal
    raise refuse(softmax, "has a mask that is neither of padding nor causal")
