from __future__ import annotations

import collections

import numpy as np
import pytest

from qdqbert.engines.runner import open_runner
from qdqbert.errors import SpecError
from qdqbert.graph.check import save_graph
from qdqbert.insert.sited import quantizing
from qdqbert.recipes import QuantizerOptions
from qdqbert.spec import Site, TensorSpec
from qdqbert.targets import TARGETS
from qdqbert.targets.lowering import lower
from qdqbert.targets.target import make_plan
from qdqbert.verbs.inference import TorchRunner

DYNAMIC = TARGETS["onnxruntime-dynamic"]


@pytest.fixture
def bert(prepared):
    return prepared("bert")


def lowered(each, recipe=None):
    plan = each.plan(DYNAMIC.name, recipe)
    # No range at all: a dynamic graph holds none.
    return plan, lower(each.graph, plan, {}, each.scales(plan))


def counted(model) -> collections.Counter[str]:
    return collections.Counter(node.op_type for node in model.graph)


def test_each_tensor_that_linears_read_is_quantized_once_as_it_comes(bert) -> None:
    _, model = lowered(bert)
    counts = counted(model)
    # Of a layer: what query, key and value share, the context, and the inputs of the FFN's two.
    assert counts["DynamicQuantizeLinear"] == 4 * len(bert.layers)
    assert counts["QAttention"] == len(bert.layers)
    assert counts["MatMulIntegerToFloat"] == 3 * len(bert.layers)
    assert counts["QuantizeLinear"] == counts["DequantizeLinear"] == counts["MatMul"] == 0


def test_what_has_no_dynamic_kernel_stays_in_float(bert) -> None:
    plan, model = lowered(bert, "qdqbert")
    assert all(
        spec is None or spec.dynamic
        for name, spec in plan.specs.items()
        if not name.endswith("_weight_quantizer")
    )
    assert counted(model)["QuantizeLinear"] == 0
    # `ffn` leaves attention in float, and so it is here.
    assert counted(lowered(bert, "ffn")[1])["DynamicQuantizeLinear"] == 2 * len(bert.layers)


def test_the_engine_computes_what_pytorch_does_with_each_tensors_own_range(bert, tmp_path) -> None:
    plan, model = lowered(bert)
    save_graph(model, tmp_path / "model.onnx")
    runner = open_runner("onnxruntime", tmp_path / "model.onnx")
    inputs = bert.batches[0].inputs
    with quantizing(bert.sited, plan.specs, {}, bert.smooth.scales):
        expected = TorchRunner(bert.body, bert.checkpoint.input_names).run(inputs)
    text = inputs["attention_mask"].astype(bool)
    name = "last_hidden_state"
    error = (runner.run(inputs)[name] - expected[name])[text]
    assert np.sqrt((error**2).mean() / (expected[name][text] ** 2).mean()) < 0.01


def test_inputs_of_linears_are_dynamic_whatever_the_recipe_says_of_signs() -> None:
    site = Site(name="dense._input_quantizer", kind="activation", sequence_axes=(1,))
    spec = DYNAMIC.adapt(site, TensorSpec(bits=8))
    assert spec == TensorSpec(bits=8, signed=False, symmetric=False, dynamic=True)
    assert DYNAMIC.adapt(Site(name="a.matmul_q_input_quantizer", kind="activation"), spec) is None


def test_fewer_bits_are_refused(bert) -> None:
    with pytest.raises(SpecError, match="`dynamic` needs unsigned affine codes of 8 bits"):
        make_plan(
            DYNAMIC,
            bert.sited.sites,
            embeddings="int8",
            quantizer_options=QuantizerOptions(aprec=4),
        )
