"""Quantized modules of the toolkit, under their own names and under torch's."""

from qdqbert.calibration.quantizers.clip import Clip
from qdqbert.compat.nn import modules
from qdqbert.compat.nn.linear import QuantLinear
from qdqbert.compat.nn.mixins import QuantInputMixin, QuantMixin, pop_quant_desc_in_kwargs
from qdqbert.compat.nn.rnn import QuantLSTM, QuantLSTMCell
from qdqbert.compat.nn.tensor_quantizer import TensorQuantizer

QUANTIZED: dict[str, type] = {
    **modules.QUANTIZED,
    "Linear": QuantLinear,
    "LSTM": QuantLSTM,
    "LSTMCell": QuantLSTMCell,
}
"""Quantized classes by the names of torch's."""

# As upstream, instance normalizations have no second name.
_NAMES: dict[str, type] = {
    **{f"Quant{name}": value for name, value in QUANTIZED.items()},
    **{name: value for name, value in QUANTIZED.items() if "InstanceNorm" not in name},
}

__all__ = [
    "Clip",
    "QuantInputMixin",
    "QuantLSTM",
    "QuantLSTMCell",
    "QuantLinear",
    "QuantMixin",
    "TensorQuantizer",
    "pop_quant_desc_in_kwargs",
    *(name for name in _NAMES if name not in ("QuantLSTM", "QuantLSTMCell", "QuantLinear")),
]


def __getattr__(name: str) -> type:
    if name not in _NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _NAMES[name]
