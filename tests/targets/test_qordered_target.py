from __future__ import annotations

import json
from collections import Counter

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import transformers
from typer.testing import CliRunner

import qdqbert
from qdqbert.cli import app
from qdqbert.errors import UserInputError
from qdqbert.graph.passes.qordered import LAYER_NODES
from qdqbert.recipes import WEIGHT, QuantizerOptions
from qdqbert.spec import Site, TensorSpec
from qdqbert.targets import TARGETS
from qdqbert.targets.qordered import QORDERED
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


def quantize(model, output, **options):
    return qdqbert.quantize(
        str(model), output, targets=("qordered",), calibration_samples=16, **options
    )


def check_graph(path) -> onnx.ModelProto:
    model = onnx.load(path)
    counts = Counter(node.op_type for node in model.graph.node)
    assert {name: counts[name] for name in LAYER_NODES} == {
        name: LAYERS * count for name, count in LAYER_NODES.items()
    }
    return model


def inputs_of(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    ids = np.random.default_rng(0).integers(5, 500, (2, 19))
    known = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
    known["attention_mask"][1, 7:] = 0
    return {value.name: known.get(value.name, np.zeros_like(ids)) for value in model.graph.input}


def logits_of(path) -> np.ndarray:
    return run_reference(ir.load(path), inputs_of(onnx.load(path)))["logits"]


def test_codes_are_signed_and_weights_stay_as_they_are() -> None:
    affine = TensorSpec(signed=False, symmetric=False)
    assert QORDERED.adapt(INPUT, affine) == TensorSpec()
    # Products of int8 are summed in int32 there: no limit for pairs.
    assert QORDERED.adapt(LINEAR, WEIGHT) == WEIGHT
    assert (TARGETS["qordered"], QORDERED.engines) == (QORDERED, ())


def test_a_float_checkpoint_becomes_a_graph_and_a_report(classifier, tmp_path) -> None:
    report = quantize(classifier, tmp_path / "int8")  # timing is asked for, and there is none
    assert report.targets == ()
    notices = [each for each in report.notices if "target qordered" in each]
    assert len(notices) == 1
    assert "no engine here runs" in notices[0]
    assert "CUDA" in notices[0]
    stored = json.loads((tmp_path / "int8" / "report.json").read_text())
    assert (stored["targets"], stored["notices"]) == ([], list(report.notices))
    made = json.loads((tmp_path / "int8" / "quantization.json").read_text())
    target = made["targets"]["qordered"]
    assert target["recipe"]["name"] == "qordered"
    assert target["rewrites"] == ["fuse_qordered", "pad_sequences"]
    check_graph(tmp_path / "int8" / "model.onnx")


def test_it_stands_beside_a_graph_that_is_measured(classifier, tmp_path, run_plainly) -> None:
    report = qdqbert.quantize(
        str(classifier),
        tmp_path / "int8",
        recipe="qordered",
        targets=("portable", "qordered"),
        calibration_samples=16,
        benchmark=False,
    )
    assert {each.target for each in report.targets} == {"portable"}
    fused = tmp_path / "int8" / "qordered" / "model.onnx"
    check_graph(fused)
    pairs = ir.load(tmp_path / "int8" / "portable" / "model.onnx")
    expected = run_plainly(pairs, inputs_of(onnx.load(fused)))["logits"]
    # Weights of CPUs have a limit for pairs, so that their codes differ.
    assert np.abs(logits_of(fused) - expected).max() < 0.1 * np.abs(expected).max()


def test_a_checkpoint_with_quantizers_keeps_its_ranges(classifier, tmp_path) -> None:
    prepared = transformers.AutoModelForSequenceClassification.from_pretrained(classifier)
    tokenizer = transformers.AutoTokenizer.from_pretrained(classifier)
    qdqbert.prepare(prepared, "qordered")
    batch = tokenizer(["the cat sat on the book", "night"], padding=True, return_tensors="pt")
    qdqbert.calibrate(prepared, [dict(batch)])
    prepared.save_pretrained(tmp_path / "qat")
    tokenizer.save_pretrained(tmp_path / "qat")
    report = quantize(tmp_path / "qat", tmp_path / "int8")
    assert any("checkpoint's own quantizers" in each for each in report.notices)
    check_graph(tmp_path / "int8" / "model.onnx")
    given = {name: x.numpy() for name, x in batch.items()}
    found = run_reference(ir.load(tmp_path / "int8" / "model.onnx"), given)["logits"]
    expected = prepared.eval()(**batch).logits.detach().numpy()
    np.testing.assert_allclose(found, expected, atol=0.05 * np.abs(expected).max())


def test_evaluation_says_that_nothing_here_runs_it(classifier, tmp_path, write_file) -> None:
    quantize(classifier, tmp_path / "int8", benchmark=False)
    data = write_file("data.csv", "text,label\nthe cat,0\nthe dog,1\n")
    with pytest.raises(UserInputError, match="target qordered, which no engine here runs"):
        qdqbert.evaluate(tmp_path / "int8", data)
    with pytest.raises(UserInputError, match="target qordered, which no engine here runs"):
        qdqbert.benchmark([tmp_path / "int8"])


def test_the_command_line_writes_it_and_says_so(classifier, tmp_path) -> None:
    words = ["quantize", str(classifier), "-o", str(tmp_path / "int8"), "--target", "qordered"]
    result = CliRunner().invoke(app, [*words, "--calibration-samples", "16"])
    assert result.exit_code == 0, result.output
    assert "Nothing was measured for target qordered" in " ".join(result.output.split())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"recipe": "linear"}, "cannot run recipe .linear."),
        (
            {"quantizer_options": QuantizerOptions(quant_disable_keyword=("layer.1",))},
            r"Site `bert\.encoder\.layer\.1",
        ),
    ],
    ids=["recipe", "quantizer_options"],
)
def test_what_leaves_a_site_in_float_writes_nothing(classifier, tmp_path, options, message) -> None:
    with pytest.raises(UserInputError, match=message):
        quantize(classifier, tmp_path / "int8", **options)
    assert not (tmp_path / "int8").exists()


def test_heads_that_the_kernels_cannot_take_are_named(checkpoints, tmp_path) -> None:
    with pytest.raises(UserInputError, match="head dimension of 8"):
        quantize(checkpoints("classifier"), tmp_path / "int8")
