"""Quantize a tensor in the toolkit's terms: a `QuantDescriptor`, an `amax`, bits.

Rounding is `quantization.numerics.affine.round_trip`, as everywhere in this package. Names,
arguments and errors are as in pytorch-quantization's `tensor_quant`.
"""

from __future__ import annotations

import dataclasses
import json
import logging
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from qdqbert.quantization.numerics.affine import round_trip, widened
from qdqbert.quantization.numerics.fake_quantization import (
    E4M3_MAX,
    Codes,
    fake_quantize_amax,
    scales_of,
)
from qdqbert.quantization.spec import DEAD_AMAX, code_bounds

_LOG = logging.getLogger(__name__)

E4M3 = (4, 3)
"""`num_bits` of 8-bit floating point: 4 bits of exponent, 3 of mantissa."""

_DEFAULTS: dict[str, Any] = {
    "fake_quant": True,
    "axis": None,
    "amax": None,
    "learn_amax": False,
    "scale_amax": None,
    "calib_method": "max",
    "unsigned": False,
    "narrow_range": False,
}

_SWITCHES = ("fake_quant", "learn_amax", "unsigned", "narrow_range")

NumBits = int | tuple[int, int]


@dataclasses.dataclass(frozen=True, init=False, eq=False, repr=False)
class QuantDescriptor:
    """The quantization of one tensor, in the toolkit's terms. Read-only.

    Attributes:
        num_bits: Width of integer codes, or `(4, 3)` for E4M3.
        name: A name for people.
        fake_quant: Quantize and dequantize. Otherwise return codes.
        axis: Axes that keep one range per index: `None`, an int, or a tuple.
        amax: A fixed range: a float32 array, made from a float, a list or an array.
        learn_amax: Make the range a parameter.
        scale_amax: Factor of the range when it is used.
        calib_method: `"max"` or `"histogram"`: which calibrator a quantizer gets.
        unsigned: Let codes start at 0.
        narrow_range: Leave out the lowest signed code.

    Source: pytorch-quantization's `ScaledQuantDescriptor`. Differs from upstream: `dict()` and
    `to_yaml()` keep `calib_method` and `narrow_range`, an int `axis` survives YAML, arrays can be
    compared, and an unknown `calib_method` is refused here.
    """

    num_bits: NumBits
    name: str | None
    fake_quant: bool
    axis: int | tuple[int, ...] | None
    amax: NDArray[np.float32] | None
    learn_amax: bool
    scale_amax: float | None
    calib_method: str
    unsigned: bool
    narrow_range: bool

    def __init__(self, num_bits: NumBits = 8, name: str | None = None, **kwargs: Any) -> None:
        """Set the attributes above.

        Raises:
            ValueError: `num_bits` is negative, or `calib_method` is unknown.
            TypeError: An argument has the wrong type or is unknown, or `axis` and `learn_amax`
                are both given.
        """
        num_bits = tuple(num_bits) if isinstance(num_bits, list) else num_bits
        num_bits = int(num_bits) if isinstance(num_bits, np.integer) else num_bits
        if isinstance(num_bits, int) and not isinstance(num_bits, bool):
            if num_bits < 0:
                raise ValueError(f"num_bits must be > 0, not {num_bits}.")
            if num_bits == 0:
                _LOG.error(
                    "num_bits is 0. This will result in the tensor being quantized to all zeros. "
                    "This mode should only be used for debugging purposes."
                )
        elif num_bits != E4M3:
            raise TypeError(
                f"num_bits must be a postive integer or tuple (4,3), not {type(num_bits)}."
            )
        if name is not None and not isinstance(name, str):
            raise TypeError(f"name must be a string or None, not {type(name)}.")
        values = {key: kwargs.pop(key, default) for key, default in _DEFAULTS.items()}
        if values["learn_amax"] and values["axis"] is not None:
            raise TypeError(
                "axis is ignored and must be None when learn_amax is true, got "
                f"{type(values['axis'])}."
            )
        amax = values["amax"]
        if amax is not None and not isinstance(amax, (float, list, np.ndarray, np.floating)):
            raise TypeError(f"amax must be float, list or ndarray, not {type(amax)}")
        if kwargs:
            raise TypeError(f"Unused keys: {kwargs.keys()}")
        if values["calib_method"] not in ("max", "histogram"):
            raise ValueError(
                f"calib_method must be 'max' or 'histogram', not {values['calib_method']!r}."
            )
        axis = values["axis"]
        vars(self).update(
            values,
            num_bits=num_bits,
            name=name,
            axis=tuple(axis) if isinstance(axis, list) else axis,
            amax=None if amax is None else np.array(amax, dtype=np.float32),
            **{key: bool(values[key]) for key in _SWITCHES},
        )

    def __str__(self) -> str:
        name = f"{self.name}: " if self.name else "QuantDescriptor"
        sign = "unsigned " if self.unsigned else ""
        kind = "fake" if self.fake_quant else "real"
        axis = " per-tensor" if self.axis is None else str(self.axis)
        amax = "" if self.amax is None else f" amax={self.amax} full_range"
        learned = " learn_amax" if self.learn_amax else ""
        scaled = f" scale_amax={self.scale_amax}" if self.scale_amax else ""
        return f"{name}({sign}{self.num_bits}bit {kind} axis={axis}{amax}{learned}{scaled})"

    __repr__ = __str__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, QuantDescriptor) and self.dict() == other.dict()

    def __hash__(self) -> int:
        return hash(json.dumps(self.dict(), sort_keys=True))

    def dict(self) -> dict[str, Any]:
        """Return `num_bits`, `name` and everything that is not a default, as plain values."""
        values: dict[str, Any] = {"num_bits": self.num_bits, "name": self.name}
        for key, default in _DEFAULTS.items():
            value = getattr(self, key)
            value = value.tolist() if isinstance(value, np.ndarray) else value
            if value != default:
                values[key] = value
        return values

    def to_yaml(self) -> str:
        """Return the descriptor as JSON, which is valid YAML."""
        return json.dumps(self.dict())

    @classmethod
    def from_yaml(cls, yaml_str: str) -> QuantDescriptor:
        """Read a descriptor that `to_yaml` wrote, here or in pytorch-quantization."""
        # Installed with transformers.
        import yaml

        values = yaml.safe_load(yaml_str)
        for key in ("axis", "num_bits"):
            if isinstance(values.get(key), list):
                values[key] = tuple(values[key])
        return cls(**values)


