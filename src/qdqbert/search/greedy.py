"""Find the units whose quantization costs most, and leave as few of them in float as needed."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Collection, Iterator, Sequence

from qdqbert.search.units import Unit

Noise = Callable[[Collection[str]], float]
"""Returns the power of the output's error if some sites, by name, are left in float."""


def float_order(units: Sequence[Unit], noise: Noise) -> Iterator[Unit]:
    """Yield units in the order in which leaving them in float gains most for what it costs.

    A gain is measured with all units in float that were yielded before. It hardly ever grows with
    them, so only the best candidates are measured again.

    Args:
        units: All units.
        noise: Measures the error.

    Source: the accelerated greedy algorithm of Minoux 1978, doi:10.1007/BFb0006528.
    """
    left: frozenset[str] = frozenset()
    current = noise(left)
    found = {index: noise(unit.sites) for index, unit in enumerate(units)}
    waiting = [_entry(current - found[index], index, unit, 0) for index, unit in enumerate(units)]
    heapq.heapify(waiting)
    for chosen in itertools.count():
        if not waiting:
            return
        while True:
            _, index, measured = heapq.heappop(waiting)
            unit = units[index]
            if measured == chosen:
                break
            found[index] = noise(left | set(unit.sites))
            heapq.heappush(waiting, _entry(current - found[index], index, unit, chosen))
        left |= set(unit.sites)
        current = found[index]
        yield unit


def fewest_units(
    order: Iterator[Unit], is_met: Callable[[Sequence[Unit]], bool]
) -> tuple[Unit, ...] | None:
    """Return the shortest start of an order that meets a condition; `None` if all of it does not.

    The length is doubled until the condition is met, and bisected then, since checking it takes
    long.

    Args:
        order: Units in the order in which they are left in float.
        is_met: Checks the condition. It is expected to stay met with more units.
    """
    if is_met(()):
        return ()
    taken: list[Unit] = []
    low = 0
    while True:
        more = list(itertools.islice(order, max(1, len(taken))))
        if not more:
            return None
        taken += more
        if is_met(taken):
            break
        low = len(taken)
    high = len(taken)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_met(taken[:middle]) else (middle, high)
    return tuple(taken[:high])


def _entry(gain: float, index: int, unit: Unit, chosen: int) -> tuple[float, int, int]:
    return -gain / unit.cost, index, chosen
