"""Read the scale, the mask and the position bias of attention scores."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from qdqbert.encoders.model import Floats
from qdqbert.graph.edit import producer_of
from qdqbert.graph.encoder.probe import Array, Probe
from qdqbert.graph.encoder.refusal import refuse
from qdqbert.graph.encoder.view import GraphView

# A score that leaves a probability of 0.
_LOW = -1e4
# Longest text for which a mask is computed: scores of longer ones take hundreds of MB.
_LONG = 2048


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScoreNodes:
    """A Softmax, its input and the products of queries and keys behind it.

    Attributes:
        softmax: The Softmax.
        value: Its input.
        products: The output of the matmul of queries and keys.
    """

    softmax: ir.Node
    value: ir.Value
    products: ir.Value

    def evaluate(self, view: GraphView, products: Array, probe: Probe | None = None) -> Array:
        """Compute the scores.

        Args:
            view: The graph.
            products: Products of queries and keys.
            probe: Inputs of the graph; `view.probe` by default.
        """
        return view.evaluate(self.value, {self.products: products}, probe)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scores:
    """The scale and the mask of scores.

    Attributes:
        nodes: The Softmax and its input.
        matmul: The matmul of queries and keys.
        factor: Factor of its output.
        is_causal: Whether a token attends only to itself and those before it.
    """

    nodes: ScoreNodes
    matmul: ir.Node
    factor: float
    is_causal: bool


def read_scores(view: GraphView, softmax: ir.Node) -> Scores:
    """Read the scale and the mask of scores.

    Raises:
        GraphError: Something else is done to them.
    """
    nodes = _nodes_before(view, softmax)
    matmul = nodes.products.producer()
    assert matmul is not None
    probe = view.probe
    texts, tokens = probe.ids.shape
    x = np.random.default_rng(0).normal(size=(texts, 1, tokens, tokens)).astype(np.float32)
    zero, one = (nodes.evaluate(view, scores) for scores in (np.zeros_like(x), x))
    if zero.ndim != 4:
        raise refuse(softmax, "does not read scores (batch, heads, queries, keys)")
    is_causal, window = _read_mask(softmax, zero, probe)
    allowed = np.broadcast_to(_allowed_keys(probe, is_causal, window), one.shape)
    # Masked scores may be infinite.
    x, zero, one = (np.broadcast_to(each, one.shape)[allowed] for each in (x, zero, one))
    factor = float(np.median((one - zero) / x))
    if not factor > 0 or not np.allclose(one - zero, x * factor, rtol=1e-4, atol=1e-5):
        raise refuse(softmax, "reads scores that are not multiplied by one factor")
    return Scores(nodes=nodes, matmul=matmul, factor=factor, is_causal=is_causal)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Distances:
    """The position bias and the window of scores, by the distance of query and key.

    Attributes:
        bias: `(heads, 2 * limit - 1)`, as in `Attention.position_bias`; `None` without one.
        window: As in `Attention.window`.
    """

    bias: Floats | None
    window: int | None


def read_distances(
    view: GraphView, nodes: ScoreNodes, *, limit: int, heads: int, is_causal: bool
) -> Distances:
    """Read the position bias and the window of scores.

    Args:
        view: The graph.
        nodes: The Softmax and its input.
        limit: Longest text in tokens.
        heads: Number of heads.
        is_causal: Whether the attention is causal.

    Raises:
        GraphError: The bias depends on more than the distance of query and key.
    """
    tokens = limit if view.tokens else min(limit, _LONG)
    table, window = _by_distance(view, nodes, tokens, is_causal=is_causal)
    if tokens < limit and table.any():
        tokens = limit
        table, window = _by_distance(view, nodes, tokens, is_causal=is_causal)
    _check_padded(view, nodes, table, window, is_causal=is_causal, limit=tokens)
    if not table.any():
        return Distances(bias=None, window=window)
    bias = np.array(np.broadcast_to(table, (heads, 2 * limit - 1)))
    return Distances(bias=bias, window=window)


def _by_distance(
    view: GraphView, nodes: ScoreNodes, tokens: int, *, is_causal: bool
) -> tuple[Floats, int | None]:
    """Return the bias of scores, by key minus query, and the window.

    Args:
        view: The graph.
        nodes: The Softmax and its input.
        tokens: Length of a text.
        is_causal: Whether the attention is causal.

    Returns:
        `(heads or 1, 2 * tokens - 1)`, zeros where a token does not attend, and the window.
    """
    softmax = nodes.softmax
    # A single zero broadcasts. Only dimensions along which the bias differs become larger than 1.
    zero = np.zeros((1, 1, 1, 1), np.float32)
    added = nodes.evaluate(view, zero, probe=view.long_probe(tokens))[0]
    added = np.broadcast_to(added, (len(added), tokens, tokens))
    last = added[:, -1, ::-1] > _LOW
    reach = int(last.all(axis=0).argmin()) if not last.all() else tokens
    window = reach - 1 if reach < tokens else None
    if reach == 0 or ((added > _LOW) != _within(tokens, is_causal, window)).any():
        raise refuse(softmax, "masks tokens by their distance in another way than a window")
    # The last row of the scores, and the first one.
    table = np.concatenate([added[:, -1, :-1], added[:, 0, :]], axis=-1)
    table = np.where(table > _LOW, table, np.float32(0))
    distance = _distances(tokens) + tokens - 1
    allowed = _within(tokens, is_causal, window)
    for bias, row in zip(added, table, strict=True):
        # A row at a time: with a table of distances, one of all pairs would take 8 times as much.
        if (bias != row[distance])[allowed].any():
            raise refuse(softmax, "adds a bias that is not one of the distance of two tokens")
    return table, window


def _distances(tokens: int) -> NDArray[np.int32]:
    """Return key minus query, `(queries, keys)`."""
    places = np.arange(tokens, dtype=np.int32)
    return places - places[:, None]


def _within(tokens: int, is_causal: bool, window: int | None) -> NDArray[np.bool_]:
    """Return whether each query of a text without padding reads each key, `(queries, keys)`."""
    allowed = np.ones((tokens, tokens), bool)
    if is_causal:
        allowed &= _distances(tokens) <= 0
    if window is not None:
        allowed &= np.abs(_distances(tokens)) <= window
    return allowed


def _check_padded(
    view: GraphView,
    nodes: ScoreNodes,
    table: Floats,
    window: int | None,
    *,
    is_causal: bool,
    limit: int,
) -> None:
    """Check that the bias and the mask are the same in a batch of short and padded texts."""
    softmax = nodes.softmax
    texts, tokens = view.probe.ids.shape
    if tokens > limit:
        raise refuse(softmax, f"is in a graph for at most {limit} tokens")
    added = nodes.evaluate(view, np.zeros((texts, 1, tokens, tokens), np.float32))
    expected = np.broadcast_to(
        table[:, _distances(tokens) + limit - 1],
        (*added.shape[:1], *table.shape[:1], tokens, tokens),
    )
    allowed = np.broadcast_to(_allowed_keys(view.probe, is_causal, window), added.shape)
    if (added != np.broadcast_to(expected, added.shape))[allowed].any():
        raise refuse(softmax, "adds a bias that differs between texts")


def _nodes_before(view: GraphView, softmax: ir.Node) -> ScoreNodes:
    """Return a Softmax, its input, and the products of queries and keys behind it."""
    value = softmax.inputs[0]
    assert value is not None
    ends = view.sources(value)
    for end in ends:
        if producer_of(end, "MatMul") is None or end in view.linear_layers:
            raise refuse(end.producer(), "is where the matmul of queries and keys should be")
    if len(ends) != 1:
        raise refuse(softmax, "does not read the scores of one matmul of queries and keys")
    return ScoreNodes(softmax=softmax, value=value, products=ends[0])


def _allowed_keys(probe: Probe, is_causal: bool, window: int | None) -> NDArray[np.bool_]:
    """Return whether each query of a text reads each key, `(texts, 1, queries, keys)`."""
    tokens = probe.ids.shape[1]
    allowed = probe.is_text[:, None, None, :] & probe.is_text[:, None, :, None]
    return allowed & _within(tokens, is_causal, window)


def _read_mask(
    softmax: ir.Node, added: NDArray[np.float32], probe: Probe
) -> tuple[bool, int | None]:
    """Return whether a mask is causal, and its window if that is shorter than the texts.

    Raises:
        GraphError: The mask is another one.
    """
    queries = np.broadcast_to(probe.is_text[:, None, :, None], added.shape)
    for window in (None, *range(probe.ids.shape[1])):
        for is_causal in (False, True):
            expected = np.broadcast_to(_allowed_keys(probe, is_causal, window), added.shape)
            if ((added > _LOW) == expected)[queries].all():
                return is_causal, window
    raise refuse(softmax, "has a mask that is neither of padding nor causal nor a window")