ScaledQuantDescriptor = QuantDescriptor

QUANT_DESC_8BIT_PER_TENSOR = QuantDescriptor(num_bits=8)
QUANT_DESC_UNSIGNED_8BIT_PER_TENSOR = QuantDescriptor(num_bits=8, unsigned=True)
QUANT_DESC_8BIT_CONV1D_WEIGHT_PER_CHANNEL = QuantDescriptor(num_bits=8, axis=0)
QUANT_DESC_8BIT_CONV2D_WEIGHT_PER_CHANNEL = QuantDescriptor(num_bits=8, axis=0)
QUANT_DESC_8BIT_CONV3D_WEIGHT_PER_CHANNEL = QuantDescriptor(num_bits=8, axis=0)
QUANT_DESC_8BIT_LINEAR_WEIGHT_PER_ROW = QuantDescriptor(num_bits=8, axis=0)
QUANT_DESC_8BIT_CONVTRANSPOSE1D_WEIGHT_PER_CHANNEL = QuantDescriptor(num_bits=8, axis=1)
QUANT_DESC_8BIT_CONVTRANSPOSE2D_WEIGHT_PER_CHANNEL = QuantDescriptor(num_bits=8, axis=1)
QUANT_DESC_8BIT_CONVTRANSPOSE3D_WEIGHT_PER_CHANNEL = QuantDescriptor(num_bits=8, axis=1)


def codes_of(num_bits: int, unsigned: bool, narrow_range: bool) -> Codes:
    """Return the codes of an integer descriptor. Without bits there is only code 0."""
    if num_bits + unsigned <= 1:
        return Codes(qmin=0, qmax=0)
    qmin, qmax = code_bounds(num_bits, signed=not unsigned, narrow=narrow_range)
    return Codes(qmin=qmin, qmax=qmax)


def tensor_quant(
    inputs: Tensor,
    amax: Tensor,
    num_bits: int = 8,
    unsigned: bool = False,
    narrow_range: bool = True,
) -> tuple[Tensor, Tensor]:
    """Return the codes of a tensor, as floats of its dtype, and their scale.

    Args:
        inputs: Any shape, floating point.
        amax: Largest magnitude to cover, at least 0. Broadcasts to `inputs`.
        num_bits: Width of the codes.
        unsigned: Let codes start at 0.
        narrow_range: Leave out the lowest signed code.

    Returns:
        `clamp(round(inputs / (amax / qmax)))`, and the scale `qmax / amax` in the shape of `amax`.
        Codes divided by the scale are reals. Ranges up to 2^-24 have codes 0 and scale 1.

    Raises:
        TypeError: `unsigned`, and a value is negative.
        ValueError: An `amax` is negative, or the scale overflows float16.

    Source: pytorch-quantization's `tensor_quant`. Differs from upstream: it multiplies by
    `qmax / amax`, and this divides by `amax / qmax`, as ONNX does. A few ties round differently.
    """
    codes = _check(inputs, amax, num_bits, unsigned, narrow_range)
    step, scale = scales_of(amax, codes.qmax)
    if inputs.dtype == torch.float16 and bool(scale.max() > torch.finfo(torch.float16).max):
        raise ValueError(f"scale is too large for FP16 with amax={amax}")
    quantized = _Quantize.apply(inputs, step, codes, amax)  # type: ignore[no-untyped-call]
    return quantized, scale.to(inputs.dtype)


