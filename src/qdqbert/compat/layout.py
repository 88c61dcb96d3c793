"""Table of this package's names, by the module of pytorch-quantization that has them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from qdqbert.calibration.quantizers.clip import Clip
from qdqbert.compat import calibrators, helper, quant_modules
from qdqbert.compat import nn as quant_nn
from qdqbert.compat import tensor_quant as tensor_quant_module
from qdqbert.compat.nn import functional, mixins, modules
from qdqbert.quantization.numerics.affine import reduce_amax

VERSION = "2.2.1"
"""Version of pytorch-quantization that these names are from."""

_CONVS = modules.of_kind("Conv", "ConvTranspose")
_POOLS = modules.of_kind("MaxPool", "AvgPool", "AdaptiveAvgPool")
_NORMS = modules.of_kind("InstanceNorm")


def _aliased(names: list[str]) -> dict[str, type]:
    """Return classes by their own name and by torch's."""
    return {**_own(names), **{name: quant_nn.QUANTIZED[name] for name in names}}


def _own(names: list[str]) -> dict[str, type]:
    return {f"Quant{name}": quant_nn.QUANTIZED[name] for name in names}


def _public(module: Any) -> dict[str, Any]:
    return {name: value for name, value in vars(module).items() if not name.startswith("__")}


_TENSOR_QUANT = {
    name: value
    for name, value in _public(tensor_quant_module).items()
    if name.startswith("QUANT_DESC")
    or name in ("QuantDescriptor", "ScaledQuantDescriptor")
    or (callable(value) and getattr(value, "__module__", "") == tensor_quant_module.__name__)
}
_UTILS = {
    "QuantInputMixin": mixins.QuantInputMixin,
    "QuantMixin": mixins.QuantMixin,
    "QuantDescriptor": tensor_quant_module.QuantDescriptor,
    "QUANT_DESC_8BIT_PER_TENSOR": tensor_quant_module.QUANT_DESC_8BIT_PER_TENSOR,
    "pop_quant_desc_in_kwargs": mixins.pop_quant_desc_in_kwargs,
}
_QUANTIZER = {"TensorQuantizer": quant_nn.TensorQuantizer}
_CALIB = {
    "MaxCalibrator": calibrators.MaxCalibrator,
    "HistogramCalibrator": calibrators.HistogramCalibrator,
    "calibrate_weights": calibrators.calibrate_weights,
}
_BASE = {"_Calibrator": calibrators.Calibrator}
_FUNCTIONS = {
    name: getattr(quant_modules, name)
    for name in ("initialize", "deactivate", "enable_onnx_export")
}
_INSTANCE_NORM = _own(_NORMS)
_CONV = {
    **_aliased(_CONVS),
    "_QuantConvNd": modules._QuantConvNd,
    "_ConvNd": modules._QuantConvNd,
    "_QuantConvTransposeNd": modules._QuantConvTransposeNd,
}
_NN = {
    **_QUANTIZER,
    **_aliased([*_CONVS, "Linear", *_POOLS, "LSTM", "LSTMCell"]),
    **_INSTANCE_NORM,
    "Clip": Clip,
}

NAMES: dict[str, dict[str, Any]] = {
    "": {"__version__": VERSION, **_FUNCTIONS},
    "version": {"__version__": VERSION},
    "tensor_quant": {**_TENSOR_QUANT, "np": np, "torch": torch},
    "quant_modules": _public(quant_modules),
    "calib": _CALIB,
    "calib.calibrator": _BASE,
    "calib.max": {"MaxCalibrator": calibrators.MaxCalibrator, **_BASE},
    "calib.histogram": {
        "HistogramCalibrator": calibrators.HistogramCalibrator,
        "calibrate_weights": calibrators.calibrate_weights,
        **_BASE,
    },
    "nn": _NN,
    "nn.functional": {"clip": functional.clip, "ClipFunction": functional.ClipFunction},
    "nn.modules": {},
    "nn.modules._utils": _UTILS,
    "nn.modules.tensor_quantizer": {
        **_QUANTIZER,
        **{
            name: _TENSOR_QUANT[name]
            for name in ("QuantDescriptor", "tensor_quant", "fake_tensor_quant", "scaled_e4m3")
        },
        "Clip": Clip,
    },
    "nn.modules.quant_linear": _aliased(["Linear"]),
    "nn.modules.quant_conv": _CONV,
    "nn.modules.quant_pooling": _aliased(_POOLS),
    "nn.modules.quant_instancenorm": _INSTANCE_NORM,
    "nn.modules.quant_rnn": _aliased(["LSTM", "LSTMCell"]),
    "nn.modules.clip": {"Clip": Clip},
    "optim": {},
    "optim.helper": _public(helper),
    "utils": {"reduce_amax": reduce_amax},
    "utils.reduce_amax": {"reduce_amax": reduce_amax},
}
"""Names by module, relative to `pytorch_quantization`.

As upstream, `utils.reduce_amax` is a module, and as an attribute of `utils` it is the function.
"""

MODULE_ATTRIBUTES = {
    "nn.modules.quant_conv": {"_utils": "nn.modules._utils", "tensor_quant": "tensor_quant"},
    "nn.modules.quant_linear": {"_utils": "nn.modules._utils", "tensor_quant": "tensor_quant"},
    "nn.modules.quant_pooling": {"_utils": "nn.modules._utils", "tensor_quant": "tensor_quant"},
    "nn.modules.quant_instancenorm": {"_utils": "nn.modules._utils"},
    "nn.modules.tensor_quantizer": {"calib": "calib", "quant_utils": "utils"},
}
"""Modules that are attributes of other modules, such as `quant_conv._utils`."""
