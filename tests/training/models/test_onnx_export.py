"""Plain `torch.onnx.export` of calibrated models, by both exporters.

ONNX Runtime runs the graphs with its rewrites disabled: its fused int8 kernels add `u8 * s8`
products in pairs of 16 bits on CPUs without VNNI, which saturate.
"""

from __future__ import annotations

import ast
import collections
import dataclasses
import functools
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
import transformers
from onnx import numpy_helper
from torch import nn

import qdqbert
import qdqbert.compat
from qdqbert import QuantizerOptions, TensorQuantizer
from qdqbert.compat.quant_modules import enable_onnx_export

EXPORTERS = pytest.mark.parametrize("dynamo", [True, False], ids=["dynamo", "torchscript"])
# Dynamo's exporter takes seconds. These tests check what does not depend on the exporter.
MAINLY_TORCHSCRIPT = pytest.mark.parametrize(
    "dynamo",
    [pytest.param(True, marks=pytest.mark.slow), False],
    ids=["dynamo", "torchscript"],
)
AUTOS = {
    "classifier": transformers.AutoModelForSequenceClassification,
    "qa": transformers.AutoModelForQuestionAnswering,
}
CLASSES = {
    "classifier": qdqbert.QDQBertForSequenceClassification,
    "qa": qdqbert.QDQBertForQuestionAnswering,
}
OUTPUTS = {"classifier": ["logits"], "qa": ["start_logits", "end_logits"]}
SHAPES = [(1, 4), (3, 33), (8, 24)]
QUANTIZERS = 20
# Of one layer: query, key, value and the residual add read one tensor, the FFN and the second
# residual add another. Dynamo's exporter merges nodes that are alike, TorchScript's keeps them.
MERGED = 4
# Sums in another order differ by about 1e-7 of the largest magnitude; a value that near to the
# middle between two codes, one in some 1e5, falls on the other side.
TIES = 1e-4
ENDING = "layer.0.output.dense._input_quantizer"


def quantizers_of(model: nn.Module) -> dict[str, TensorQuantizer]:
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, TensorQuantizer)
    }


def make_batch(rows: int, tokens: int, *, seed: int = 10) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(5, 300, (rows, tokens), generator=generator)
    mask = torch.ones_like(ids)
    mask[-1, tokens - 2 :] = 0
    return {"input_ids": ids, "attention_mask": mask}


@dataclasses.dataclass(frozen=True)
class Exported:
    model: nn.Module
    graph: onnx.ModelProto

    @property
    def opset(self) -> int:
        return next(each.version for each in self.graph.opset_import if not each.domain)

    @functools.cached_property
    def counts(self) -> collections.Counter[str]:
        return collections.Counter(node.op_type for node in self.graph.graph.node)

    @functools.cached_property
    def constants(self) -> dict[str, np.ndarray]:
        found = {each.name: numpy_helper.to_array(each) for each in self.graph.graph.initializer}
        for node in self.graph.graph.node:
            if node.op_type == "Constant":
                (value,) = (each for each in node.attribute if each.name.startswith("value"))
                found[node.output[0]] = numpy_helper.to_array(value.t)
        return found

    def nodes(self, kind: str) -> list[onnx.NodeProto]:
        return [node for node in self.graph.graph.node if node.op_type == kind]


def owner_of(node: onnx.NodeProto) -> str:
    """Path of the module that a node comes from."""
    for entry in node.metadata_props:
        if entry.key == "pkg.torch.onnx.name_scopes":
            return str(ast.literal_eval(entry.value)[-2])
    return node.name.strip("/").rpartition("/")[0].replace("/", ".")


def export(
    model: nn.Module, *, dynamo: bool, opset: int | None = 18, head: str = "classifier"
) -> Exported:
    """Exports with a dynamic batch and a dynamic number of tokens."""
    names = ["input_ids", "attention_mask"]
    dimensions = {0: torch.export.Dim("batch"), 1: torch.export.Dim("sequence")}
    axes = {0: "batch", 1: "sequence"}
    dynamic: dict[str, Any] = (
        {"dynamic_shapes": dict.fromkeys(names, dimensions)}
        if dynamo
        else {"dynamic_axes": {**dict.fromkeys(names, axes), **dict.fromkeys(OUTPUTS[head], axes)}}
    )
    if head == "classifier" and not dynamo:
        dynamic["dynamic_axes"]["logits"] = {0: "batch"}
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = Path(folder) / "model.onnx"
        torch.onnx.export(
            model,
            tuple(make_batch(2, 7).values()),
            path,
            input_names=names,
            output_names=OUTPUTS[head],
            opset_version=opset,
            dynamo=dynamo,
            verbose=False,
            **dynamic,
        )
        return Exported(model, onnx.load(path))


