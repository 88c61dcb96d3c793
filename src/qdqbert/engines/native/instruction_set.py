"""Instructions of a CPU that kernels use, and how kernels use them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import ClassVar, Protocol

from qdqbert.engines.native.ir import I32, Function, Module, Type, Value

AddProducts = Callable[[Function, Value, Value, Value], Value]
"""Adds products to sums: `<lanes x i32>` sums, and four codes and weights in each 32-bit lane."""

FinishRows = Callable[[Function, Value, int], Callable[[list[Value]], None]]
"""Loads what the results of some panels of a tile need, in a function with the arguments
`tile.FINISHED`, from the first panel and their number. Returns a function that writes some rows.
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dot:
    """How four u8 x s8 products are added to an int32.

    Attributes:
        name: Its instruction. Compiled kernels are found by it.
        add: Writes the operation.
        is_exact: Whether sums are exact for any weights, not only below the adjacent sum limit.
        is_signed: Whether it multiplies codes minus 128, which are signed. Sums start from 128
            times the sum of the weights then.
        multiplied: Type of what a step takes of a row: codes, as one i32, or a float.
    """

    name: str
    add: AddProducts = dataclasses.field(repr=False)
    is_exact: bool = True
    is_signed: bool = False
    multiplied: Type = I32


class Tiles(Protocol):
    """How linear layers are divided into tiles whose sums stay in registers.

    Attributes:
        start_at_zero: Whether tiles leave out the sums to start from, which are added to the
            results then.
        is_signed: Whether dynamic codes are stored minus 128, as signed bytes.
        spare_rows: Number of rows after the last one that tiles read.
    """

    start_at_zero: ClassVar[bool]
    spare_rows: ClassVar[int]

    @property
    def is_signed(self) -> bool:
        """See above."""

    def signed(self) -> Tiles:
        """Return tiles that multiply signed codes, if there are any."""
        return self

    def block(self, row: int) -> int:
        """Return how many rows are computed together at most, a multiple of 32.

        The activations of a row have `row` bytes.
        """

    def float_rows(self, weights: int, row: int) -> int:
        """Return how many rows of results in float32 wait at most until they become codes.

        All weights of so many bytes are read for them, and a row has `row` bytes.
        """
        return 32

    def emit(self, module: Module, isa: InstructionSet) -> None:
        """Write the function of each tile."""

    def emit_finish(self, module: Module, finish: str, rows_of: FinishRows) -> None:
        """Write what `loop` calls besides the function `finish`, which `rows_of` can write, too."""
        return

    def loop(
        self, f: Function, isa: InstructionSet, finish: str, element: int, *, reads_out: bool
    ) -> None:
        """Write the loops over the tiles of a linear layer; see `kernels.linear`.

        Args:
            f: The function of the kernel.
            isa: The instruction set.
            finish: Name of the function that turns sums into results.
            element: Bytes of a result.
            reads_out: Whether it reads what is at the place of the result.
        """

    def begin(self, f: Function) -> None:
        """Write what a thread does before it uses tiles."""
        return

    def end(self, f: Function) -> None:
        """Write what a thread does after it used tiles."""
        return


@dataclasses.dataclass(frozen=True, kw_only=True)
class Operands:
    """Operands of `out = x @ weights` in attention.

    Attributes:
        x: The first row.
        stride: Bytes from one row to the next.
        weights: The first panel of weights: of keys or of values.
        panel: Bytes from one panel to the next.
        end: Bytes from `weights` to the end of the first panel.
        out: The first row of the result.
        out_stride: Bytes from one row of the result to the next.
        depth: Number of products in a sum.
        zeros: `product.WIDEST` zeros.
    """

    x: Value
    stride: Value
    rows: Value
    weights: Value
    panel: Value
    end: Value
    columns: Value
    out: Value
    out_stride: Value
    depth: Value
    zeros: Value


