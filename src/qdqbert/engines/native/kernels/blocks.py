"""Loops in blocks of several sizes."""

from __future__ import annotations

from collections.abc import Callable

from qdqbert.engines.native.ir import Function, Value


def in_blocks(
    f: Function, count: Value, sizes: tuple[int, ...], body: Callable[[Value, int], None]
) -> None:
    """Write a loop in blocks of the first size, then one block of each smaller size if needed.

    Args:
        f: The function.
        count: How many there are.
        sizes: The first size, then powers of 2 down to 1 unless the first is 1.
        body: Writes a block, from its start and size.
    """
    rest = count % sizes[0]
    done = count - rest
    with f.loop(0, done, sizes[0]) as index:
        body(index, sizes[0])
    for size in sizes[1:]:
        part = rest & size
        with f.when(part.differs(0)):
            body(done, size)
        done = done + part
