"""Read the scale, the mask and the position bias of attention scores."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

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
    factor: float = 1.0
    is_causal: bool
    window: int | None
    bias: Floats

    def allowed(self, tokens: int) -> NDArray[np.bool_]:
        """Return whether each query of a text without padding reads each key."""
        distances = _distances(tokens)
        allowed = np.ones_like(distances, bool)
        if self.is_causal:
            allowed &= distances <= 0
        if self.window is not None:
            allowed &= np.abs(distances) <= self.window
        return allowed


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
    ends = view.sources(value)
    for end in ends:
        if producer_of(end, "MatMul") is None or end in view.linear_layers:
            raise refuse(end.producer(), "is where the matmul of queries and keys should be")
    if len(ends) != 1:
        raise refuse(softmax, "does not read the scores of one matmul of queries and keys")
    (products,), probe = ends, view.probe
    longest = limit if view.tokens else min(limit, _LONG)
    found = _read_distances(view, softmax, products, longest)
    if longest < limit and found.bias.any():
        found = _read_distances(view, softmax, products, limit)
    texts, tokens = probe.ids.shape
    x = np.random.default_rng(0).normal(size=(texts, 1, tokens, tokens)).astype(np.float32)
    zero, one = (view.evaluate(value, {products: scores}) for scores in (np.zeros_like(x), x))
    is_text = probe.is_text[:, None, :, None] & probe.is_text[:, None, None, :]
    # Masked scores may be infinite.
    allowed = np.broadcast_to(is_text & found.allowed(tokens), one.shape)
    x, zero, one = (np.broadcast_to(each, one.shape)[allowed] for each in (x, zero, one))
    factor = float(np.median((one - zero) / x))
    if not factor > 0:
        raise refuse(softmax, "reads scores that are not multiplied by one factor")
    return dataclasses.replace(found, factor=factor)


def _read_distances(view: GraphView, softmax: ir.Node, products: ir.Value, tokens: int) -> Scores:
    """Read the bias and the mask of a text without padding, but no factor."""
    value, matmul = softmax.inputs[0], products.producer()
    assert value is not None
    assert matmul is not None
    # A single zero broadcasts. Only dimensions along which the bias differs become larger than 1.
    zero = np.zeros((1, 1, 1, 1), np.float32)
    added = view.evaluate(value, {products: zero}, view.long_probe(tokens))[0]
    added = np.broadcast_to(added, (len(added), tokens, tokens))
    last = added[:, -1, ::-1] > _LOW
    reach = int(last.all(axis=0).argmin()) if not last.all() else tokens
    # The last row of the scores, and the first one.
    table = np.concatenate([added[:, -1, :-1], added[:, 0, :]], axis=-1)
    found = Scores(
        matmul=matmul,
        is_causal=reach > 1 and not (added[:, 0, 1] > _LOW).any(),
        window=reach - 1 if reach < tokens else None,
        bias=np.where(table > _LOW, table, np.float32(0)),
    )
    allowed = found.allowed(tokens)
    if reach == 0 or ((added > _LOW) != allowed).any():
        raise refuse(softmax, "has a mask that is neither of padding nor causal nor a window")
    distance = _distances(tokens) + tokens - 1
    for scores, row in zip(added, found.bias, strict=True):
        # A row at a time: with a table of distances, one of all pairs would take 8 times as much.
        if (scores != row[distance])[allowed].any():
            raise refuse(softmax, "adds a bias that is not one of the distance of two tokens")
    return found


def _distances(tokens: int) -> NDArray[np.int32]:
    """Return key minus query, `(queries, keys)`."""
    places = np.arange(tokens, dtype=np.int32)
    return places - places[:, None]
