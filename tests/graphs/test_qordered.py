from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from collections.abc import Callable

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
import torch
import transformers

from calibrated import calibrate
from qdqbert.calibration.calibration import CalibrationResult
from qdqbert.calibration.reference.sited_model import SitedModel, quantizing
from qdqbert.common.errors import UserInputError
from qdqbert.data.tokenizing.encoding import Batch, encode, make_batches
from qdqbert.encoders.checkpoint.load import load_checkpoint
from qdqbert.encoders.checkpoint.tokenizer import runtime_tokenizer
from qdqbert.encoders.model import EncoderModel
from qdqbert.encoders.quantize import Choices
from qdqbert.evidence.fidelity import sqnr_db
from qdqbert.graphs.check import save_graph
from qdqbert.graphs.edit import MICROSOFT, add_constant, constant_array, replace, tidy
from qdqbert.graphs.of_checkpoint import encoder_of
from qdqbert.graphs.targets import TARGETS
from qdqbert.graphs.targets.target import make_plan
from qdqbert.graphs.writer import make_graph
from qdqbert.quantization.numerics.ranges import Max
from qdqbert.quantization.recipes import QuantizerOptions
from qdqbert.quantization.spec import QdqStyle, TensorSpec
from qdqbert.training.body import GraphBody
from qdqbert.training.insert.sited import insert_quantizers_
from qordered_reference import run_reference

# Without its check of recipes, so that the rewrite can be given graphs of other recipes too.
ANY_RECIPE = dataclasses.replace(TARGETS["qordered"], required_groups=())
# CamemBERT and XLM-RoBERTa have the layout of RoBERTa.
BERT_LIKE = ("bert", "electra", "roberta")
# How many nodes of each type a layer becomes.
LAYER_NODES = {
    "QOrderedAttention": 1,
    "QOrderedGelu": 1,
    "QOrderedLayerNormalization": 2,
    "QOrderedMatMul": 3,
}
# The kernels need heads of 16 channels.
HEADS = {"num_attention_heads": 2}
LENGTHS = (1, 5, 16, 20, 33)
# One code that differs by 1 costs outputs of such a small model that much. Without one they agree
# to 100 dB.
LEAST_DB = 40


