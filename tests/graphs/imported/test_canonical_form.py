from __future__ import annotations

import collections

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

from qdqbert.graphs.imported.canonical_form import REWRITES, to_canonical_form
from qdqbert.graphs.imported.onnx_file import read_graph

# Each family, opset, kind of attention and exporter.
EXPORTS = [
    ("bert", "eager", 11, False),
    ("bert", "eager", 17, False),
    ("bert", "sdpa", 14, False),
    ("bert", "eager", 18, True),
    ("roberta", "eager", 14, False),
    ("distilbert", "sdpa", 14, False),
    ("electra", "eager", 11, False),
    ("electra", "sdpa", 14, False),
]
IDS = ["-".join(map(str, each)) for each in EXPORTS]
X = np.array([[1, -2, 3], [0.5, 0, -4]], np.float32)


def ops(model: ir.Model) -> collections.Counter[str]:
    return collections.Counter(node.op_type for node in model.graph)


def model_of(body: str, *, held: str = "", outputs: str = "float[a, b] y", kind: str = "float"):
    return ir.from_onnx_text(
        f'<ir_version: 10, opset_import: ["" : 21]> g ({kind}[2, 3] x) => ({outputs}) '
        f"{f'<{held}>' if held else ''} {{ {body} }}"
    )


def canonical(before: ir.Model, run, x: np.ndarray = X, *, atol: float = 1e-6) -> ir.Model:
    """Return the graph in canonical form, which returns the same values as before."""
    expected = run(before, {"x": x})
    after = to_canonical_form(before)
    result = run(after, {"x": x.astype(np.float32)})
    for name, array in expected.items():
        np.testing.assert_allclose(result[name], array, atol=atol)
    return after


@pytest.mark.parametrize("which", EXPORTS, ids=IDS)
@pytest.mark.usual("*-False")
def test_the_canonical_form_of_an_export_returns_the_same_values(
    exported, padded_inputs, run_plainly, which
) -> None:
    path = exported(*which)
    canonical_form = to_canonical_form(read_graph(path))
    counts = ops(canonical_form)
    # Two a layer, and that of the embeddings.
    assert counts["LayerNormalization"] == 2 * 2 + 1
    assert counts["Softmax"] == 2
    for gone in ("Gemm", "Constant", "Identity", "Dropout", "ReduceMean", "Attention"):
        assert counts[gone] == 0
    assert {node.domain for node in canonical_form.graph} == {""}
    result = run_plainly(canonical_form, padded_inputs)
    try:
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    except onnxruntime.capi.onnxruntime_pybind11_state.Fail:
        pytest.skip("torch exports a bool mask at opset 23, which ONNX Runtime does not load")
    names = [value.name for value in session.get_outputs()]
    wanted = {value.name for value in session.get_inputs()}
    given = {name: array for name, array in padded_inputs.items() if name in wanted}
    for name, expected in zip(names, session.run(None, given), strict=True):
        np.testing.assert_allclose(result[name], expected, atol=1e-5)


def test_a_graph_in_canonical_form_does_not_change(exported) -> None:
    once = to_canonical_form(read_graph(exported("bert")))
    counts = ops(once)
    assert ops(to_canonical_form(once)) == counts


def test_a_gemm_becomes_a_matmul_and_an_add(run_plainly) -> None:
    held = "float[4, 3] w = {1., 2., 3., 4., 5., 6., 7., 8., 9., 0., 1., 2.}, "
    held += "float[4] c = {1., 2., 3., 4.}"
    after = canonical(model_of("y = Gemm <transB = 1> (x, w, c)", held=held), run_plainly)
    assert ops(after) == {"MatMul": 1, "Add": 1}
    assert next(iter(after.graph)).inputs[1].const_value.shape.numpy() == (3, 4)


def test_a_gemm_without_a_bias_becomes_a_matmul(run_plainly) -> None:
    held = "float[3, 2] w = {1., 2., 3., 4., 5., 6.}"
    assert ops(canonical(model_of("y = Gemm (x, w)", held=held), run_plainly)) == {"MatMul": 1}


