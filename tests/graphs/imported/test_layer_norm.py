from __future__ import annotations

import collections

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qdqbert.graphs.imported.canonical_form import lift_constants
from qdqbert.graphs.imported.layer_norm import fuse_layer_norms

WIDTH = 8
RNG = np.random.default_rng(0)
X = (RNG.normal(size=(2, 3, WIDTH)) * 3 + 0.5).astype(np.float32)
GAMMA = RNG.uniform(0.5, 2, size=WIDTH).astype(np.float32)
BETA = RNG.normal(size=WIDTH).astype(np.float32)
EPSILON = 1e-5


def numbers(array: np.ndarray) -> str:
    return ", ".join(repr(float(each)) for each in array.ravel())


CONSTANTS = {
    "gamma": f"float[{WIDTH}] gamma = {{{numbers(GAMMA)}}}",
    "beta": f"float[{WIDTH}] beta = {{{numbers(BETA)}}}",
    "eps": f"float eps = {{{EPSILON}}}",
    "two": "float two = {2.0}",
    "root": "float root = {-0.5}",
    "half_root": "float half_root = {0.5}",
    "last": "int64[1] last = {-1}",
    "second": "int64[1] second = {1}",
    "axis2": "int64[1] axis2 = {2}",
    "half": "float half = {0.5}",
    "one": "float one = {1.0}",
}


def model_of(
    body: str, *, opset: int = 21, outputs: str = f"float[b, s, {WIDTH}] y", used: str = ""
) -> ir.Model:
    words = set(body.replace("(", " ").replace(")", " ").replace(",", " ").split()) | set(
        used.split()
    )
    held = ", ".join(text for name, text in CONSTANTS.items() if name in words)
    return ir.from_onnx_text(
        f'<ir_version: 8, opset_import: ["" : {opset}]> '
        f"g (float[b, s, {WIDTH}] x) => ({outputs}) <{held}> {{ {body} }}"
    )


def ops(model: ir.Model) -> collections.Counter[str]:
    return collections.Counter(node.op_type for node in model.graph)


MEAN = "m = ReduceMean (x, last)"
CENTERED = f"{MEAN} d = Sub (x, m)"
VARIANCE = f"{CENTERED} q = Pow (d, two) v = ReduceMean (q, last)"
DEVIATION = f"{VARIANCE} e = Add (v, eps) r = Sqrt (e)"