@dataclasses.dataclass(frozen=True, kw_only=True)
class Model:
    """A checkpoint with sites of the group `output`, its graph, and one calibration."""

    sited: SitedModel
    body: GraphBody
    encoder: EncoderModel
    batches: tuple[Batch, ...]
    calibration: CalibrationResult

    def specs(
        self, recipe: str | None = None, quantizer_options: QuantizerOptions | None = None
    ) -> dict[str, TensorSpec | None]:
        plan = make_plan(
            ANY_RECIPE,
            self.sited.sites,
            recipe=recipe,
            embeddings="int8",
            quantizer_options=quantizer_options,
        )
        return dict(plan.specs)

    def pairs(self, style: QdqStyle | None = None, **options) -> ir.Model:
        """Return the graph with Q/DQ pairs and no rewrite."""
        specs = self.specs(**options)
        return make_graph(self.encoder, specs, Choices(ranges=self.calibration.ranges), style)

    def lowered(self, **options) -> ir.Model:
        """Return the graph with int8 operators."""
        return self.pairs(TARGETS["qordered"].style, **options)

    def inputs(self, length: int) -> dict[str, np.ndarray]:
        """Return three texts of a length, the last two with an increasing number of [PAD]."""
        ids = np.random.default_rng(length).integers(5, 500, (3, length))
        mask = np.ones_like(ids)
        mask[1, (length + 1) // 2 :] = 0
        mask[2, 1:] = 0
        known = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        return {name: known[name] for name in self.encoder.input_names}


@pytest.fixture(scope="module")
def make(save_tiny, tmp_path_factory) -> Callable[..., Model]:
    """Models by family and changes to their config, each made once."""

    @functools.cache
    def made(family: str = "bert", auto: str = "AutoModel", **changes) -> Model:
        folder = tmp_path_factory.mktemp(family)
        save_tiny(folder, family, getattr(transformers, auto), **{**HEADS, **changes})
        checkpoint = load_checkpoint(str(folder))
        body = GraphBody.of(checkpoint)
        sited = insert_quantizers_(
            checkpoint.model, checkpoint.family, ("layer", "table", "output")
        )
        texts = [" ".join(["the cat sat on the book in the night"] * n) for n in (1, 2, 3)]
        encoded = encode(
            runtime_tokenizer(checkpoint.tokenizer),
            texts,
            input_names=checkpoint.input_names,
            max_length=checkpoint.max_length,
        )
        batches = tuple(make_batches(encoded, batch_size=2))
        return Model(
            sited=sited,
            body=body,
            encoder=encoder_of(checkpoint),
            batches=batches,
            calibration=calibrate(
                sited,
                lambda inputs: body(**inputs),
                batches,
                sites=[site.name for site in sited.sites if site.kind == "activation"],
                calibrator=Max(),
            ),
        )

    return made


def op_counts(model: ir.Model) -> Counter[str]:
    return Counter(node.op_type for node in model.graph)


def fused_nodes(model: ir.Model) -> list[ir.Node]:
    return [node for node in model.graph if node.domain == MICROSOFT]


def show(model: ir.Model, names: list[str]) -> ir.Model:
    """Return the graph with some of its codes as outputs."""
    shown = model.clone()
    values = {value.name: value for node in shown.graph for value in node.outputs}
    for name in names:
        values[name].dtype = ir.DataType.INT8
        shown.graph.outputs.append(values[name])
    return shown


def test_a_layer_becomes_seven_nodes(make) -> None:
    for layers, made in ((1, make(num_hidden_layers=1)), (2, make())):
        before, after = op_counts(made.pairs()), op_counts(made.lowered())
        assert before["QuantizeLinear"] == 12 * layers + 1
        assert before["DequantizeLinear"] == (12 + 6) * layers + 1
        for name, count in LAYER_NODES.items():
            assert (before[name], after[name]) == (0, count * layers)
        # Codes from the embeddings' LayerNorm to the end of the last layer.
        assert (after["QuantizeLinear"], after["DequantizeLinear"]) == (1, 1)
        assert (after["LayerNormalization"], after["MatMul"], after["Softmax"]) == (1, 0, 0)


def test_every_code_of_a_layer_is_that_of_the_pairs(make, run_plainly) -> None:
    made = make(num_hidden_layers=1)
    fused, pairs = made.lowered(), made.pairs()
    names = [node.outputs[0].name for node in fused_nodes(fused)]
    assert len(names) == 7
    fused, pairs = show(fused, names), show(pairs, names)
    for length in LENGTHS:
        inputs = made.inputs(length)
        found, expected = run_reference(fused, inputs), run_plainly(pairs, inputs)
        text = inputs["attention_mask"].astype(bool)
        for name in names:
            assert found[name].shape[1] == -(-length // 16) * 16
            steps = found[name][:, :length][text].astype(int) - expected[name][text].astype(int)
            # float64 and float32 fall on different sides of the middle between two codes.
            assert np.abs(steps).max() <= 1
            assert np.mean(steps != 0) < 0.005


@pytest.mark.parametrize("family", BERT_LIKE)
def test_a_graph_agrees_with_its_pairs(make, run_plainly, family) -> None:
    made = make(family)
    inputs = made.inputs(20)
    found = run_reference(made.lowered(), inputs)["last_hidden_state"]
    expected = run_plainly(made.pairs(), inputs)["last_hidden_state"]
    assert found.shape == expected.shape
    text = inputs["attention_mask"].astype(bool)
    assert sqnr_db(expected[text], found[text]) >= LEAST_DB


# A rounding tie in one layer is a whole step for the next layer, and grows from there.
@pytest.mark.parametrize(("sizes", "least_db"), [({"num_hidden_layers": 1}, LEAST_DB), ({}, 25)])
def test_a_graph_computes_what_pytorch_does(make, sizes, least_db) -> None:
    made = make(**sizes)
    model = made.lowered()
    for batch in made.batches:
        with (
            quantizing(made.sited, made.specs(), CalibrationResult(ranges=made.calibration.ranges)),
            torch.no_grad(),
        ):
            expected = made.body(**{k: torch.from_numpy(x) for k, x in batch.inputs.items()})
        found = run_reference(model, batch.inputs)["last_hidden_state"]
        text = batch.inputs["attention_mask"].astype(bool)
        assert sqnr_db(expected[0].numpy()[text], found[text]) >= least_db


def test_a_wrong_order_of_weights_is_noticed(make, run_plainly) -> None:
    """A transposed weight fails the tests above."""
    made = make(num_hidden_layers=1)
    model = made.lowered()
    matmul = next(node for node in fused_nodes(model) if node.op_type == "QOrderedMatMul")
    weight = matmul.inputs[2]
    rows = np.ascontiguousarray(constant_array(weight).T)
    weight.const_value = ir.tensor(rows, name=weight.name)
    inputs = made.inputs(16)
    expected = run_plainly(made.pairs(), inputs)["last_hidden_state"]
    assert sqnr_db(expected, run_reference(model, inputs)["last_hidden_state"]) < 20


def test_padding_does_not_change_a_text(make) -> None:
    made = make()
    model, inputs = made.lowered(), made.inputs(20)
    alone = {name: x[2:, :1] for name, x in inputs.items()}
    together = run_reference(model, inputs)["last_hidden_state"][2:, :1]
    # The largest score may be that of a [PAD]. Exponents then differ, and their ratios do not.
    np.testing.assert_allclose(together, run_reference(model, alone)["last_hidden_state"], 1e-5)


def test_types_and_names_of_inputs_and_outputs_stay(make, tmp_path) -> None:
    save_graph(make().lowered(), tmp_path / "model.onnx")
    graph = onnx.load(tmp_path / "model.onnx").graph
    assert [(value.name, value.type.tensor_type.elem_type) for value in graph.input] == [
        (name, onnx.TensorProto.INT64) for name in ("input_ids", "attention_mask", "token_type_ids")
    ]
    output = graph.output[0]
    assert output.name == "last_hidden_state"
    assert output.type.tensor_type.elem_type == onnx.TensorProto.FLOAT
    dims = [dim.dim_param or dim.dim_value for dim in output.type.tensor_type.shape.dim]
    assert dims == ["batch", "sequence", 32]


def test_onnxruntime_accepts_the_graph_and_has_no_kernels_on_a_cpu(make, tmp_path) -> None:
    path = tmp_path / "model.onnx"
    save_graph(make().lowered(), path)
    with pytest.raises(Exception, match=r"NOT_IMPLEMENTED.*implementation for QOrdered"):
        onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])


