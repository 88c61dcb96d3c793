"""The products of attention in float32."""

from __future__ import annotations

import dataclasses

from qdqbert.engines.native.instruction_set import Operands, Products
from qdqbert.engines.native.ir import F32, Function, Module, Value, vector
from qdqbert.engines.native.kernels.dot import PANEL
from qdqbert.engines.native.kernels.packing import pack_function, place_of, transposed


@dataclasses.dataclass(frozen=True)
class FloatProducts(Products):
    """Products by `product`; see `instruction_set.Products`."""

    rows_together = 24
    columns = PANEL

    def bytes_of_key(self, size: Value) -> Value:
        """Return the bytes of a key."""
        return size * 4

    def bytes_of_values(self, tokens: Value) -> Value:
        """Return the bytes of some tokens in a panel of values."""
        return tokens * (4 * PANEL)

    def emit_pack(self, module: Module, *, windowed: bool, bounded: bool, shared: bool) -> None:
        """Write `pack_keys` and `pack_values`, which read rows up to a multiple of 32."""
        floats = vector(F32, PANEL)
        with pack_function(module, "pack_keys") as f:
            factor = f.splat(f.factor, PANEL)
            with f.loop(0, f.length, PANEL) as token, f.loop(0, f.size, PANEL) as channel:
                rows = [place_of(f, token + each, shared=shared) for each in range(PANEL)]
                keys = [f.load(floats, row + channel * 4) * factor for row in rows]
                panel = f.out + (token * f.size * 4 + channel * (4 * PANEL))
                for each, column in enumerate(transposed(keys)):
                    f.store(column, panel + 4 * PANEL * each)
        with pack_function(module, "pack_values") as f:
            factor = f.splat(f.factor, PANEL)
            with f.loop(0, f.size, PANEL) as channel:
                panel = f.out + channel * f.length * 4
                with f.loop(0, f.length) as token:
                    place = place_of(f, token, shared=shared) + channel * 4
                    values = f.load(floats, place) * factor
                    f.store(values, panel + token * (4 * PANEL))

    def multiply(self, f: Function, operands: Operands) -> None:
        """Write `out = x @ weights`."""
        f.call(
            "product",
            x=operands.x,
            stride=operands.stride,
            rows=operands.rows,
            weights=operands.weights,
            panel=operands.panel,
            panels=operands.columns // PANEL,
            out=operands.out,
            out_stride=operands.out_stride,
            depth=operands.depth,
            start=operands.zeros,
            start_panel=0,
        )
