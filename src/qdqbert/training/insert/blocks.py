"""Blocks of transformers whose own `forward` contains a matmul or a residual add.

Each is a subclass of transformers' block with another `forward`. So parameters keep their names,
and transformers still finds the block for hidden states and for gradient checkpointing. Each calls
quantizers that it or its parts have already. A family whose attention uses transformers' attention
interface needs no block here, since `quantized_attention` is enough.

The quantizers of a residual add belong to the module that makes its local input, even if the module
around it adds: DistilBERT's are `transformer.layer.0.ffn.add_local_input_quantizer` and so on.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from qdqbert.encoders.checkpoint.docstrings import importing_models
from qdqbert.training.insert.modules import quantized_attention, residual_sum

with importing_models():
    from transformers.models.deberta_v2.modeling_deberta_v2 import DisentangledSelfAttention
    from transformers.models.distilbert.modeling_distilbert import TransformerBlock
    from transformers.models.modernbert.modeling_modernbert import ModernBertEncoderLayer
    from transformers.models.mpnet.modeling_mpnet import MPNetAttention, MPNetSelfAttention


class QuantDistilBertBlock(TransformerBlock):  # type: ignore[misc]
    """A layer of DistilBERT with quantizers on its residual adds."""

    def forward(
        self, hidden_states: Tensor, attention_mask: Tensor | None = None, **kwargs: Any
    ) -> Tensor:
        """Map states `(batch, seq, hidden)` to states of that shape."""
        attended, _ = self.attention(hidden_states, attention_mask=attention_mask, **kwargs)
        attended = self.sa_layer_norm(residual_sum(self.attention, attended, hidden_states))
        normed: Tensor = self.output_layer_norm(
            residual_sum(self.ffn, self.ffn(attended), attended)
        )
        return normed


class QuantMPNetSelfAttention(MPNetSelfAttention):  # type: ignore[misc]
    """MPNet's attention with quantizers on its matmuls."""

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        position_bias: Tensor | None = None,
        output_attentions: bool = False,
        **_: Any,
    ) -> tuple[Tensor, ...]:
        """Map states `(batch, seq, hidden)` to new states, and to probabilities if asked for."""
        shape = (*hidden_states.shape[:-1], -1, self.attention_head_size)
        query, key, value = (
            part(hidden_states).view(shape).transpose(1, 2) for part in (self.q, self.k, self.v)
        )
        added = [each for each in (position_bias, attention_mask) if each is not None]
        context, probabilities = quantized_attention(
            self,
            query,
            key,
            value,
            functools.reduce(torch.add, added) if added else None,
            dropout=self.dropout.p,
        )
        output = self.o(context.flatten(2))
        return (output, probabilities) if output_attentions else (output,)


class QuantMPNetAttention(MPNetAttention):  # type: ignore[misc]
    """MPNet's attention, residual add and LayerNorm, with quantizers on the add."""

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        position_bias: Tensor | None = None,
        output_attentions: bool = False,
        **_: Any,
    ) -> tuple[Tensor, ...]:
        """Map states `(batch, seq, hidden)` to new states, and to probabilities if asked for."""
        attended, *rest = self.attn(
            hidden_states, attention_mask, position_bias, output_attentions=output_attentions
        )
        total = residual_sum(self.attn, self.dropout(attended), hidden_states)
        return (self.LayerNorm(total), *rest)


class QuantDisentangledSelfAttention(DisentangledSelfAttention):  # type: ignore[misc]
    """DeBERTa's attention with quantizers on the matmuls of content with content.

    The two matmuls with relative positions stay in float. Checkpoints that share the projections of
    content and position (`share_att_key`) project positions with the float weights.
    """

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor,
        output_attentions: bool = False,
        query_states: Tensor | None = None,
        relative_pos: Tensor | None = None,
        rel_embeddings: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Map states `(batch, seq, hidden)` to new states, and to probabilities if asked for."""
        heads = self.num_attention_heads
        asking = hidden_states if query_states is None else query_states
        # `(batch * heads, seq, head_dim)`, as `disentangled_attention_bias` needs them.
        query = self.transpose_for_scores(self.query_proj(asking), heads)
        key = self.transpose_for_scores(self.key_proj(hidden_states), heads)
        value = self.transpose_for_scores(self.value_proj(hidden_states), heads)
        factor = 1 + ("c2p" in self.pos_att_type) + ("p2c" in self.pos_att_type)
        bias = torch.zeros((), dtype=query.dtype, device=query.device)
        if self.relative_attention and factor > 1:
            positions = self.pos_dropout(rel_embeddings)
            bias = self.disentangled_attention_bias(query, key, relative_pos, positions, factor)
            bias = bias.unflatten(0, (-1, heads))
        query, key, value = (each.unflatten(0, (-1, heads)) for each in (query, key, value))
        # transformers masks [PAD] as a query too, which changes nothing but its own state.
        kept = attention_mask.bool().any(dim=-2, keepdim=True)
        context, probabilities = quantized_attention(
            self,
            query,
            key / math.sqrt(query.size(-1) * factor),
            value,
            torch.where(kept, bias, torch.finfo(query.dtype).min),
            # The keys are scaled already, as in transformers.
            scaling=1.0,
            dropout=self.dropout.p,
        )
        return context.flatten(2), probabilities if output_attentions else None


class QuantModernBertLayer(ModernBertEncoderLayer):  # type: ignore[misc]
    """A layer of ModernBERT with quantizers on its residual adds."""

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        position_embeddings: tuple[Tensor, Tensor] | None = None,
        **kwargs: Any,
    ) -> Tensor:
        """Map states `(batch, seq, hidden)` to states of that shape."""
        attended, _ = self.attn(
            self.attn_norm(hidden_states),
            position_embeddings=position_embeddings,
            attention_mask=attention_mask,
            **kwargs,
        )
        hidden_states = residual_sum(self.attn, attended, hidden_states)
        return residual_sum(self.mlp, self.mlp(self.mlp_norm(hidden_states)), hidden_states)


BLOCKS: Mapping[type[nn.Module], type[nn.Module]] = {
    DisentangledSelfAttention: QuantDisentangledSelfAttention,
    ModernBertEncoderLayer: QuantModernBertLayer,
    MPNetAttention: QuantMPNetAttention,
    MPNetSelfAttention: QuantMPNetSelfAttention,
    TransformerBlock: QuantDistilBertBlock,
}
"""Blocks of this module, by the class of transformers that each replaces."""


def quantized_block(block: nn.Module) -> nn.Module:
    """Return the block that replaces one of transformers. It has the same parts.

    Args:
        block: A block whose type is in `BLOCKS`, with quantizers on it or on its parts.
    """
    kind = BLOCKS[type(block)]
    new = kind.__new__(kind)
    new.__dict__.update(block.__dict__)
    if isinstance(new, QuantDisentangledSelfAttention) and new.share_att_key:
        _project_positions_in_float_(new)
    return new


def _project_positions_in_float_(attention: QuantDisentangledSelfAttention) -> None:
    """Give positions their own projections, which share the weights of the content's.

    They are functions instead of modules, so that no parameter gets a second name.
    """
    attention.share_att_key = False
    attention.pos_key_proj = functools.partial(_in_float, attention.key_proj)
    attention.pos_query_proj = functools.partial(_in_float, attention.query_proj)


def _in_float(linear: nn.Linear, x: Tensor) -> Tensor:
    return functional.linear(x, linear.weight, linear.bias)