# As many ways as exporters have written it; `f` is the sum, `y` what is read.
LAYER_NORMS = {
    "torch": f"{DEVIATION} n = Div (d, r) g = Mul (n, gamma) y = Add (g, beta)",
    "squared-by-mul": f"{CENTERED} q = Mul (d, d) v = ReduceMean (q, last) e = Add (v, eps) "
    "r = Sqrt (e) n = Div (d, r) g = Mul (n, gamma) y = Add (g, beta)",
    "reciprocal": f"{DEVIATION} i = Reciprocal (r) n = Mul (d, i) g = Mul (n, gamma) "
    "y = Add (g, beta)",
    "power-of-minus-half": f"{VARIANCE} e = Add (v, eps) i = Pow (e, root) n = Mul (d, i) "
    "g = Mul (n, gamma) y = Add (g, beta)",
    "power-of-half": f"{VARIANCE} e = Add (v, eps) r = Pow (e, half_root) n = Div (d, r) "
    "g = Mul (n, gamma) y = Add (g, beta)",
    "two-subtractions": f"{CENTERED} d2 = Sub (x, m) q = Pow (d, two) v = ReduceMean (q, last) "
    "e = Add (v, eps) r = Sqrt (e) n = Div (d2, r) g = Mul (n, gamma) y = Add (g, beta)",
    "casts": f"{CENTERED} dc = Cast <to = 1> (d) q = Pow (dc, two) v = ReduceMean (q, last) "
    "e = Add (v, eps) r = Sqrt (e) n = Div (d, r) nc = Cast <to = 1> (n) g = Mul (nc, gamma) "
    "y = Add (g, beta)",
    "tensorflow": f"{VARIANCE} e = Add (v, eps) r = Sqrt (e) i = Reciprocal (r) "
    "s1 = Mul (i, gamma) a = Mul (x, s1) p = Mul (m, s1) c = Sub (beta, p) y = Add (a, c)",
    "constants-first": f"{VARIANCE} e = Add (eps, v) r = Sqrt (e) n = Div (d, r) "
    "g = Mul (gamma, n) y = Add (beta, g)",
    "gamma-with-the-root": f"{VARIANCE} e = Add (v, eps) r = Sqrt (e) i = Reciprocal (r) "
    "s1 = Mul (gamma, i) g = Mul (d, s1) y = Add (g, beta)",
    "mean-minus-x": f"{MEAN} o = Sub (m, x) d = Neg (o) q = Mul (o, o) "
    "v = ReduceMean (q, last) e = Add (v, eps) r = Sqrt (e) n = Div (d, r) g = Mul (n, gamma) "
    "y = Add (g, beta)",
    "axis-from-the-front": DEVIATION.replace("last", "axis2")
    + " n = Div (d, r) g = Mul (n, gamma) y = Add (g, beta)",
    "mean-of-squares": f"{MEAN} q = Mul (x, x) ms = ReduceMean (q, last) mm = Mul (m, m) "
    "v = Sub (ms, mm) e = Add (v, eps) r = Sqrt (e) d = Sub (x, m) n = Div (d, r) "
    "g = Mul (n, gamma) y = Add (g, beta)",
}
PLAIN = f"{DEVIATION} y = Div (d, r)"
NO_SHIFT = f"{DEVIATION} n = Div (d, r) y = Mul (n, gamma)"
NO_SCALE = f"{DEVIATION} n = Div (d, r) y = Add (n, beta)"


def named(body: str, run, **options) -> tuple[ir.Model, ir.Model]:
    """The graph before and after; both answer the same."""
    before = model_of(body, **options)
    after = fuse_layer_norms(lift_constants(before.clone()))
    expected, result = run(before, {"x": X}), run(after, {"x": X})
    assert set(expected) == set(result)
    for name, array in expected.items():
        np.testing.assert_allclose(result[name], array, atol=1e-5)
    return before, after


@pytest.mark.parametrize("name", LAYER_NORMS)
def test_a_layer_norm_is_one_node_however_it_was_written(run_plainly, name) -> None:
    _, after = named(LAYER_NORMS[name], run_plainly)
    assert ops(after) == {"LayerNormalization": 1}
    node = next(iter(after.graph))
    assert node.inputs[0].name == "x"
    assert node.attributes["epsilon"].as_float() == pytest.approx(EPSILON)
    np.testing.assert_array_equal(node.inputs[1].const_value.numpy(), GAMMA)
    np.testing.assert_allclose(node.inputs[2].const_value.numpy(), BETA, atol=1e-6)


@pytest.mark.parametrize("body", [PLAIN, NO_SHIFT, NO_SCALE], ids=["plain", "no-shift", "no-scale"])
def test_a_layer_norm_may_lack_scale_or_shift(run_plainly, body) -> None:
    _, after = named(body, run_plainly)
    assert ops(after) == {"LayerNormalization": 1}


def test_axes_may_be_an_attribute(run_plainly) -> None:
    body = LAYER_NORMS["torch"].replace("ReduceMean (x, last)", "ReduceMean <axes = [-1]> (x)")
    body = body.replace("ReduceMean (q, last)", "ReduceMean <axes = [-1]> (q)")
    _, after = named(body, run_plainly, opset=17)
    assert ops(after) == {"LayerNormalization": 1}


def test_the_value_before_may_have_other_readers(run_plainly) -> None:
    body = LAYER_NORMS["torch"] + " z = Abs (x)"
    _, after = named(body, run_plainly, outputs=f"float[b, s, {WIDTH}] y, float[b, s, {WIDTH}] z")
    assert ops(after) == {"LayerNormalization": 1, "Abs": 1}


