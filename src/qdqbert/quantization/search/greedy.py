"""Find the units whose quantization costs most, and leave as few of them in float as needed."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Sequence

from qdqbert.quantization.search.units import Unit

Noise = Callable[[Collection[str]], float]
"""Returns the power of the output's error if some sites, by name, are left in float."""


def float_order(
    units: Sequence[Unit], noise: Noise, is_wanted: Callable[[Unit], bool] = lambda unit: True
) -> Iterator[Unit]:
    """Yield units in the order of their gain in float per cost, the best one first.

    The gain of a unit is the error that it makes if it alone is quantized. Its gain if all others
    are quantized is not a usable measure: errors of two units have a random product, which hides
    the gain of all but the largest. Units that are not wanted are neither measured nor yielded.
    """
    every = {site for unit in units for site in unit.sites}
    wanted = list(filter(is_wanted, units))
    gains = {unit.name: noise(every.difference(unit.sites)) for unit in wanted}
    yield from sorted(wanted, key=lambda unit: gains[unit.name] / unit.cost, reverse=True)


def fewest_units(
    order: Iterator[Unit], is_met: Callable[[Sequence[Unit]], bool]
) -> tuple[Unit, ...] | None:
    """Return the shortest prefix of an order that meets a condition; `None` if none does.

    The length is doubled until the condition is met, and bisected then, since checking it takes
    long. It is expected to stay met with more units.
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
