"""Quantized convolutions, plain and transposed, in one to three dimensions."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from qdqbert.compat.nn.mixins import QuantMixin, pop_quant_desc_in_kwargs, split_kwargs
from qdqbert.compat.tensor_quant import (
    QUANT_DESC_8BIT_CONV1D_WEIGHT_PER_CHANNEL,
    QUANT_DESC_8BIT_CONV2D_WEIGHT_PER_CHANNEL,
    QUANT_DESC_8BIT_CONV3D_WEIGHT_PER_CHANNEL,
    QUANT_DESC_8BIT_CONVTRANSPOSE1D_WEIGHT_PER_CHANNEL,
    QUANT_DESC_8BIT_CONVTRANSPOSE2D_WEIGHT_PER_CHANNEL,
    QUANT_DESC_8BIT_CONVTRANSPOSE3D_WEIGHT_PER_CHANNEL,
    QuantDescriptor,
)


class _QuantConvNd(QuantMixin, _ConvNd):
    """Base class of the convolutions. It precedes a convolution of torch in the list of bases.

    Source: pytorch-quantization's `_QuantConvNd`. Differs from upstream: every `padding_mode`
    and `padding="same"` work as in torch.
    """

    weight: Tensor
    bias: Tensor | None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        theirs, mine = split_kwargs(type(self), kwargs)
        quant_desc_input, quant_desc_weight = pop_quant_desc_in_kwargs(type(self), **mine)
        super().__init__(*args, **theirs)
        self.init_quantizer(quant_desc_input, quant_desc_weight)

    def _quant(self, input: Tensor) -> tuple[Tensor, Tensor]:
        """Return the quantized input and weight."""
        return self._input_quantizer(input), self._weight_quantizer(self.weight)

    def forward(self, input: Tensor) -> Tensor:
        """Compute the convolution with quantized input and weight."""
        quant_input, quant_weight = self._quant(input)
        result: Tensor = self._conv_forward(quant_input, quant_weight, self.bias)
        return result


class QuantConv1d(_QuantConvNd, nn.Conv1d):
    """`torch.nn.Conv1d` with quantizers on input and weight."""

    default_quant_desc_weight: ClassVar[QuantDescriptor] = QUANT_DESC_8BIT_CONV1D_WEIGHT_PER_CHANNEL


class QuantConv2d(_QuantConvNd, nn.Conv2d):
    """`torch.nn.Conv2d` with quantizers on input and weight."""

    default_quant_desc_weight: ClassVar[QuantDescriptor] = QUANT_DESC_8BIT_CONV2D_WEIGHT_PER_CHANNEL


class QuantConv3d(_QuantConvNd, nn.Conv3d):
    """`torch.nn.Conv3d` with quantizers on input and weight."""

    default_quant_desc_weight: ClassVar[QuantDescriptor] = QUANT_DESC_8BIT_CONV3D_WEIGHT_PER_CHANNEL


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
            input,
            output_size,
            self.stride,
            self.padding,
            self.kernel_size,
            dims,
            self.dilation,
        )
        quant_input, quant_weight = self._quant(input)
        function = getattr(torch.nn.functional, f"conv_transpose{dims}d")
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


class QuantConvTranspose1d(_QuantConvTransposeNd, nn.ConvTranspose1d):
    """`torch.nn.ConvTranspose1d` with quantizers on input and weight."""

    default_quant_desc_weight: ClassVar[QuantDescriptor] = (
        QUANT_DESC_8BIT_CONVTRANSPOSE1D_WEIGHT_PER_CHANNEL
    )


class QuantConvTranspose2d(_QuantConvTransposeNd, nn.ConvTranspose2d):
    """`torch.nn.ConvTranspose2d` with quantizers on input and weight."""

    default_quant_desc_weight: ClassVar[QuantDescriptor] = (
        QUANT_DESC_8BIT_CONVTRANSPOSE2D_WEIGHT_PER_CHANNEL
    )


class QuantConvTranspose3d(_QuantConvTransposeNd, nn.ConvTranspose3d):
    """`torch.nn.ConvTranspose3d` with quantizers on input and weight."""

    default_quant_desc_weight: ClassVar[QuantDescriptor] = (
        QUANT_DESC_8BIT_CONVTRANSPOSE3D_WEIGHT_PER_CHANNEL
    )