@pytest.mark.parametrize("inner", ["m", "d", "r", "n"])
def test_an_inner_value_that_is_read_elsewhere_is_still_computed(run_plainly, inner) -> None:
    body = LAYER_NORMS["torch"] + f" z = Abs ({inner})"
    _, after = named(body, run_plainly, outputs=f"float[b, s, {WIDTH}] y, float[b, s, k] z")
    assert ops(after)["LayerNormalization"] == 1
    assert ops(after)["Abs"] == 1


def test_what_is_computed_of_the_result_stays(run_plainly) -> None:
    body = LAYER_NORMS["torch"].replace("y = Add", "f = Add") + " y = Sigmoid (f)"
    _, after = named(body, run_plainly)
    assert ops(after) == {"LayerNormalization": 1, "Sigmoid": 1}


def test_a_result_that_is_scaled_again_for_one_reader_is_one_node_for_all(run_plainly) -> None:
    body = LAYER_NORMS["torch"] + " z = Mul (y, two)"
    outputs = f"float[b, s, {WIDTH}] y, float[b, s, {WIDTH}] z"
    _, after = named(body, run_plainly, outputs=outputs)
    assert ops(after) == {"LayerNormalization": 1, "Mul": 1}


def test_two_layer_norms_of_one_value_are_two(run_plainly) -> None:
    second = LAYER_NORMS["reciprocal"]
    for name in ("m", "d", "q", "v", "e", "r", "i", "n", "g"):
        second = second.replace(f" {name} =", f" {name}2 =").replace(f"({name},", f"({name}2,")
        second = second.replace(f", {name})", f", {name}2)").replace(f"({name})", f"({name}2)")
    second = second.replace("m = Reduce", "m2 = Reduce").replace("gamma", "beta")
    second = second.replace("y =", "z =")
    _, after = named(
        f"{LAYER_NORMS['torch']} {second}",
        run_plainly,
        outputs=f"float[b, s, {WIDTH}] y, float[b, s, {WIDTH}] z",
    )
    assert ops(after) == {"LayerNormalization": 2}


def test_a_layer_norm_of_a_layer_norm_is_two(run_plainly) -> None:
    again = LAYER_NORMS["power-of-minus-half"]
    first = LAYER_NORMS["torch"]
    for name in ("m", "d", "q", "v", "e", "r", "n", "g", "y"):
        first = f" {first}".replace(f" {name} =", f" {name}1 =").replace(f"({name},", f"({name}1,")
        first = first.replace(f", {name})", f", {name}1)").replace(f"({name})", f"({name}1)")
    again = again.replace("(x,", "(y1,")
    _, after = named(f"{first} {again}", run_plainly)
    assert ops(after) == {"LayerNormalization": 2}


NOT_LAYER_NORMS = {
    "rms-norm": "q = Pow (x, two) v = ReduceMean (q, last) e = Add (v, eps) r = Sqrt (e) "
    "n = Div (x, r) y = Mul (n, gamma)",
    "over-another-axis": LAYER_NORMS["torch"].replace("last", "second"),
    "mean-and-variance-of-different-axes": LAYER_NORMS["torch"].replace(
        "ReduceMean (q, last)", "ReduceMean (q, second)"
    ),
    "only-centered": f"{CENTERED} g = Mul (d, gamma) y = Add (g, beta)",
    "variance-instead-of-its-root": f"{VARIANCE} e = Add (v, eps) n = Div (d, e) y = Add (n, beta)",
    "sum-instead-of-mean": f"{CENTERED} q = Mul (d, d) v = ReduceSum (q, last) w = Mul (v, two) "
    "e = Add (w, one) r = Sqrt (e) y = Div (d, r)",
    "epsilon-behind-the-root": f"{VARIANCE} r = Sqrt (v) e = Add (r, half) y = Div (d, e)",
    "nearly-the-mean": f"{MEAN} mm = Mul (m, half) d = Sub (x, mm) q = Pow (d, two) "
    "v = ReduceMean (q, last) e = Add (v, eps) r = Sqrt (e) y = Div (d, r)",
}


