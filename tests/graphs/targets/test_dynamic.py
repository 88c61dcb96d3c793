from __future__ import annotations

import collections

import numpy as np
import pytest
import torch

from qdqbert.calibration.calibration import CalibrationResult
from qdqbert.calibration.reference.sited_model import quantizing
from qdqbert.common.errors import SpecError
from qdqbert.encoders.quantize import Choices
from qdqbert.engines.registry import open_runner
from qdqbert.evidence.lowering import check_lowering
from qdqbert.graphs.check import save_graph
from qdqbert.graphs.of_checkpoint import encoder_of
from qdqbert.graphs.targets import TARGETS
from qdqbert.graphs.targets.files import save_encoder
from qdqbert.graphs.targets.lowering import lower
from qdqbert.graphs.targets.target import make_plan
from qdqbert.pipeline.predictions import TorchRunner
from qdqbert.quantization.numerics.affine import dynamic_parameters
from qdqbert.quantization.recipes import QuantizerOptions
from qdqbert.quantization.spec import Site, TensorSpec

DYNAMIC = TARGETS["onnxruntime-dynamic"]
AFFINE = {"signed": False, "symmetric": False}


@pytest.fixture
def bert(prepared):
    return prepared("bert")


def lowered(each, recipe=None):
    plan = each.plan(DYNAMIC.name, recipe)
    # A dynamic graph has no ranges.
    return plan, lower(each.encoder, plan, Choices(scales=each.scales(plan)))


def counted(model) -> collections.Counter[str]:
    return collections.Counter(node.op_type for node in model.graph)


def test_each_input_of_linear_layers_is_quantized_once_at_run_time(bert) -> None:
    _, model = lowered(bert)
    counts = counted(model)
    # In each layer: the shared input of query, key and value, the context, and two in the FFN.
    assert counts["DynamicQuantizeLinear"] == 4 * len(bert.layers)
    assert counts["QAttention"] == len(bert.layers)
    assert counts["MatMulIntegerToFloat"] == 3 * len(bert.layers)
    assert counts["QuantizeLinear"] == counts["DequantizeLinear"] == counts["MatMul"] == 0


def test_sites_without_a_dynamic_kernel_stay_in_float(bert) -> None:
    plan, model = lowered(bert, "full")
    assert all(
        spec is None or spec.dynamic
        for name, spec in plan.specs.items()
        if not name.endswith("_weight_quantizer")
    )
    assert counted(model)["QuantizeLinear"] == 0
    # `ffn` leaves attention in float for this target too.
    assert counted(lowered(bert, "ffn")[1])["DynamicQuantizeLinear"] == 2 * len(bert.layers)


def test_the_engine_computes_what_pytorch_does_with_ranges_at_run_time(bert, tmp_path) -> None:
    plan, model = lowered(bert)
    save_graph(model, tmp_path / "model.onnx")
    runner = open_runner("onnxruntime", tmp_path / "model.onnx")
    inputs = bert.batches[0].inputs
    with quantizing(bert.sited, plan.specs, CalibrationResult(scales=bert.smooth.scales)):
        expected = TorchRunner(bert.body, bert.checkpoint.input_names).run(inputs)
    text = inputs["attention_mask"].astype(bool)
    name = "last_hidden_state"
    error = (runner.run(inputs)[name] - expected[name])[text]
    assert np.sqrt((error**2).mean() / (expected[name][text] ** 2).mean()) < 0.01


def test_inputs_of_linear_layers_are_dynamic_for_any_spec() -> None:
    site = Site(name="dense._input_quantizer", kind="activation", sequence_axes=(1,))
    spec = DYNAMIC.adapt(site, TensorSpec(bits=8))
    assert spec == TensorSpec(bits=8, signed=False, symmetric=False, dynamic=True)
    assert DYNAMIC.adapt(Site(name="a.matmul_q_input_quantizer", kind="activation"), spec) is None


def test_each_token_has_a_range_of_its_own_on_the_native_engine(bert, tmp_path) -> None:
    plan = bert.plan("native-dynamic")
    assert plan.recipe.smoothing is None
    specs = {str(spec) for name, spec in plan.specs.items() if name.endswith("._input_quantizer")}
    # The context is not spread; the others have 32 channels, and 64.
    rows = "int8 narrow symmetric per-row dynamic"
    assert specs == {rows, f"{rows} Hadamard 2 x 16", f"{rows} Hadamard 4 x 16"}
    path = tmp_path / "model.safetensors"
    save_encoder(encoder_of(bert.checkpoint), plan, CalibrationResult(), path)
    check = check_lowering(path, bert.references(plan, {}), "native")
    assert check.worst_layer_db >= 40
    x = torch.tensor([[[2.0, -1.0], [100.0, 0.0]]])
    made = dynamic_parameters(x, TensorSpec(**AFFINE, dynamic=True, per_row=True))
    assert made.scale.flatten().tolist() == pytest.approx([3 / 255, 100 / 255])
    assert made.zero_point.flatten().tolist() == [85, 0]
    made = dynamic_parameters(x, TensorSpec(narrow=True, dynamic=True, per_row=True))
    assert made.scale.flatten().tolist() == pytest.approx([2 / 127, 100 / 127])
    assert made.zero_point.flatten().tolist() == [0, 0]
    with pytest.raises(SpecError, match="`per_row` needs `dynamic=True`"):
        TensorSpec(**AFFINE, per_row=True)


def test_fewer_bits_are_refused(bert) -> None:
    with pytest.raises(SpecError, match="`dynamic` needs unsigned affine codes of 8 bits"):
        make_plan(
            DYNAMIC,
            bert.sited.sites,
            embeddings="int8",
            quantizer_options=QuantizerOptions(aprec=4),
        )
