"""What onnxruntime's int8 CUDA operators compute, in numpy, for onnx's reference evaluator.

Written from the operators' schemas and CUDA sources (`contrib_ops/cuda/quantization/qordered_ops`):
sums of int8 products are exact, all else is in float64 here and in float32 there, so that codes
whose values fall between two may differ by one.
"""

# ruff: noqa: N803 - attributes are named as in the schemas
from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun
from scipy.special import erf

COLUMN, ROW = 0, 1


def codes_of(values: np.ndarray) -> np.ndarray:
    """Rounded half to even and kept within int8."""
    return np.clip(np.rint(values), -128, 127).astype(np.int8)


def matrix_of(weight: np.ndarray, order: int) -> np.ndarray:
    """A weight declared `(in, out)`, as the matrix that its order says it is."""
    assert order == COLUMN
    return weight.reshape(-1).reshape(weight.shape[::-1]).T.astype(np.int64)


def product(x: np.ndarray, weight: np.ndarray, order: int) -> np.ndarray:
    return (x.astype(np.int64) @ matrix_of(weight, order)).astype(np.float64)


class QOrderedMatMul(OpRun):
    op_domain = "com.microsoft"

    def _run(
        self,
        a,
        scale_a,
        b,
        scale_b,
        scale_y,
        bias=None,
        c=None,
        scale_c=None,
        order_A=None,
        order_B=None,
        order_Y=None,
    ):
        assert (order_A, order_Y) == (ROW, ROW)
        assert scale_b.shape in ((), (1,), (b.shape[1],))
        scale_y = np.float64(scale_y)
        total = product(a, b, order_B) * (np.float64(scale_a) * scale_b / scale_y)
        if bias is not None:
            total = total + bias / scale_y
        if c is not None:
            total = total + c * (np.float64(scale_c) / scale_y)
        return (codes_of(total),)


class QOrderedLayerNormalization(OpRun):
    op_domain = "com.microsoft"

    def _run(
        self, x, scale_x, gamma, beta, scale_y, axis=None, epsilon=None, order_X=None, order_Y=None
    ):
        assert (axis, order_X, order_Y, x.ndim, x.shape[-1] % 4) == (-1, ROW, ROW, 3, 0)
        values = x * np.float64(scale_x)
        centered = values - values.mean(-1, keepdims=True)
        normed = centered / np.sqrt((centered**2).mean(-1, keepdims=True) + epsilon)
        return (codes_of((normed * gamma + beta) / np.float64(scale_y)),)


class QOrderedGelu(OpRun):
    op_domain = "com.microsoft"

    def _run(self, x, scale_x, scale_y, order_X=None, order_Y=None):
        assert (order_X, order_Y) == (ROW, ROW)
        table = np.arange(-128, 128) * np.float64(scale_x)
        table = codes_of(table * 0.5 * (1 + erf(table / np.sqrt(2))) / np.float64(scale_y))
        return (table[x.astype(np.int64) + 128],)


class QOrderedAttention(OpRun):
    op_domain = "com.microsoft"

    def _run(
        self,
        x,
        scale_x,
        scale_q,
        scale_k,
        scale_v,
        weight_q,
        weight_k,
        weight_v,
        weight_scale_q,
        weight_scale_k,
        weight_scale_v,
        bias_q,
        bias_k,
        bias_v,
        scale_scores,
        scale_probabilities,
        scale_output,
        mask,
        num_heads=None,
        order_input=None,
        order_output=None,
        order_weight=None,
        qkv_hidden_sizes=None,
        unidirectional=None,
    ):
        batch, length, _ = x.shape
        width = weight_q.shape[1]
        head_dim = width // num_heads
        assert (order_input, order_output, unidirectional or 0) == (ROW, ROW, 0)
        assert list(qkv_hidden_sizes) == [width] * 3
        assert (head_dim % 16, length % 16) == (0, 0)
        assert (mask.dtype, mask.shape) == (np.int32, (batch, length))

        def project(weight, weight_scale, bias, scale):
            alpha = np.float64(scale_x) * weight_scale / np.float64(scale)
            codes = codes_of(product(x, weight, order_weight) * alpha + bias / np.float64(scale))
            return codes.reshape(batch, length, num_heads, head_dim).transpose(0, 2, 1, 3)

        q = project(weight_q, weight_scale_q, bias_q, scale_q).astype(np.int64)
        k = project(weight_k, weight_scale_k, bias_k, scale_k).astype(np.int64)
        v = project(weight_v, weight_scale_v, bias_v, scale_v).astype(np.int64)
        alpha = np.float64(scale_q) * scale_k / scale_scores
        scores = codes_of((q @ k.transpose(0, 1, 3, 2)) * alpha).astype(np.int64)
        # exp of each difference of codes from the largest, masked ones among them.
        base = np.exp(np.float64(scale_scores) / np.sqrt(head_dim))
        powers = np.power(base, scores - scores.max(-1, keepdims=True))
        powers = np.where(mask[:, None, None, :] != 0, powers, 0)
        shares = powers / powers.sum(-1, keepdims=True)
        probabilities = codes_of(shares / np.float64(scale_probabilities)).astype(np.int64)
        alpha = np.float64(scale_probabilities) * scale_v / scale_output
        context = codes_of((probabilities @ v) * alpha)
        return (context.transpose(0, 2, 1, 3).reshape(batch, length, width),)


class GatherElements(OpRun):
    """onnx's own takes other elements than the operator of axis 1 is to take."""

    op_domain = ""

    def _run(self, data, indices, axis=None):
        return (np.take_along_axis(data, indices, axis),)


OPERATORS = [
    GatherElements,
    QOrderedAttention,
    QOrderedGelu,
    QOrderedLayerNormalization,
    QOrderedMatMul,
]


def run_reference(model: ir.Model, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Outputs of a graph by name, without any engine."""
    evaluator = ReferenceEvaluator(ir.to_proto(model), new_ops=OPERATORS)
    given = {name: inputs[name] for name in evaluator.input_names}
    return dict(zip(evaluator.output_names, evaluator.run(None, given), strict=True))