@pytest.mark.parametrize("attributes", ["alpha = 0.5", "beta = 2.0", "transA = 1"])
def test_a_gemm_of_another_form_stays(run_plainly, attributes) -> None:
    size = 4 if attributes == "transA = 1" else 6
    held = f"float[{size // 2}, 2] w = {{{', '.join('1.' * 1 for _ in range(size))}}}, "
    held += "float[2] c = {1., 2.}"
    after = canonical(model_of(f"y = Gemm <{attributes}> (x, w, c)", held=held), run_plainly)
    assert ops(after) == {"Gemm": 1}


def test_dropout_is_dropped_also_where_it_ends_the_graph(run_plainly) -> None:
    after = canonical(model_of("d = Dropout (x) z = Abs (d) y, m = Dropout (z)"), run_plainly)
    assert ops(after)["Dropout"] == 0


def test_a_dropout_whose_mask_is_read_keeps_its_values(run_plainly) -> None:
    model = model_of("y, m = Dropout (x) z = Not (m)", outputs="float[a, b] y, bool[a, b] z")
    canonical(model, run_plainly)


def test_a_transposed_weight_is_transposed_now(run_plainly) -> None:
    held = "float[2, 3] w = {1., 2., 3., 4., 5., 6.}"
    model = model_of("t = Transpose <perm = [1, 0]> (w) y = MatMul (x, t)", held=held)
    assert ops(canonical(model, run_plainly)) == {"MatMul": 1}


def test_a_transpose_that_changes_nothing_is_kept(run_plainly) -> None:
    held = "float[3, 3] w = {1., 2., 3., 4., 5., 6., 7., 8., 9.}"
    model = model_of("t = Transpose <perm = [0, 1]> (w) y = MatMul (x, t)", held=held)
    canonical(model, run_plainly)


@pytest.mark.parametrize("kind", ["float16", "double"])
def test_floats_of_other_widths_become_float32(run_plainly, kind) -> None:
    held = np.array([1, 2, 3], {"float16": np.float16, "double": np.float64}[kind])
    value = ir.val("c", const_value=ir.tensor(held, name="c"))
    model = ir.from_onnx_text(
        f'<ir_version: 10, opset_import: ["" : 21]> g ({kind}[2, 3] x, {kind}[3] c) => '
        f"({kind}[a, b] y) {{ s = Add (x, c) z = Cast <to = 1> (s) "
        f"u = Cast <to = {ir.DataType[kind.upper()].value}> (z) y = Abs (u) }}"
    )
    model.graph.inputs[1].const_value = value.const_value
    model.graph.register_initializer(model.graph.inputs.pop(1))
    model = ir.from_proto(onnx.shape_inference.infer_shapes(ir.to_proto(model)))
    x = X.astype(held.dtype)
    after = canonical(model, run_plainly, x, atol=1e-3)
    assert ops(after) == {"Add": 1, "Abs": 1}
    assert {value.dtype for value in after.graph.outputs} == {ir.DataType.FLOAT}


def test_a_softmax_of_opset_11_is_one_over_the_last_axis() -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 7, opset_import: ["" : 11]> g (float[n, 2, 3, k] x) => (float[n, 2, 3, k] y) '
        "{ y = Softmax <axis = 3> (x) }"
    )
    later = onnx.version_converter.convert_version(model, 21)
    after = to_canonical_form(ir.from_proto(onnx.shape_inference.infer_shapes(later)))
    assert ops(after) == {"Softmax": 1}


def test_each_rewrite_keeps_a_graph_that_it_does_not_apply_to(run_plainly) -> None:
    model = model_of("a = Abs (x) y = Neg (a)")
    for rewrite in REWRITES:
        assert ops(rewrite(model.clone())) == {"Abs": 1, "Neg": 1}


def test_shapes_behind_fused_operators_are_inferred() -> None:
    model = ir.from_onnx_text("""
        <ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]>
        g (float[2, 3, 4] x) => (float[2, 3, 4] y)
        <float[4] gamma = {1.0, 2.0, 3.0, 4.0}, float[4] bias = {0.0, 1.0, 0.0, 1.0}>
        {
            s = com.microsoft.SkipLayerNormalization <epsilon = 0.1> (x, x, gamma, bias)
            y = Abs (s)
        }
    """)
    shapes = [value.shape for node in to_canonical_form(model).graph for value in node.outputs]
    assert len(shapes) > 2
    assert all(shape is not None and len(shape) == 3 for shape in shapes)
