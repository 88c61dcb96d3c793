"""Code that runs on any CPU."""

from __future__ import annotations

from qdqbert.engines.native.instruction_set import Dot, InstructionSet
from qdqbert.engines.native.ir import Function, Value
from qdqbert.engines.native.kernels.short_products import ShortProducts, multiply_pairs
from qdqbert.engines.native.kernels.vector_tiles import VectorTiles


def _add_products(f: Function, total: Value, codes: Value, weights: Value) -> Value:
    for each in range(4):
        own = range(each, 4 * total.type.lanes, 4)
        product = codes.shuffle(own).cast("zext", total.type) * weights.shuffle(own).cast(
            "sext", total.type
        )
        total = total + product
    return total


PORTABLE = InstructionSet(
    name="portable",
    architecture="",
    cpu="",
    lanes=4,
    dot=Dot(name="widen", add=_add_products),
    rows=(2, 1),
    vectors=(4,),
    tiles=VectorTiles(),
    products=ShortProducts(add_pairs=multiply_pairs),
)
