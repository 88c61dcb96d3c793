"""Read a graph with Q/DQ pairs as an encoder that the native engine runs.

Graphs of existing ONNX models and of decoders for text generation are read. The graph is followed
from its outputs back to its inputs: heads, layers, embeddings. Every node has to be part of one of
them.
"""

from __future__ import annotations

import onnx_ir as ir

from qdqbert.encoders.model import EncoderModel
from qdqbert.graph.encoder.embeddings import read_embeddings
from qdqbert.graph.encoder.heads import read_heads
from qdqbert.graph.encoder.layers import read_layers, with_positions
from qdqbert.graph.encoder.refusal import refuse
from qdqbert.graph.encoder.view import GraphView


def read_encoder(model: ir.Model, *, longest: int | None = None) -> EncoderModel:
    """Read a graph as an encoder.

    Args:
        model: A graph with Q/DQ pairs, as `graph.qdq.insert_qdq` returns it, of standard ONNX
            operators. It is not changed.
        longest: Longest text in tokens, for graphs without a table of positions.

    Returns:
        The encoder. Its arrays may share memory with the graph.

    Raises:
        GraphError: The graph has a part that the engine does not run. The message names the node.
    """
    view = GraphView(model)
    heads, states = read_heads(view)
    layers, start, final_norm = read_layers(view, states)
    embeddings, rows = read_embeddings(view, start)
    limit = longest if rows is None else rows
    if limit is None:
        raise refuse(None, "has no table of positions, and the longest text is not known")
    complete = with_positions(view, layers, limit)
    view.check_all_read()
    return EncoderModel(
        embeddings=embeddings,
        layers=complete,
        final_norm=final_norm,
        heads=heads,
        limit=limit,
        input_names=tuple(str(value.name) for value in model.graph.inputs),
        has_choices=view.has_choices,
    )
