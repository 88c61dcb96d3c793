"""Write LLVM IR as text, with Python expressions for its instructions.

    module = Module()
    with module.function("scale", "x*, count", factor=F32) as f:
        with f.loop(0, f.count, 16) as i:
            x = f.x + i * 4
            f.store(f.load(vector(F32, 16), x) * f.splat(f.factor, 16), x)

A `Value` is one SSA value. Operators emit instructions: `+ - *` on integers and floats, `+` of a
pointer and an integer is an address in bytes. Python numbers become constants of the other
operand's type. Loops and conditions are context managers. A value that changes in a loop is a
`Variable`, which LLVM's optimizer turns into registers.
"""

from __future__ import annotations

import contextlib
import dataclasses
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Union

import numpy as np


@dataclasses.dataclass(frozen=True)
class Type:
    """A scalar type, or a vector of them.

    Attributes:
        scalar: LLVM's name of the scalar type.
        lanes: Number of lanes; 0 for a scalar.
    """

    scalar: str
    lanes: int = 0

    def __str__(self) -> str:
        return f"<{self.lanes} x {self.scalar}>" if self.lanes else self.scalar

    @property
    def is_float(self) -> bool:
        """Whether arithmetic on this type is floating point."""
        return self.scalar == "float"

    @property
    def suffix(self) -> str:
        """The end of an intrinsic's name for this type, such as `v16f32`."""
        scalar = "f32" if self.is_float else "p0" if self.scalar == "ptr" else self.scalar
        return f"v{self.lanes}{scalar}" if self.lanes else scalar


I8, I16, I32, I64 = (Type(f"i{bits}") for bits in (8, 16, 32, 64))
F32 = Type("float")
PTR = Type("ptr")
VOID = Type("void")

Operand = Union["Value", int, float]
Combine = Callable[["Value", "Value"], "Value"]


def vector(scalar: Type, lanes: int) -> Type:
    """Return a vector type."""
    return Type(scalar.scalar, lanes)


def declared(arguments: str) -> dict[str, Type]:
    """Return the types of arguments by name: of `x*`, a pointer; of `rows`, an i64."""
    names = arguments.split(", ") if arguments else []
    return {name.removesuffix("*"): PTR if name.endswith("*") else I64 for name in names}


def constant(type: Type, value: int | float | Sequence[int] | Sequence[float]) -> str:
    """Return a constant as text. A number is repeated in all lanes of a vector."""
    if type.lanes:
        values = value if isinstance(value, Sequence) else [value] * type.lanes
        return f"<{', '.join(f'{type.scalar} {_scalar(type, each)}' for each in values)}>"
    assert not isinstance(value, Sequence)
    return _scalar(type, value)


def _scalar(type: Type, value: int | float) -> str:
    if type == PTR:
        assert value == 0
        return "null"
    if not type.is_float:
        return str(int(value))
    # LLVM writes a float32 as the bits of the equal float64.
    return f"0x{struct.pack('>d', float(np.float32(value))).hex().upper()}"


def _operation(real: str, integer: str) -> Callable[[Value, Operand], Value]:
    """Return a method that emits an instruction for floats or integers."""

    def emit(self: Value, other: Operand) -> Value:
        other = self.function.operand(self.type, other)
        name = real if self.type.is_float else integer
        return self.function.emit(self.type, f"{name} {self.type} {self.text}, {other.text}")

    return emit


def _comparison(real: str, integer: str) -> Callable[[Value, Operand], Value]:
    """Return a method that compares floats or integers, per lane."""

    def emit(self: Value, other: Operand) -> Value:
        other = self.function.operand(self.type, other)
        name = f"fcmp {real}" if self.type.is_float else f"icmp {integer}"
        instruction = f"{name} {self.type} {self.text}, {other.text}"
        return self.function.emit(Type("i1", self.type.lanes), instruction)

    return emit


