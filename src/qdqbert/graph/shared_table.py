"""The matrix of a decoder, stored as the codes of an embedding table and their rest.

    Transpose(Mul(Mul(Cast(Add(Mul(Cast(codes), 256), Cast(rest))), 1 / 256), scale))

It is computed from constants only, so that runtimes compute it once, when they load the graph. The
sum has integers: OpenVINO would keep a product of int8 constants with a scale, and compute it in
each run.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from qdqbert.encoders.shared_table import STEPS
from qdqbert.graph.edit import add_constant


def add_shared_table(
    graph: ir.Graph,
    before: ir.Node,
    base: str,
    codes: ir.Value,
    rest: ir.Value,
    scale: ir.Value,
) -> ir.Value:
    """Add the matrix of a decoder, `(width, rows)`.

    Args:
        graph: The graph to change.
        before: Node of the graph, before which the matrix is computed.
        base: Start of the names of new nodes.
        codes: Codes of the embedding table, `(rows, width)`.
        rest: Their lower 8 bits, as `rest_of` returns them.
        scale: Scale of the codes.
    """
    nodes: list[ir.Node] = []

    def made(op_type: str, *inputs: ir.Value, **attributes: int | list[int]) -> ir.Value:
        name = f"{base}.decoder.{len(nodes)}"
        nodes.append(ir.node(op_type, list(inputs), attributes, name=name))
        return nodes[-1].outputs[0]

    steps = add_constant(graph, f"{base}.decoder.steps", np.array(STEPS, np.int32))
    step = add_constant(graph, f"{base}.decoder.step", np.array(1 / STEPS, np.float32))
    upper = made("Mul", made("Cast", codes, to=ir.DataType.INT32), steps)
    whole = made("Add", upper, made("Cast", rest, to=ir.DataType.INT32))
    reals = made("Mul", made("Cast", whole, to=ir.DataType.FLOAT), step)
    turned = made("Transpose", made("Mul", reals, scale), perm=[1, 0])
    graph.insert_before(before, nodes)
    return turned
