"""Compiled kernels of an instruction set, called with numpy arrays.

If the environment variable `GUARD_ARRAYS` is `start` or `end`, kernels get copies of all
arrays, which start after or end before a page that cannot be used. `KERNEL_EXAMPLES` is the number
of shapes in each test.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Iterable
from typing import Any

import numpy as np
from hypothesis import settings
from numpy.typing import NDArray

from native_guard import Guard, Mirror
from qdqbert.engines.native import records
from qdqbert.engines.native.cache import compiled
from qdqbert.engines.native.compiler import Library
from qdqbert.engines.native.features import Features
from qdqbert.engines.native.functions import ACTIVATIONS, ROUNDING
from qdqbert.engines.native.instruction_set import InstructionSet
from qdqbert.engines.native.instruction_sets import INSTRUCTION_SETS
from qdqbert.engines.native.instruction_sets.floats import in_float
from qdqbert.engines.native.ir import Module
from qdqbert.engines.native.kernels.amx_tiles import AmxTiles
from qdqbert.engines.native.kernels.forward import build_module
from qdqbert.engines.native.kernels.linear import emit_linears
from qdqbert.engines.native.records import CODES, NORM, ROUND_TRIP

# The largest weight code for which sums of two adjacent products fit in 16 bits.
SAFE_CODE = 64

GUARDED = os.environ.get("GUARD_ARRAYS")
# The guarded tests read no settings of all tests.
few = settings(max_examples=int(os.environ.get("KERNEL_EXAMPLES", 15)), deadline=None)
MIRROR = Mirror(Guard(at_start=GUARDED == "start")) if GUARDED else None
if MIRROR:
    _slot = records._slot
    records._slot = lambda type, value: _slot(
        type, MIRROR.address(value) if isinstance(value, np.ndarray) else value
    )

_erf = np.vectorize(math.erf)
# As in `encoder_reference`, which needs PyTorch.
ACTIVATIONS_OF_NUMPY = {
    "gelu": lambda x: x * 0.5 * (1 + _erf(x / math.sqrt(2))),
    "gelu_tanh": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "relu": lambda x: np.maximum(x, 0),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "tanh": np.tanh,
}


class Kernels:
    """Functions of a module, by name."""

    def __init__(self, module: Module, isa: InstructionSet) -> None:
        self.isa = isa
        self._library = Library(compiled(module.text(), lambda: module, self.isa), self.isa)

    def __call__(self, name: str, *arguments: Any) -> None:
        """Call a function. Arrays are passed as the address of their first element."""
        self._call(name, *arguments)

    def with_tiles(self, name: str, *arguments: Any) -> None:
        """Call a function that may use AMX."""
        self.for_each(name, *arguments, last=[()])

    def for_each(self, name: str, *arguments: Any, last: Iterable[tuple[int, ...]]) -> None:
        """Call a function that may use AMX for each of several last arguments."""
        has_tiles = isinstance(self.isa.tiles, AmxTiles)
        if has_tiles:
            self._call("amx_start")
        self._call(name, *arguments, last=last)
        if has_tiles:
            self._call("amx_end")

    def _call(self, name: str, *arguments: Any, last: Iterable[tuple[int, ...]] = ((),)) -> None:
        function = self._library.function(name)
        address = _address if MIRROR is None else _guarded_address
        called = [[address(each) for each in (*arguments, *end)] for end in last]
        if MIRROR is not None:
            MIRROR.push()
        for each in called:
            function(*each)
        if MIRROR is not None:
            MIRROR.pull()


def forget_arrays() -> None:
    """Free the guarded copies of arrays, which records of earlier examples have."""
    if MIRROR is not None:
        MIRROR.clear()


def _address(value: Any) -> Any:
    return value.ctypes.data if isinstance(value, np.ndarray) else value


def _guarded_address(value: Any) -> Any:
    return MIRROR.address(value) if isinstance(value, np.ndarray) else value


@functools.cache
def kernels_of(name: str, features: Features) -> Kernels:
    """Return the kernels of a model, and linear layers with each activation function.

    Args:
        name: Name of the instruction set.
        features: The parts of the model.
    """
    isa = INSTRUCTION_SETS[name]
    isa = in_float(isa) if features.floats else isa
    isa = isa.dynamic() if features.dynamic else isa
    module = build_module(isa, features)
    kind = {"floats": features.floats, "dynamic": features.dynamic}
    for activation in ACTIVATIONS:
        emit_linears(module, isa, activation, **kind, rounds_adds=features.rounds_adds)
    return Kernels(module, isa)


def unsigned(kernels: Kernels, codes: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return dynamic codes around 128, which some kernels store as signed bytes; or the reverse."""
    return codes ^ np.uint8(128 * kernels.isa.tiles.is_signed)


def bytes_of_row(array: NDArray[Any]) -> int:
    """Return the bytes from one row of a matrix to the next."""
    return int(array.strides[0])


def codes_record(
    multiplier: NDArray[np.float32], zero_point: int = 128, step: int = 0
) -> NDArray[np.int64]:
    return CODES.make(multiplier=multiplier, shift=ROUNDING + zero_point, step=step)


def norm_record(
    weight: NDArray[np.float32],
    bias: NDArray[np.float32],
    epsilon: float,
    width: int,
    *,
    subtracts_mean: bool = True,
) -> NDArray[np.int64]:
    values = {"epsilon": epsilon, "width": width, "subtracts_mean": float(subtracts_mean)}
    return NORM.make(weight=weight, bias=bias, **values)


def round_trip_record(
    multiplier: NDArray[np.float32], step: NDArray[np.float32], codes: tuple[int, int, int]
) -> NDArray[np.int64]:
    """Return a record of fake quantization with a zero point, a lowest and a highest code."""
    shift, low, high = (ROUNDING + each for each in codes)
    arrays = {"multiplier": multiplier, "step": step}
    return ROUND_TRIP.make(**arrays, shift=shift, low=low, high=high, is_kept=0)


def check_codes(
    found: NDArray[Any], values: NDArray[Any], zero_point: int, tolerance: float = 1e-3
) -> None:
    """Compare codes with values in units of their scale.

    Args:
        found: Codes from 0 to 255.
        values: What was rounded, in float64.
        zero_point: The code of 0.
        tolerance: How far from the middle of two codes a value may be rounded to the wrong one.
    """
    distance = np.abs(found.astype(np.float64) - np.clip(values + zero_point, 0, 255))
    assert distance.max(initial=0) <= 0.5 + tolerance
