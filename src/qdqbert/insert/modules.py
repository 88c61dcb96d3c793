"""The float modules that carry sites, rewritten to call the quantizers that stand there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask

from qdqbert.insert.factory import PLAIN, QuantizerFactory
from qdqbert.quantizers.quantizer import Quantizer
from qdqbert.spec import Site, Source, TensorSpec

ATTENTION = "qdqbert"
"""Name of our attention function in transformers' attention interface."""

MATMUL_SEQUENCE_AXES = {"q": (2,), "k": (3,), "a": (2, 3), "v": (2,)}
"""Which axes of the attention products' inputs run over tokens: q and v are `(batch, heads, seq,
head_dim)`, k is transposed, a holds the probabilities `(batch, heads, seq, seq)`."""

CROSS_SEQUENCE_AXES = {"q": (2,), "k": (), "a": (2,), "v": ()}
"""The same for cross-attention, whose keys and values run over another text."""


class QuantEmbedding(nn.Embedding):
    """An embedding table with a quantizer on it: weight-only, a scale per hidden channel."""

    _weight_quantizer: Quantizer

    @classmethod
    def from_float(cls, embedding: nn.Embedding, *, name: str) -> Self:
        """A table at path `name` that shares the parameters of `embedding`."""
        new = cls(
            embedding.num_embeddings,
            embedding.embedding_dim,
            padding_idx=embedding.padding_idx,
            device="meta",
        )
        new.weight = embedding.weight
        # The paper leaves tables in float: only a recipe quantizes them.
        site = Site(name=f"{name}._weight_quantizer", kind="weight", channel_axis=1, group="table")
        new._weight_quantizer = Quantizer(TensorSpec(narrow=True, axis=1), site=site)
        # The paper leaves tables in float. Only a recipe quantizes them.
        new._weight_quantizer.disable()
        return new.train(embedding.training)

    def forward(self, ids: Tensor) -> Tensor:
        """`(batch, seq)` to `(batch, seq, hidden)`."""
        return functional.embedding(ids, self._weight_quantizer(self.weight), self.padding_idx)


class QuantResidualOutput(nn.Module):
    """Dense, dropout, residual add and LayerNorm, with a quantizer on either input of the add.

    Takes the place of transformers' `BertSelfOutput` and `BertOutput` and of their twins in
    other post-LayerNorm families, once `dense` is quantized; the names of parameters stay.

    Source: transformers 4.40, `modeling_qdqbert.py`, `QDQBertSelfOutput`.
    """

    def __init__(self, output: nn.Module, *, name: str, factory: QuantizerFactory = PLAIN) -> None:
        super().__init__()
        parts = dict(output.named_children())
        self.dense = parts["dense"]
        self.dropout = parts["dropout"]
        self.LayerNorm = parts["LayerNorm"]
        add_residual_quantizers_(self, name=name, factory=factory)
        self.train(output.training)

    def forward(self, hidden_states: Tensor, input_tensor: Tensor) -> Tensor:
        """The local branch `(batch, seq, in)` and the residual, to `(batch, seq, hidden)`."""
        local = self.dropout(self.dense(hidden_states))
        normed: Tensor = self.LayerNorm(residual_sum(self, local, input_tensor))
        return optional_quantizer(self, "layernorm_output_quantizer", normed)


def quantized_linear(
    linear: nn.Linear,
    *,
    name: str,
    source: Source,
    over_tokens: bool = True,
    factory: QuantizerFactory = PLAIN,
) -> Any:
    """A linear at path `name` with sites that know what its input is.

    Args:
        linear: The float one, whose parameters are shared.
        name: Its path.
        source: What its input is.
        over_tokens: Whether the input's axis 1 runs over the tokens of the model's own text.
        factory: Makes the layer and its quantizers.
    """
    new = factory.linear(linear)
    new._input_quantizer.site = Site(
        name=f"{name}._input_quantizer",
        kind="activation",
        sequence_axes=(1,) if over_tokens else (),
        source=source,
    )
    new._weight_quantizer.site = Site(
        name=f"{name}._weight_quantizer", kind="weight", channel_axis=0
    )
    return new


def add_residual_quantizers_(
    branch: nn.Module, *, name: str, factory: QuantizerFactory = PLAIN
) -> None:
    """Hangs QDQBERT's two `add_*_input_quantizer` on the module that makes the local branch."""
    for side in ("local", "residual"):
        attribute = f"add_{side}_input_quantizer"
        site = Site(name=f"{name}.{attribute}", kind="activation", sequence_axes=(1,))
        branch.add_module(attribute, factory.activation(site))


def residual_sum(branch: nn.Module, local: Tensor, residual: Tensor) -> Tensor:
    """Adds what `branch` made to a residual, with its quantizers; all `(batch, seq, hidden)`."""
    quantizers: Any = branch
    total: Tensor = quantizers.add_local_input_quantizer(
        local
    ) + quantizers.add_residual_input_quantizer(residual)
    return optional_quantizer(branch, "layernorm_input_quantizer", total)


def add_matmul_quantizers_(
    attention: nn.Module,
    *,
    name: str,
    axes: Mapping[str, tuple[int, ...]] = MATMUL_SEQUENCE_AXES,
    factory: QuantizerFactory = PLAIN,
) -> None:
    """Hangs QDQBERT's four `matmul_*_input_quantizer` on an attention module."""
    for letter, sequence_axes in axes.items():
        attribute = f"matmul_{letter}_input_quantizer"
        site = Site(name=f"{name}.{attribute}", kind="activation", sequence_axes=sequence_axes)
        attention.add_module(attribute, factory.activation(site))


def register_attention() -> None:
    """Makes `ATTENTION` known to transformers; harmless to repeat."""
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
    """Eager attention with the quantizers of `module` on the inputs of both products.

    Args:
        module: An attention module after `add_matmul_quantizers_`.
        query: `(batch, heads, seq, head_dim)`.
        key: The same; `seq` is another one in cross-attention and with a cache.
        value: As `key`.
        attention_mask: Added to the scores, broadcast to `(batch, heads, seq, seq)`.
        scaling: Factor of the scores; `head_dim ** -0.5` if not given.
        dropout: Probability, in training only.

    Returns:
        Context `(batch, seq, heads, head_dim)` and probabilities `(batch, heads, seq, seq)`.

    Source: transformers 5's attention interface; QDQBERT's order: the products' inputs are
    quantized after softmax and dropout, scores are scaled after the product.
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
