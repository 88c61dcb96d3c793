"""Linear layers in float32 outside of a model, on the kernels of its heads.

They run on the thread that calls them, and release the interpreter's lock. A row's result does not
depend on the other rows, and has the same bits whatever else runs. Those of numpy's libraries do,
and their threads wait for cores that the threads of a model have.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from qdqbert.engines.native.cache import compiled, own_code
from qdqbert.engines.native.compiler import Library
from qdqbert.engines.native.instruction_sets import choose_set
from qdqbert.engines.native.ir import Module
from qdqbert.engines.native.kernels.dot import PANEL
from qdqbert.engines.native.kernels.product import emit_product, pack_floats
from qdqbert.engines.native.memory import zeros
from qdqbert.engines.native.records import FLOAT_LINEAR

Floats = NDArray[np.float32]


class FloatLinear:
    """`x @ weight.T + bias`."""

    def __init__(self, weight: Floats, bias: Floats | None = None) -> None:
        """Pack the weight `(out, in)` and the bias `(out,)`, `None` for zeros.

        Raises:
            ValueError: The bias has another length.
        """
        self._function = _float_linear()
        self._width, depth = weight.shape
        if bias is not None and bias.shape != (self._width,):
            raise ValueError(f"a bias {bias.shape} for {self._width} outputs")
        self._depth = depth
        self._weights = pack_floats(np.ascontiguousarray(weight, np.float32), depth)
        self._columns = len(self._weights) * PANEL
        given = np.zeros(self._width, np.float32) if bias is None else bias
        # A copy with padding: the record has addresses.
        self._bias = zeros(self._columns, np.float32)
        self._bias[: self._width] = given
        self._record = FLOAT_LINEAR.make(
            weights=self._weights,
            panel=4 * PANEL * depth,
            panels=len(self._weights),
            depth=depth,
            bias=self._bias,
        )
        self._place = self._record.ctypes.data

    def __call__(self, rows: Floats) -> Floats:
        """Return the layer of rows `(rows, in)`, as `(rows, out)`.

        Raises:
            ValueError: Rows have another width.
        """
        rows = np.ascontiguousarray(rows, np.float32)
        # The kernel would read other memory.
        if rows.ndim != 2 or rows.shape[1] != self._depth:
            raise ValueError(f"rows {rows.shape} for {self._depth} inputs")
        out = zeros((len(rows), self._columns), np.float32)
        self._function(
            *(self._place, rows.ctypes.data, rows.strides[0], len(rows)),
            *(out.ctypes.data, out.strides[0]),
        )
        return out[:, : self._width]


@functools.cache
def _float_linear() -> Callable[..., None]:
    """Return the kernel `float_linear` for this CPU."""
    isa = choose_set()

    def write() -> Module:
        module = Module('"prefer-vector-width"="512"')
        emit_product(module, isa)
        return module

    return Library(compiled(f"{own_code()}\nfloat layers", write, isa), isa).function(
        "float_linear"
    )