def session_of(graph: onnx.ModelProto) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    # No fused int8 kernels, see above.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(
        graph.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def run(exported: Exported, batch: dict[str, torch.Tensor]) -> dict[str, np.ndarray]:
    """All outputs, and what each QuantizeLinear read and gave, by the names in the graph."""
    graph = onnx.ModelProto()
    graph.CopyFrom(exported.graph)
    for node in exported.nodes("QuantizeLinear"):
        code_type = onnx.helper.np_dtype_to_tensor_dtype(exported.constants[node.input[2]].dtype)
        graph.graph.output.append(
            onnx.helper.make_tensor_value_info(node.output[0], code_type, None)
        )
    session = session_of(graph)
    names = [each.name for each in session.get_outputs()]
    feeds = {name: value.numpy() for name, value in batch.items()}
    return dict(zip(names, session.run(names, feeds), strict=True))


@dataclasses.dataclass
class Agreement:
    """How far a graph's codes are from those of a model's quantizers.

    Each quantizer of the model goes on with the graph's codes, so that a value at a tie counts
    once and not again in all that follows from it.
    """

    codes: int = 0
    differing: int = 0
    farthest: int = 0
    outputs: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)


@torch.no_grad()
def compare(exported: Exported, batch: dict[str, torch.Tensor]) -> Agreement:
    results = run(exported, batch)
    graph_codes = {
        owner_of(node): results[node.output[0]] for node in exported.nodes("QuantizeLinear")
    }
    found = Agreement()
    read: list[tuple[torch.Tensor, torch.Tensor]] = []

    def hook(name, quantizer, args, output):
        if quantizer._disabled:
            return output
        x = args[0]
        qmax = quantizer.maxbound
        step = quantizer._get_amax(x).float() / qmax
        low = 0 if quantizer.unsigned else -qmax - (not quantizer.narrow_range)
        codes = torch.round(x.float() / step).clamp(low, qmax)
        if name not in graph_codes:  # merged with another that read the same
            (theirs,) = (each for tensor, each in read if tensor is x)
        else:
            theirs = torch.from_numpy(graph_codes[name].astype(np.float32))
            read.append((x, theirs))
        apart = (codes - theirs).abs()
        found.codes += apart.numel()
        found.differing += int((apart > 0).sum())
        found.farthest = max(found.farthest, int(apart.max()))
        return (theirs * step).to(output.dtype)

    handles = [
        quantizer.register_forward_hook(functools.partial(hook, name))
        for name, quantizer in quantizers_of(exported.model).items()
    ]
    outputs = exported.model(**batch)
    for handle in handles:
        handle.remove()
    found.outputs = {
        name: results[name] - value.float().numpy()
        for name, value in outputs.items()
        if name in results
    }
    assert found.outputs
    return found


def assert_agrees(exported: Exported) -> None:
    for shape in SHAPES:
        found = compare(exported, make_batch(*shape))
        assert found.codes > 1000
        assert found.differing <= TIES * found.codes
        assert found.farthest <= 1
        for difference in found.outputs.values():
            # Outputs are of size 1 or so, and sums of 64 products in another order.
            assert np.abs(difference).max() < 1e-5


def assert_answers_alike(exported: Exported) -> None:
    for shape in SHAPES:
        batch = make_batch(*shape)
        with torch.no_grad():
            expected = exported.model(**batch).logits.numpy()
        # A code at a tie moves others after it, a step of some 1 % each.
        assert np.abs(run(exported, batch)["logits"] - expected).max() < 0.05


def assert_pairs_are_constant(exported: Exported, code_type: type = np.int8) -> None:
    """Each QuantizeLinear has its DequantizeLinear, with constant scales and zero points of 0."""
    quantize, dequantize = exported.nodes("QuantizeLinear"), exported.nodes("DequantizeLinear")
    assert {node.output[0] for node in quantize} == {node.input[0] for node in dequantize}
    for node in (*quantize, *dequantize):
        scale, zero_point = (exported.constants[name] for name in node.input[1:])
        assert scale.dtype == np.float32
        assert (scale > 0).all()
        assert zero_point.dtype == code_type
        assert zero_point.shape == scale.shape
        assert not zero_point.astype(np.float32).any()


