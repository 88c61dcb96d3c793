from __future__ import annotations

import json
import logging
import shutil
import warnings
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
import transformers
from typer.testing import CliRunner

import qdqbert
from qdqbert.cli import app
from qdqbert.engines.runner import is_installed, open_runner
from qdqbert.errors import UserInputError
from qdqbert.evidence.fidelity import sqnr_db

NAMES = ("input_ids", "attention_mask", "token_type_ids")
# OpenVINO is asked for where it is installed; the others are proven on ONNX Runtime.
TARGETS = ("portable", "onnxruntime", *(["openvino"] if is_installed("openvino") else []))
INPUTS = {
    "input_ids": np.array([[2, 45, 60, 71, 82, 3], [2, 50, 61, 3, 0, 0]]),
    "attention_mask": np.array([[1] * 6, [1] * 4 + [0] * 2]),
    "token_type_ids": np.zeros((2, 6), np.int64),
}


class Logits(torch.nn.Module):
    """A classifier that returns its logits alone."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.model(**dict(zip(NAMES, inputs, strict=True))).logits
        return logits


def export(checkpoint: Path, path: Path, attention: str) -> Path:
    """The classifier as plain torch exports it, without a tokenizer beside it."""
    model = transformers.AutoModelForSequenceClassification.from_pretrained(
        checkpoint, attn_implementation=attention
    )
    logging.disable(logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            Logits(model.eval()),
            tuple(torch.from_numpy(INPUTS[name]) for name in NAMES),
            path,
            input_names=NAMES,
            output_names=("logits",),
            dynamic_axes={name: {0: "batch", 1: "sequence"} for name in NAMES},
            opset_version=14,
            dynamo=False,
        )
    logging.disable(logging.NOTSET)
    return path


@pytest.fixture(scope="module")
def float_graph(checkpoints, tmp_path_factory) -> Path:
    """A classifier's graph."""
    path = tmp_path_factory.mktemp("graph") / "classifier.onnx"
    return export(checkpoints("classifier"), path, "sdpa")


@pytest.fixture(scope="module")
def options(checkpoints, quantized) -> dict[str, object]:
    """What a graph needs beside itself, and little data."""
    return {
        "task": "text-classification",
        "tokenizer": str(checkpoints("classifier")),
        "calibration_data": str(quantized("classifier").data),
        "calibration_samples": 24,
        "benchmark": False,
    }


@pytest.fixture(scope="module")
def made(float_graph, options, tmp_path_factory) -> tuple[Path, qdqbert.QuantizeReport]:
    folder = tmp_path_factory.mktemp("out") / "int8"
    return folder, qdqbert.quantize(float_graph, folder, targets=TARGETS, **options)


def test_a_graph_is_proven_for_each_target(made) -> None:
    _, report = made
    assert {each.target for each in report.targets} == set(TARGETS)
    for each in report.targets:
        assert each.lowering.is_exact
        assert each.fidelity.sqnr_db > 15
        assert each.size_ratio < 0.6
    assert any("layers 2" in notice for notice in report.notices)


def test_it_answers_as_the_same_checkpoint_through_pytorch_does(made, quantized) -> None:
    folder, _ = made
    other = quantized("classifier").directory
    mine, theirs = (
        open_runner("onnxruntime", path, exact=True).run(INPUTS)["logits"]
        for path in (folder / "portable" / "model.onnx", other / "model.onnx")
    )
    assert sqnr_db(theirs, mine) > 30


def test_the_folder_says_what_it_was_made_of(made, float_graph) -> None:
    folder, _ = made
    report = json.loads((folder / "report.json").read_text())
    assert report["checkpoint"] == str(float_graph)
    assert report["task"] == "text-classification"
    assert (folder / "quantization.json").is_file()
    assert (folder / "tokenizer.json").is_file()
    config = json.loads((folder / "config.json").read_text())
    assert config["id2label"] == {"0": "Negative", "1": "Neutral", "2": "Positive"}


def test_the_folder_can_be_evaluated(made, write_file) -> None:
    folder, _ = made
    data = write_file("dev.csv", "text,label\nthe cat sat on the book,Positive\nrain,Negative\n")
    report = qdqbert.evaluate(folder, data)
    assert report.task == "text-classification"
    assert report.examples == 2


def test_a_graph_is_quantized_for_tensorrt(float_graph, options, tmp_path) -> None:
    report = qdqbert.quantize(float_graph, tmp_path / "int8", targets=("tensorrt",), **options)
    assert [each.target for each in report.targets] == ["tensorrt"]
    assert report.targets[0].fidelity.sqnr_db > 10


def test_a_config_of_another_model_is_refused(
    float_graph, checkpoint_copy, options, tmp_path
) -> None:
    folder = checkpoint_copy("classifier")
    config = json.loads((folder / "config.json").read_text())
    config["id2label"] = {str(index): f"L{index}" for index in range(5)}
    config["label2id"] = {f"L{index}": index for index in range(5)}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserInputError, match=r"has 3 classes, and the config\.json .* has 5\."):
        qdqbert.quantize(float_graph, tmp_path / "int8", **{**options, "tokenizer": str(folder)})
    assert not (tmp_path / "int8").exists()


def test_a_tokenizer_beside_the_graph_is_found(float_graph, checkpoints, options, tmp_path) -> None:
    folder = Path(shutil.copytree(checkpoints("classifier"), tmp_path / "beside"))
    shutil.copy(float_graph, folder / "model.onnx")
    rest = {name: value for name, value in options.items() if name != "tokenizer"}
    report = qdqbert.quantize(folder / "model.onnx", tmp_path / "int8", **rest)
    assert report.targets[0].lowering.is_exact


