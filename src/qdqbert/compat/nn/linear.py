"""The quantized linear layer."""

from __future__ import annotations

from typing import ClassVar, Self

from torch import Tensor, nn
from torch.nn import functional

from qdqbert.compat.nn.mixins import FromTorch, QuantMixin
from qdqbert.compat.tensor_quant import QUANT_DESC_8BIT_LINEAR_WEIGHT_PER_ROW, QuantDescriptor


class QuantLinear(FromTorch, QuantMixin, nn.Linear):
    """A linear layer with a quantizer on its input and one on its weight.

    Attributes:
        _input_quantizer: Quantizer of the input, `(..., in)`.
        _weight_quantizer: Quantizer of the weight, `(out, in)`.

    Source: pytorch-quantization's `QuantLinear`.
    """

    default_quant_desc_weight: ClassVar[QuantDescriptor] = QUANT_DESC_8BIT_LINEAR_WEIGHT_PER_ROW

    @classmethod
    def from_float(cls, linear: nn.Linear) -> Self:
        """Return a quantized layer that shares the parameters of `linear`."""
        new = cls(
            linear.in_features, linear.out_features, bias=linear.bias is not None, device="meta"
        )
        new.weight, new.bias = linear.weight, linear.bias
        return new.train(linear.training)

    def forward(self, input: Tensor) -> Tensor:
        """Map `(..., in)` to `(..., out)`."""
        quant_input = self._input_quantizer(input)
        quant_weight = self._weight_quantizer(self.weight)
        return functional.linear(quant_input, quant_weight, self.bias)
