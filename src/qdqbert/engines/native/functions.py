"""Functions of vectors of float32, written in a kernel: exp, erf, activation functions, codes.

Each takes and returns a `Value` of type `<lanes x float>`. Most polynomials are fitted when this
module is imported. Errors in the docstrings are the largest ones of the stated interval.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.polynomial import chebyshev

from qdqbert.engines.native.ir import I32, Function, Value, vector

# Adding this number to a float32 below 2^22 rounds it to an integer, ties to even. The integer is
# then in the lowest bits.
ROUNDING = float(3 << 22)


LANES = 16
"""Partial sums of a row, whatever the registers of a CPU: sums have one order, and one result."""


def _fit(function: Callable[[float], float], low: float, high: float, degree: int) -> list[float]:
    """Return the coefficients of a polynomial close to the best one, the constant first."""
    found = chebyshev.Chebyshev.interpolate(
        lambda x: np.array([function(float(each)) for each in x]), degree, domain=[low, high]
    )
    return [float(each) for each in found.convert(kind=np.polynomial.Polynomial).coef]


_LOG_2 = math.log(2)
# 2^x on [-1/2, 1/2], exactly 1 at 0.
_EXP2 = [1.0, *_fit(lambda x: math.expm1(_LOG_2 * x) / x if x else _LOG_2, -0.5, 0.5, 4)]
# erf(x / sqrt 2) / (2 x) as a polynomial of x^2 up to x = 4.5, where the largest error of
# x^2 * polynomial is smallest (found with Lawson's algorithm).
_ERF_END = 4.5
_HALF_ERF = [
    0.398712608,
    -0.0659846592,
    0.00958520504,
    -0.0010375919,
    8.14252588e-05,
    -4.45173754e-06,
    1.5910011e-07,
    -3.31467133e-09,
    3.03643112e-11,
]


# The same to 1e-8 up to x = 5.4, as a quotient of polynomials of x^2 without cancellation.
_EXACT_END = 5.4
_EXACT_HALF_ERF = (
    [0.398942245, 0.0333722401, 0.00465085184, 0.000164321806, 6.36002026e-06, 2.33867262e-08],
    [1.0, 0.25031789, 0.0283786939, 0.00185898213, 7.24002179e-05, 1.21659076e-06],
)


def polynomial(f: Function, x: Value, coefficients: list[float]) -> Value:
    """Return a polynomial of `x`, by Horner's scheme: the fewest instructions."""
    total = f.constant(x.type, coefficients[-1])
    for each in reversed(coefficients[:-1]):
        total = f.fma(x, total, each)
    return total


def exp2(f: Function, x: Value) -> Value:
    """Return 2^x for `x` of at most 127, within 3e-7 of its size; 2^-126 or less is 2^-126."""
    x = x.maximum(-126.0)
    rounded = x + ROUNDING
    exponent = rounded.bits(vector(I32, x.type.lanes)) << 23
    fraction = x - (rounded - ROUNDING)
    # By Horner's scheme, which has the fewest instructions: softmax has enough to do meanwhile.
    power = f.constant(x.type, _EXP2[-1])
    for coefficient in reversed(_EXP2[:-1]):
        power = f.fma(power, fraction, coefficient)
    return (power.bits(exponent.type) + exponent).bits(x.type)


def exp(f: Function, x: Value) -> Value:
    """Return e^x for `x` of at most 88."""
    return exp2(f, x * math.log2(math.e))


def gelu(f: Function, x: Value) -> Value:
    """Return `x / 2 * (1 + erf(x / sqrt 2))`, within 6e-5 or 6e-6 * |x|, whichever is larger.

    That is less than a hundredth of a step of 8-bit codes.
    """
    inner = x.maximum(-_ERF_END).minimum(_ERF_END)
    half_erf = polynomial(f, inner * inner, _HALF_ERF)
    return x * f.fma(inner, half_erf, 0.5)


def exact_gelu(f: Function, x: Value) -> Value:
    """Return `x / 2 * (1 + erf(x / sqrt 2))`, within 3e-7 * |x|."""
    inner = x.maximum(-_EXACT_END).minimum(_EXACT_END)
    over, under = (polynomial(f, inner * inner, each) for each in _EXACT_HALF_ERF)
    return x * f.fma(inner, over / under, 0.5)


def sigmoid(f: Function, x: Value) -> Value:
    """Return `1 / (1 + e^-x)`."""
    return 1.0 / (exp(f, (x * -1.0).minimum(80.0)) + 1.0)


def tanh(f: Function, x: Value) -> Value:
    """Return the hyperbolic tangent of `x`, within 1e-6."""
    return sigmoid(f, x * 2.0) * 2.0 - 1.0


def gelu_tanh(f: Function, x: Value) -> Value:
    """Return `x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))`."""
    inner = f.fma(x * x, 0.044715, 1.0) * x
    return x * sigmoid(f, inner * (2 * math.sqrt(2 / math.pi)))


def relu(f: Function, x: Value) -> Value:
    """Return `max(x, 0)`."""
    return x.maximum(0.0)


def silu(f: Function, x: Value) -> Value:
    """Return `x * sigmoid(x)`."""
    return x * sigmoid(f, x)


ACTIVATIONS: dict[str, Callable[[Function, Value], Value]] = {
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "relu": relu,
    "silu": silu,
    "tanh": tanh,
}
"""Activation functions by name."""

EXACT_ACTIVATIONS = {**ACTIVATIONS, "gelu": exact_gelu}
"""Activation functions whose results do not become codes."""


def unsigned_codes(f: Function, x: Value, multiplier: Value, shift: Value) -> Value:
    """Return `clip(rint(x * multiplier) + zero_point, 0, 255)` in the lowest bytes of i32.

    `shift` is `ROUNDING + zero_point`. All three are `<lanes x float>`.
    """
    # The zero point is added with the constant that rounds, and the limits are codes 0 and 255 in
    # the same form, so that the lowest 8 bits are the code.
    shifted = f.fma(x, multiplier, shift).maximum(ROUNDING).minimum(ROUNDING + 255)
    return shifted.bits(vector(I32, x.type.lanes))


def shift_of(zero_point: int) -> float:
    """Return the field `shift` of a `CODES` record."""
    return ROUNDING + zero_point
