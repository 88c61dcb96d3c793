"""Read the embeddings: tables of words, positions and token types, and their LayerNorm."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx_ir as ir

from qdqbert.encoders.model import Embeddings, Floats, Linear, Table
from qdqbert.graphs.edit import constant_array, producer_of
from qdqbert.graphs.encoder.probe import Array, Probe, make_probe
from qdqbert.graphs.encoder.refusal import refuse
from qdqbert.graphs.encoder.view import GraphView, terms_of

# Kinds of tables, as in the names of BERT's modules.
_WORDS, _POSITIONS, _TOKEN_TYPES = "word", "position", "token_type"


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Rows:
    """One term of the sum: rows of a table.

    Attributes:
        rows: Its rows, of positions up to the last one.
        first: As `first_position` in `Embeddings`.
        limit: Longest text in tokens; `None` if the table sets no limit.
        padding_id: Id of the padding token, if it is not counted.
    """

    kind: str
    rows: Floats
    first: int = 0
    limit: int | None = None
    padding_id: int | None = None


def read_embeddings(view: GraphView, states: ir.Value) -> tuple[Embeddings, int | None]:
    """Read the embeddings, which the first layer reads.

    Returns:
        The embeddings, and the longest text in tokens; `None` if no table of positions limits it.

    Raises:
        GraphError: They have another form.
    """
    projection: Linear | None = None
    total, norm = states, None
    if states in view.linear_layers:
        projection, source = view.linear(states)
        total = view.state(source, "the projected embeddings")
    if (node := producer_of(total, "LayerNormalization")) is not None:
        norm, total = view.norm(node)
    found: dict[str, _Rows] = {}
    # Sums may be terms of sums.
    terms = [total]
    while terms:
        term = terms.pop(0)
        if inner := terms_of(term):
            terms[:0] = inner
            continue
        read = _read_term(view, term)
        if read.kind in found:
            raise refuse(term.producer(), f"adds {read.kind} embeddings for the second time")
        found[read.kind] = read
    if _WORDS not in found:
        raise refuse(total.producer(), "does not look up embeddings of words")
    tables = {
        kind: Table(rows=each.rows, module=f"embeddings.{kind}_embeddings")
        for kind, each in found.items()
    }
    positions = found.get(_POSITIONS, found[_WORDS])
    embeddings = Embeddings(
        words=tables[_WORDS],
        positions=tables.get(_POSITIONS),
        token_types=tables.get(_TOKEN_TYPES),
        norm=norm,
        projection=projection,
        padding_id=positions.padding_id,
        first_position=positions.first,
    )
    return embeddings, positions.limit


def _read_term(view: GraphView, term: ir.Value) -> _Rows:
    if view.sources(term):
        raise refuse(term.producer(), "adds a state of the encoder to the embeddings")
    gather = producer_of(term, "Gather")
    table, index = gather.inputs if gather is not None else (None, None)
    rows = constant_array(table)
    if (
        gather is None
        or index is None
        or gather.attributes.get_int("axis", 0) != 0
        or rows is None
        or rows.ndim != 2
        or rows.dtype.kind != "f"
    ):
        return _read_term_without_lookup(view, term)
    floats: Floats = rows.astype(np.float32, copy=False)
    numbers, probe = view.evaluate(index), view.probe
    if _equals(numbers, probe.ids, probe):
        return _Rows(kind=_WORDS, rows=floats)
    # Without an input of token types, each token has the first type.
    if _equals(numbers, probe.token_types, probe) or not numbers.any():
        return _Rows(kind=_TOKEN_TYPES, rows=floats)
    return _read_positions(view, index, floats)


def _read_term_without_lookup(view: GraphView, term: ir.Value) -> _Rows:
    """Read a term that is one constant row for all tokens, or the first rows of a constant."""
    array = constant_array(term)
    if array is not None and array.size == array.shape[-1]:
        row = np.ascontiguousarray(array.reshape(1, -1), np.float32)
        return _Rows(kind=_TOKEN_TYPES, rows=row)
    arrays = [constant_array(each) for each in view.before(term)]
    sizes = [each.size // each.shape[-1] for each in arrays if each is not None and each.ndim > 1]
    if not sizes:
        raise refuse(term.producer(), "is not an embedding table")
    long = view.long_probe(max(sizes))
    made = view.evaluate(term, probe=long)
    made = made.reshape(-1, made.shape[-1])[: long.ids.shape[1]]
    table = np.ascontiguousarray(made, np.float32)
    tokens = view.probe.ids.shape[1]
    short = view.evaluate(term).reshape(-1, table.shape[1])
    repeated = np.tile(table[:tokens], (max(len(short) // tokens, 1), 1))
    if len(table) < tokens or not np.array_equal(short, repeated):
        raise refuse(term.producer(), "does not add one row of a table for each position")
    return _Rows(kind=_POSITIONS, rows=table, limit=len(table))


def _read_positions(view: GraphView, index: ir.Value, rows: Floats) -> _Rows:
    """Find the row of the first token, the longest text, and whether padding is counted."""
    first = int(view.evaluate(index).reshape(-1)[0])
    # RoBERTa counts from the row after the padding token's, whose number is its id.
    ids = view.probe.ids.copy()
    ids[:, 2] = first - 1
    probe = make_probe(view.graph, texts=len(ids), tokens=ids.shape[1], ids=ids)
    for padding_id in (None, first - 1):
        counted = ids != padding_id
        expected = np.where(counted, first + np.cumsum(counted, axis=1) - 1, first - 1)
        if _equals(view.evaluate(index, probe=probe), expected, probe):
            break
    else:
        raise refuse(index.producer(), "looks up embeddings of neither words nor positions")
    long = view.long_probe(len(rows) - first)
    longest = view.evaluate(index, probe=long).reshape(-1)[: long.ids.shape[1]]
    # A constant with the numbers of positions may be shorter than the table.
    limit = min(len(rows) - first, len(longest))
    if not np.array_equal(longest, first + np.arange(limit)):
        raise refuse(index.producer(), "does not number positions in order")
    return _Rows(
        kind=_POSITIONS,
        rows=rows[: first + limit],
        first=first - (padding_id is not None),
        limit=limit,
        padding_id=padding_id,
    )


def _equals(index: Array, expected: Array, probe: Probe) -> bool:
    """Return whether an index, perhaps of one text for all, is as expected except at padding."""
    if index.size not in (expected.size, expected.shape[1]):
        return False
    given = np.broadcast_to(index.reshape(-1, expected.shape[1]), expected.shape)
    return bool(np.array_equal(given[probe.is_text], expected[probe.is_text]))