class Products(Protocol):
    """How attention multiplies queries by keys, and weights by values.

    Attributes:
        rows_together: Number of queries per block, a multiple of the rows of all tiles.
        columns: The number of keys is padded to a multiple of this.
    """

    rows_together: ClassVar[int]
    columns: ClassVar[int]

    def emit(self, module: Module, isa: InstructionSet) -> None:
        """Write the functions of the products, apart from `product`."""
        return

    def bytes_of_key(self, size: Value) -> Value:
        """Return the bytes of a packed key of some channels: a sixteenth of a panel."""

    def bytes_of_values(self, tokens: Value) -> Value:
        """Return the bytes of some tokens in a panel of values."""

    def panel_of_values(self, tokens: Value) -> Value:
        """Return the bytes of a panel of values."""
        return self.bytes_of_values(tokens)

    def bytes_of_scores(self, columns: Value) -> Value:
        """Return the bytes from the scores of a query to the next."""
        return columns * 4

    def emit_pack(self, module: Module, *, windowed: bool, bounded: bool, shared: bool) -> None:
        """Write `pack_keys` and `pack_values`.

        They copy rows of a head to panels of 16 columns. Their arguments are the first row and the
        bytes from one row to the next, the number of tokens, the channels of the head, a factor of
        all numbers, where the panels go, and bounds of the values of each channel. The last two are
        the rows of a prefix, one after another, and their number, which is a part of the number of
        tokens.

        `pack_keys` packs columns of keys. If it is `windowed`, queries read some of the keys only.
        If it is `bounded`, scales of values are those of their bounds, where values are rounded. If
        it is not `shared`, there is no prefix.
        """

    def prepared(
        self, f: Function, queries: Value, stride: Value, rows: Value, size: Value, out: Value
    ) -> tuple[Value, Value]:
        """Write the preparation of queries in a buffer, and return their place and stride."""
        return queries, stride

    def multiply_keys(self, f: Function, operands: Operands) -> None:
        """Write the scores of prepared queries, whose weights are keys."""
        self.multiply(f, operands)

    def multiply(self, f: Function, operands: Operands) -> None:
        """Write `out = x @ weights`."""

    def end_weights(
        self,
        f: Function,
        rows: list[Value],
        totals: list[Value],
        length: Value,
        padded: Value,
        *,
        windowed: bool,
    ) -> None:
        """Write what is left to do when all weights of some rows are stored.

        `totals` are at least the sum of the weights of each row, and twice the largest if that is
        above 1. A row has `padded` weights, of which `length` are of keys.
        """
        return


@dataclasses.dataclass(frozen=True, kw_only=True)
class InstructionSet:
    """Instructions of a CPU that kernels use.

    Attributes:
        name: Name for users.
        architecture: `x86_64` or `aarch64`; empty for code that runs on any CPU.
        cpu: LLVM's name of the oldest CPU that has it.
        features: LLVM's names of further features, such as `+avxvnni`.
        needs: The features of `qdqbert.common.machine.cpu_features` that a CPU needs.
        lanes: Number of float32 in a vector register.
        dot: How products are added.
        exact_dot: How they are added for any weights, if `dot` is not exact.
        rows: Rows of a tile whose sums stay in registers, from the largest to 1. A number of rows
            below the largest is made of the others, each used once at most.
        float_rows: The same in float, if it differs.
        vectors: Vectors in a row of such a tile, in the same way.
        tiles: How linear layers are computed.
        products: How attention is computed.
    """

    name: str
    architecture: str
    cpu: str
    features: str = ""
    needs: tuple[str, ...] = ()
    lanes: int
    dot: Dot
    exact_dot: Dot | None = None
    rows: tuple[int, ...]
    float_rows: tuple[int, ...] = ()
    vectors: tuple[int, ...]
    tiles: Tiles
    products: Products

    def dynamic(self) -> InstructionSet:
        """Return this instruction set for a model with dynamic scales."""
        return dataclasses.replace(self, tiles=self.tiles.signed())

    @property
    def is_signed(self) -> bool:
        """Whether signed codes are multiplied: sums start from 128 times those of the weights."""
        return self.dot.is_signed or self.tiles.is_signed

    def exact(self) -> InstructionSet:
        """Return this instruction set with sums that are exact for any weights."""
        return self if self.exact_dot is None else dataclasses.replace(self, dot=self.exact_dot)
