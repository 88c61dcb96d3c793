"""Read a float graph as an encoder.

The graph is followed from its outputs back to its inputs: heads, layers, embeddings. What is
computed on the way has to be part of one of them, or come after the last hidden states.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

import numpy as np
import onnx_ir as ir

from qdqbert.encoders.model import EncoderModel, Head, Linear, Table
from qdqbert.graphs.encoder.embeddings import read_embeddings
from qdqbert.graphs.encoder.layers import read_adds, read_layers
from qdqbert.graphs.encoder.outputs import read_outputs
from qdqbert.graphs.encoder.view import GraphView


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReadGraph:
    """A graph that was read.

    Attributes:
        encoder: The encoder, in float.
        dropped: Names of the outputs that it does not have, since they are computed from inner
            states.
    """

    encoder: EncoderModel
    dropped: tuple[str, ...]


def read_encoder(model: ir.Model, outputs: Collection[str], *, longest: int) -> ReadGraph:
    """Read a graph as an encoder.

    Args:
        model: A float graph in canonical form. It is not changed.
        outputs: Names of the outputs that must not be dropped.
        longest: Longest text in tokens, for graphs without a table of positions.

    Raises:
        GraphError: The graph has a part that is not known. The message names the node.
    """
    view = GraphView(model)
    ends = read_outputs(view, outputs)
    adds, start, final_norm = read_adds(view, ends.states)
    embeddings, rows = read_embeddings(view, start)
    limit = view.tokens or rows or longest
    encoder = EncoderModel(
        embeddings=embeddings,
        layers=read_layers(view, adds, limit),
        final_norm=final_norm,
        heads=tuple(_with_table(head, embeddings.words) for head in ends.heads),
        limit=limit,
        input_names=tuple(str(value.name) for value in model.graph.inputs),
        has_choices=view.has_choices,
        tail=ends.tail,
    )
    return ReadGraph(encoder=encoder, dropped=ends.dropped)


def _with_table(head: Head, words: Table) -> Head:
    """Return a head whose decoder shares its weight with the table of words, if they are equal."""
    steps = [
        dataclasses.replace(step, weight=words.rows)
        if isinstance(step, Linear) and np.array_equal(step.weight, words.rows)
        else step
        for step in head.steps
    ]
    return dataclasses.replace(head, steps=tuple(steps))
