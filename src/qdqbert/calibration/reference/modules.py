"""Modules whose weight and input have quantizers."""

from __future__ import annotations

from typing import Self, cast

from torch import Tensor, nn
from torch.nn import functional

from qdqbert.calibration.quantizers.export import is_exporting
from qdqbert.calibration.quantizers.quantizer import Quantizer
from qdqbert.quantization.spec import TensorSpec, table_site


class QuantizedLinear(nn.Linear):
    """A linear layer with quantizers on its input and on its weight."""

    _input_quantizer: Quantizer
    _weight_quantizer: Quantizer

    @classmethod
    def from_float(cls, linear: nn.Linear) -> Self:
        """Return a quantized layer that shares the parameters of `linear`."""
        new = cls(
            linear.in_features, linear.out_features, bias=linear.bias is not None, device="meta"
        )
        new.weight, new.bias = linear.weight, linear.bias
        new._input_quantizer, new._weight_quantizer = Quantizer(), Quantizer()
        return new.train(linear.training)

    def forward(self, input: Tensor) -> Tensor:
        """Map `(..., in)` to `(..., out)`."""
        weight = self._weight_quantizer(self.weight)
        return functional.linear(self._input_quantizer(input), weight, self.bias)


class QuantEmbedding(nn.Embedding):
    """An embedding table with a quantizer for its weight, with one scale per hidden channel."""

    _weight_quantizer: Quantizer

    @classmethod
    def from_float(cls, embedding: nn.Embedding, *, name: str) -> Self:
        """Return a table at path `name` that shares the parameters of `embedding`."""
        new = cls(
            embedding.num_embeddings,
            embedding.embedding_dim,
            padding_idx=embedding.padding_idx,
            # Without it PyTorch would draw random numbers, on any device.
            _weight=embedding.weight,
        )
        new.weight = embedding.weight
        new._weight_quantizer = Quantizer(TensorSpec(narrow=True, axis=1), site=table_site(name))
        # The paper leaves tables in float. Only a recipe quantizes them.
        new._weight_quantizer.disable()
        return new.train(embedding.training)

    def forward(self, ids: Tensor) -> Tensor:
        """Map ids `(batch, seq)` to states `(batch, seq, hidden)`."""
        quantizer = self._weight_quantizer
        if quantizer.action is None and quantizer.amax is not None and not is_exporting():
            # The scales do not depend on the row, so that no other rows have to be rounded.
            return cast(Tensor, quantizer(functional.embedding(ids, self.weight, self.padding_idx)))
        return functional.embedding(ids, quantizer(self.weight), self.padding_idx)