def scales_by_owner(exported: Exported) -> dict[str, np.ndarray]:
    return {
        owner_of(node): exported.constants[node.input[1]]
        for node in exported.nodes("QuantizeLinear")
    }


@pytest.fixture(scope="module")
def folders(tmp_path_factory, make_model):
    """Float checkpoints: of one layer, but for `deep` of two."""
    root = tmp_path_factory.mktemp("floats")
    for head, auto in AUTOS.items():
        make_model("bert", auto, num_hidden_layers=1).save_pretrained(root / head)
    make_model("bert", AUTOS["classifier"]).save_pretrained(root / "deep")
    return root


@pytest.fixture(scope="module")
def calibrated(folders):
    def make(head: str = "classifier", recipe: QuantizerOptions | None = None) -> nn.Module:
        cls = CLASSES.get(head, CLASSES["classifier"])
        model = cls.from_pretrained(folders / head)
        return qdqbert.calibrate(
            model, [make_batch(4, 16, seed=0)], **(recipe.to_dict() if recipe else {})
        )

    return make


@pytest.fixture(scope="module")
def plainly_exported(calibrated):
    """A calibrated classifier of one layer at opset 18, by exporter; not to be changed."""
    return functools.cache(lambda dynamo: export(calibrated(), dynamo=dynamo))


# Each opset


def check_opset(exported: Exported, opset: int, pairs: int) -> None:
    onnx.checker.check_model(exported.graph, full_check=True)
    assert exported.opset == opset
    assert exported.counts["QuantizeLinear"] == exported.counts["DequantizeLinear"] == pairs
    assert exported.counts["Clip"] == 0
    assert_pairs_are_constant(exported)
    assert_agrees(exported)


# It writes opset 18 and converts that: 21 and 23 brought new versions of the pair.
@pytest.mark.slow
@pytest.mark.parametrize("opset", [18, 21, 23])
def test_dynamos_graph_agrees_with_the_model_at_each_opset(
    calibrated, plainly_exported, opset
) -> None:
    exported = (
        plainly_exported(True) if opset == 18 else export(calibrated(), dynamo=True, opset=opset)
    )
    check_opset(exported, opset, QUANTIZERS - MERGED)


@pytest.mark.slow
def test_dynamos_graph_at_opset_17_answers_as_the_model_does(calibrated) -> None:
    # Its converter loses whose each node was.
    exported = export(calibrated(), dynamo=True, opset=17)
    onnx.checker.check_model(exported.graph, full_check=True)
    assert exported.opset == 17
    assert exported.counts["QuantizeLinear"] == QUANTIZERS - MERGED
    assert_pairs_are_constant(exported)
    assert_answers_alike(exported)


@pytest.mark.slow
def test_dynamo_stays_at_opset_18_where_its_converter_cannot_go_lower(calibrated) -> None:
    # It writes LayerNormalization, which opset 17 brought.
    exported = export(calibrated(), dynamo=True, opset=13)
    check_opset(exported, 18, QUANTIZERS - MERGED)


# Opsets above 20 are written with a warning that they are not supported; here they are right.
@pytest.mark.parametrize("opset", [13, 14, 15, 16, 17, 18, 19, 20, 23])
@pytest.mark.usual("13", "17", "23")
def test_torchscripts_graph_agrees_with_the_model_at_each_opset(calibrated, opset) -> None:
    exported = export(calibrated(), dynamo=False, opset=opset)
    check_opset(exported, opset, QUANTIZERS)


@pytest.mark.parametrize("opset", [11, 12])
def test_torchscript_below_opset_13_needs_weights_with_one_scale(calibrated, opset) -> None:
    # QuantizeLinear has an axis from opset 13 on.
    exported = export(
        calibrated(recipe=QuantizerOptions(quant_per_tensor=True)), dynamo=False, opset=opset
    )
    check_opset(exported, opset, QUANTIZERS)


# Each kind of model


