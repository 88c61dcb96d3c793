"""Read the embeddings: tables of words, positions and token types, and their LayerNorm."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from qdqbert.encoders.model import Embeddings, Floats, Linear, Table
from qdqbert.graph.edit import constant_array, producer_of
from qdqbert.graph.encoder.norms import read_norm, terms_of
from qdqbert.graph.encoder.probe import Array, Probe
from qdqbert.graph.encoder.refusal import refuse
from qdqbert.graph.encoder.view import GraphView

# Kinds of tables, as in the names of BERT's modules.
_WORDS, _POSITIONS, _TOKEN_TYPES = "word", "position", "token_type"


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Lookup:
    """One term of the sum: rows of a table.

    Attributes:
        value: The term.
        table: The whole table.
        index: The value with the index of each token's row.
    """

    value: ir.Value
    table: Table
    index: ir.Value

    @property
    def rows(self) -> int:
        """Number of rows of the table."""
        return len(self.table.rows)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Positions:
    """A table of positions.

    Attributes:
        table: Its rows up to the last position.
        first: As `first_position` in `Embeddings`.
        limit: Longest text in tokens.
        padding_id: Id of the padding token, if it is not counted.
    """

    table: Table
    first: int
    limit: int
    padding_id: int | None


def read_embeddings(view: GraphView, states: ir.Value) -> tuple[Embeddings, int | None]:
    """Read the embeddings.

    Args:
        view: The graph.
        states: Input of the first layer.

    Returns:
        The embeddings, and the longest text in tokens; `None` if no table of positions limits it.

    Raises:
        GraphError: They have another form.
    """
    projection: Linear | None = None
    normed = states
    if states in view.linear_layers:
        found = view.linear(states)
        projection, normed = found.linear, view.state(found.source, "the projected embeddings")
    norm, total = None, normed
    if (node := producer_of(normed, "LayerNormalization")) is not None:
        norm, total = read_norm(view, node)
    tables: dict[str, Table] = {}
    positions: _Positions | None = None
    for term in terms_of(view, total):
        kind, read = _read_term(view, term)
        if kind in tables:
            raise refuse(term.producer(), f"adds {kind} embeddings for the second time")
        if isinstance(read, _Positions):
            positions, read = read, read.table
        tables[kind] = dataclasses.replace(read, module=f"embeddings.{kind}_embeddings")
    if _WORDS not in tables:
        raise refuse(total.producer(), "does not look up embeddings of words")
    embeddings = Embeddings(
        words=tables[_WORDS],
        positions=tables.get(_POSITIONS),
        token_types=tables.get(_TOKEN_TYPES),
        norm=norm,
        projection=projection,
        padding_id=None if positions is None else positions.padding_id,
        first_position=0 if positions is None else positions.first,
    )
    return embeddings, None if positions is None else positions.limit


def _read_term(view: GraphView, term: ir.Value) -> tuple[str, Table | _Positions]:
    """Return a term of the sum, and its kind."""
    if view.sources(term):
        raise refuse(term.producer(), "adds a state of the encoder to the embeddings")
    lookup = _lookup_of(term)
    if lookup is None:
        return _read_term_without_lookup(view, term)
    index, probe = view.evaluate(lookup.index), view.probe
    if _equals(index, probe.ids, probe):
        return _WORDS, lookup.table
    if _equals(index, probe.token_types, probe) and "token_type_ids" in probe.inputs:
        return _TOKEN_TYPES, lookup.table
    if not index.any():
        # The model has no input of token types, and each token has the first type.
        return _TOKEN_TYPES, lookup.table
    return _POSITIONS, _read_positions(view, lookup)


def _read_term_without_lookup(view: GraphView, term: ir.Value) -> tuple[str, Table | _Positions]:
    """Read a term that is one constant row for all tokens, or the first rows of a constant."""
    array = constant_array(term)
    if array is not None and array.size == array.shape[-1]:
        row = np.ascontiguousarray(array.reshape(1, -1), np.float32)
        return _TOKEN_TYPES, Table(rows=row, scale=None)
    long = view.long_probe(_most_rows(term))
    made = view.evaluate(term, probe=long)
    made = made.reshape(-1, made.shape[-1])[: long.ids.shape[1]]
    table = np.ascontiguousarray(made, np.float32)
    tokens = view.probe.ids.shape[1]
    short = view.evaluate(term).reshape(-1, table.shape[1])
    repeated = np.tile(table[:tokens], (max(len(short) // tokens, 1), 1))
    if len(table) < tokens or not np.array_equal(short, repeated):
        raise refuse(term.producer(), "does not add one row of a table for each position")
    rows = Table(rows=table, scale=None)
    return _POSITIONS, _Positions(table=rows, first=0, limit=len(table), padding_id=None)


def _lookup_of(term: ir.Value) -> _Lookup | None:
    """Return the table and the index of a term; `None` if it does not look up rows of a table."""
    gather = producer_of(term, "Gather")
    if gather is None or gather.attributes.get_int("axis", 0) != 0:
        return None
    rows, index = constant_array(gather.inputs[0]), gather.inputs[1]
    if rows is None or rows.ndim != 2 or index is None or rows.dtype.kind != "f":
        return None
    return _Lookup(value=term, table=Table(rows=_floats(rows), scale=None), index=index)


def _read_positions(view: GraphView, lookup: _Lookup) -> _Positions:
    """Find the row of the first token, the longest text, and whether padding is counted."""
    first = int(view.evaluate(lookup.index).reshape(-1)[0])
    # RoBERTa counts from the row after the padding token's, whose number is its id.
    ids = view.probe.ids.copy()
    ids[:, 2] = first - 1
    reads_ids = any(value.name == "input_ids" for value in _inputs_of(lookup.index))
    padding_id = first - 1 if reads_ids and first else None
    for given in (ids, view.probe.ids):
        probe = _with_ids(view, given)
        counted = given != padding_id
        expected = np.where(counted, first + np.cumsum(counted, axis=1) - 1, first - 1)
        if not _equals(view.evaluate(lookup.index, probe=probe), expected, probe):
            raise refuse(
                lookup.value.producer(), "looks up embeddings of neither words nor positions"
            )
    limit = lookup.rows - first
    long = view.long_probe(limit)
    longest = view.evaluate(lookup.index, probe=long).reshape(-1)[: long.ids.shape[1]]
    # A constant with the numbers of positions may be shorter than the table.
    limit = min(limit, len(longest))
    if not np.array_equal(longest, first + np.arange(limit)):
        raise refuse(lookup.value.producer(), "does not number positions in order")
    return _Positions(
        table=dataclasses.replace(lookup.table, rows=lookup.table.rows[: first + limit]),
        first=first - (padding_id is not None),
        limit=limit,
        padding_id=padding_id,
    )


def _with_ids(view: GraphView, ids: Array) -> Probe:
    return view.make_probe(texts=len(ids), tokens=ids.shape[1], ids=ids)


def _equals(index: Array, expected: Array, probe: Probe) -> bool:
    """Return whether an index, perhaps of one text for all, is as expected except at padding."""
    if index.size not in (expected.size, expected.shape[1]):
        return False
    given = np.broadcast_to(index.reshape(-1, expected.shape[1]), expected.shape)
    return bool(np.array_equal(given[probe.is_text], expected[probe.is_text]))


def _floats(array: NDArray[np.generic]) -> Floats:
    return array.astype(np.float32, copy=False)


def _inputs_of(value: ir.Value) -> set[ir.Value]:
    """Return the inputs of the graph whose values, not only shapes, a value depends on."""
    waiting, seen = [value], {value}
    while waiting:
        node = waiting.pop().producer()
        if node is not None and node.op_type != "Shape":
            new = {each for each in node.inputs if each is not None} - seen
            waiting += new
            seen |= new
    return {each for each in seen if each.is_graph_input()}


def _most_rows(value: ir.Value) -> int:
    """Return the number of rows of the longest table that a value is computed from."""
    waiting, seen = [value], {value}
    while waiting:
        node = waiting.pop().producer()
        if node is not None:
            new = {each for each in node.inputs if each is not None} - seen
            waiting += new
            seen |= new
    arrays = [array for each in seen if (array := constant_array(each)) is not None]
    rows = [int(array.size) // int(array.shape[-1]) for array in arrays if array.ndim > 1]
    if not rows:
        raise refuse(value.producer(), "is not an embedding table")
    return max(rows)