def as_onnxruntime_expects(model: ir.Model, head_dim: int) -> ir.Model:
    """Return the graph with Q/DQ, scaling and mask as ONNX Runtime's own fusions expect them."""
    graph = model.graph
    for reals in [node for node in graph if node.op_type == "DequantizeLinear"]:
        quantize = reals.inputs[0].producer()
        last = quantize.inputs[0].producer() if quantize is not None else None
        if last is None or last.op_type not in ("Reshape", "Transpose"):
            continue
        # These fusions expect codes before heads are split, and before they are merged.
        first = last.inputs[0].producer()
        reals.outputs[0].replace_all_uses_with(last.outputs[0])
        quantize.replace_input_with(0, first.inputs[0])
        first.replace_input_with(0, reals.outputs[0])
    mask = next(value for value in graph.inputs if value.name == "attention_mask")
    one, low = (add_constant(graph, f"of_{x}", np.float32(x)) for x in (1, -1e4))
    spread = ir.node("Unsqueeze", [mask, add_constant(graph, "axis_1", np.array([1]))])
    again = ir.node("Unsqueeze", [spread.outputs[0], add_constant(graph, "axis_2", np.array([2]))])
    cast = ir.node("Cast", [again.outputs[0]], {"to": ir.DataType.FLOAT})
    padding = ir.node("Sub", [one, cast.outputs[0]])
    added = ir.node("Mul", [padding.outputs[0], low])
    graph.insert_before(graph[0], [spread, again, cast, padding, added])
    for softmax in [node for node in graph if node.op_type == "Softmax"]:
        masked = softmax.inputs[0].producer()
        scaled = masked.inputs[0].producer()
        root = add_constant(graph, "root", np.float32(head_dim**0.5))
        replace(graph, scaled, ir.node("Div", [scaled.inputs[0], root]), old=scaled.outputs[0])
        masked.replace_input_with(1, added.outputs[0])
    return tidy(model)


