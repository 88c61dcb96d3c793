"""How files of ONNX Runtime's tools store their weights, compared with the float weights."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from transformers import AutoModelForSequenceClassification

from qdqbert.evidence.stored_weights import read_stored_weights
from third_party import FILES, LOUD

LAYERS, PRODUCTS = 14, 4


@pytest.fixture(scope="module")
def float_weights(checkpoints) -> Mapping[str, np.ndarray]:
    """Weights of the linear layers by name, `(in, out)`."""
    model = AutoModelForSequenceClassification.from_pretrained(checkpoints("classifier"))
    found = {
        name.removesuffix(".weight"): each.detach().numpy().T.astype(np.float64)
        for name, each in model.named_parameters()
        if name.endswith(".weight") and each.ndim == 2 and "embeddings" not in name
    }
    found[LOUD] = found[LOUD].copy()
    found[LOUD][:, 3] *= 16
    return found


@pytest.mark.parametrize("name", FILES)
def test_codes_times_a_step_are_the_weights(third_party, float_weights, name) -> None:
    weights = read_stored_weights(third_party(name))
    assert {each.name for each in weights.linears} == set(float_weights)
    for each in weights.linears:
        expected = float_weights[each.name]
        assert each.size == expected.size
        if each.load is None:
            assert each.is_float
            continue
        codes, zero = each.load()
        assert codes.shape == expected.shape
        centered = (codes - zero).astype(np.float64)
        # The step that fits the codes of a block best is not exact, and with 4 bits, the largest
        # weight may be a step off. Steps may be negative.
        block = 16 if name == "4-bits-zero-points" else 32
        for start in range(0, len(expected), block):
            x, w = centered[start : start + block], expected[start : start + block]
            step = (x * w).sum(axis=0) / np.maximum((x * x).sum(axis=0), 1)
            limit = (0.75 if each.bits == 8 else 1.25) * np.abs(step).max()
            assert np.abs(w - x * step).max() <= limit


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("float", ("tensor", 32, True, True, False)),
        ("qdq", ("tensor", 8, False, True, True)),
        ("qoperator", ("channel", 8, False, True, True)),
        ("dynamic", ("tensor", 8, False, True, True)),
        ("dynamic-channels", ("channel", 8, False, True, True)),
        ("dynamic-unsigned", ("tensor", 8, False, False, True)),
        ("4-bits", ("block", 4, False, False, False)),
    ],
)
def test_scales_bits_and_signs_are_those_of_the_tool(third_party, name, expected) -> None:
    weights = read_stored_weights(third_party(name))
    assert {
        (each.scales, each.bits, each.is_float, each.is_signed, each.reads_codes)
        for each in weights.linears
    } == {expected}
    assert weights.are_quantized == (name != "float")


@pytest.mark.parametrize(
    ("name", "count"), [("qdq", PRODUCTS), ("qoperator", PRODUCTS), ("dynamic", 0)]
)
def test_products_of_attention_are_no_linear_layers(third_party, name, count) -> None:
    weights = read_stored_weights(third_party(name))
    assert len(weights.linears) == LAYERS
    assert len(weights.products) == PRODUCTS
    assert len(weights.products_in_int8) == count


@pytest.mark.parametrize(
    ("name", "is_float"), [("float", True), ("dynamic", False), ("dynamic-linears", True)]
)
def test_tables_of_words_and_positions_are_found(third_party, name, is_float) -> None:
    tables = read_stored_weights(third_party(name)).tables
    assert {(each.name.rpartition(".")[2], each.size, each.is_float) for each in tables} == {
        ("word_embeddings", 1024 * 32, is_float),
        ("position_embeddings", 64 * 32, is_float),
    }


def write_graph(path: Path, nodes: list[onnx.NodeProto], arrays: Mapping[str, np.ndarray]) -> Path:
    """Write a graph from `x` to `y`."""
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4]) for name in ("x", "y")]
    initializers = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    graph = helper.make_graph(nodes, "graph", values[:1], values[1:], initializers)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)]), path)
    return path


def test_weights_that_are_rounded_when_the_graph_runs_have_codes(tmp_path) -> None:
    weight = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)
    scale = np.abs(weight).max(axis=1) / 127
    nodes = [
        helper.make_node("QuantizeLinear", ["w", "s", "z"], ["q"], axis=0),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"], axis=0),
        helper.make_node("Transpose", ["d"], ["t"], perm=[1, 0]),
        helper.make_node("MatMul", ["x", "t"], ["y"]),
    ]
    arrays = {"w": weight, "s": scale, "z": np.zeros(4, np.int8)}
    (found,) = read_stored_weights(write_graph(tmp_path / "rounded.onnx", nodes, arrays)).linears
    assert (found.bits, found.scales, found.is_signed) == (8, "channel", True)
    assert found.load is not None
    codes, zero = found.load()
    np.testing.assert_array_equal(codes - zero, np.rint(weight / scale[:, None]).T)