@MAINLY_TORCHSCRIPT
def test_question_answering_with_per_tensor_weights_agrees_on_both_outputs(
    calibrated, dynamo
) -> None:
    model = calibrated("qa", QuantizerOptions(quant_per_tensor=True))
    exported = export(model, dynamo=dynamo, head="qa")
    assert {scale.shape for scale in scales_by_owner(exported).values()} == {()}
    assert [each.name for each in exported.graph.graph.output] == OUTPUTS["qa"]
    check_opset(exported, 18, QUANTIZERS - MERGED * dynamo)


@EXPORTERS
@pytest.mark.usual("dynamo")
def test_left_to_itself_the_graph_answers_as_the_model_does(plainly_exported, dynamo) -> None:
    assert_answers_alike(plainly_exported(dynamo))


@EXPORTERS
def test_scales_are_amax_over_127(plainly_exported, dynamo) -> None:
    exported = plainly_exported(dynamo)
    scales = scales_by_owner(exported)
    assert len(scales) == QUANTIZERS - MERGED * dynamo
    for name, scale in scales.items():
        amax = quantizers_of(exported.model)[name].amax.numpy()
        assert np.array_equal(scale, (amax / np.float32(127)).reshape(scale.shape)), name
        assert scale.ndim == (1 if name.endswith("_weight_quantizer") else 0)


def test_disabled_quantizers_leave_no_nodes(calibrated) -> None:
    recipe = QuantizerOptions(quant_disable_keyword=("matmul_", "add_"))
    exported = export(calibrated(recipe=recipe), dynamo=False)
    owners = {owner_of(node) for node in exported.nodes("QuantizeLinear")}
    assert not any(".matmul_" in owner or ".add_" in owner for owner in owners)
    check_opset(exported, 18, 12)


@MAINLY_TORCHSCRIPT
def test_half_precision_keeps_float32_scales_and_casts_around_the_pairs(calibrated, dynamo) -> None:
    exported = export(calibrated().half(), dynamo=dynamo)
    onnx.checker.check_model(exported.graph, full_check=True)
    assert exported.counts["QuantizeLinear"] == QUANTIZERS - MERGED * dynamo
    assert exported.counts["Cast"] >= exported.counts["QuantizeLinear"]
    assert_pairs_are_constant(exported)
    output = exported.graph.graph.output[0].type.tensor_type.elem_type
    assert output == onnx.TensorProto.FLOAT16
    for shape in SHAPES:
        found = compare(exported, make_batch(*shape))
        # float16 has 11 significant bits, and codes take 8 of them: a last bit is an eighth of a
        # code, and kernels differ by one or two.
        assert found.differing < 0.05 * found.codes
        assert found.farthest <= 1
        assert np.abs(found.outputs["logits"]).max() < 0.02


# Ranges that are missing


def chain_of(error: BaseException | None) -> str:
    messages = []
    while error is not None:
        messages.append(str(error))
        error = error.__cause__ or error.__context__
    return "\n".join(messages)


@MAINLY_TORCHSCRIPT
def test_an_activation_without_a_range_is_refused_by_name(calibrated, dynamo) -> None:
    model = calibrated()
    name = f"bert.encoder.{ENDING}"
    del quantizers_of(model)[name]._amax
    with pytest.raises(Exception) as caught:  # noqa: PT011 - each exporter has its own
        export(model, dynamo=dynamo)
    assert "has not been calibrated" in chain_of(caught.value)
    assert name in chain_of(caught.value)


@MAINLY_TORCHSCRIPT
def test_weights_without_a_range_take_their_own(calibrated, plainly_exported, dynamo) -> None:
    model = calibrated()
    for name, quantizer in quantizers_of(model).items():
        if name.endswith("_weight_quantizer"):
            del quantizer._amax
    exported = export(model, dynamo=dynamo)
    expected, found = scales_by_owner(plainly_exported(dynamo)), scales_by_owner(exported)
    assert found.keys() == expected.keys()
    assert all(np.array_equal(found[name], expected[name]) for name in expected)
    check_opset(exported, 18, QUANTIZERS - MERGED * dynamo)


# Other codes


def one_node(exported: Exported, owner: str) -> onnx.NodeProto:
    (node,) = (each for each in exported.nodes("QuantizeLinear") if owner_of(each).endswith(owner))
    return node