def test_fusions_of_onnxruntime_make_the_same_nodes(make, tmp_path) -> None:
    optimizer = pytest.importorskip("onnxruntime.transformers.optimizer")
    made = make()
    ir.save(as_onnxruntime_expects(made.pairs(), 16), tmp_path / "pairs.onnx")
    theirs = ir.from_proto(
        optimizer.optimize_model(
            str(tmp_path / "pairs.onnx"), "bert", num_heads=2, hidden_size=32, opt_level=0
        ).model
    )
    mine = {node.outputs[0].name: node for node in fused_nodes(made.lowered())}
    found = [node for node in fused_nodes(theirs) if node.op_type in LAYER_NODES]
    assert Counter(node.op_type for node in found) == {
        name: 2 * count for name, count in LAYER_NODES.items()
    }
    # Both lists are in the order of the layers.
    for op_type in LAYER_NODES:
        pairs = zip(
            [node for node in found if node.op_type == op_type],
            [node for node in mine.values() if node.op_type == op_type],
            strict=True,
        )
        for their, our in pairs:
            assert len(their.inputs) == len(our.inputs)
            for one, other in zip(their.inputs, our.inputs, strict=True):
                expected, array = constant_array(one), constant_array(other)
                assert (expected is None) == (array is None)
                # Scales, biases, and weights in their order.
                if array is not None:
                    assert array.dtype == expected.dtype
                    np.testing.assert_array_equal(array.reshape(-1), expected.reshape(-1))
            values = {name: each.value for name, each in their.attributes.items()}
            assert {name: our.attributes[name].value for name in values} == values


def test_weights_are_stored_column_by_column(make) -> None:
    made = make(num_hidden_layers=1)
    path = "encoder.layer.0.output.dense"
    before = constant_array(made.pairs().graph.initializers[f"{path}.weight_codes"])
    after = constant_array(made.lowered().graph.initializers[f"{path}.weight_columns"])
    assert (before.shape, after.shape, after.dtype) == ((64, 32), (64, 32), np.int8)
    assert after.tobytes() == before.T.tobytes()


@pytest.mark.parametrize(
    "quantizer_options",
    [
        QuantizerOptions(quant_per_tensor=True),
        QuantizerOptions(fuse_qkv=True),
        QuantizerOptions(clip_gelu=1.0),
    ],
    ids=["weights-per-tensor", "one-range-for-qkv", "clipped-gelu"],
)
def test_options_that_leave_everything_in_int8_are_fused(
    make, run_plainly, quantizer_options
) -> None:
    made = make()
    ranges = quantizer_options.adjust(made.calibration.ranges, made.sited.sites)
    specs = made.specs(quantizer_options=quantizer_options)
    pairs, fused = (
        make_graph(made.encoder, specs, Choices(ranges=ranges), style)
        for style in (None, TARGETS["qordered"].style)
    )
    inputs = made.inputs(16)
    expected = run_plainly(pairs, inputs)["last_hidden_state"]
    found = run_reference(fused, inputs)["last_hidden_state"]
    text = inputs["attention_mask"].astype(bool)
    assert sqnr_db(expected[text], found[text]) >= LEAST_DB


