from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qdqbert.quantization.search.greedy import fewest_units, float_order
from qdqbert.quantization.search.units import Unit


def unit(name: str, cost: int = 1) -> Unit:
    return Unit(name=name, sites=(f"{name}.input", f"{name}.weight"), cost=cost)


def order(units: Sequence[Unit], noise) -> str:
    return "".join(each.name for each in float_order(units, noise))


class Independent:
    """Units whose errors add up; counts the measurements."""

    def __init__(self, **errors: float) -> None:
        self.errors, self.calls = errors, 0

    def __call__(self, left: Collection[str]) -> float:
        self.calls += 1
        assert len(left) % 2 == 0, "both sites of a unit are left in float together"
        return sum(error for name, error in self.errors.items() if f"{name}.input" not in left)


def test_the_largest_error_for_the_cost_comes_first() -> None:
    noise = Independent(a=1.0, b=6.0, c=4.0)
    assert order([unit("a"), unit("b", 3), unit("c")], noise) == "cba"


def test_each_unit_is_measured_once() -> None:
    noise = Independent(a=1.0, b=6.0, c=4.0, d=2.0)
    assert order([unit(name) for name in "abcd"], noise) == "bcda"
    assert noise.calls == 4


def test_units_that_are_not_wanted_are_not_measured() -> None:
    noise = Independent(a=1.0, b=6.0, c=4.0, d=2.0)
    found = float_order([unit(name) for name in "abcd"], noise, lambda each: each.name in "ab")
    assert ("".join(each.name for each in found), noise.calls) == ("ba", 2)


def test_a_small_error_is_not_hidden_by_a_large_one() -> None:
    errors = {"a": 100.0, "b": -2.0, "c": 0.5, "d": 1.0}

    def noise(left: Collection[str]) -> float:
        # The power of a sum: with `a` quantized, leaving `b` in float makes the error larger.
        return sum(each for name, each in errors.items() if f"{name}.input" not in left) ** 2

    assert order([unit(name) for name in "cdba"], noise) == "abdc"


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=8))
def test_independent_units_come_in_the_order_of_their_errors(errors) -> None:
    names = [f"u{index}" for index in range(len(errors))]
    by_name = dict(zip(names, errors, strict=True))
    # Sums of floats that are independent of their order.
    exact = {name: round(error) for name, error in by_name.items()}
    found = [each.name for each in float_order([unit(n) for n in names], Independent(**exact))]
    assert sorted(found) == sorted(names)
    gains = [exact[name] for name in found]
    assert gains == sorted(gains, reverse=True)


@pytest.mark.parametrize("count", range(10))
@pytest.mark.parametrize("needed", range(10))
def test_the_shortest_start_that_meets_the_condition_is_found(count, needed) -> None:
    units = [unit(str(index)) for index in range(count)]
    taken = fewest_units(iter(units), lambda chosen: len(chosen) >= needed)
    assert taken == (None if needed > count else tuple(units[:needed]))


def test_no_more_units_are_ordered_than_the_doubling_needs() -> None:
    given_out = itertools.count()
    units = (unit(str(next(given_out))) for _ in range(100))
    assert fewest_units(units, lambda chosen: len(chosen) >= 3) is not None
    assert next(given_out) == 4
