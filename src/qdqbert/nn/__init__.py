"""Quantized modules of the toolkit, under their own names and torch's."""

from qdqbert.nn.clip import Clip
from qdqbert.nn.conv import (
    QuantConv1d,
    QuantConv2d,
    QuantConv3d,
    QuantConvTranspose1d,
    QuantConvTranspose2d,
    QuantConvTranspose3d,
)
from qdqbert.nn.linear import QuantLinear
from qdqbert.nn.mixins import QuantInputMixin, QuantMixin, pop_quant_desc_in_kwargs
from qdqbert.nn.pooling import (
    QuantAdaptiveAvgPool1d,
    QuantAdaptiveAvgPool2d,
    QuantAdaptiveAvgPool3d,
    QuantAvgPool1d,
    QuantAvgPool2d,
    QuantAvgPool3d,
    QuantInstanceNorm1d,
    QuantInstanceNorm2d,
    QuantInstanceNorm3d,
    QuantMaxPool1d,
    QuantMaxPool2d,
    QuantMaxPool3d,
)
from qdqbert.nn.rnn import QuantLSTM, QuantLSTMCell
from qdqbert.nn.tensor_quantizer import TensorQuantizer

__all__ = [
    "Clip",
    "QuantAdaptiveAvgPool1d",
    "QuantAdaptiveAvgPool2d",
    "QuantAdaptiveAvgPool3d",
    "QuantAvgPool1d",
    "QuantAvgPool2d",
    "QuantAvgPool3d",
    "QuantConv1d",
    "QuantConv2d",
    "QuantConv3d",
    "QuantConvTranspose1d",
    "QuantConvTranspose2d",
    "QuantConvTranspose3d",
    "QuantInputMixin",
    "QuantInstanceNorm1d",
    "QuantInstanceNorm2d",
    "QuantInstanceNorm3d",
    "QuantLSTM",
    "QuantLSTMCell",
    "QuantLinear",
    "QuantMaxPool1d",
    "QuantMaxPool2d",
    "QuantMaxPool3d",
    "QuantMixin",
    "TensorQuantizer",
    "pop_quant_desc_in_kwargs",
]
