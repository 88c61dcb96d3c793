"""Read a graph with Q/DQ pairs as an encoder that the native engine runs.

The graph is followed from its outputs back to its inputs: heads, layers, embeddings. Every node has
to be part of one of them.
"""

from __future__ import annotations

import onnx_ir as ir

from qdqbert.engines.native.model import EncoderModel
from qdqbert.graph.encoder.embeddings import read_embeddings
from qdqbert.graph.encoder.heads import read_heads
from qdqbert.graph.encoder.layers import read_layers, with_position_bias
from qdqbert.graph.encoder.view import GraphView


def read_encoder(model: ir.Model) -> EncoderModel:
    """Read a graph as an encoder.

    Args:
        model: A graph with Q/DQ pairs, as `graph.qdq.insert_qdq` returns it, of standard ONNX
            operators. It is not changed.

    Returns:
        The encoder. Its arrays may share memory with the graph.

    Raises:
        GraphError: The graph has a part that the engine does not run. The message names the node.
    """
    view = GraphView(model)
    heads, states = read_heads(view)
    layers, start = read_layers(view, states)
    embeddings, limit = read_embeddings(view, start)
    complete = tuple(with_position_bias(view, each, limit) for each in layers)
    view.check_all_read()
    return EncoderModel(
        embeddings=embeddings,
        layers=complete,
        heads=heads,
        limit=limit,
        input_names=tuple(str(value.name) for value in model.graph.inputs),
        has_choices=view.has_choices,
    )
