from __future__ import annotations

import collections
import dataclasses

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch

from qdqbert.calibration.calibration import CalibrationResult
from qdqbert.calibration.reference.sited_model import quantizing, weight_of
from qdqbert.common.errors import CalibrationError
from qdqbert.encoders.quantize import Choices
from qdqbert.engines.registry import open_runner
from qdqbert.graphs.check import save_graph
from qdqbert.graphs.edit import constant_array
from qdqbert.graphs.nodes import Nodes
from qdqbert.graphs.qdq import SiteWriter
from qdqbert.graphs.targets import TARGETS
from qdqbert.graphs.targets.files import choices_of
from qdqbert.graphs.targets.lowering import lower
from qdqbert.graphs.writer import OPSET, make_graph
from qdqbert.quantization.numerics.weight_rounding import pack
from qdqbert.quantization.recipes import build_recipe
from qdqbert.quantization.spec import (
    QdqStyle,
    Range,
    TensorSpec,
    input_site_of,
    is_linear_input,
    weight_site_of,
)

# Q/DQ pairs on activations, for two layers. `linear` has 4 in each layer, since query, key and
# value share one. `full` has 6 more: 4 for the attention matmuls and 2 for the local inputs of
# residual adds. The residual inputs share the pair of the linear layer that reads the same value,
# unless that layer's input is smoothed, as in `full-smoothed`. Each of the 12 weights has only
# a DequantizeLinear.
PAIRS = {
    "ffn": 4,
    "linear": 8,
    "full": 20,
    "full-smoothed": 24,
}

# Targets whose recipes need no output quantizers, which `prepared` does not insert.
INPUT_TARGETS = [
    name
    for name, target in TARGETS.items()
    if target.quantizes != "nothing" and "output" not in build_recipe(target.recipe).groups
]
# float16 graphs are tested in graphs/targets/test_tensorrt.py.
FLOAT32_TARGETS = [name for name in INPUT_TARGETS if not TARGETS[name].is_proxy]

X = np.array([[0.1, -0.2, 0.3], [9, -9, 0.49]], np.float32)


def two_readers(
    specs: dict[str, TensorSpec | None], ranges: dict[str, Range], style: QdqStyle | None = None
) -> ir.Model:
    """Return a graph whose input is read by Abs through site `one`, and by Neg through `two`."""
    add = Nodes([ir.val("x", ir.DataType.FLOAT, [2, 3])], OPSET)
    sites = SiteWriter(add, specs, Choices(ranges=ranges), style or QdqStyle())
    add("Abs", sites.activation("one", "x"), name="y")
    add("Neg", sites.activation("two", "x"), name="z")
    for name in ("y", "z"):
        add.values[name].dtype = ir.DataType.FLOAT
        add.graph.outputs.append(add.values[name])
    return ir.Model(add.graph, ir_version=10)


def op_counts(model: ir.Model) -> collections.Counter[str]:
    return collections.Counter(node.op_type for node in model.graph)


def lowered(each, target: str, recipe: str | None = None, embeddings: str = "int8") -> ir.Model:
    plan = each.plan(target, recipe, embeddings)
    return lower(each.encoder, plan, each.choices(plan))


@pytest.fixture
def bert(prepared):
    return prepared("bert")


def test_each_recipe_has_the_expected_number_of_pairs(bert, recipe) -> None:
    counts = op_counts(lowered(bert, "portable", recipe))
    assert counts["QuantizeLinear"] == PAIRS[recipe]
    assert counts["DequantizeLinear"] == PAIRS[recipe] + (2 if recipe == "ffn" else 6) * len(
        bert.layers
    )
    assert counts["Site"] == 0
    # Smoothing multiplies three inputs in each layer: that of query, key and value (not in `ffn`),
    # and those of the two linear layers of the feed-forward network (in `full`, of the second).
    # It also multiplies the four inputs of residual adds, whose outputs are divided again.
    multiplications = collections.Counter(
        (node.name or "").rpartition(".")[2]
        for node in lowered(bert, "portable", recipe).graph
        if node.op_type == "Mul"
    )
    smoothing = build_recipe(recipe).smoothing
    assert smoothing is not None
    restored = 4 if smoothing.sums else 0
    rescaled = {"full": 1, "ffn": 2}.get(recipe, 3) + restored
    assert multiplications["rescale"] == len(bert.layers) * rescaled
    assert multiplications["restore"] == len(bert.layers) * restored


def test_query_key_and_value_share_a_pair(bert, recipe) -> None:
    if recipe == "ffn":
        pytest.skip("`ffn` leaves them in float")
    model = lowered(bert, "portable", recipe)
    weights = {
        (node.name or "").split(".")[-3]: node
        for node in model.graph
        if (node.name or "").startswith("encoder.layer.1.attention.self.")
        and (node.name or "").endswith("._weight_quantizer.dequantize")
    }
    assert set(weights) == {"query", "key", "value"}
    matmuls = [next(iter(node.outputs[0].consumers())) for node in weights.values()]
    assert len({matmul.inputs[0] for matmul in matmuls}) == 1
    assert matmuls[0].inputs[0].producer().op_type == "DequantizeLinear"