@dataclasses.dataclass(frozen=True)
class Value:
    """One value of a function; operators emit instructions."""

    function: Function
    type: Type
    text: str

    def __add__(self, other: Operand) -> Value:
        if self.type == PTR:
            return self.function.address(self, other)
        return _operation("fadd", "add")(self, other)

    def __rsub__(self, other: int | float) -> Value:
        return self.function.constant(self.type, other) - self

    def __rtruediv__(self, other: int | float) -> Value:
        return self.function.constant(self.type, other) / self

    __sub__, __mul__ = _operation("fsub", "sub"), _operation("fmul", "mul")
    __radd__, __rmul__, __truediv__ = __add__, __mul__, _operation("fdiv", "sdiv")
    # Of non-negative integers.
    __floordiv__, __mod__ = _operation("fdiv", "udiv"), _operation("frem", "urem")
    __and__, __or__, __xor__ = (_operation(name, name) for name in ("and", "or", "xor"))
    __lshift__ = _operation("shl", "shl")
    # Of signed integers.
    __rshift__ = _operation("ashr", "ashr")
    __lt__, __gt__ = _comparison("olt", "slt"), _comparison("ogt", "sgt")
    __le__, __ge__ = _comparison("ole", "sle"), _comparison("oge", "sge")
    # Whether two values are equal, and whether they differ, per lane.
    equals, differs = _comparison("oeq", "eq"), _comparison("une", "ne")

    def select(self, yes: Value, no: Operand) -> Value:
        """Return `yes` where this condition holds, `no` elsewhere."""
        other = self.function.operand(yes.type, no)
        return self.function.emit(
            yes.type,
            f"select {self.type} {self.text}, {yes.type} {yes.text}, {yes.type} {other.text}",
        )

    def maximum(self, other: Operand) -> Value:
        """Return the larger value, per lane; `other` if this one is NaN."""
        other = self.function.operand(self.type, other)
        return (self > other).select(self, other)

    def minimum(self, other: Operand) -> Value:
        """Return the smaller value, per lane; `other` if this one is NaN."""
        other = self.function.operand(self.type, other)
        return (self < other).select(self, other)

    def cast(self, operation: str, type: Type) -> Value:
        """Convert with an instruction of LLVM: `sext`, `zext`, `trunc`, `sitofp`, `bitcast` ..."""
        return self.function.emit(type, f"{operation} {self.type} {self.text} to {type}")

    def bits(self, type: Type) -> Value:
        """Return the same bits as another type."""
        return self.cast("bitcast", type)

    def lane(self, index: Operand) -> Value:
        """Return one lane of a vector."""
        index = self.function.operand(I64, index)
        return self.function.emit(
            Type(self.type.scalar), f"extractelement {self.type} {self.text}, i64 {index.text}"
        )

    def shuffle(self, lanes: Sequence[int], other: Value | None = None) -> Value:
        """Return the given lanes of this vector, or of this one followed by another."""
        second = "poison" if other is None else other.text
        mask = constant(vector(I32, len(lanes)), lanes)
        return self.function.emit(
            Type(self.type.scalar, len(lanes)),
            f"shufflevector {self.type} {self.text}, {self.type} {second}, "
            f"<{len(lanes)} x i32> {mask}",
        )

    def parts(self, count: int) -> list[Value]:
        """Return a vector in `count` parts of equal length."""
        lanes = self.type.lanes // count
        if count == 1:
            return [self]
        return [self.shuffle(range(lanes * each, lanes * (each + 1))) for each in range(count)]


@dataclasses.dataclass(frozen=True)
class Variable:
    """A value that changes, such as a sum."""

    type: Type
    place: Value

    def get(self) -> Value:
        """Return the present value."""
        return self.place.function.load(self.type, self.place, aligned=True)

    def set(self, value: Operand) -> None:
        """Change the value."""
        function = self.place.function
        function.store(function.operand(self.type, value), self.place, aligned=True)


