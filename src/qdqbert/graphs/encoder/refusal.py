"""Errors of graphs that cannot be read."""

from __future__ import annotations

import onnx_ir as ir

from qdqbert.common.errors import GraphError


def refuse(node: ir.Node | None, reason: str) -> GraphError:
    """Return the error for a graph with a part that is not known, a node or the graph as a whole.

    The reason follows its name, such as "reads scores that are not multiplied by one factor".
    """
    what = "it" if node is None else f"node {node.name!r} ({node.op_type})"
    return GraphError(
        f"The structure of the graph is not known: {what} {reason}. Layers of BERT, MPNet and "
        "ModernBERT are read. Quantize the checkpoint instead of an .onnx file, if there is one."
    )
