"""Quantized convolutions, poolings and instance normalizations, made from torch's by a table."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.conv import _ConvNd

from qdqbert.compat import tensor_quant
from qdqbert.compat.nn.mixins import FromTorch, QuantInputMixin, QuantMixin


class _QuantConvNd(FromTorch, QuantMixin, _ConvNd):
    """Base class of the convolutions. It precedes a convolution of torch in the list of bases.

    Source: pytorch-quantization's `_QuantConvNd`. Differs from upstream: every `padding_mode`
    and `padding="same"` work as in torch.
    """

    weight: Tensor
    bias: Tensor | None

    def _quant(self, input: Tensor) -> tuple[Tensor, Tensor]:
        """Return the quantized input and weight."""
        return self._input_quantizer(input), self._weight_quantizer(self.weight)

    def forward(self, input: Tensor) -> Tensor:
        """Compute the convolution with quantized input and weight."""
        quant_input, quant_weight = self._quant(input)
        result: Tensor = self._conv_forward(quant_input, quant_weight, self.bias)
        return result


class _QuantConvTransposeNd(_QuantConvNd):
    """Base class of the transposed convolutions."""

    def forward(self, input: Tensor, output_size: list[int] | None = None) -> Tensor:
        """Compute the transposed convolution with quantized input and weight."""
        dims = len(self.kernel_size)
        if self.padding_mode != "zeros":
            raise ValueError(
                f"Only `zeros` padding mode is supported for QuantConvTranspose{dims}d"
            )
        output_padding = self._output_padding(  # type: ignore[operator]
            input, output_size, self.stride, self.padding, self.kernel_size, dims, self.dilation
        )
        quant_input, quant_weight = self._quant(input)
        function = getattr(functional, f"conv_transpose{dims}d")
        result: Tensor = function(
            quant_input,
            quant_weight,
            self.bias,
            self.stride,
            self.padding,
            output_padding,
            self.groups,
            self.dilation,
        )
        return result


class _QuantInput(FromTorch, QuantInputMixin):
    """Base class of modules without a weight. It precedes a module of torch in the bases."""

    def forward(self, input: Tensor) -> Tensor:
        """Apply the module of torch to the quantized input."""
        result: Tensor = super().forward(self._input_quantizer(input))  # type: ignore[misc]
        return result


_BASES: dict[str, type] = {
    "Conv": _QuantConvNd,
    "ConvTranspose": _QuantConvTransposeNd,
    "MaxPool": _QuantInput,
    "AvgPool": _QuantInput,
    "AdaptiveAvgPool": _QuantInput,
    "InstanceNorm": _QuantInput,
}


def of_kind(*kinds: str) -> list[str]:
    """Return the names of torch's modules of a kind, in one to three dimensions."""
    return [f"{kind}{dims}d" for kind in kinds for dims in (1, 2, 3)]


def _quantized(name: str, base: type) -> type:
    has_weight = issubclass(base, QuantMixin)
    parts = "quantizers on input and weight" if has_weight else "a quantizer on the input"
    members: dict[str, Any] = {
        "__doc__": f"`torch.nn.{name}` with {parts}.",
        # Pickle finds the class there.
        "__module__": "qdqbert.compat.nn",
    }
    if has_weight:
        descriptor = f"QUANT_DESC_8BIT_{name.upper()}_WEIGHT_PER_CHANNEL"
        members["default_quant_desc_weight"] = getattr(tensor_quant, descriptor)
    return type(f"Quant{name}", (base, getattr(nn, name)), members)


QUANTIZED: dict[str, type] = {
    name: _quantized(name, base) for kind, base in _BASES.items() for name in of_kind(kind)
}
"""Quantized classes by the names of torch's."""