class Function:
    """A function that is being written. Its arguments are attributes."""

    def __init__(self, module: Module, name: str, arguments: dict[str, Type]) -> None:
        self.module = module
        self.name = name
        self.arguments = arguments
        self._variables: list[str] = []
        self._lines: list[str] = []
        self._count = 0
        self._block = "entry"

    def __getattr__(self, name: str) -> Value:
        arguments = self.__dict__.get("arguments", {})
        if name not in arguments:
            raise AttributeError(f"`{self.__dict__.get('name')}` has no argument `{name}`")
        return Value(self, arguments[name], f"%{name}")

    def text(self) -> str:
        """Return the function as LLVM IR."""
        arguments = ", ".join(f"{type} %{name}" for name, type in self.arguments.items())
        body = "\n".join((*self._variables, *self._lines))
        return f"define void @{self.name}({arguments}) #0 {{\nentry:\n{body}\n  ret void\n}}\n"

    def emit(self, type: Type, instruction: str) -> Value:
        """Append an instruction and return its result."""
        name = self._fresh("v")
        self._lines.append(f"  {name} = {instruction}")
        return Value(self, type, name)

    def operand(self, type: Type, value: Operand) -> Value:
        """Return a value as it is, and a number as a constant of a type."""
        return value if isinstance(value, Value) else self.constant(type, value)

    def constant(self, type: Type, value: int | float | Sequence[int] | Sequence[float]) -> Value:
        """Return a constant."""
        return Value(self, type, constant(type, value))

    def splat(self, value: Value, lanes: int) -> Value:
        """Return a vector with the same value in every lane."""
        type = Type(value.type.scalar, lanes)
        first = self.emit(type, f"insertelement {type} poison, {value.type} {value.text}, i64 0")
        return first.shuffle([0] * lanes)

    def join(self, values: Sequence[Value]) -> Value:
        """Return one or two vectors as one."""
        if len(values) == 1:
            return values[0]
        first, second = values
        return first.shuffle(range(2 * first.type.lanes), second)

    def address(self, base: Value, offset: Operand) -> Value:
        """Return an address, `offset` bytes after another."""
        offset = self.operand(I64, offset)
        return self.emit(PTR, f"getelementptr i8, ptr {base.text}, i64 {offset.text}")

    def load(self, type: Type, place: Value, *, aligned: bool = False) -> Value:
        """Load a value from an address."""
        return self.emit(type, f"load {type}, ptr {place.text}{'' if aligned else ', align 1'}")

    def store(self, value: Value, place: Value, *, aligned: bool = False) -> None:
        """Store a value at an address."""
        end = "" if aligned else ", align 1"
        self._lines.append(f"  store {value.type} {value.text}, ptr {place.text}{end}")

    def store_bytes(self, value: Value, place: Value) -> None:
        """Store the lowest byte of each i32, 16 lanes at a time, which one instruction can do."""
        parts = value.parts(max(1, value.type.lanes // 16))
        for index, part in enumerate(parts):
            bytes_ = part.cast("trunc", vector(I8, part.type.lanes))
            self.store(bytes_, self.address(place, 16 * index))

    def variable(self, value: Value) -> Variable:
        """Return a variable with a first value."""
        found = Variable(value.type, self.allocate(value.type))
        found.set(value)
        return found

    def allocate(self, type: Type, count: int = 1) -> Value:
        """Return the address of memory on the stack, aligned to 64 bytes, for `count` values."""
        name = self._fresh("m")
        self._variables.append(f"  {name} = alloca {type}, i64 {count}, align 64")
        return Value(self, PTR, name)

    def call(self, function: Function | str, *arguments: Operand, **named: Operand) -> None:
        """Call another function of the module. Its last arguments may be named, in any order."""
        called = function if isinstance(function, Function) else self.module.functions[function]
        rest = list(called.arguments)[len(arguments) :]
        assert sorted(rest) == sorted(named), f"{called.name}: {rest} {list(named)}"
        passed = (*arguments, *(named[name] for name in rest))
        values = [
            self.operand(*each) for each in zip(called.arguments.values(), passed, strict=True)
        ]
        text = ", ".join(f"{each.type} {each.text}" for each in values)
        self._lines.append(f"  call void @{called.name}({text})")

    def own(self, names: str) -> dict[str, Value]:
        """Return arguments of this function by name, to pass them on; see `declared`."""
        return {name: getattr(self, name) for name in declared(names)}

    def intrinsic(
        self, name: str, result: Type, *arguments: Value, immediate: Sequence[int] = ()
    ) -> Value:
        """Call an intrinsic of LLVM; `result` is `VOID` if it has none.

        `immediate` are arguments of type i8 before the others that have to be constants.
        """
        types = [*("i8 immarg" for _ in immediate), *(str(each.type) for each in arguments)]
        self.module.declare(f"declare {result} @{name}({', '.join(types)})")
        passed = [f"i8 {each}" for each in immediate]
        passed += [f"{each.type} {each.text}" for each in arguments]
        call = f"call {result} @{name}({', '.join(passed)})"
        if result == VOID:
            self._lines.append(f"  {call}")
            return Value(self, VOID, "")
        return self.emit(result, call)

    def fma(self, x: Value, factor: Operand, summand: Operand) -> Value:
        """Return `x * factor + summand`, rounded once."""
        values = (x, self.operand(x.type, factor), self.operand(x.type, summand))
        return self.intrinsic(f"llvm.fma.{x.type.suffix}", x.type, *values)

    def shift_unsigned(self, value: Value, bits: int) -> Value:
        """Shift an unsigned integer to the right."""
        amount = self.operand(value.type, bits)
        return self.emit(value.type, f"lshr {value.type} {value.text}, {amount.text}")

    def sum_of(self, value: Value) -> Value:
        """Return the sum of the lanes. The order of the additions is fixed."""
        return self._fold(value, lambda one, other: one + other)

    def maximum_of(self, value: Value) -> Value:
        """Return the largest lane."""
        return self._fold(value, lambda one, other: one.maximum(other))

    def _fold(self, value: Value, combine: Combine) -> Value:
        lanes = value.type.lanes
        while lanes > 1:
            lanes //= 2
            value = combine(value.shuffle(range(lanes)), value.shuffle(range(lanes, 2 * lanes)))
        return value.lane(0)

    @contextlib.contextmanager
    def loop(self, start: Operand, stop: Operand, step: Operand = 1) -> Iterator[Value]:
        """Repeat the body with an index of type i64 from `start` to below `stop`."""
        start, stop, step = (self.operand(I64, each) for each in (start, stop, step))
        head, body, leave = (self._fresh(name) for name in ("head", "body", "leave"))
        index, following, more = (self._fresh("i") for _ in range(3))
        before = self._block
        self._lines.append(f"  br label {head}")
        self._open(head)
        phi = len(self._lines)
        self._lines.append("")
        self._lines.append(f"  {more} = icmp slt i64 {index}, {stop.text}")
        self._lines.append(f"  br i1 {more}, label {body}, label {leave}")
        self._open(body)
        yield Value(self, I64, index)
        self._lines.append(f"  {following} = add i64 {index}, {step.text}")
        self._lines.append(f"  br label {head}")
        self._lines[phi] = (
            f"  {index} = phi i64 [ {start.text}, %{before} ], [ {following}, %{self._block} ]"
        )
        self._open(leave)

    @contextlib.contextmanager
    def repeat_while(self) -> Iterator[LoopEnd]:
        """Repeat the body until `LoopEnd.leave_if` gets a true condition."""
        head, leave = self._fresh("head"), self._fresh("leave")
        self._lines.append(f"  br label {head}")
        self._open(head)
        yield LoopEnd(self, leave)
        self._lines.append(f"  br label {head}")
        self._open(leave)

    @contextlib.contextmanager
    def when(self, condition: Value) -> Iterator[None]:
        """Run the body if a condition holds."""
        body, leave = self._fresh("then"), self._fresh("leave")
        self._lines.append(f"  br i1 {condition.text}, label {body}, label {leave}")
        self._open(body)
        yield
        self._lines.append(f"  br label {leave}")
        self._open(leave)

    def raw(self, line: str) -> None:
        """Append an instruction without a result."""
        self._lines.append(f"  {line}")

    def _open(self, label: str) -> None:
        self._block = label[1:]
        self._lines.append(f"{self._block}:")

    def _fresh(self, prefix: str) -> str:
        self._count += 1
        return f"%{prefix}{self._count}"


@dataclasses.dataclass(frozen=True)
class LoopEnd:
    """Ends a loop of `Function.repeat_while` from inside its body."""

    function: Function
    label: str

    def leave_if(self, condition: Value) -> None:
        """Leave the loop if a condition holds."""
        following = self.function._fresh("next")
        self.function.raw(f"br i1 {condition.text}, label {self.label}, label {following}")
        self.function._open(following)


class Module:
    """Functions that are compiled together."""

    def __init__(self, attributes: str = "") -> None:
        """Start an empty module, with LLVM's attributes of all functions."""
        self.functions: dict[str, Function] = {}
        self._declarations: dict[str, None] = {}
        self._attributes = attributes

    def declare(self, line: str) -> None:
        """Declare an intrinsic, once."""
        self._declarations[line] = None

    @contextlib.contextmanager
    def function(self, name: str, arguments: str = "", /, **others: Type) -> Iterator[Function]:
        """Write a function, which is part of the module when the body ends; see `declared`."""
        found = Function(self, name, declared(arguments) | others)
        yield found
        self.functions[name] = found

    def text(self) -> str:
        """Return the module as LLVM IR."""
        bodies = (function.text() for function in self.functions.values())
        return "\n".join(
            (
                *self._declarations,
                *bodies,
                f"attributes #0 = {{ nounwind noinline {self._attributes} }}",
            )
        )