def clips_before(exported: Exported, node: onnx.NodeProto) -> bool:
    """Whether a Clip, or Max and Min in its place, limits what a node reads."""
    makers = {name: each for each in exported.graph.graph.node for name in each.output}
    kinds = []
    while len(kinds) < 2 and node.input[0] in makers:
        node = makers[node.input[0]]
        kinds.append(node.op_type)
    return "Clip" in kinds[:1] or sorted(kinds) == ["Max", "Min"]


PROBABILITIES, LOCAL = "matmul_a_input_quantizer", "layer.0.output.add_local_input_quantizer"


@pytest.fixture(scope="module")
def mixed(calibrated):
    """A model with a narrow, an unsigned and a 4-bit quantizer, whose values exceed two ranges."""

    @functools.cache
    def make(dynamo: bool) -> Exported:
        model = calibrated()
        found = {
            ending: next(q for name, q in quantizers_of(model).items() if name.endswith(ending))
            for ending in (ENDING, PROBABILITIES, LOCAL)
        }
        found[ENDING].narrow_range = True
        found[PROBABILITIES].unsigned = True
        found[LOCAL].num_bits = 4
        for ending in (ENDING, LOCAL):
            found[ending].amax = found[ending].amax / 32
        return export(model, dynamo=dynamo)

    return make


def codes_at(exported: Exported, ending: str) -> np.ndarray:
    return run(exported, make_batch(8, 24))[one_node(exported, ending).output[0]]


@MAINLY_TORCHSCRIPT
def test_a_graph_with_mixed_codes_is_valid_and_agrees(mixed, dynamo) -> None:
    exported = mixed(dynamo)
    onnx.checker.check_model(exported.graph, full_check=True)
    assert exported.counts["QuantizeLinear"] == QUANTIZERS - MERGED * dynamo
    assert_agrees(exported)


@EXPORTERS
@pytest.mark.usual("torchscript")
def test_a_narrow_range_is_clipped_before_the_codes(mixed, dynamo) -> None:
    exported = mixed(dynamo)
    assert clips_before(exported, one_node(exported, ENDING))
    codes = codes_at(exported, ENDING)
    # GELU gives nothing below -0.17, which is past a thirty-second of its range.
    assert (codes.min(), codes.max()) == (-127, 127)


@EXPORTERS
@pytest.mark.usual("torchscript*", "False*", "*-False")
def test_an_unsigned_quantizer_gives_uint8(mixed, dynamo) -> None:
    exported = mixed(dynamo)
    node = one_node(exported, PROBABILITIES)
    assert exported.constants[node.input[2]].dtype == np.uint8
    amax = quantizers_of(exported.model)[owner_of(node)].amax.numpy()
    assert exported.constants[node.input[1]] == amax / np.float32(255)
    assert not clips_before(exported, node)
    codes = codes_at(exported, PROBABILITIES)
    assert codes.dtype == np.uint8
    assert codes.max() > 127


@EXPORTERS
@pytest.mark.usual("torchscript")
def test_four_bits_are_clipped_to_their_own_codes(mixed, dynamo) -> None:
    exported = mixed(dynamo)
    assert clips_before(exported, one_node(exported, LOCAL))
    codes = codes_at(exported, LOCAL)
    # As the model: -8 is a code unless the range is narrow.
    assert (codes.min(), codes.max()) == (-8, 7)


@MAINLY_TORCHSCRIPT
def test_a_model_of_four_bits_gives_a_valid_graph_that_agrees(calibrated, dynamo) -> None:
    exported = export(calibrated(recipe=QuantizerOptions(wprec=4, aprec=4)), dynamo=dynamo)
    onnx.checker.check_model(exported.graph, full_check=True)
    assert_pairs_are_constant(exported)
    for node in exported.nodes("QuantizeLinear"):
        if not owner_of(node).endswith("_weight_quantizer"):
            assert clips_before(exported, node)
    assert_agrees(exported)


