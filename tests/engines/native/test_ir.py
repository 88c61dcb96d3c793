"""Write functions, compile them, and call them."""

from __future__ import annotations

import numpy as np
import pytest

from native_kernels import Kernels
from qdqbert.engines.native.instruction_sets import choose_set
from qdqbert.engines.native.ir import F32, I8, I32, I64, PTR, VOID, Module, Type, constant, vector
from qdqbert.engines.native.records import Record


def compiled(module: Module) -> Kernels:
    return Kernels(module, choose_set())


def computed(type: Type, write, *inputs) -> np.ndarray:
    """Return the vector that `write(f, *vectors)` returns."""
    dtype = {"i8": np.int8, "i32": np.int32, "i64": np.int64, "float": np.float32}
    arrays = [np.asarray(each, dtype[type.scalar]) for each in inputs]
    kinds = {}

    module = Module()
    with module.function("run", out=PTR, **{f"x{i}": PTR for i in range(len(arrays))}) as f:
        loaded = [
            f.load(vector(type, len(each)), getattr(f, f"x{i}")) for i, each in enumerate(arrays)
        ]
        result = write(f, *loaded)
        kinds["out"] = result.type
        f.store(result, f.out)
    out = np.zeros(max(1, kinds["out"].lanes), dtype[kinds["out"].scalar])
    compiled(module)("run", out, *arrays)
    return out


X, Y = np.arange(-4, 4), np.array([3, -3, 3, -3, 2, 2, 5, 7])


