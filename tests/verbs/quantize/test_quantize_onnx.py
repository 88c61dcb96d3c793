"""`quantize` with existing ONNX models."""

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
from tokenizers import Tokenizer

import flat
import qdqbert
from conftest import replace_cats_
from qdqbert.common.errors import UserInputError
from qdqbert.encoders.checkpoint import tokenizer as tokenizers_of_transformers
from qdqbert.engines.registry import is_installed, open_runner
from qdqbert.evidence.fidelity import sqnr_db

NAMES = ("input_ids", "attention_mask", "token_type_ids")
TARGETS = ("portable", "onnxruntime", "native")
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


def export(checkpoint: Path, path: Path, attention: str, wrap: type[Logits] = Logits) -> Path:
    """Export the classifier with torch alone, without a tokenizer next to it."""
    model = transformers.AutoModelForSequenceClassification.from_pretrained(
        checkpoint, attn_implementation=attention
    )
    logging.disable(logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            wrap(model.eval()),
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
    """The .onnx file of a classifier."""
    path = tmp_path_factory.mktemp("graph") / "classifier.onnx"
    return export(checkpoints("classifier"), path, "sdpa")


@pytest.fixture(scope="module")
def options(checkpoints, quantized) -> dict[str, object]:
    """The task and tokenizer of the file, and little data."""
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
    return folder, flat.quantize(float_graph, folder, targets=TARGETS, **options)


def test_each_target_is_exact_and_near_float(made) -> None:
    _, report = made
    assert {each.target for each in report.targets} == set(TARGETS)
    for each in report.targets:
        assert each.lowering.is_exact
        assert each.fidelity.sqnr_db > 15
        assert each.size_ratio < 0.75
    assert any("2 layers" in notice for notice in report.notices)


@pytest.mark.slow
def test_a_graph_is_analyzed_like_its_checkpoint(float_graph, options, checkpoints) -> None:
    settings = {name: each for name, each in options.items() if name != "benchmark"}
    found = [
        flat.analyze(model, **given, granularity="layer", max_examples=24)
        for model, given in (
            (float_graph, settings),
            (checkpoints("classifier"), {**settings, "tokenizer": None}),
        )
    ]
    costs = [
        {unit.name.rpartition(".")[2]: unit.alone.sqnr_db for unit in report.units}
        for report in found
    ]
    # Rounding ties move single codes.
    assert costs[0] == pytest.approx(costs[1], abs=1)


def test_the_outputs_are_near_those_of_the_quantized_checkpoint(made, quantized) -> None:
    folder, _ = made
    other = quantized("classifier").directory
    mine, theirs = (
        open_runner("onnxruntime", path, exact=True).run(INPUTS)["logits"]
        for path in (folder / "portable" / "model.onnx", other / "model.onnx")
    )
    assert sqnr_db(theirs, mine) > 30


def test_the_folder_records_the_task_and_the_classes(made, float_graph) -> None:
    folder, _ = made
    report = json.loads((folder / "report.json").read_text())
    assert report["checkpoint"] == str(float_graph)
    assert report["task"] == "text-classification"
    assert (folder / "quantization.json").is_file()
    assert (folder / "tokenizer.json").is_file()
    config = json.loads((folder / "config.json").read_text())
    assert config["id2label"] == {"0": "Negative", "1": "Neutral", "2": "Positive"}


@pytest.mark.slow
def test_tokenizer_json_is_used_for_calibration_and_the_folder(
    float_graph, options, checkpoint_copy, tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr(tokenizers_of_transformers, "_SAMPLES", ("a cat",))
    tokenizer = replace_cats_(checkpoint_copy("classifier"))
    report = flat.quantize(
        float_graph,
        tmp_path / "int8",
        **{**options, "tokenizer": str(tokenizer), "max_length": 16},
    )
    assert any("differently from tokenizer.json" in notice for notice in report.notices)
    own = Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    written = Tokenizer.from_file(str(tmp_path / "int8" / "tokenizer.json"))
    assert written.to_str() == own.to_str()
    config = json.loads((tmp_path / "int8" / "tokenizer_config.json").read_text())
    assert config["model_max_length"] == 16
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "int8")
    assert theirs("a cat")["input_ids"] == own.encode("a dog").ids


def test_the_folder_can_be_evaluated(made, write_file) -> None:
    folder, _ = made
    data = write_file("dev.csv", "text,label\nthe cat sat on the book,Positive\nrain,Negative\n")
    report = flat.evaluate(folder, data)
    assert report.task == "text-classification"
    assert report.examples == 2


def test_the_config_of_another_model_is_refused(
    float_graph, checkpoint_copy, options, tmp_path
) -> None:
    folder = checkpoint_copy("classifier")
    config = json.loads((folder / "config.json").read_text())
    config["id2label"] = {str(index): f"L{index}" for index in range(5)}
    config["label2id"] = {f"L{index}": index for index in range(5)}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserInputError, match=r"3 classes.*config\.json.* 5\b"):
        flat.quantize(float_graph, tmp_path / "int8", **{**options, "tokenizer": str(folder)})
    assert not (tmp_path / "int8").exists()


@pytest.mark.slow
def test_external_weights_and_a_tokenizer_next_to_the_file_are_read(
    float_graph, checkpoints, options, tmp_path
) -> None:
    folder = Path(shutil.copytree(checkpoints("classifier"), tmp_path / "in"))
    onnx.save_model(
        onnx.load(float_graph),
        folder / "model.onnx",
        save_as_external_data=True,
        location="model.onnx.data",
        size_threshold=0,
    )
    rest = {name: value for name, value in options.items() if name != "tokenizer"}
    report = flat.quantize(folder / "model.onnx", tmp_path / "int8", targets=("tensorrt",), **rest)
    (target,) = report.targets
    assert target.target == "tensorrt"
    assert target.lowering.is_exact
    assert target.fidelity.sqnr_db > 10


