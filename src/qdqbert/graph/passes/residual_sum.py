"""Keep ONNX Runtime from merging a residual add into its slower LayerNormalization.

    LayerNormalization(Add(x, y))  ->  LayerNormalization(Sum(x, y))

When it loads a graph, ONNX Runtime fuses Add and LayerNormalization to SkipLayerNormalization. That
CPU kernel sums in a scalar loop and takes several times as long as the vectorized
LayerNormalization and the add together (`benchmarks/layer_norm.py`). No fusion matches Sum. Applies
only where the LayerNormalization is the only reader of the add.
"""

from __future__ import annotations

import onnx_ir as ir

from qdqbert.graph.edit import constant_array, only_consumer, replace, tidy


def sum_residuals(model: ir.Model) -> ir.Model:
    """Apply the rewrite; change and return `model`."""
    for node in list(model.graph):
        if node.op_type != "Add":
            continue
        norm = only_consumer(node.outputs[0])
        constants = any(constant_array(value) is not None for value in node.inputs)
        if norm is not None and norm.op_type == "LayerNormalization" and not constants:
            new = ir.node("Sum", list(node.inputs), name=f"{node.name}.sum")
            replace(model.graph, node, new, old=node.outputs[0])
    return tidy(model)
