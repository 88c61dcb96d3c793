"""The products of attention with tiles of bfloat16; see `split`."""

from __future__ import annotations

import dataclasses

from qdqbert.engines.native.instruction_set import InstructionSet, Operands, Products
from qdqbert.engines.native.ir import F32, I64, Function, Module, Value, vector
from qdqbert.engines.native.kernels.dot import PANEL
from qdqbert.engines.native.kernels.packing import pack_function, padded_to, transposed
from qdqbert.engines.native.kernels.split import DEPTH, emit_split, split_pairs, store_split


@dataclasses.dataclass(frozen=True)
class SplitProducts(Products):
    """Products by `split_product`; see `instruction_set.Products`."""

    rows_together = 32
    columns = DEPTH

    def emit(self, module: Module, isa: InstructionSet) -> None:
        """Write `split_rows` and `split_product`."""
        emit_split(module)

    def bytes_of_key(self, size: Value) -> Value:
        """Return the bytes of a key, of two bfloat16 for each channel with padding."""
        return padded_to(size, DEPTH) * 4

    def bytes_of_values(self, tokens: Value) -> Value:
        """Return the bytes of some tokens in a panel of values."""
        return padded_to(tokens, DEPTH) * (4 * PANEL)

    def emit_pack(self, module: Module, *, windowed: bool) -> None:
        """Write `pack_keys` and `pack_values`, which split numbers."""
        floats = vector(F32, PANEL)

        def store(f: Function, one: Value, other: Value, place: Value) -> None:
            high, low = split_pairs(f, one, other)
            f.store(high, place)
            f.store(low, place + 4 * PANEL * PANEL)

        with pack_function(module, "pack_keys") as f:
            factor = f.splat(f.factor, PANEL)
            depth = padded_to(f.size, DEPTH)
            with f.loop(0, f.length, PANEL) as token, f.loop(0, f.size, DEPTH) as channel:
                place = f.source + (token * f.stride + channel * 4)
                has_other = f.size - channel > PANEL
                offsets = f.constant(I64, 0), has_other.select(f.constant(I64, 4 * PANEL), 0)
                columns, others = (
                    transposed(
                        [
                            f.load(floats, place + offset + f.stride * each) * factor
                            for each in range(PANEL)
                        ]
                    )
                    for offset in offsets
                )
                tile = f.out + (token * depth * 4 + channel * (4 * PANEL))
                for each in range(PANEL):
                    store(
                        f,
                        columns[each],
                        has_other.select(others[each], 0.0),
                        tile + 4 * PANEL * each,
                    )
        with pack_function(module, "pack_values") as f:
            factor = f.splat(f.factor, PANEL)
            depth = padded_to(f.length, DEPTH)
            with f.loop(0, f.size, PANEL) as channel, f.loop(0, depth, DEPTH) as token:
                tile = f.out + (channel * depth * 4 + token * (4 * PANEL))
                with f.loop(0, PANEL) as pair:
                    # Weights are not exactly zero after the last token.
                    one, other = (
                        (own < f.length).select(
                            f.load(floats, f.source + (own * f.stride + channel * 4)) * factor, 0.0
                        )
                        for own in (token + pair, token + pair + PANEL)
                    )
                    store(f, one, other, tile + pair * (4 * PANEL))

    def prepared(
        self, f: Function, queries: Value, stride: Value, rows: Value, size: Value, out: Value
    ) -> tuple[Value, Value]:
        """Split the queries."""
        f.call("split_rows", queries, stride, rows, size, out)
        return out, padded_to(size, DEPTH) * 4

    def multiply(self, f: Function, operands: Operands) -> None:
        """Write `out = x @ weights`."""
        f.call(
            "split_product",
            x=operands.x,
            stride=operands.stride,
            rows=operands.rows,
            weights=operands.weights,
            panel=operands.panel,
            panels=operands.columns // PANEL,
            out=operands.out,
            out_stride=operands.columns * 4,
            depth=padded_to(operands.depth, DEPTH),
        )

    def vectors(self, lanes: int) -> int:
        """Return the number of vectors that are split together."""
        return DEPTH // lanes

    def store_weights(self, f: Function, weights: list[Value], row: Value, key: Value) -> None:
        """Write the store of vectors that are split."""
        store_split(f, weights[0], weights[1], row + key * 4)