@pytest.mark.parametrize("embeddings", ["int8", "float"])
@pytest.mark.parametrize("target", FLOAT32_TARGETS)
def test_a_quantized_weight_is_stored_only_as_int8(bert, tmp_path, target, embeddings) -> None:
    path = tmp_path / "model.onnx"
    save_graph(lowered(bert, target, embeddings=embeddings), path)
    graph = onnx.load(path).graph
    elements: collections.Counter[int] = collections.Counter()
    for tensor in graph.initializer:
        elements[tensor.data_type] += int(np.prod(tensor.dims))
    tables = (1024 + 64 + 2) * 32
    linear = len(bert.layers) * (4 * 32 * 32 + 2 * 32 * 64)
    # Zero points of weights are int8 vectors.
    vectors = len(bert.layers) * (6 * 64 + 32)
    int8 = linear + (tables if embeddings == "int8" else 0)
    assert int8 <= elements[onnx.TensorProto.INT8] <= int8 + vectors
    # Only vectors stay in float: biases, scales and LayerNorm parameters, of 32 or 64 channels.
    floats = elements[onnx.TensorProto.FLOAT] - (0 if embeddings == "int8" else tables)
    assert 0 < floats < len(bert.layers) * 40 * 32
    largest = {tensor.data_type for tensor in graph.initializer if tuple(tensor.dims) == (1024, 32)}
    assert largest == {onnx.TensorProto.INT8 if embeddings == "int8" else onnx.TensorProto.FLOAT}


def test_an_embedding_is_looked_up_as_int8_and_then_scaled(bert) -> None:
    model = lowered(bert, "portable")
    lookups = [node for node in model.graph if (node.name or "").endswith(".gather")]
    assert len(lookups) == 3
    for gather in lookups:
        assert gather.inputs[0].const_value.dtype == ir.DataType.INT8
        cast = next(iter(gather.outputs[0].consumers()))
        scale = next(iter(cast.outputs[0].consumers()))
        assert (cast.op_type, scale.op_type) == ("Cast", "Mul")


@pytest.mark.parametrize("target", INPUT_TARGETS)
def test_a_saved_graph_is_valid_and_keeps_inputs_and_outputs(bert, tmp_path, target) -> None:
    path = tmp_path / "model.onnx"
    save_graph(lowered(bert, target), path)
    onnx.checker.check_model(str(path), full_check=True)
    graph = onnx.load(path).graph
    assert [value.name for value in graph.input] == list(bert.encoder.input_names)
    assert [value.name for value in graph.output] == ["last_hidden_state"]


@pytest.mark.parametrize("target", ["portable", "openvino"])
def test_a_portable_graph_has_only_standard_onnx_operators(bert, target) -> None:
    assert {node.domain for node in lowered(bert, target).graph} <= {"", "ai.onnx"}


def test_a_saved_graph_contains_no_paths_of_this_machine(bert, tmp_path) -> None:
    path = tmp_path / "model.onnx"
    save_graph(lowered(bert, "portable"), path)
    content = path.read_bytes()
    assert b"stack_trace" not in content
    assert b"site-packages" not in content


@pytest.mark.parametrize("target", FLOAT32_TARGETS)
@pytest.mark.usual(
    "onnxruntime-full-smoothed-*",
    "onnxruntime-full-portable",
    "openvino-full-openvino",
    "openvino-linear-openvino",
)
def test_a_graph_agrees_with_pytorch_layer_by_layer(
    bert, engine, recipe, target, check_lowered
) -> None:
    if engine not in TARGETS[target].engines:
        pytest.skip(f"{target} graphs do not run on {engine}")
    plan = bert.plan(target, recipe)
    chosen = bert.calibration(plan)
    # Without VNNI, OpenVINO adds two products of signed codes in 16 bits. The adjacent sum limit
    # keeps weights small enough for that. Both inputs of an attention matmul are activations, so
    # the test limits them to codes of 7 bits with a range that is 2.1 times as wide.
    width = 2.1 if engine == "openvino" else 1
    ranges = {
        name: dataclasses.replace(each, amax=each.amax * (width if ".matmul_" in name else 1))
        for name, each in chosen.ranges.items()
    }
    model = lower(bert.encoder, plan, Choices(ranges=ranges, scales=bert.scales(plan)))
    check = check_lowered(model, bert.references(plan, ranges), engine)
    assert check.worst_layer_db >= 40
    assert check.is_exact


