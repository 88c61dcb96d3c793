"""Read the scale, the mask and the position bias of attention scores."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx_ir as ir

from qdqbert.encoders.model import Floats
from qdqbert.graph.edit import producer_of
from qdqbert.graph.encoder.refusal import refuse
from qdqbert.graph.encoder.view import GraphView

# A score that leaves a probability of 0.
_LOW = -1e4
# Longest text for which a mask is computed: scores of longer ones take hundreds of MB.
_LONG = 2048


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scores:
    """What is done to the products of queries and keys.

    Attributes:
        matmul: The matmul of queries and keys.
        factor: Factor of its output.
        is_causal: Whether a token attends only to itself and those before it.
        window: As in `Attention.window`.
        bias: Of each distance of query and key, `(heads or 1, 2 * limit - 1)`, as in
            `Attention.position_bias`. Zeros where a token does not attend.
    """

    matmul: ir.Node
    factor: float
    is_causal: bool
    window: int | None
    bias: Floats


def read_scores(view: GraphView, softmax: ir.Node, *, limit: int) -> Scores:
    """Read the scale, the mask and the position bias of scores.

    Args:
        view: The graph.
        softmax: The Softmax that reads the scores.
        limit: Longest text in tokens.

    Raises:
        GraphError: Something else is done to them, or the bias depends on more than the distance of
            query and key.
    """
    value = softmax.inputs[0]
    assert value is not None
    products = view.source(value, "the scores")
    if producer_of(products, "MatMul") is None or products in view.linear_layers:
        raise refuse(products.producer(), "is where the matmul of queries and keys should be")
    longest = limit if view.tokens else min(limit, _LONG)
    found = _read_scores(view, softmax, products, longest)
    if longest < limit and found.bias.any():
        found = _read_scores(view, softmax, products, limit)
    return found


def _read_scores(view: GraphView, softmax: ir.Node, products: ir.Value, tokens: int) -> Scores:
    """Read what is done to the scores of a text without padding."""
    value, matmul = softmax.inputs[0], products.producer()
    assert value is not None
    assert matmul is not None
    # A single number broadcasts. Only dimensions along which the bias differs become larger than 1.
    zero = np.zeros((1, 1, 1, 1), np.float32)
    added = view.evaluate(value, {products: zero}, view.long_probe(tokens))
    if added.ndim != 4:
        raise refuse(softmax, "does not read scores (batch, heads, queries, keys)")
    added = np.broadcast_to(added[0], (added.shape[1], tokens, tokens))
    last = added[:, -1, ::-1] > _LOW
    reach = int(last.all(axis=0).argmin()) if not last.all() else tokens
    is_causal = reach > 1 and not (added[:, 0, 1] > _LOW).any()
    window = reach - 1 if reach < tokens else None
    places = np.arange(tokens, dtype=np.int32)
    # Key minus query, `(queries, keys)`.
    distances = places - places[:, None]
    allowed = np.abs(distances) <= (tokens if window is None else window)
    if is_causal:
        allowed &= distances <= 0
    if reach == 0 or ((added > _LOW) != allowed).any():
        raise refuse(softmax, "has a mask that is neither of padding nor causal nor a window")
    # The last row of the scores, and the first one.
    table = np.concatenate([added[:, -1, :-1], added[:, 0, :]], axis=-1)
    bias = np.where(table > _LOW, table, np.float32(0))
    distances += tokens - 1
    for scores, row in zip(added, bias, strict=True):
        # A row at a time: with a table of distances, one of all pairs would take 8 times as much.
        if (scores != row[distances])[allowed].any():
            raise refuse(softmax, "adds a bias that is not one of the distance of two tokens")
    # Each token attends to itself.
    first, second = (view.evaluate(value, {products: each})[0] for each in (zero, zero + 1))
    own = np.diagonal(second - first, axis1=1, axis2=2)[:, : view.probe.is_text[0].sum()]
    factor = float(np.median(own))
    if not factor > 0:
        raise refuse(softmax, "does not multiply scores by a positive factor")
    return Scores(matmul=matmul, factor=factor, is_causal=is_causal, window=window, bias=bias)
