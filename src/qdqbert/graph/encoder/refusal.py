"""The error for graphs that the native engine cannot run."""

from __future__ import annotations

import onnx_ir as ir

from qdqbert.errors import GraphError


def refuse(node: ir.Node | None, what: str) -> GraphError:
    """Return the error for a node that does not fit.

    Args:
        node: The node; `None` where a value is an input or a constant of the graph.
        what: What is wrong with it, to follow its name.
    """
    named = "an input or constant" if node is None else f"node {node.name!r} ({node.op_type})"
    return GraphError(
        "The native engine cannot run this graph. It reads graphs with layers of BERT or "
        f"ModernBERT, and {named} {what}. Quantize the checkpoint instead of an .onnx file, or "
        "choose other `targets` for this model."
    )