@pytest.mark.parametrize("target", FLOAT32_TARGETS)
@pytest.mark.parametrize(
    "name", ["deberta-v2", "distilbert", "electra", "modernbert", "mpnet", "roberta"]
)
@pytest.mark.usual(
    "onnxruntime-*-onnxruntime-dynamic",
    "onnxruntime-modernbert-portable",
    "onnxruntime-deberta-v2-onnxruntime",
    "openvino-electra-openvino",
    "openvino-mpnet-openvino",
)
def test_other_families_agree_with_pytorch_layer_by_layer(
    prepared, engine, target, name, check_lowered
) -> None:
    if engine not in TARGETS[target].engines:
        pytest.skip(f"{target} graphs do not run on {engine}")
    each = prepared(name)
    references = each.references(each.plan(target))
    check = check_lowered(lowered(each, target), references, engine)
    assert check.worst_layer_db >= 40


@pytest.mark.parametrize("name", ["deberta-v2", "distilbert", "modernbert", "mpnet"])
@pytest.mark.usual("deberta-v2", "mpnet")
def test_other_families_support_all_sites_of_the_paper(prepared, name, check_lowered) -> None:
    each = prepared(name)
    references = each.references(each.plan("portable", "full"))
    check = check_lowered(lowered(each, "portable", "full"), references, "onnxruntime")
    assert check.worst_layer_db >= 40


@pytest.mark.openvino
def test_openvino_scales_the_channels_of_projected_embeddings(prepared, check_lowered) -> None:
    each = prepared("electra")
    assert each.encoder.embeddings.projection is not None
    model = lowered(each, "portable", "full-smoothed")
    # Two sites scale the output of the projection. The scaled outputs of other linear layers have
    # one reader.
    assert op_counts(model)["Clip"] == 1
    references = each.references(each.plan("portable", "full-smoothed"))
    assert check_lowered(model, references, "openvino").worst_layer_db >= 40


@pytest.mark.parametrize("name", ["bert", "modernbert"])
def test_corrected_biases_restore_the_mean_of_each_linear_layer(
    prepared, run_plainly, name
) -> None:
    # ModernBERT has no biases.
    each = prepared(name)
    specs = dict.fromkeys((site.name for site in each.sited.sites), None)
    linear = weight_site_of(next(site for site in specs if is_linear_input(site)))
    module = each.checkpoint.model.get_submodule(linear.rpartition(".")[0])
    specs[linear] = TensorSpec(bits=3, narrow=True, axis=0)
    rng = np.random.default_rng(0)
    mean = torch.from_numpy(rng.normal(size=module.weight.shape[1]).astype(np.float32))
    means = {input_site_of(linear): mean}
    with quantizing(each.sited, specs, CalibrationResult(means=means)), torch.no_grad():
        made = module(mean)
    with torch.no_grad():
        np.testing.assert_allclose(made, module(mean), atol=1e-6)
        with quantizing(each.sited, specs, CalibrationResult()):
            assert float((module(mean) - made).abs().max()) > 1e-2

    inputs = each.batches[0].inputs
    with quantizing(each.sited, specs, CalibrationResult(means=means)), torch.no_grad():
        tensors = {key: torch.from_numpy(value) for key, value in inputs.items()}
        expected = each.body(**tensors)[0].numpy()
    graph = make_graph(
        each.encoder, specs, Choices(means={name: each.numpy() for name, each in means.items()})
    )
    output = graph.graph.outputs[0].name
    # float32 sums in another order.
    np.testing.assert_allclose(run_plainly(graph, inputs)[output], expected, atol=2e-5)


@pytest.mark.parametrize("target", ["portable", "tensorrt"])
def test_graphs_round_weights_as_pytorch_does(bert, target) -> None:
    plan = bert.plan(target, "linear")
    chosen = bert.calibration(plan)
    rng = np.random.default_rng(0)
    # Any code next to a weight, not only those that a calibration would choose.
    roundings = {
        (name, spec): pack(
            torch.from_numpy(rng.random(weight_of(bert.checkpoint.model, name).shape) < 0.5)
        )
        for name, spec in plan.rounded_weights
    }
    graph = make_graph(
        bert.encoder,
        plan.specs,
        choices_of(dataclasses.replace(chosen, means={}, roundings=roundings), plan.specs),
    )
    nearest = make_graph(bert.encoder, plan.specs, bert.choices(plan))
    with quantizing(
        bert.sited,
        plan.specs,
        CalibrationResult(ranges=chosen.ranges, scales=chosen.scales, roundings=roundings),
    ):
        for name, _ in plan.rounded_weights:
            base = name.removesuffix("._weight_quantizer")
            codes, scale, other = (
                constant_array(model.graph.initializers[f"{base}.weight_{what}"])
                for model, what in ((graph, "codes"), (graph, "scale"), (nearest, "codes"))
            )
            rounded = bert.sited.quantizers[name].action(weight_of(bert.checkpoint.model, name))
            np.testing.assert_array_equal((codes * scale).T, rounded.numpy())
            assert 0.2 < (codes != other).mean() < 0.8