@pytest.mark.parametrize(
    ("write", "expected"),
    [
        (lambda f, x, y: x + y, X + Y),
        (lambda f, x, y: 3 - x * 2, 3 - X * 2),
        (lambda f, x, y: (x & y) | (x ^ 5), (X & Y) | (X ^ 5)),
        (lambda f, x, y: (x << 3) >> 2, X * 2),
        (lambda f, x, y: f.shift_unsigned(x, 28), (X.astype(np.uint32) >> 28)),
        (lambda f, x, y: (x + 4) // 3 + (x + 4) % 3 * 10, (X + 4) // 3 + (X + 4) % 3 * 10),
        (lambda f, x, y: x.maximum(y).minimum(2), np.minimum(np.maximum(X, Y), 2)),
        (lambda f, x, y: (x < y).select(x, 9), np.where(X < Y, X, 9)),
        (lambda f, x, y: (x >= y).select(x, y), np.where(X >= Y, X, Y)),
        (lambda f, x, y: x.equals(y).select(x, y * 0), np.where(X == Y, X, 0)),
        (lambda f, x, y: x.differs(0).select(y, 0), np.where(X != 0, Y, 0)),
        (lambda f, x, y: x.shuffle(range(7, -1, -1)), X[::-1]),
        (lambda f, x, y: x.shuffle([0, 8, 1, 9, 2, 10, 3, 11], y), np.stack([X, Y], 1).ravel()[:8]),
        (lambda f, x, y: f.join(x.parts(2)), X),
        (lambda f, x, y: f.splat(x.lane(2), 8), np.full(8, X[2])),
        (lambda f, x, y: f.splat(f.sum_of(x * y), 8), np.full(8, (X * Y).sum())),
        (lambda f, x, y: f.splat(f.maximum_of(y), 8), np.full(8, 7)),
        (lambda f, x, y: x + f.constant(x.type, range(8)), X + np.arange(8)),
        (lambda f, x, y: x.cast("trunc", vector(I8, 8)).cast("sext", x.type), X),
        (lambda f, x, y: x.cast("sitofp", vector(F32, 8)).cast("fptosi", x.type), X),
    ],
)
def test_integers_are_computed_as_numpy_does(write, expected) -> None:
    np.testing.assert_array_equal(computed(I32, write, X, Y).astype(np.int64), expected)


@pytest.mark.parametrize(
    ("write", "expected"),
    [
        (lambda f, x, y: x / y - 1.5, X / Y - 1.5),
        (lambda f, x, y: 2.0 / (x + 0.5), 2 / (X + 0.5)),
        (lambda f, x, y: f.fma(x, y, 0.25), X * Y + 0.25),
        (lambda f, x, y: x.maximum(y).minimum(2), np.minimum(np.maximum(X, Y), 2)),
        (lambda f, x, y: (x <= y).select(x, 0.5), np.where(X <= Y, X, 0.5)),
        (lambda f, x, y: x.bits(vector(I32, 8)).bits(x.type), X),
    ],
)
def test_floats_are_computed_as_numpy_does(write, expected) -> None:
    np.testing.assert_allclose(computed(F32, write, X, Y), expected, rtol=1e-7)


def test_the_second_of_two_floats_is_taken_if_the_first_is_nan() -> None:
    found = computed(F32, lambda f, x: x.maximum(3.0), [np.nan] * 8)
    assert (found == 3).all()


def test_constants_are_exact() -> None:
    assert constant(F32, 0.1) == "0x3FB99999A0000000"
    assert constant(vector(I8, 2), 7) == "<i8 7, i8 7>"
    assert constant(vector(I8, 2), [-1, 2]) == "<i8 -1, i8 2>"
    found = computed(F32, lambda f, x: x * 0 + 16777217.0 * 0.1, np.ones(8))
    assert found[0] == np.float32(16777217 * 0.1)


def test_loops_may_be_nested_and_conditional() -> None:
    # Numbers of divisors, for numbers below `end` from 1.
    module = Module()
    with module.function("divisors", out=PTR, end=I64) as f, f.loop(1, f.end) as number:
        count = f.variable(f.constant(I64, 0))
        with f.loop(1, number + 1) as divisor, f.when((number % divisor).equals(0)):
            with f.when(divisor.equals(number)):
                count.set(count.get() + 100)
            count.set(count.get() + 1)
        f.store(count.get(), f.out + number * 8)
    out = np.zeros(13, np.int64)
    compiled(module)("divisors", out, 13)
    assert out[1:].tolist() == [100 + n for n in (1, 2, 2, 3, 2, 4, 2, 4, 3, 4, 2, 6)]
    compiled(module)("divisors", out, 0)


def test_a_loop_with_steps_ends_below_its_stop() -> None:
    module = Module()
    with (
        module.function("fill", out=PTR, start=I64, stop=I64, step=I64) as f,
        f.loop(f.start, f.stop, f.step) as index,
    ):
        f.store(f.constant(I64, 1), f.out + index * 8)
    run = compiled(module)
    for start, stop, step in ((0, 10, 3), (2, 9, 7), (4, 4, 1), (5, 3, 1), (0, 12, 4)):
        out = np.zeros(20, np.int64)
        run("fill", out, start, stop, step)
        assert np.flatnonzero(out).tolist() == list(range(start, stop, step))


def test_a_loop_may_be_left_at_several_places() -> None:
    module = Module()
    with module.function("count", out=PTR, first=I64, second=I64) as f:
        total = f.variable(f.constant(I64, 0))
        with f.repeat_while() as end:
            end.leave_if(total.get() >= f.first)
            total.set(total.get() + 1)
            end.leave_if(total.get() >= f.second)
        f.store(total.get(), f.out)
    out = np.zeros(1, np.int64)
    run = compiled(module)
    for first, second, expected in ((3, 9, 3), (9, 4, 4), (0, 9, 0)):
        run("count", out, first, second)
        assert out[0] == expected


def test_functions_call_each_other_and_have_memory_of_their_own() -> None:
    module = Module()
    with module.function("twice", "x*") as f:
        f.store(f.load(I64, f.x) * 2, f.x)
    with module.function("run", "out*, start") as f:
        own = f.allocate(I64)
        f.store(f.start, own)
        for _ in range(3):
            f.call("twice", own)
        f.store(f.load(I64, own), f.out)
    out = np.zeros(1, np.int64)
    compiled(module)("run", out, 5)
    assert out[0] == 40


def test_arguments_of_a_call_may_have_names() -> None:
    module = Module()
    with module.function("subtract", out=PTR, minuend=I64, subtrahend=I64) as f:
        f.store(f.minuend - f.subtrahend, f.out)
    with module.function("run", out=PTR, minuend=I64) as f:
        f.call("subtract", subtrahend=2, **f.own("out, minuend"))
        with pytest.raises(AssertionError, match=r"subtract: \['subtrahend'\] \['wrong'\]"):
            f.call("subtract", f.out, f.minuend, wrong=2)
    out = np.zeros(1, np.int64)
    compiled(module)("run", out, 7)
    assert out[0] == 5


def test_an_intrinsic_is_declared_once() -> None:
    module = Module()
    with module.function("run", out=PTR) as f:
        for _ in range(2):
            f.intrinsic("llvm.x86.sse2.pause", VOID)
    assert module.text().count("declare void @llvm.x86.sse2.pause()") == 1


def test_mistakes_in_a_kernel_are_found_when_it_is_written() -> None:
    module = Module()
    with module.function("run", out=PTR) as f:
        with pytest.raises(AttributeError, match="`run` has no argument `x`"):
            f.x  # noqa: B018
        with pytest.raises(KeyError, match="missing"):
            f.call("missing")
        module.functions["run"] = f
        with pytest.raises(AssertionError, match="run"):
            f.call("run")
    with module.function("run", out=PTR) as f:
        f.store(f.constant(F32, 1.0) + f.constant(I32, 1), f.out)
    with pytest.raises(RuntimeError, match="constant"):
        compiled(module)


def test_records_have_fields_of_8_bytes() -> None:
    record = Record(place=PTR, count=I64, factor=F32)
    module = Module()
    with module.function("run", record=PTR) as f:
        place = record.read(f.record, "place")
        scaled = record.read(f.record, "factor") * 2
        f.store(scaled, place)
        record.write(f.record, "count", record.read(f.record, "count") + 1)
    out = np.zeros(1, np.float32)
    made = record.make(place=out, count=41, factor=0.75)
    assert record.size == made.nbytes == 24
    assert record.offset("factor") == 16
    compiled(module)("run", made)
    assert (out[0], made[1]) == (1.5, 42)


@pytest.mark.parametrize(
    "values",
    [
        {"place": 0, "count": 1, "more": 2},
        {"place": 0, "count": np.zeros(1)},
        {"place": np.zeros((4, 4))[:, ::2], "count": 1},
    ],
)
def test_a_record_has_known_fields_in_their_form(values) -> None:
    with pytest.raises(AssertionError):
        Record(place=PTR, count=I64).make(**values)
