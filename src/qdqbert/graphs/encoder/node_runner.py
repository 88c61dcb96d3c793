"""Compute nodes of a graph with onnx's reference evaluator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from numpy.typing import NDArray
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun
from torch.nn import functional

from qdqbert.calibration.reference.body import tensor_of

Array = NDArray[Any]


class Gelu(OpRun):
    """GELU, which onnx's evaluator does not have."""

    op_domain = ""

    def _run(self, x: Array, approximate: str) -> tuple[Array]:
        return (functional.gelu(tensor_of(x), approximate=approximate).numpy(),)


class Erf(OpRun):
    """Erf, which onnx's evaluator computes an element at a time."""

    op_domain = ""

    def _run(self, x: Array) -> tuple[Array]:
        return (torch.erf(tensor_of(x)).numpy(),)


class GatherElements(OpRun):
    """GatherElements, which onnx's evaluator computes for small tensors only."""

    op_domain = ""

    def _run(self, data: Array, indices: Array, axis: int) -> tuple[Array]:
        return (np.take_along_axis(data, indices, axis),)


class NodeRunner:
    """Computes nodes of a graph, one at a time. Evaluators of nodes are kept."""

    def __init__(self, opsets: Mapping[str, int]) -> None:
        self._opsets = dict(opsets)
        self._evaluators: dict[ir.Node, ReferenceEvaluator] = {}

    def __call__(self, node: ir.Node, given: Sequence[Array]) -> list[Array]:
        """Return the outputs of a node, given the arrays of its inputs without missing ones."""
        if node not in self._evaluators:
            self._evaluators[node] = ReferenceEvaluator(
                ir.serde.serialize_node(node),
                opsets=self._opsets,
                new_ops=[Erf, Gelu, GatherElements],
            )
        names = [str(each.name) for each in node.inputs if each is not None]
        with np.errstate(all="ignore"):
            made = self._evaluators[node].run(None, dict(zip(names, given, strict=True)))
        return list(map(np.asarray, made))