@pytest.mark.parametrize(
    ("quantizer_options", "site"),
    [
        ({"quant_disable": True}, "0.attention.self.query._input_quantizer"),
        ({"quant_disable_keyword": ("_q_input",)}, "0.attention.self.matmul_q_input_quantizer"),
        ({"quant_disable_keyword": ("_a_input",)}, "0.attention.self.matmul_a_input_quantizer"),
        ({"quant_disable_keyword": (r"1.*value\._w",)}, "1.attention.self.value._weight_quantizer"),
        ({"quant_disable_keyword": (r"1.*key\._i",)}, "1.attention.self.key._input_quantizer"),
        ({"quant_disable_keyword": ("add_",)}, "0.attention.output.add_residual_input_quantizer"),
        ({"quant_disable_keyword": ("norm_in",)}, "0.attention.output.layernorm_input_quantizer"),
        (
            {"quant_disable_keyword": ("intermediate.dense._i",)},
            "0.intermediate.dense._input_quantizer",
        ),
        ({"quant_disable_keyword": ("activation_",)}, "0.intermediate.activation_input_quantizer"),
        ({"quant_disable_keyword": ("output.dense._i",)}, "0.attention.output.dense._input"),
        ({"quant_disable_keyword": ("norm_output",)}, "1.output.layernorm_output_quantizer"),
        (
            {"quant_disable_layer_module": "output.dense"},
            "0.output.dense._input_quantizer",
        ),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_the_first_site_in_float_is_named(make, quantizer_options, site) -> None:
    model = make()
    with pytest.raises(UserInputError, match=rf"Site `encoder\.layer\.{site}.*recipe='qordered'"):
        model.lowered(quantizer_options=QuantizerOptions(**quantizer_options))


@pytest.mark.parametrize("recipe", ["linear", "full"])
def test_a_graph_of_another_recipe_is_refused(make, recipe) -> None:
    with pytest.raises(UserInputError, match=r"Site `.*` is left.*recipe='qordered'"):
        make().lowered(recipe=recipe)


def test_sums_of_rounded_branches_are_refused(make) -> None:
    model = make()
    specs = model.specs()
    specs["encoder.layer.0.output.add_local_input_quantizer"] = TensorSpec()
    choices = Choices(ranges=model.calibration.ranges)
    with pytest.raises(
        UserInputError, match=r"Layer `encoder\.layer\.0` .* rounds only the sum.*recipe='qordered'"
    ):
        make_graph(model.encoder, specs, choices, TARGETS["qordered"].style)


def test_fewer_bits_are_refused(make) -> None:
    model = make()
    with pytest.raises(
        UserInputError, match=r"Site `encoder\.layer\.0\.[a-z_.]+` has fewer than 8"
    ):
        model.lowered(quantizer_options=QuantizerOptions(aprec=4))


def with_layer(model: EncoderModel, **changes) -> EncoderModel:
    (layer,) = model.layers
    return dataclasses.replace(model, layers=(dataclasses.replace(layer, **changes),))


def with_attention(model: EncoderModel, **changes) -> EncoderModel:
    attention = dataclasses.replace(model.layers[0].attention, **changes)
    return with_layer(model, attention=attention)


def widen_feed_forward(model: EncoderModel) -> EncoderModel:
    up = model.layers[0].up
    weight, bias = (np.concatenate([each, each[:2]]) for each in (up.weight, up.bias))
    return with_layer(model, up=dataclasses.replace(up, weight=weight, bias=bias))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda model: with_attention(model, heads=4),
            r"head dimension of 8 \(32 channels in 4 heads\).*of 16",
        ),
        (widen_feed_forward, "66 outputs in `intermediate.dense`.*multiple of 4"),
        (lambda model: with_layer(model, activation="relu"), "with relu; the kernel is GELU"),
        (
            lambda model: with_layer(model, activation="gelu_tanh"),
            "computes GELU by tanh; the kernel computes it by erf",
        ),
        (
            lambda model: with_attention(model, causal=True),
            "mask that is not computed from the input `attention_mask` alone",
        ),
        (lambda model: with_attention(model, scale=0.5), r"does not scale its scores by 16\^-0.5"),
        (
            lambda model: with_attention(model, position_bias=np.zeros((2, 3), np.float32)),
            "positions or norms in its attention",
        ),
        (
            lambda model: with_layer(model, attention_norm=model.layers[0].residual.norm),
            "does not normalize each sum by a LayerNorm",
        ),
        (lambda model: with_layer(model, gate=model.layers[0].up), "has a gate"),
    ],
    ids=["heads", "channels", "relu", "tanh", "mask", "scale", "bias", "norm", "gate"],
)
def test_what_the_kernels_cannot_take_is_refused(make, change, message) -> None:
    made = make(num_hidden_layers=1)
    changed = dataclasses.replace(made, encoder=change(made.encoder))
    with pytest.raises(UserInputError, match=f"Layer `encoder.layer.0` .*{message}"):
        changed.lowered()


def test_ranges_that_differ_among_readers_are_refused(make) -> None:
    made = make(num_hidden_layers=1)
    ranges = dict(made.calibration.ranges)
    name = "encoder.layer.0.attention.self.key._input_quantizer"
    ranges[name] = dataclasses.replace(ranges[name], amax=2 * ranges[name].amax)
    with pytest.raises(
        UserInputError, match=r"Layer `encoder\.layer\.0` reads its input with several"
    ):
        make_graph(made.encoder, made.specs(), Choices(ranges=ranges), TARGETS["qordered"].style)