def test_weights_in_a_file_beside_are_read(float_graph, options, tmp_path) -> None:
    path = tmp_path / "in" / "model.onnx"
    path.parent.mkdir()
    onnx.save_model(
        onnx.load(float_graph),
        path,
        save_as_external_data=True,
        location="model.onnx.data",
        size_threshold=0,
    )
    report = qdqbert.quantize(path, tmp_path / "int8", **options)
    assert report.targets[0].lowering.is_exact


@pytest.mark.parametrize("half", [False, True], ids=["float32", "float16"])
def test_a_graph_that_onnxruntime_fused_is_quantized(checkpoints, options, tmp_path, half) -> None:
    optimizer = pytest.importorskip("onnxruntime.transformers.optimizer")
    path = export(checkpoints("classifier"), tmp_path / "plain.onnx", "eager")
    fused = optimizer.optimize_model(str(path), "bert", num_heads=4, hidden_size=32, opt_level=0)
    operators = {node.op_type for node in fused.model.graph.node}
    assert {"Attention", "EmbedLayerNormalization", "SkipLayerNormalization"} <= operators
    if half:
        fused.convert_float_to_float16(keep_io_types=True)
    fused.save_model_to_file(str(tmp_path / "model.onnx"))
    targets = ("onnxruntime", *(["openvino"] if is_installed("openvino") else []))
    report = qdqbert.quantize(
        tmp_path / "model.onnx", tmp_path / "int8", targets=targets, **options
    )
    for each in report.targets:
        assert each.lowering.is_exact
        assert each.fidelity.sqnr_db > 15


def test_inputs_of_other_names_are_told(float_graph, options, tmp_path) -> None:
    model = onnx.load(float_graph)
    renamed = dict(zip(NAMES, ("a", "b", "c"), strict=True))
    for value in model.graph.input:
        value.name = renamed[value.name]
    for node in model.graph.node:
        node.input[:] = [renamed.get(name, name) for name in node.input]
    onnx.save(model, tmp_path / "model.onnx")
    report = qdqbert.quantize(
        tmp_path / "model.onnx", tmp_path / "int8", input_names=renamed, **options
    )
    assert report.targets[0].lowering.is_exact


REFUSALS = {
    "no-task": ({"task": None, "tokenizer": None}, "`task` is missing, and cannot be inferred"),
    "wrong-task": ({"task": "guessing"}, "`task='guessing'` is unknown"),
    "tags": ({"task": "token-classification"}, "'logits' has 2 dimensions"),
    "too-few-outputs": ({"task": "question-answering"}, "outputs logits"),
    "no-tokenizer": (
        {"tokenizer": None},
        "tokenizer next to graph .* (cannot be loaded|has no vocab)",
    ),
    "not-a-tokenizer": ({"tokenizer": "/nowhere"}, "`tokenizer='/nowhere'` cannot be loaded"),
    "qordered": ({"recipe": "qordered"}, "needs a checkpoint of transformers"),
    "input-names": ({"input_names": {"input_ids": "x"}}, "`input_names` maps input_ids to 'x'"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_what_cannot_be_is_refused_and_nothing_is_written(
    float_graph, options, tmp_path, name
) -> None:
    changes, message = REFUSALS[name]
    with pytest.raises(UserInputError, match=message) as caught:
        qdqbert.quantize(float_graph, tmp_path / "int8", **{**options, **changes})
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("option", "value"), [("tokenizer", "folder"), ("input_names", {"input_ids": "x"})]
)
def test_options_of_graphs_are_refused_with_a_checkpoint(
    checkpoints, tmp_path, option, value
) -> None:
    with pytest.raises(UserInputError, match=r"is for \.onnx files"):
        qdqbert.quantize(checkpoints("bert"), tmp_path / "int8", **{option: value})


def test_the_command_ends_with_2_one_line_and_nothing_written(
    float_graph, options, tmp_path
) -> None:
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(float_graph.read_bytes()[:1000])
    words = ["quantize", str(broken), "-o", str(tmp_path / "int8"), "--no-benchmark"]
    words += ["--task", "text-classification", "--tokenizer", str(options["tokenizer"])]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 2
    assert "Traceback" not in result.output
    assert "Graph 'broken.onnx' cannot be used" in result.stderr
    assert not (tmp_path / "int8").exists()


def test_the_command_quantizes_a_graph(float_graph, options, tmp_path) -> None:
    words = ["quantize", str(float_graph), "-o", str(tmp_path / "int8"), "--no-benchmark"]
    words += ["--task", "text-classification", "--tokenizer", str(options["tokenizer"])]
    words += ["--calibration-data", str(options["calibration_data"]), "--json"]
    words += ["--calibration-samples", "16"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["targets"][0]["target"] == "portable"


def test_a_graph_that_onnxruntime_cannot_run_is_named(float_graph, options, tmp_path) -> None:
    model = onnx.load(float_graph)
    softmax = next(node for node in model.graph.node if node.op_type == "Softmax")
    softmax.op_type, softmax.attribute[0].i = "Hardmax", 9
    onnx.save(model, tmp_path / "model.onnx")
    with pytest.raises(UserInputError, match=r"Graph 'model\.onnx' cannot be used") as caught:
        qdqbert.quantize(tmp_path / "model.onnx", tmp_path / "int8", **options)
    assert "\n" not in str(caught.value)
