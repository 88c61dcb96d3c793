"""Activation functions are recognized by the values that they compute."""

from __future__ import annotations

import math

import onnx_ir as ir
import pytest

from qdqbert.graphs.encoder.functions import match_rows, sample

CONSTANTS = {
    "two": 2.0,
    "half": 0.5,
    "one": 1.0,
    "sqrt2": math.sqrt(2),
    "rsqrt2": 0.7071,
    "cube": 3.0,
    "c044": 0.044715,
    "c079": math.sqrt(2 / math.pi),
    "c1702": 1.702,
}
ERF = "e = Erf (a) f = Add (e, one)"
GELUS = {
    "div": f"a = Div (x, sqrt2) {ERF} g = Mul (x, f) y = Mul (g, half)",
    "half-first": f"h = Mul (x, half) a = Div (x, sqrt2) {ERF} y = Mul (h, f)",
    "half-of-the-sum": f"a = Div (x, sqrt2) {ERF} h = Mul (f, half) y = Mul (x, h)",
    "rounded-root": f"a = Mul (x, rsqrt2) {ERF} g = Mul (f, x) y = Mul (half, g)",
    "divided-by-two": f"a = Div (x, sqrt2) {ERF} g = Mul (x, f) y = Div (g, two)",
}
TANH = "t = Tanh (a) f = Add (t, one)"
INNER = "b = Mul (c, c044) i = Add (x, b) a = Mul (i, c079)"
TANH_GELUS = {
    "pow": f"c = Pow (x, cube) {INNER} {TANH} h = Mul (x, half) y = Mul (h, f)",
    "products": f"q = Mul (x, x) c = Mul (q, x) {INNER} {TANH} g = Mul (x, f) y = Mul (g, half)",
    "factored": "q = Mul (x, x) b = Mul (q, c044) i = Add (b, one) j = Mul (x, c079) "
    f"a = Mul (j, i) {TANH} h = Mul (half, x) y = Mul (h, f)",
}
OTHERS = {
    "quick-gelu": "k = Mul (x, c1702) s = Sigmoid (k) y = Mul (x, s)",
    "erf-alone": "y = Erf (x)",
    "without-the-half": f"a = Div (x, sqrt2) {ERF} y = Mul (x, f)",
    "without-the-root": "e = Erf (x) f = Add (e, one) g = Mul (x, f) y = Mul (g, half)",
    "tanh-without-the-cube": f"a = Mul (x, c079) {TANH} h = Mul (x, half) y = Mul (h, f)",
    "tanh-squared": f"c = Pow (x, two) {INNER} {TANH} h = Mul (x, half) y = Mul (h, f)",
}


def matched(body: str, run) -> tuple[str, ...] | None:
    """Return the functions that a graph of `x` is recognized as."""
    words = set(body.replace("(", " ").replace(")", " ").replace(",", " ").split())
    held = ", ".join(f"float {name} = {{{n}}}" for name, n in CONSTANTS.items() if name in words)
    model = ir.from_onnx_text(
        f'<ir_version: 8, opset_import: ["" : 21]> g (float[b, 8] x) => (float[b, 8] y) <{held}> '
        f"{{ {body} }}"
    )
    x = sample((25, 8))
    return match_rows(x, run(model, {"x": x})["y"])


@pytest.mark.parametrize("name", GELUS)
def test_an_exact_gelu_is_recognized_however_it_was_written(run_plainly, name) -> None:
    assert matched(GELUS[name], run_plainly) == ("gelu",)


@pytest.mark.parametrize("name", TANH_GELUS)
def test_a_gelu_by_tanh_is_recognized_however_it_was_written(run_plainly, name) -> None:
    assert matched(TANH_GELUS[name], run_plainly) == ("gelu_tanh",)


def test_the_form_of_a_gelu_is_recognized_behind_a_normalization(run_plainly) -> None:
    for forms, name in ((GELUS["div"], "gelu"), (TANH_GELUS["pow"], "gelu_tanh")):
        body = forms.replace("y =", "u =") + " y = LpNormalization (u)"
        assert matched(body, run_plainly) == (name, "normalize")


@pytest.mark.parametrize("name", OTHERS)
def test_other_functions_are_not_recognized(run_plainly, name) -> None:
    assert matched(OTHERS[name], run_plainly) is None
