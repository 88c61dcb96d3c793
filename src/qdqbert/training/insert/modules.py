"""Modules with sites, which call the quantizers there."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask

from qdqbert.calibration.reference.factory import QuantizerFactory
from qdqbert.quantization.spec import Site, Source, linear_sites, residual_sites

ATTENTION = "qdqbert"
"""Name of `quantized_attention` in transformers' attention interface."""


class QuantResidualOutput(nn.Module):
    """Dense layer, dropout, residual add and LayerNorm, with a quantizer on each input of the add.

    Replaces transformers' `BertSelfOutput` and `BertOutput`, and the same modules of other families
    with LayerNorm after the add. Their `dense` is quantized already. Parameters keep their names.

    Source: transformers 4.40, `modeling_qdqbert.py`, `QDQBertSelfOutput`.
    """

    def __init__(self, output: nn.Module, *, name: str, factory: QuantizerFactory) -> None:
        super().__init__()
        parts = dict(output.named_children())
        self.dense = parts["dense"]
        self.dropout = parts["dropout"]
        self.LayerNorm = parts["LayerNorm"]
        add_quantizers_(self, residual_sites(name), factory)
        self.train(output.training)

    def forward(self, hidden_states: Tensor, input_tensor: Tensor) -> Tensor:
        """Map the local branch `(batch, seq, in)` and the residual to `(batch, seq, hidden)`."""
        local = self.dropout(self.dense(hidden_states))
        normed: Tensor = self.LayerNorm(residual_sum(self, local, input_tensor))
        return optional_quantizer(self, "layernorm_output_quantizer", normed)


def quantized_linear(
    linear: nn.Linear, *, name: str, source: Source, over_tokens: bool, factory: QuantizerFactory
) -> Any:
    """Return a quantized linear layer whose quantizers know their sites.

    Args:
        linear: The float layer, whose parameters are shared.
        name: Path of the layer.
        source: Kind of its input.
        over_tokens: Whether axis 1 of the input runs over the tokens of the model's own text.
        factory: Makes the layer and its quantizers.
    """
    new = factory.linear(linear)
    new._input_quantizer.site, new._weight_quantizer.site = linear_sites(
        name, source, linear.in_features, over_tokens=over_tokens
    )
    new._input_quantizer.sizes = (linear.in_features,)
    new._weight_quantizer.sizes = tuple(linear.weight.shape)
    return new


def residual_sum(branch: nn.Module, local: Tensor, residual: Tensor) -> Tensor:
    """Add a local branch to a residual, both quantized. All are `(batch, seq, hidden)`."""
    quantizers: Any = branch
    total: Tensor = quantizers.add_local_input_quantizer(
        local
    ) + quantizers.add_residual_input_quantizer(residual)
    return optional_quantizer(branch, "layernorm_input_quantizer", total)


def add_quantizers_(module: nn.Module, sites: Iterable[Site], factory: QuantizerFactory) -> None:
    """Add a quantizer for each site to its module, under the last part of the site's name."""
    for site in sites:
        module.add_module(site.name.rpartition(".")[2], factory.activation(site))


def register_attention() -> None:
    """Register `ATTENTION` with transformers. Can be repeated."""
    AttentionInterface.register(ATTENTION, quantized_attention)
    AttentionMaskInterface.register(ATTENTION, eager_mask)


def quantized_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **_: object,
) -> tuple[Tensor, Tensor]:
    """Compute attention with the quantizers of `module` on the inputs of both matmuls.

    Args:
        module: An attention module with quantizers of `matmul_sites`.
        query: `(batch, heads, seq, head_dim)`.
        key: The same, with another `seq` in cross-attention and with a cache.
        value: Shape of `key`.
        attention_mask: Added to the scores. Broadcasts to `(batch, heads, seq, seq)`.
        scaling: Factor of the scores. `None` is `head_dim ** -0.5`.
        dropout: Probability, only used in training.

    Returns:
        Context `(batch, seq, heads, head_dim)` and probabilities `(batch, heads, seq, seq)`.

    Source: transformers 5's attention interface. The order is QDQBERT's: inputs of matmuls are
    quantized after softmax and dropout, and scores are scaled after the matmul.
    """
    quantizers: Any = module
    query = quantizers.matmul_q_input_quantizer(query)
    key_transposed = quantizers.matmul_k_input_quantizer(key.transpose(2, 3))
    scale = query.size(-1) ** -0.5 if scaling is None else scaling
    products = torch.matmul(query, key_transposed)
    scores = optional_quantizer(module, "softmax_input_quantizer", products) * scale
    if attention_mask is not None:
        scores = scores + attention_mask
    probabilities = functional.dropout(
        functional.softmax(scores, dim=-1), p=dropout, training=module.training
    )
    probabilities = quantizers.matmul_a_input_quantizer(probabilities)
    context = torch.matmul(probabilities, quantizers.matmul_v_input_quantizer(value))
    return context.transpose(1, 2).contiguous(), probabilities


def optional_quantizer(module: nn.Module, name: str, x: Tensor) -> Tensor:
    """Apply the quantizer `name` of a module to `x`; return `x` if the module has none."""
    quantizer = getattr(module, name, None)
    if quantizer is None:
        return x
    result: Tensor = quantizer(x)
    return result
