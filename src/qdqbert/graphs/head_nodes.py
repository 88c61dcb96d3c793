"""The heads of a model, as nodes of its graph."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from qdqbert.encoders.model import EncoderModel, Head, Linear, Norm, Pooling, Step
from qdqbert.graphs.nodes import Nodes
from qdqbert.graphs.operators import activated, integers, normed
from qdqbert.graphs.qdq import SiteWriter
from qdqbert.graphs.token_nodes import Tokens


class HeadWriter:
    """Writes the heads of one model."""

    def __init__(self, add: Nodes, sites: SiteWriter, tokens: Tokens, model: EncoderModel) -> None:
        self._add, self._sites, self._tokens = add, sites, tokens
        self._has_choices, self._words = model.has_choices, model.embeddings.words

    def write(self, states: str, head: Head) -> list[ir.Value]:
        """Write a head, and return its outputs."""
        add = self._add
        if "max" in head.poolings:
            # A copy of the first token, which changes no maximum, in the place of padding. Where
            # tokens have a score for each word, a mask would need as much memory again.
            kept = add(
                "Cast", add("Unsqueeze", self._tokens.mask, integers(2)), to=ir.DataType.BOOL
            )
            first = add("Slice", states, integers(0), integers(1), integers(1))
            states = add("Where", kept, states, first)
        x = self._run_steps(states, head.steps[: head.token_steps])
        x = self._run_steps(self._pool(x, head.poolings), head.steps[head.token_steps :])
        axes: Sequence[str | None] = ["batch", "sequence"] if head.is_of_tokens else ["batch"]
        made = []
        for output in head.outputs:
            found, own = x, [*axes, None]
            if output.column is not None:
                found, own = add("Gather", x, np.array(output.column), axis=-1), [*axes]
            if self._has_choices:
                shape = add("Shape", "input_ids", end=2)
                found, own = add("Reshape", found, shape), ["batch", "choices"]
            value = ir.val(output.name, ir.DataType.FLOAT, own)
            add.graph.append(ir.node("Identity", [add.values[found]], outputs=[value]))
            made.append(value)
        return made

    def _run_steps(self, x: str, steps: Sequence[Step]) -> str:
        for step in steps:
            if isinstance(step, Linear):
                x = self._sites.plain_linear(x, step, self._words)
            elif isinstance(step, Norm):
                x = normed(self._add, x, step)
            elif step == "normalize":
                length = self._add("ReduceL2", x, integers(-1))
                x = self._add("Div", x, self._add("Max", length, np.float32(1e-12)))
            elif step == "log1p":
                x = self._add("Log", self._add("Add", x, np.float32(1)))
            else:
                x = activated(self._add, x, step)
        return x

    def _pool(self, states: str, poolings: Sequence[Pooling]) -> str:
        pooled = [self._pooled(states, each) for each in poolings]
        return self._add("Concat", *pooled, axis=-1) if len(pooled) > 1 else pooled[0]

    def _pooled(self, states: str, pooling: Pooling) -> str:
        add = self._add
        if pooling == "none":
            return states
        if pooling == "first":
            return add("Gather", states, np.array(0), axis=1)
        if pooling == "max":
            return add("ReduceMax", states, integers(1), keepdims=0)
        weights = self._tokens.mask
        if pooling in ("weightedmean", "last"):
            # Counted from 1.
            position = add("CumSum", self._tokens.mask, np.array(1))
            if pooling == "last":
                last = add("ReduceMax", position, integers(1))
                position = add("Cast", add("Equal", position, last), to=ir.DataType.INT64)
            weights = add("Mul", weights, position)
        weights = add("Cast", add("Unsqueeze", weights, integers(2)), to=ir.DataType.FLOAT)
        total = add("ReduceSum", add("Mul", states, weights), integers(1), keepdims=0)
        if pooling in ("sum", "last"):
            return total
        count = add("ReduceSum", weights, integers(1), keepdims=0)
        # As sentence-transformers does for texts without a token.
        count = add("Max", count, np.float32(1e-9))
        is_root = pooling == "mean_sqrt_len_tokens"
        return add("Div", total, add("Sqrt", count) if is_root else count)
