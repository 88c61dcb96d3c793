"""Attention in float, as nodes of a graph, with what stands at its sites."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from qdqbert.encoders.model import Attention, Rotary
from qdqbert.encoders.sites import parent_of
from qdqbert.graphs.nodes import Nodes
from qdqbert.graphs.operators import integers, normed
from qdqbert.graphs.qdq import SiteWriter
from qdqbert.graphs.token_nodes import Tokens


class AttentionWriter:
    """Writes the attentions of one model, between their linear layers."""

    def __init__(self, add: Nodes, sites: SiteWriter, tokens: Tokens, *, expands: bool) -> None:
        """Write into a graph. If it `expands` queries, tokens may attend to none in a window."""
        self._add, self._sites, self._tokens, self._expands = add, sites, tokens, expands

    def merged(self, made: list[str], attention: Attention) -> str:
        """Return the merged heads of an attention.

        Queries, keys and values, `made`, are `(batch, seq, heads * size)`.
        """
        add, path = self._add, parent_of(attention.query)
        norms = (attention.query_norm, attention.key_norm, None)
        projections = (attention.query, attention.key, attention.value)
        sizes = [len(each.bias) // attention.heads for each in projections]
        if not attention.norms_each_head:
            made = [normed(add, each, norm) for each, norm in zip(made, norms, strict=True)]
        query, key, value = (
            add("Reshape", each, integers(0, 0, attention.heads, size))
            for each, size in zip(made, sizes, strict=True)
        )
        if attention.norms_each_head:
            query, key = (
                normed(add, each, norm) for each, norm in zip((query, key), norms, strict=False)
            )
        query, value = (add("Transpose", each, perm=[0, 2, 1, 3]) for each in (query, value))
        if attention.rotary is None:
            turned = add("Transpose", key, perm=[0, 2, 3, 1])
        else:
            query, key = (
                self._rotate(each, attention.rotary)
                for each in (query, add("Transpose", key, perm=[0, 2, 1, 3]))
            )
            turned = add("Transpose", key, perm=[0, 1, 3, 2])
        if attention.scales_keys:
            turned = add("Mul", turned, np.float32(attention.scale))
        value = self._sites.activation(f"{path}.matmul_v_input_quantizer", value)
        scores = self._scores(query, turned, key, attention)
        scores = add("Add", scores, self._tokens.additive_mask(attention))
        probabilities = add("Softmax", scores, axis=-1)
        probabilities = self._sites.activation(f"{path}.matmul_a_input_quantizer", probabilities)
        contexts = add("MatMul", probabilities, value)
        if self._expands and attention.window is not None:
            contexts = add("Mul", contexts, self._tokens.attends(attention))
        merged = add("Transpose", contexts, perm=[0, 2, 1, 3])
        return add("Reshape", merged, integers(0, 0, attention.heads * sizes[2]))

    def _rotate(self, x: str, rotary: Rotary) -> str:
        add = self._add
        first, second = (
            add("Slice", x, integers(start), integers(end), integers(-1))
            for start, end in ((0, rotary.cos.shape[1]), (rotary.cos.shape[1], 2**31))
        )
        output = ir.DataType.FLOAT, [*self._tokens.axes[1:], rotary.cos.shape[1]]
        cos, sin = (
            add("Slice", each, integers(0), self._tokens.length, integers(0), output=output)
            for each in (rotary.cos, rotary.sin)
        )
        turned = add("Sub", add("Mul", first, cos), add("Mul", second, sin))
        other = add("Add", add("Mul", second, cos), add("Mul", first, sin))
        return add("Concat", turned, other, axis=-1)

    def _scores(self, query: str, turned: str, key: str, attention: Attention) -> str:
        """Return the scores.

        Queries are `(batch, heads, seq, size)`. Keys are turned, `(batch, heads, size, seq)`, and
        `(batch, seq, heads, size)`, where scores have relative positions.
        """
        add, path = self._add, parent_of(attention.query)
        scores = add(
            "MatMul",
            self._sites.activation(f"{path}.matmul_q_input_quantizer", query),
            self._sites.activation(f"{path}.matmul_k_input_quantizer", turned),
        )
        scores = self._sites.activation(f"{path}.softmax_input_quantizer", scores)
        scale = np.float32(attention.scale)
        relative = self._relative_scores(query, key, scores, attention)
        if attention.scales_keys:
            relative = [add("Mul", each, scale) for each in relative]
        for each in relative:
            scores = add("Add", scores, each)
        if not attention.scales_keys:
            scores = add("Mul", scores, scale)
        if attention.position_bias is not None:
            middle = np.array(attention.position_bias.shape[1] // 2)
            index = add("Add", self._tokens.distance, middle)
            scores = add("Add", scores, add("Gather", attention.position_bias, index, axis=1))
        return scores

    def _relative_scores(
        self, query: str, key: str, scores: str, attention: Attention
    ) -> list[str]:
        """Return the relative scores, by the distance of query and key."""
        add, relative = self._add, attention.relative
        if relative is None:
            return []
        middle = np.array(len(relative.rows) // 2)
        found = add(
            "Gather", relative.rows.astype(np.int64), add("Add", self._tokens.distance, middle)
        )
        # Products with all rows, of which each pair of tokens takes one.
        shape, made = add("Shape", scores), []
        if relative.keys is not None:
            products = add("MatMul", query, relative.keys.transpose(0, 2, 1))
            made.append(add("GatherElements", products, add("Expand", found, shape), axis=3))
        if relative.queries is not None:
            key = add("Transpose", key, perm=[0, 2, 1, 3])
            products = add("MatMul", key, relative.queries.transpose(0, 2, 1))
            rows = add("Expand", add("Transpose", found, perm=[1, 0]), shape)
            picked = add("GatherElements", products, rows, axis=3)
            made.append(add("Transpose", picked, perm=[0, 1, 3, 2]))
        return made
