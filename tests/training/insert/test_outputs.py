"""Recipes of outputs: what `qordered` puts where."""

from __future__ import annotations

from collections import Counter

import onnx
import pytest
import torch
import transformers

import qdqbert
from qdqbert.common.errors import CheckpointError
from qdqbert.encoders.families import quantized_family
from qdqbert.quantization.recipes import SYMMETRIC, WEIGHT, build_recipe
from qdqbert.training.insert.sited import insert_quantizers_

LAYERS = 2
# As in `test_qordered_target`, so that these tests share exported graphs.
SIZES = {"num_attention_heads": 2, "num_hidden_layers": LAYERS}
EVERY_GROUP = ("layer", "table", "output")
OUTPUTS = {
    "attention.self.softmax_input_quantizer",
    "attention.output.layernorm_input_quantizer",
    "intermediate.activation_input_quantizer",
    "output.layernorm_input_quantizer",
}
BERT_LIKE = ("bert", "camembert", "electra", "roberta", "xlm-roberta")
OTHERS = ("deberta-v2", "distilbert", "modernbert", "mpnet")


def inputs_of(model) -> dict[str, torch.Tensor]:
    ids = torch.randint(5, 500, (3, 9), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[1, 6:] = 0
    return {"input_ids": ids, "attention_mask": mask}


@pytest.mark.parametrize("model_type", BERT_LIKE)
def test_outputs_that_nothing_reads_get_quantizers_of_their_own(make_model, model_type) -> None:
    usual = insert_quantizers_(
        make_model(model_type, num_hidden_layers=LAYERS), quantized_family(model_type)
    )
    sited = insert_quantizers_(
        make_model(model_type, num_hidden_layers=LAYERS), quantized_family(model_type), EVERY_GROUP
    )
    more = set(sited.quantizers) - set(usual.quantizers)
    assert set(usual.quantizers) < set(sited.quantizers)
    by_layer = Counter(name.split("layer.")[1].split(".")[0] for name in more)
    assert by_layer == {"0": 4, "1": 5}
    assert {name.split("layer.0.")[1] for name in more if "layer.0." in name} == OUTPUTS
    last = {name.split("layer.1.")[1] for name in more if "layer.1." in name}
    assert last - OUTPUTS == {"output.layernorm_output_quantizer"}


@pytest.mark.parametrize("model_type", BERT_LIKE)
def test_inserted_quantizers_do_not_change_the_model(make_model, model_type) -> None:
    model = make_model(model_type, num_hidden_layers=LAYERS)
    inputs = inputs_of(model)
    with torch.inference_mode():
        expected = model(**inputs).last_hidden_state
        insert_quantizers_(model, quantized_family(model_type), EVERY_GROUP)
        found = model(**inputs).last_hidden_state
    text = inputs["attention_mask"].bool()
    # The same sums by the same kernels.
    assert torch.allclose(found[text], expected[text], atol=1e-6)


@pytest.mark.parametrize("model_type", OTHERS)
def test_layers_of_another_form_are_refused(make_model, model_type) -> None:
    with pytest.raises(CheckpointError, match=f"`{model_type}` differ. Choose another `recipe`"):
        insert_quantizers_(make_model(model_type), quantized_family(model_type), EVERY_GROUP)


def test_all_is_symmetric_but_local_branches_which_stay_float(make_model) -> None:
    sited = insert_quantizers_(
        make_model("bert", num_hidden_layers=LAYERS), quantized_family("bert"), EVERY_GROUP
    )
    resolved = build_recipe("qordered").resolve(sited.sites)
    left = {name.rpartition(".")[2] for name, spec in resolved.items() if spec is None}
    assert left == {"add_local_input_quantizer"}
    kinds = {site.name: site.kind for site in sited.sites}
    for name, spec in resolved.items():
        if spec is not None and kinds[name] == "activation":
            assert spec == SYMMETRIC
        elif spec is not None and "embeddings" not in name:
            assert spec == WEIGHT


@pytest.mark.slow
def test_a_layer_of_the_graph_has_12_pairs_and_6_weights(checkpoints, save_tiny, tmp_path) -> None:
    folder = save_tiny(
        tmp_path / "classifier",
        "bert",
        transformers.AutoModelForSequenceClassification,
        num_labels=2,
        **SIZES,
    )
    report = qdqbert.quantize(
        folder,
        tmp_path / "int8",
        targets=["portable"],
        recipe="qordered",
        benchmark=False,
        calibration=qdqbert.Calibration(samples=32),
    )
    assert report.targets[0].lowering.is_exact
    graph = onnx.load(tmp_path / "int8" / "model.onnx").graph
    counts = Counter(node.op_type for node in graph.node)
    # And one for the embeddings' LayerNorm, which the first layer reads.
    assert counts["QuantizeLinear"] == 12 * LAYERS + 1
    assert counts["DequantizeLinear"] == (12 + 6) * LAYERS + 1
    constants = {value.name for value in graph.initializer}
    weights = [
        node
        for node in graph.node
        if node.op_type == "DequantizeLinear" and node.input[0] in constants
    ]
    assert len(weights) == 6 * LAYERS


@pytest.mark.slow
def test_a_trained_one_is_quantized_as_it_was_trained(make_model, tmp_path, checkpoints) -> None:
    model = make_model(
        "bert", transformers.AutoModelForSequenceClassification, num_labels=2, **SIZES
    )
    qdqbert.prepare(model, "qordered")
    qdqbert.calibrate(model, [inputs_of(model)])
    model.save_pretrained(tmp_path / "prepared")
    tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoints("bert"))
    tokenizer.save_pretrained(tmp_path / "prepared")
    report = qdqbert.quantize(
        tmp_path / "prepared", tmp_path / "int8", targets=["portable"], benchmark=False
    )
    assert report.targets[0].recipe == "stored"
    assert report.targets[0].lowering.is_exact
    graph = onnx.load(tmp_path / "int8" / "model.onnx").graph
    assert Counter(node.op_type for node in graph.node)["QuantizeLinear"] == 12 * LAYERS + 1
