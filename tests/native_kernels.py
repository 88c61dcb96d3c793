"""Compiled kernels of an instruction set, called with numpy arrays."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from hypothesis import settings
from numpy.typing import NDArray

from qdqbert.engines.native.compiler import Library, compile_object
from qdqbert.engines.native.functions import ACTIVATIONS, ROUNDING
from qdqbert.engines.native.instruction_sets import INSTRUCTION_SETS
from qdqbert.engines.native.ir import Module
from qdqbert.engines.native.kernels.forward import build_module
from qdqbert.engines.native.kernels.linear import emit_linears
from qdqbert.engines.native.records import CODES

# Kernels are the same whatever the time of a single example.
few = settings(max_examples=25, deadline=None)
# The largest weight code for which sums of two adjacent products fit in 16 bits.
SAFE_CODE = 64


class Kernels:
    """Functions of a module, by name."""

    def __init__(self, module: Module, name: str) -> None:
        self.isa = INSTRUCTION_SETS[name]
        self._module = module
        self._library = Library(compile_object(module, self.isa), self.isa)

    def __call__(self, name: str, *arguments: Any) -> None:
        """Call a function. Arrays are passed as the address of their first element."""
        self._call(name, *arguments)

    def with_tiles(self, name: str, *arguments: Any) -> None:
        """Call a function that may use AMX."""
        if self.isa.amx:
            self._call("amx_start")
        self._call(name, *arguments)
        if self.isa.amx:
            self._call("amx_end")

    def _call(self, name: str, *arguments: Any) -> None:
        function = self._library.function(self._module.functions[name])
        function(
            *(each.ctypes.data if isinstance(each, np.ndarray) else each for each in arguments)
        )


@functools.cache
def kernels_of(name: str, *, dynamic: bool = False) -> Kernels:
    """Return the kernels of a model, and linear layers with each activation function.

    Args:
        name: Name of the instruction set.
        dynamic: Whether each row of codes has its own scale.
    """
    isa = INSTRUCTION_SETS[name]
    module = build_module(isa, "gelu", dynamic=dynamic)
    for activation in ACTIVATIONS:
        emit_linears(module, isa, activation, dynamic=dynamic)
    return Kernels(module, name)


def bytes_of_row(array: NDArray[Any]) -> int:
    """Return the bytes from one row of a matrix to the next."""
    return int(array.strides[0])


def codes_record(
    multiplier: NDArray[np.float32], zero_point: int, *, offset: float = 0.0, top: int = 0
) -> NDArray[np.int64]:
    return CODES.make(
        {
            "multiplier": multiplier,
            "shift": ROUNDING + zero_point,
            "offset": offset,
            "top": top,
        }
    )


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