@pytest.mark.slow
def test_e4m3_is_onnxs_own_from_opset_19_by_dynamo(calibrated) -> None:
    model = calibrated(recipe=QuantizerOptions(quant_per_tensor=True))
    for quantizer in quantizers_of(model).values():
        quantizer.num_bits = (4, 3)
    exported = export(model, dynamo=True, opset=19)
    onnx.checker.check_model(exported.graph, full_check=True)
    assert exported.counts["QuantizeLinear"] == QUANTIZERS - MERGED
    for node in exported.nodes("QuantizeLinear"):
        amax = quantizers_of(model)[owner_of(node)].amax
        assert exported.constants[node.input[1]] == amax.numpy() / np.float32(448)
        zero_point = next(
            each for each in exported.graph.graph.initializer if each.name == node.input[2]
        )
        assert zero_point.data_type == onnx.TensorProto.FLOAT8E4M3FN
    batch = make_batch(3, 9)
    session = session_of(exported.graph)
    found = session.run(["logits"], {name: value.numpy() for name, value in batch.items()})[0]
    with torch.no_grad():
        expected = model(**batch).logits.numpy()
    # Three bits of mantissa: a value at a tie moves by a sixteenth.
    assert np.abs(found - expected).max() < 0.05


def test_e4m3_is_tensorrts_by_torchscript(calibrated) -> None:
    model = calibrated(recipe=QuantizerOptions(quant_per_tensor=True))
    quantizers_of(model)[f"bert.encoder.{ENDING}"].num_bits = (4, 3)
    exported = export(model, dynamo=False, opset=19)
    assert exported.counts["TRT_FP8QuantizeLinear"] == 1
    assert exported.counts["TRT_FP8DequantizeLinear"] == 1
    assert {each.domain for each in exported.nodes("TRT_FP8QuantizeLinear")} == {"trt"}


# The toolkit's switches


def same_graph(one: onnx.ModelProto, other: onnx.ModelProto) -> bool:
    """Equal nodes, names and constants; metadata contains line numbers, which differ."""

    def stripped(model: onnx.ModelProto) -> bytes:
        copy = onnx.ModelProto()
        copy.CopyFrom(model)
        for node in copy.graph.node:
            node.ClearField("metadata_props")
            node.ClearField("doc_string")
        return copy.graph.SerializeToString(deterministic=True)

    return stripped(one) == stripped(other)


@MAINLY_TORCHSCRIPT
def test_the_model_cards_export_gives_the_same_graph_as_without_its_switch(
    toolkit_defaults, calibrated, plainly_exported, dynamo
) -> None:
    model = calibrated()
    qdqbert.compat.install(force=True)
    try:
        from pytorch_quantization.nn import TensorQuantizer

        TensorQuantizer.use_fb_fake_quant = True
        exported = export(model, dynamo=dynamo)
    finally:
        qdqbert.compat.uninstall()
    assert same_graph(exported.graph, plainly_exported(dynamo).graph)


def test_the_export_context_of_the_toolkit_gives_the_same_graph(
    toolkit_defaults, calibrated, plainly_exported
) -> None:
    with enable_onnx_export():
        exported = export(calibrated(), dynamo=False)
    assert same_graph(exported.graph, plainly_exported(False).graph)


def test_an_export_changes_nothing_of_the_model(calibrated) -> None:
    model, before = calibrated(), calibrated()
    export(model, dynamo=False)
    batch = make_batch(3, 9)
    with torch.no_grad():
        assert torch.equal(model(**batch).logits, before(**batch).logits)
    state, expected = model.state_dict(), before.state_dict()
    assert state.keys() == expected.keys()
    assert all(torch.equal(state[name], expected[name]) for name in expected)


def test_an_encoder_is_exported_with_positional_inputs(tmp_path) -> None:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32}
    model = qdqbert.QDQBertModel(
        qdqbert.QDQBertConfig(vocab_size=300, num_hidden_layers=1, **sizes)
    ).eval()
    batch = make_batch(2, 7)
    qdqbert.calibrate(model, [batch])
    path = tmp_path / "model.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            model,
            (batch["input_ids"], batch["attention_mask"]),
            path,
            input_names=list(batch),
            output_names=["last_hidden_state"],
            dynamo=False,
        )
    graph = onnx.load(path)
    assert sum(node.op_type == "QuantizeLinear" for node in graph.graph.node) == QUANTIZERS
    feeds = {name: value.numpy() for name, value in batch.items()}
    (states,) = session_of(graph).run(["last_hidden_state"], feeds)
    with torch.no_grad():
        expected = model(batch["input_ids"], batch["attention_mask"]).last_hidden_state
    # A code at a tie may fall on the other side.
    assert np.abs(states - expected.numpy()).max() < 0.05