@pytest.fixture(scope="module")
def eager_graph(checkpoints, tmp_path_factory) -> Path:
    """The classifier with eager attention, which ONNX Runtime's optimizer recognizes."""
    path = tmp_path_factory.mktemp("eager") / "classifier.onnx"
    return export(checkpoints("classifier"), path, "eager")


@pytest.mark.parametrize(
    ("half", "target"),
    [(False, "openvino"), (True, "onnxruntime")],
    ids=["float32", "float16"],
)
@pytest.mark.slow
def test_a_model_that_onnxruntime_fused_is_quantized(
    eager_graph, options, tmp_path, half, target
) -> None:
    optimizer = pytest.importorskip("onnxruntime.transformers.optimizer")
    if not is_installed(target):
        pytest.skip(f"{target} is not installed")
    fused = optimizer.optimize_model(
        str(eager_graph), "bert", num_heads=4, hidden_size=32, opt_level=0
    )
    operators = {node.op_type for node in fused.model.graph.node}
    assert {"Attention", "EmbedLayerNormalization", "SkipLayerNormalization"} <= operators
    if half:
        fused.convert_float_to_float16(keep_io_types=True)
    fused.save_model_to_file(str(tmp_path / "model.onnx"))
    report = flat.quantize(tmp_path / "model.onnx", tmp_path / "int8", targets=(target,), **options)
    (measured,) = report.targets
    assert measured.lowering.is_exact
    assert measured.fidelity.sqnr_db > 15


def test_inputs_with_other_names_can_be_named(float_graph, options, tmp_path) -> None:
    model = onnx.load(float_graph)
    renamed = dict(zip(NAMES, ("a", "b", "c"), strict=True))
    for value in model.graph.input:
        value.name = renamed[value.name]
    for node in model.graph.node:
        node.input[:] = [renamed.get(name, name) for name in node.input]
    onnx.save(model, tmp_path / "model.onnx")
    report = flat.quantize(
        tmp_path / "model.onnx",
        tmp_path / "int8",
        input_names=renamed,
        targets=("onnxruntime",),
        **options,
    )
    assert report.targets[0].lowering.is_exact
    command = json.loads((tmp_path / "int8" / "quantization.json").read_text())["command"]
    assert "--input-name input_ids=a --input-name attention_mask=b" in command


# Options that replace some of the usual ones, and words of the message.
REFUSALS = {
    "no-task": ({"task": None, "tokenizer": None}, "`task` is missing, and cannot be inferred"),
    "other-output": ({"task": "token-classification"}, "2 dimensions"),
    "too-few-outputs": ({"task": "question-answering"}, "logits"),
    "no-tokenizer": ({"tokenizer": None}, "tokenizer .*(cannot be loaded|vocab)"),
    "not-a-tokenizer": (
        {"tokenizer": "/nowhere"},
        "^`tokenizer`: Folder ./nowhere. does not exist",
    ),
    "qordered": ({"recipe": "qordered"}, "The recipe requires a checkpoint"),
    "input-names": ({"input_names": {"input_ids": "x"}}, "input.names.*input_ids.*x"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_unusable_arguments_are_refused_in_one_line_and_write_nothing(
    float_graph, options, tmp_path, name
) -> None:
    changes, message = REFUSALS[name]
    with pytest.raises(UserInputError, match=message) as caught:
        flat.quantize(float_graph, tmp_path / "int8", **{**options, **changes})
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_files_that_cannot_run_are_refused_in_one_line(float_graph, options, tmp_path) -> None:
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(float_graph.read_bytes()[:1000])
    unknown = tmp_path / "unknown.onnx"
    model = onnx.load(float_graph)
    softmax = next(node for node in model.graph.node if node.op_type == "Softmax")
    softmax.op_type, softmax.attribute[0].i = "Hardmax", 9
    onnx.save(model, unknown)
    for path in (broken, unknown):
        with pytest.raises(
            UserInputError, match=rf"'{path.name}'.* (cannot be used|does not run)"
        ) as caught:
            flat.quantize(path, tmp_path / "int8", **options)
        assert "\n" not in str(caught.value)
        assert not (tmp_path / "int8").exists()


class Squared(Logits):
    """A classifier with a head that is not known: the logits of squared probabilities."""

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return torch.log(torch.softmax(super().forward(*inputs), dim=-1) ** 2 + 1e-3)


@pytest.mark.slow
def test_a_head_that_is_not_known_is_kept(checkpoints, options, tmp_path) -> None:
    path = export(checkpoints("classifier"), tmp_path / "squared.onnx", "sdpa", Squared)
    report = flat.quantize(path, tmp_path / "int8", targets=TARGETS, **options)
    for each in report.targets:
        assert each.lowering.is_exact
        assert each.fidelity.sqnr_db > 15
    expected = open_runner("onnxruntime", path).run(INPUTS)["logits"]
    for engine, file in (
        ("onnxruntime", "portable/model.onnx"),
        ("native", "native/model.safetensors"),
    ):
        found = open_runner(engine, tmp_path / "int8" / file).run(INPUTS)["logits"]
        assert sqnr_db(expected, found) > 15
