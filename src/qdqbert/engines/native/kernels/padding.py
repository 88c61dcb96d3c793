"""Texts without padding, from inputs that have it, and results with padding again."""

from __future__ import annotations

from collections.abc import Callable

from qdqbert.engines.native.instruction_set import InstructionSet
from qdqbert.engines.native.ir import F32, I32, I64, Function, Module, Type, Value, vector

_LARGEST = 2**63 - 1


def emit_padding(module: Module, isa: InstructionSet) -> None:
    """Write `remove_padding` and `restore_padding`."""
    with module.function(
        "remove_padding",
        "ids*, mask*, types*, texts, length, uncounted, first, "
        "out_ids*, positions*, out_types*, starts*, ends*",
    ) as f:
        _remove_padding(f)
    with module.function("restore_padding", "mask*, count, x*, stride, channels, out*") as f:
        _restore_padding(f, isa.lanes)


def _remove_padding(f: Function) -> None:
    """Write `remove_padding`.

    Its arguments are token ids, masks and token types, int64 `(texts, length)`, where types may be
    null for zeros; the number of texts and their length; an id that gets position 0 and is not
    counted, and the position of the first token; where ids, positions and types go, int32
    `(tokens,)`, and the starts of the texts and the end, int64; and where the least and the largest
    of ids and of types go, int64 `(4,)`.
    """
    has_types = f.types.differs(0)
    lowest, highest = f.constant(I64, _LARGEST), f.constant(I64, -_LARGEST)
    ends = [f.variable(each) for each in (lowest, highest, lowest, highest)]
    token = f.variable(f.constant(I64, 0))
    with f.loop(0, f.texts) as text:
        f.store(token.get(), f.starts + text * 8)
        counted, row = f.variable(f.first), text * f.length
        with (
            f.loop(row, row + f.length) as place,
            f.when(f.load(I64, f.mask + place * 8).differs(0)),
        ):
            number = f.load(I64, f.ids + place * 8)
            kind = f.variable(f.constant(I64, 0))
            with f.when(has_types):
                kind.set(f.load(I64, f.types + place * 8))
            for value, (low, high) in ((number, ends[:2]), (kind.get(), ends[2:])):
                low.set(value.minimum(low.get()))
                high.set(value.maximum(high.get()))
            is_counted = number.differs(f.uncounted)
            position = is_counted.select(counted.get(), 0)
            counted.set(counted.get() + is_counted.cast("zext", I64))
            arrays = (f.out_ids, f.positions, f.out_types)
            for value, array in zip((number, position, kind.get()), arrays, strict=True):
                f.store(value.cast("trunc", I32), array + token.get() * 4)
            token.set(token.get() + 1)
    f.store(token.get(), f.starts + f.texts * 8)
    for each, end in enumerate(ends):
        f.store(end.get(), f.ends + 8 * each)


def _restore_padding(f: Function, lanes: int) -> None:
    """Write `restore_padding`: rows of tokens, with zeros at padding.

    Its arguments are a mask, int64, and its length; the first row of float32 and the bytes from one
    row to the next; the number of channels; and where the rows go, without padding of channels.
    """
    token = f.variable(f.x)
    with f.loop(0, f.count) as place:
        is_kept = f.load(I64, f.mask + place * 8).differs(0)
        out = f.out + place * f.channels * 4
        with f.when(is_kept):
            row = token.get()
            _in_vectors(f, lanes, lambda channel, type: f.load(type, row + channel * 4), out)
            token.set(token.get() + f.stride)
        with f.when(is_kept ^ 1):
            _in_vectors(f, lanes, lambda channel, type: f.constant(type, 0.0), out)


def _in_vectors(f: Function, lanes: int, load: Callable[[Value, Type], Value], out: Value) -> None:
    """Write a row: whole vectors first, then one channel at a time."""
    whole = f.channels - f.channels % lanes
    parts = ((vector(F32, lanes), f.constant(I64, 0), whole), (F32, whole, f.channels))
    for type, start, end in parts:
        with f.loop(start, end, max(1, type.lanes)) as channel:
            f.store(load(channel, type), out + channel * 4)
