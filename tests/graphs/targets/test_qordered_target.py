"""The target `qordered`, whose graphs run on ONNX Runtime's CUDA kernels."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import transformers

import flat
import qdqbert
from qdqbert.common.errors import UserInputError
from qdqbert.graphs.targets import TARGETS
from qdqbert.graphs.targets.qordered import QORDERED
from qdqbert.quantization.recipes import WEIGHT
from qdqbert.quantization.spec import Site, TensorSpec
from qordered_reference import run_reference

LAYERS = 2
INPUT = Site(name="a.dense._input_quantizer", kind="activation", sequence_axes=(1,))
LINEAR = Site(name="a.dense._weight_quantizer", kind="weight", channel_axis=0)
SIZES = {"num_attention_heads": 2, "num_hidden_layers": LAYERS}


@pytest.fixture(scope="module")
def classifier(save_tiny, tmp_path_factory):
    return save_tiny(
        tmp_path_factory.mktemp("float"),
        "bert",
        transformers.AutoModelForSequenceClassification,
        num_labels=2,
        **SIZES,
    )


@pytest.fixture(scope="module")
def made(classifier, tmp_path_factory):
    """A folder with a graph for qordered alone, and its report."""
    folder = tmp_path_factory.mktemp("qordered") / "int8"
    return folder, flat.quantize(classifier, folder, targets=["qordered"], calibration_samples=16)


def check_graph(path) -> onnx.ModelProto:
    model = onnx.load(path)
    counts = Counter(node.op_type for node in model.graph.node)
    assert {name: count for name, count in counts.items() if name.startswith("QOrdered")} == {
        "QOrderedAttention": LAYERS,
        "QOrderedGelu": LAYERS,
        "QOrderedLayerNormalization": 2 * LAYERS,
        "QOrderedMatMul": 3 * LAYERS,
    }
    return model


def inputs_of(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    ids = np.random.default_rng(0).integers(5, 500, (2, 19))
    known = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
    known["attention_mask"][1, 7:] = 0
    return {value.name: known.get(value.name, np.zeros_like(ids)) for value in model.graph.input}


def logits_of(path) -> np.ndarray:
    return run_reference(ir.load(path), inputs_of(onnx.load(path)))["logits"]


def test_codes_are_signed_and_weights_have_no_limit() -> None:
    affine = TensorSpec(signed=False, symmetric=False)
    assert QORDERED.adapt(INPUT, affine) == TensorSpec()
    # The kernels add products of int8 in int32.
    assert QORDERED.adapt(LINEAR, WEIGHT) == WEIGHT
    assert (TARGETS["qordered"], QORDERED.engines) == (QORDERED, ())


def test_a_checkpoint_becomes_a_graph_and_its_pairs_are_measured(made) -> None:
    folder, report = made
    (measured,) = report.targets
    assert (measured.target, measured.engine) == ("qordered", "onnxruntime")
    assert (measured.recipe, measured.model) == ("qordered", "model.onnx")
    assert measured.lowering.is_exact
    assert 0 < measured.fidelity.sqnr_db < 60
    # The pairs are measured in place of the graph: its size counts, and their latency does not.
    assert measured.size_bytes == (folder / "model.onnx").stat().st_size
    assert measured.latency == ()
    notices = [each for each in report.notices if "qordered" in each]
    assert len(notices) == 1
    assert "onnxruntime on the CPU, as a proxy" in notices[0]
    assert "No GPU has run the graph" in notices[0]
    target = json.loads((folder / "quantization.json").read_text())["targets"]["qordered"]
    assert (target["engines"], target["is_proxy"]) == ([], False)
    assert target["recipe"]["name"] == "qordered"
    check_graph(folder / "model.onnx")


@pytest.mark.slow
def test_the_graph_agrees_with_that_of_a_target_that_an_engine_runs(
    classifier, tmp_path, run_plainly
) -> None:
    report = flat.quantize(
        str(classifier),
        tmp_path / "int8",
        recipe="qordered",
        targets=("portable", "qordered"),
        calibration_samples=16,
        benchmark=False,
    )
    assert {each.target for each in report.targets} == {"portable", "qordered"}
    fused = tmp_path / "int8" / "qordered" / "model.onnx"
    check_graph(fused)
    pairs = ir.load(tmp_path / "int8" / "portable" / "model.onnx")
    expected = run_plainly(pairs, inputs_of(onnx.load(fused)))["logits"]
    # Codes of weights differ, as those for CPUs have an adjacent sum limit.
    assert np.abs(logits_of(fused) - expected).max() < 0.1 * np.abs(expected).max()


def test_layers_that_no_kernel_computes_are_refused_before_the_model_runs(
    checkpoints, tmp_path, monkeypatch
) -> None:
    monkeypatch.delattr("qdqbert.pipeline.prepare.run_float")
    with pytest.raises(
        UserInputError, match=r"`targets`: Layer `.*` has a head dimension of 8 .* multiple of 16"
    ) as caught:
        flat.quantize(checkpoints("classifier"), tmp_path / "int8", targets=["qordered"])
    assert caught.value.argument == "targets"


def test_a_checkpoint_with_quantizers_keeps_its_ranges(classifier, tmp_path) -> None:
    prepared = transformers.AutoModelForSequenceClassification.from_pretrained(classifier)
    tokenizer = transformers.AutoTokenizer.from_pretrained(classifier)
    qdqbert.prepare(prepared, "qordered")
    batch = tokenizer(["the cat sat on the book", "night"], padding=True, return_tensors="pt")
    qdqbert.calibrate(prepared, [dict(batch)])
    prepared.save_pretrained(tmp_path / "qat")
    tokenizer.save_pretrained(tmp_path / "qat")
    report = flat.quantize(
        tmp_path / "qat", tmp_path / "int8", targets=["qordered"], calibration_samples=16
    )
    assert any("checkpoint's own quantizers" in each for each in report.notices)
    check_graph(tmp_path / "int8" / "model.onnx")
    given = {name: x.numpy() for name, x in batch.items()}
    found = run_reference(ir.load(tmp_path / "int8" / "model.onnx"), given)["logits"]
    expected = prepared.eval()(**batch).logits.detach().numpy()
    np.testing.assert_allclose(found, expected, atol=0.05 * np.abs(expected).max())


def test_evaluate_and_benchmark_report_that_no_engine_runs_it(made, write_file) -> None:
    folder, _ = made
    data = write_file("data.csv", "text,label\nthe cat,0\nthe dog,1\n")
    message = "contains only a graph for target qordered, which no engine of this package runs"
    with pytest.raises(UserInputError, match=message):
        flat.evaluate(folder, data)
    with pytest.raises(UserInputError, match=message):
        qdqbert.benchmark([folder])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"recipe": "linear"}, "cannot run recipe .linear."),
        ({"quant_disable_keyword": ["layer.1"]}, r"Site `bert\.encoder\.layer\.1"),
    ],
    ids=["recipe", "disabled"],
)
def test_sites_in_float_are_refused_and_nothing_is_written(
    classifier, tmp_path, options, message
) -> None:
    with pytest.raises(UserInputError, match=message):
        flat.quantize(
            classifier, tmp_path / "int8", targets=["qordered"], calibration_samples=16, **options
        )
    assert not (tmp_path / "int8").exists()