@pytest.mark.parametrize("name", NOT_LAYER_NORMS)
def test_other_patterns_than_layer_norm_are_unchanged(run_plainly, name) -> None:
    before, after = named(NOT_LAYER_NORMS[name], run_plainly)
    assert ops(after) == ops(before)


def test_a_layer_norm_with_unclear_epsilon_stays_correct_for_small_inputs(
    run_plainly,
) -> None:
    # An epsilon this large dominates the result for small inputs.
    body = LAYER_NORMS["torch"].replace("eps", "half")
    before = model_of(body)
    after = fuse_layer_norms(lift_constants(before.clone()))
    small = X * 1e-2
    np.testing.assert_allclose(
        run_plainly(after, {"x": small})["y"], run_plainly(before, {"x": small})["y"], atol=1e-5
    )


@pytest.mark.parametrize("epsilon", [1e-12, 1e-7, 1e-5, 1e-3])
def test_small_inputs_are_normalized_with_the_epsilon_of_the_graph(
    run_plainly, monkeypatch, epsilon
) -> None:
    monkeypatch.setitem(CONSTANTS, "eps", f"float eps = {{{epsilon!r}}}")
    before = model_of(LAYER_NORMS["torch"])
    after = fuse_layer_norms(lift_constants(before.clone()))
    assert ops(after) == {"LayerNormalization": 1}
    small = X * 1e-3
    np.testing.assert_allclose(
        run_plainly(after, {"x": small})["y"], run_plainly(before, {"x": small})["y"], atol=1e-4
    )


def test_no_epsilon_is_no_epsilon(run_plainly) -> None:
    body = f"{VARIANCE} r = Sqrt (v) n = Div (d, r) y = Mul (n, gamma)"
    before = model_of(body)
    after = fuse_layer_norms(lift_constants(before.clone()))
    small = X * 1e-4
    np.testing.assert_allclose(
        run_plainly(after, {"x": small})["y"], run_plainly(before, {"x": small})["y"], atol=1e-4
    )


def test_a_constant_behind_the_norm_is_not_taken_for_epsilon(run_plainly, monkeypatch) -> None:
    monkeypatch.setitem(CONSTANTS, "one", "float one = {0.001}")
    monkeypatch.setitem(CONSTANTS, "eps", "float eps = {1e-05}")
    body = LAYER_NORMS["torch"].replace("y = Add", "f = Add") + " y = Add (f, one)"
    before = model_of(body)
    after = fuse_layer_norms(lift_constants(before.clone()))
    small = X * 1e-3
    np.testing.assert_allclose(
        run_plainly(after, {"x": small})["y"], run_plainly(before, {"x": small})["y"], atol=1e-4
    )


@settings(max_examples=40)
@given(
    name=st.sampled_from(sorted(LAYER_NORMS)),
    gamma=st.lists(st.floats(-4, 4, width=32), min_size=WIDTH, max_size=WIDTH),
    beta=st.lists(st.floats(-4, 4, width=32), min_size=WIDTH, max_size=WIDTH),
    scale=st.sampled_from([1e-2, 1.0, 30.0]),
)
def test_whatever_scale_and_shift_the_values_stay(run_plainly, name, gamma, beta, scale) -> None:
    before = model_of(LAYER_NORMS[name])
    for key, values in (("gamma", gamma), ("beta", beta)):
        value = before.graph.initializers[key]
        value.const_value = ir.tensor(np.array(values, np.float32), name=key)
    after = fuse_layer_norms(lift_constants(before.clone()))
    x = X * np.float32(scale)
    np.testing.assert_allclose(
        run_plainly(after, {"x": x})["y"], run_plainly(before, {"x": x})["y"], rtol=1e-4, atol=2e-4
    )


def test_a_graph_without_a_layer_norm_is_not_changed() -> None:
    before = model_of("y = Softmax (x)")
    assert ops(fuse_layer_norms(before.clone())) == ops(before)