def fake_tensor_quant(
    inputs: Tensor,
    amax: Tensor,
    num_bits: int = 8,
    unsigned: bool = False,
    narrow_range: bool = True,
) -> Tensor:
    """Quantize and dequantize a tensor. See `tensor_quant` for arguments and errors.

    The gradient passes where `|inputs| <= amax`. `amax` gets none.

    Source: pytorch-quantization's `fake_tensor_quant`. Differs from upstream: its CUDA kernels
    ignore `narrow_range` and always use +-127. Here both devices obey it.
    """
    codes = _check(inputs, amax, num_bits, unsigned, narrow_range)
    return fake_quantize_amax(inputs, amax, codes)


legacy_fake_tensor_quant = fake_tensor_quant


def fake_affine_tensor_quant(
    inputs: Tensor, min_range: Tensor | float, max_range: Tensor | float, num_bits: int = 8
) -> Tensor:
    """Quantize and dequantize `[min_range, max_range]` in `2^num_bits` codes with a zero point.

    The gradient passes where `min_range <= inputs <= max_range`.

    Source: pytorch-quantization's `fake_affine_tensor_quant`.
    """
    low, high = (
        torch.as_tensor(end, dtype=widened(inputs).dtype, device=inputs.device)
        for end in (min_range, max_range)
    )
    qmin, qmax = code_bounds(num_bits, signed=True)
    scale = (high - low) / (qmax - qmin)
    zero_point = qmin - torch.round(low / scale)
    return round_trip(inputs, scale, qmin, qmax, zero_point=zero_point, low=low, high=high)


def scaled_e4m3(inputs: Tensor, amax: Tensor | None = None, E: int = 4, M: int = 3) -> Tensor:  # noqa: N803
    """Round to 8-bit floating point, scaled so that `amax` becomes its largest value, 448.

    Args:
        inputs: Any shape, floating point.
        amax: Largest magnitude to cover, broadcasts to `inputs`. `None` does not scale.
        E: Bits of the exponent: 4.
        M: Bits of the mantissa: 3.

    Raises:
        NotImplementedError: The format is not E4M3.

    Source: pytorch-quantization's `scaled_e4m3`, which needs a GPU. This uses torch's own
    `float8_e4m3fn`, saturating. The gradient passes where `|inputs| <= amax`.
    """
    if (E, M) != E4M3:
        raise NotImplementedError("Only support E=4 & M=3 for now.")
    limit = torch.tensor(E4M3_MAX, device=inputs.device) if amax is None else amax.detach()
    result: Tensor = _RoundTripE4M3.apply(inputs, widened(limit))  # type: ignore[no-untyped-call]
    return result


class _Quantize(torch.autograd.Function):
    """Compute codes, with the gradient of the identity inside the range."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, step: Tensor, codes: Codes, amax: Tensor) -> Tensor:
        real = widened(x)
        ctx.save_for_backward(real.abs() <= widened(amax))
        return torch.round(real / step).clamp(codes.qmin, codes.qmax).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (inside,) = ctx.saved_tensors
        return grad * inside, None, None, None


class _RoundTripE4M3(torch.autograd.Function):
    """Convert to float8 and back, with a straight-through gradient inside the range."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, amax: Tensor) -> Tensor:
        real = widened(x)
        if ctx.needs_input_grad[0]:
            ctx.save_for_backward(real.abs() <= amax)
        dead = amax <= DEAD_AMAX
        scale = torch.where(dead, 0.0, E4M3_MAX / amax.clamp_min(DEAD_AMAX))
        rounded = (real * scale).clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn).to(real.dtype)
        return (rounded / torch.where(dead, 1.0, scale)).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (inside,) = ctx.saved_tensors
        return grad * inside, None


def _check(
    inputs: Tensor, amax: Tensor, num_bits: int, unsigned: bool, narrow_range: bool
) -> Codes:
    if bool((amax < 0).any()):
        raise ValueError("Negative values in amax")
    check_unsigned(inputs, unsigned)
    return codes_of(num_bits, unsigned, narrow_range)


def check_unsigned(inputs: Tensor, unsigned: bool) -> None:
    """Raise a `TypeError` for negative values in unsigned quantization."""
    if unsigned and inputs.numel() and bool(inputs.detach().min() < 0):
        raise TypeError("Negative values encountered in unsigned quantization.")
