"""Pooling and instance normalization with a quantizer on the input."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from qdqbert.compat.nn.mixins import QuantInputMixin, pop_quant_desc_in_kwargs, split_kwargs


class _QuantInput(QuantInputMixin):
    """Base class of these modules. It precedes a module of torch in the list of bases."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        theirs, mine = split_kwargs(type(self), kwargs)
        quant_desc_input = pop_quant_desc_in_kwargs(type(self), input_only=True, **mine)
        super().__init__(*args, **theirs)
        self.init_quantizer(quant_desc_input)

    def forward(self, input: Tensor) -> Tensor:
        """Apply the module of torch to the quantized input."""
        result: Tensor = super().forward(self._input_quantizer(input))  # type: ignore[misc]
        return result


class QuantMaxPool1d(_QuantInput, nn.MaxPool1d):
    """`torch.nn.MaxPool1d` with a quantizer on the input."""


class QuantMaxPool2d(_QuantInput, nn.MaxPool2d):
    """`torch.nn.MaxPool2d` with a quantizer on the input."""


class QuantMaxPool3d(_QuantInput, nn.MaxPool3d):
    """`torch.nn.MaxPool3d` with a quantizer on the input."""


class QuantAvgPool1d(_QuantInput, nn.AvgPool1d):
    """`torch.nn.AvgPool1d` with a quantizer on the input."""


class QuantAvgPool2d(_QuantInput, nn.AvgPool2d):
    """`torch.nn.AvgPool2d` with a quantizer on the input."""


class QuantAvgPool3d(_QuantInput, nn.AvgPool3d):
    """`torch.nn.AvgPool3d` with a quantizer on the input."""


class QuantAdaptiveAvgPool1d(_QuantInput, nn.AdaptiveAvgPool1d):
    """`torch.nn.AdaptiveAvgPool1d` with a quantizer on the input."""


class QuantAdaptiveAvgPool2d(_QuantInput, nn.AdaptiveAvgPool2d):
    """`torch.nn.AdaptiveAvgPool2d` with a quantizer on the input."""


class QuantAdaptiveAvgPool3d(_QuantInput, nn.AdaptiveAvgPool3d):
    """`torch.nn.AdaptiveAvgPool3d` with a quantizer on the input."""


class QuantInstanceNorm1d(_QuantInput, nn.InstanceNorm1d):
    """`torch.nn.InstanceNorm1d` with a quantizer on the input."""


class QuantInstanceNorm2d(_QuantInput, nn.InstanceNorm2d):
    """`torch.nn.InstanceNorm2d` with a quantizer on the input."""


class QuantInstanceNorm3d(_QuantInput, nn.InstanceNorm3d):
    """`torch.nn.InstanceNorm3d` with a quantizer on the input."""