def test_unsigned_and_signed_codes_give_equal_outputs(bert, run_plainly) -> None:
    plan = bert.plan("portable", "full")
    ranges = bert.calibration(plan).ranges
    inputs = bert.batches[0].inputs
    signed, unsigned = (
        make_graph(
            bert.encoder,
            plan.specs,
            Choices(ranges=ranges),
            QdqStyle(unsigned_activations=is_unsigned),
        )
        for is_unsigned in (False, True)
    )
    kinds = {
        value.const_value.dtype
        for name, value in unsigned.graph.initializers.items()
        if name.endswith("input_quantizer.zero_point")
    }
    assert kinds == {ir.DataType.UINT8}
    # Without optimizations, both dequantize to the same float32 values before each matmul.
    np.testing.assert_array_equal(
        run_plainly(unsigned, inputs)["last_hidden_state"],
        run_plainly(signed, inputs)["last_hidden_state"],
    )


@pytest.mark.parametrize("target", ["portable", "onnxruntime"])
def test_padding_does_not_change_a_text(bert, tmp_path, target) -> None:
    path = tmp_path / "model.onnx"
    save_graph(lowered(bert, target), path)
    runner = open_runner("onnxruntime", path, exact=True)
    tokenizer = bert.checkpoint.tokenizer
    texts = ["the cat sat", "the night was long and the little dog had never been so far from home"]

    def states(batch: list[str]) -> np.ndarray:
        inputs = tokenizer(batch, padding=True, return_tensors="np")
        given = {name: inputs[name].astype(np.int64) for name in runner.input_names}
        return runner.run(given)["last_hidden_state"]

    alone, together = states(texts[:1]), states(texts)
    # Scales are fixed, so only the order of float32 sums depends on the shape.
    np.testing.assert_allclose(together[:1, : alone.shape[1]], alone, atol=1e-4)


@pytest.mark.parametrize(
    ("second", "ops"),
    [
        (0.5, ["QuantizeLinear", "DequantizeLinear", "Abs", "Neg"]),
        (0.25, ["QuantizeLinear", "DequantizeLinear"] * 2 + ["Abs", "Neg"]),
        (None, ["QuantizeLinear", "DequantizeLinear", "Abs", "Neg"]),
    ],
    ids=["equal-ranges-share-a-pair", "different-ranges-do-not", "float-next-to-int8"],
)
def test_sites_with_equal_input_and_range_share_a_pair(run_plainly, second, ops) -> None:
    ranges = {
        "one": Range(amax=0.5, low=-0.5, high=0.5),
        "two": Range(amax=second or 1, low=-0.5, high=0.5),
    }
    specs = {"one": TensorSpec(), "two": None if second is None else TensorSpec()}
    model = two_readers(specs, ranges)
    assert sorted(op_counts(model).elements()) == sorted(ops)
    result = run_plainly(model, {"x": X})
    steps = [np.float32(0.5 / 127), np.float32((second or 1) / 127)]
    one, two = (np.clip(np.rint(X / step), -128, 127) * step for step in steps)
    two = X if second is None else two
    # Both sides round one float32 multiplication.
    np.testing.assert_allclose(result["y"], np.abs(one), rtol=1e-6)
    np.testing.assert_allclose(result["z"], -two, rtol=1e-6)


def test_dedicated_pairs_are_not_shared(run_plainly) -> None:
    specs = dict.fromkeys(("one", "two"), TensorSpec())
    ranges = dict.fromkeys(specs, Range(amax=0.5, low=-0.5, high=0.5))
    shared, apart = (
        two_readers(specs, ranges, QdqStyle(dedicated_pairs=dedicated))
        for dedicated in (False, True)
    )
    assert [op_counts(each)["QuantizeLinear"] for each in (shared, apart)] == [1, 2]
    for name, expected in run_plainly(shared, {"x": X}).items():
        np.testing.assert_array_equal(run_plainly(apart, {"x": X})[name], expected)


def test_the_error_for_a_missing_range_names_the_site() -> None:
    with pytest.raises(CalibrationError, match="`one` has no calibrated range"):
        two_readers({"one": TensorSpec()}, {})


@pytest.mark.parametrize("target", INPUT_TARGETS)
def test_the_scale_of_an_activation_is_a_scalar(bert, target) -> None:
    model = lowered(bert, target)
    seen = 0
    for node in model.graph:
        if node.op_type == "QuantizeLinear":
            scale, zero_point = (constant_array(value) for value in node.inputs[1:3])
            assert scale.shape == zero_point.shape == ()
            seen += 1
    assert seen or target.endswith("-dynamic")
