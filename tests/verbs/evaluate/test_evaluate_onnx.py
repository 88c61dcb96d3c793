"""Evaluation of .onnx files, float or quantized, as model and as reference."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from transformers import AutoTokenizer

import flat
import qdqbert
from qdqbert.cli import main
from qdqbert.common.errors import UserInputError
from qdqbert.encoders.checkpoint.load import load_checkpoint
from qdqbert.graphs.check import save_graph
from qdqbert.graphs.of_checkpoint import encoder_of
from qdqbert.graphs.writer import make_graph
from qdqbert.verbs.evaluate.subject import Request, load_subject

CLASSES = "text,label\nthe cat sat on the book,positive\nrain,0\na dog in the city,NEUTRAL\nme,2\n"
NUMBERS = "text,label\nthe cat,2\nrain,0\n"
PAIRS = """sentence1,sentence2,score
the cat sat,a dog sat,3.5
rain on the river,rain on a river,5
home,house,4
"""
CLASSIFICATION = "text-classification"


@pytest.fixture(scope="module")
def float_graph(checkpoints, tmp_path_factory) -> Path:
    """A classifier's graph, without a tokenizer next to it."""
    path = tmp_path_factory.mktemp("graph") / "classifier.onnx"
    save_graph(make_graph(encoder_of(load_checkpoint(str(checkpoints("classifier"))))), path)
    return path


@pytest.fixture(scope="module")
def sentence_graph(checkpoints, tmp_path_factory) -> Path:
    """The graph of a sentence encoder, with states and sentence embeddings as outputs."""
    path = tmp_path_factory.mktemp("graph") / "sentence.onnx"
    save_graph(make_graph(encoder_of(load_checkpoint(str(checkpoints("sentence"))))), path)
    return path


@pytest.fixture
def data(write_file) -> Path:
    return write_file("dev.csv", CLASSES)


@pytest.fixture
def classify(checkpoints, data) -> Callable[..., qdqbert.EvaluateReport]:
    """Evaluates a graph of a classifier with the tokenizer of its checkpoint."""

    def evaluate(graph: str | Path, **changes: Any) -> qdqbert.EvaluateReport:
        options = {
            "data": data,
            "task": CLASSIFICATION,
            "tokenizer": str(checkpoints("classifier")),
            **changes,
        }
        return flat.evaluate(graph, **options)

    return evaluate


@pytest.fixture
def change_config(checkpoint_copy) -> Callable[..., str]:
    """Copies a classifier's folder with changes to its config; `None` removes the config."""

    def change(change: Callable[[dict[str, Any]], Mapping[str, Any]] | None) -> str:
        folder = checkpoint_copy("classifier")
        path = folder / "config.json"
        if change is None:
            path.unlink()
        else:
            path.write_text(json.dumps(change(json.loads(path.read_text()))))
        return str(folder)

    return change


def behind_identity(graph: Path, path: Path, name: str, port: str) -> Path:
    """Copy a graph. Its input `name` is called `port` and read through an Identity."""
    model = onnx.load(graph)
    for node in model.graph.node:
        node.input[:] = ["a_inner" if each == name else each for each in node.input]
    next(each for each in model.graph.input if each.name == name).name = port
    model.graph.node.insert(0, helper.make_node("Identity", [port], ["a_inner"]))
    onnx.save(model, path)
    return path


@pytest.mark.usual("onnxruntime")
def test_a_graph_scores_like_the_checkpoint_that_it_was_exported_from(
    float_graph, checkpoints, data, classify, engine
) -> None:
    checkpoint = checkpoints("classifier")
    report = classify(float_graph, engine=engine, reference=checkpoint)
    assert report.metrics == flat.evaluate(checkpoint, data).metrics
    assert (report.engine, report.target) == (engine, None)
    # float32 in another order of sums, or bfloat16, which OpenVINO uses where the CPU has it. A
    # wrong input gives less than 20.
    assert report.fidelity.sqnr_db > {"onnxruntime": 80, "openvino": 35}[engine]


def test_a_folder_is_compared_with_a_graph_by_its_own_tokenizer(
    quantized, float_graph, data
) -> None:
    made = quantized("classifier")
    report = flat.evaluate(made.directory, data, reference=float_graph)
    expected = flat.evaluate(made.directory, data, reference=made.checkpoint)
    assert report.reference == str(float_graph)
    assert report.reference_metrics == expected.reference_metrics
    assert report.fidelity.sqnr_db == pytest.approx(expected.fidelity.sqnr_db, abs=0.1)


def test_a_quantized_graph_scores_like_its_folder(quantized, data, classify, tmp_path) -> None:
    made = quantized("classifier")
    copy = shutil.copy(made.directory / "model.onnx", tmp_path / "other.onnx")
    assert classify(copy).metrics == flat.evaluate(made.directory, data).metrics


def test_inputs_may_have_other_names_and_types_and_outputs_half_precision(
    float_graph, checkpoints, classify, tmp_path
) -> None:
    model = onnx.load(float_graph)
    names = {each.name: f"in.{index}" for index, each in enumerate(model.graph.input)}
    for each in model.graph.input:
        # int32, as older exporters write.
        model.graph.node.insert(
            0, helper.make_node("Cast", [names[each.name]], [each.name], to=TensorProto.INT64)
        )
        each.name = names[each.name]
        each.type.tensor_type.elem_type = TensorProto.INT32
    out = model.graph.output[0]
    model.graph.node.append(helper.make_node("Cast", [out.name], ["half"], to=TensorProto.FLOAT16))
    out.name, out.type.tensor_type.elem_type = "half", TensorProto.FLOAT16
    onnx.save(model, tmp_path / "other.onnx")
    report = classify(
        tmp_path / "other.onnx", input_names=names, reference=checkpoints("classifier")
    )
    # The 11 bits of float16 give 65 dB or more.
    assert report.fidelity.sqnr_db > 60
    assert np.isfinite(report.fidelity.sqnr_db)


def test_input_names_may_belong_to_one_of_two_graphs(float_graph, classify, tmp_path) -> None:
    odd = behind_identity(float_graph, tmp_path / "odd.onnx", "input_ids", "odd")
    report = classify(float_graph, reference=odd, input_names={"input_ids": "odd"})
    assert report.fidelity.sqnr_db > 120
    with pytest.raises(UserInputError, match="odd"):
        classify(odd)


def test_input_names_that_neither_graph_has_are_refused(float_graph, classify) -> None:
    for names in ({"input_ids": "typo"}, {"ids": "input_ids"}, {"typo": "typo"}):
        with pytest.raises(UserInputError, match=r"input.names.* input_ids"):
            classify(float_graph, reference=float_graph, input_names=names)


def test_an_identity_after_an_input_does_not_rename_it(
    float_graph, classify, tmp_path, engine
) -> None:
    graph = behind_identity(float_graph, tmp_path / "inner.onnx", "input_ids", "input_ids")
    assert classify(graph, engine=engine).metrics == classify(float_graph).metrics


def test_model_and_reference_truncate_at_the_same_length(
    sentence_graph, checkpoints, write_file
) -> None:
    folder = checkpoints("sentence")
    long = " ".join(["cat"] * 60)
    data = write_file("sts.csv", f"{PAIRS}{long},{long} dog,4\n")
    report = flat.evaluate(
        sentence_graph, data, reference=folder, task="feature-extraction", tokenizer=str(folder)
    )
    assert report.fidelity.sqnr_db > 100
    assert any("the limit of the reference" in notice for notice in report.notices)


def test_positions_that_a_config_reserves_are_not_tokens(sentence_graph, checkpoints) -> None:
    # RoBERTa's positions start after that of the padding token.
    folder = str(checkpoints("roberta"))
    request = Request(
        parameter="model", task="feature-extraction", max_length=None, tokenizer=folder
    )
    subject = load_subject(str(sentence_graph), request)
    assert subject.max_length == load_checkpoint(folder).max_length


def test_token_types_that_the_tokenizer_does_not_make_are_zeros(
    float_graph, checkpoint_copy, classify, quantized, tmp_path
) -> None:
    # As in every RoBERTa: types are an input, all of them 0.
    model = onnx.load(float_graph)
    (types,) = (each for each in model.graph.initializer if list(each.dims) == [2, 32])
    types.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(types)[:1], types.name))
    # The exporter stored the former shape.
    del model.graph.value_info[:]
    graph = tmp_path / "one-type.onnx"
    onnx.save(model, graph)
    folder = checkpoint_copy("classifier")
    settings = folder / "tokenizer_config.json"
    names = {"model_input_names": ["input_ids", "attention_mask"]}
    settings.write_text(json.dumps(json.loads(settings.read_text()) | names))
    assert classify(graph, tokenizer=str(folder)).metrics == classify(float_graph).metrics
    made = flat.quantize(
        graph,
        tmp_path / "int8",
        task=CLASSIFICATION,
        tokenizer=str(folder),
        calibration_data=str(quantized("classifier").data),
        calibration_samples=24,
        targets=("onnxruntime",),
        benchmark=False,
    )
    assert made.targets[0].lowering.is_exact


def test_a_graph_of_another_task_is_recognized_by_its_output(
    float_graph, classify, tmp_path
) -> None:
    model = onnx.load(float_graph)
    model.graph.output[0].type.tensor_type.ClearField("shape")
    onnx.save(model, tmp_path / "shapeless.onnx")
    with pytest.raises(UserInputError, match="2 dimensions, and task `token-classification` reads"):
        classify(tmp_path / "shapeless.onnx", task="token-classification")


@pytest.mark.parametrize("more", [-64, 1])
def test_a_config_with_another_vocabulary_size_is_refused(
    float_graph, classify, change_config, more
) -> None:
    tokenizer = change_config(lambda config: config | {"vocab_size": config["vocab_size"] + more})
    with pytest.raises(UserInputError, match=r"has embeddings .* and the config\.json"):
        classify(float_graph, tokenizer=tokenizer)


def test_an_embedding_table_may_be_padded(float_graph, classify, change_config) -> None:
    tokenizer = change_config(lambda config: config | {"vocab_size": config["vocab_size"] - 6})
    assert classify(float_graph, tokenizer=tokenizer).examples == 4


@pytest.mark.parametrize("with_config", [True, False])
def test_a_token_without_an_embedding_is_refused(
    float_graph, checkpoint_copy, write_file, classify, with_config
) -> None:
    folder = checkpoint_copy("classifier")
    rows = json.loads((folder / "config.json").read_text())["vocab_size"]
    if not with_config:
        (folder / "config.json").unlink()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens([f"more{index}x" for index in range(rows + 1 - len(tokenizer))])
    tokenizer.save_pretrained(folder)
    last = tokenizer.convert_ids_to_tokens(rows)
    label = "positive" if with_config else "2"
    known = write_file("known.csv", f"text,label\nthe cat,{label}\n")
    assert classify(float_graph, data=known, tokenizer=str(folder)).examples == 1
    unknown = write_file("unknown.csv", f"text,label\nthe {last} cat,{label}\n")
    with pytest.raises(UserInputError, match=rf"the tokenizer \w+ id {rows}"):
        classify(float_graph, data=unknown, tokenizer=str(folder))


def test_a_graph_that_predicts_no_tokens_is_refused_for_fill_mask(
    sentence_graph, checkpoints, write_file, tmp_path
) -> None:
    model = onnx.load(sentence_graph)
    (states,) = (each for each in model.graph.output if each.name != "sentence_embedding")
    model.graph.node.append(helper.make_node("Identity", [states.name], ["logits"]))
    states.name = "logits"
    del model.graph.output[:]
    model.graph.output.append(states)
    onnx.save(model, tmp_path / "states.onnx")
    texts = write_file("texts.csv", "text\nthe cat sat\n")
    tokenizer = str(checkpoints("sentence"))
    with pytest.raises(UserInputError, match=r"task `fill-mask` reads one for each of its \d+"):
        flat.evaluate(tmp_path / "states.onnx", texts, task="fill-mask", tokenizer=tokenizer)


def test_a_graph_may_return_only_sentence_embeddings(
    sentence_graph, checkpoints, write_file, tmp_path
) -> None:
    model = onnx.load(sentence_graph)
    (states,) = (each for each in model.graph.output if each.name != "sentence_embedding")
    model.graph.output.remove(states)
    onnx.save(model, tmp_path / "pooled.onnx")
    options = {"task": "feature-extraction", "tokenizer": str(checkpoints("sentence"))}
    data = write_file("sts.csv", PAIRS)
    report = flat.evaluate(tmp_path / "pooled.onnx", data, **options)
    assert report.metrics == flat.evaluate(sentence_graph, data, **options).metrics


def test_an_input_that_tokenizers_do_not_make_is_refused(float_graph, classify, tmp_path) -> None:
    model = onnx.load(float_graph)
    positions = onnx.ValueInfoProto()
    positions.CopyFrom(model.graph.input[0])
    positions.name = "position_ids"
    model.graph.input.append(positions)
    onnx.save(model, tmp_path / "extra.onnx")
    # Positions are not taken for token types either.
    renamed = tmp_path / "renamed.onnx"
    behind_identity(float_graph, renamed, "token_type_ids", "position_ids")
    for graph in (tmp_path / "extra.onnx", renamed):
        with pytest.raises(UserInputError, match=r"reads position_ids .* Export it without"):
            classify(graph)


@pytest.mark.parametrize(
    ("config", "notice"),
    [
        (None, "no config.json"),
        (
            lambda config: {name: value for name, value in config.items() if "label" not in name},
            "names no classes",
        ),
    ],
    ids=["no-config", "no-classes"],
)
def test_classes_without_names_are_numbers(
    float_graph, classify, change_config, write_file, config, notice
) -> None:
    data = write_file("numbers.csv", NUMBERS)
    report = classify(float_graph, data=data, tokenizer=change_config(config))
    assert report.metrics[0].examples == 2
    assert any(notice in each for each in report.notices)


def test_a_folder_that_was_made_without_a_config_can_be_evaluated(
    float_graph, change_config, write_file, quantized, tmp_path
) -> None:
    made = tmp_path / "int8"
    flat.quantize(
        float_graph,
        made,
        task=CLASSIFICATION,
        tokenizer=change_config(None),
        calibration_data=str(quantized("classifier").data),
        calibration_samples=24,
        targets=("onnxruntime",),
        benchmark=False,
    )
    report = flat.evaluate(made, write_file("numbers.csv", NUMBERS), reference=float_graph)
    assert report.fidelity.sqnr_db > 15


def test_a_graph_of_a_quantized_folder_is_evaluated_as_the_folder(quantized, data) -> None:
    made = quantized("classifier")
    with pytest.raises(UserInputError, match="belongs to a quantized folder") as caught:
        flat.evaluate(made.directory / "model.onnx", data, task=CLASSIFICATION)
    assert caught.value.argument == "model"
    # Another file in the folder is not one of its graphs.
    other = shutil.copy(made.directory / "model.onnx", made.directory / "mine.onnx")
    try:
        report = flat.evaluate(other, data, task=CLASSIFICATION)
    finally:
        Path(other).unlink()
    assert report.examples == 4


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"task": None, "tokenizer": None}, "task` is missing"),
        ({"task": "question-answering"}, "has outputs logits.* task `question-answering` reads"),
        ({"task": "other"}, "^`task='other'` is unknown"),
        ({"target": "portable"}, "`target='portable'` applies to quantized folders"),
        ({"engine": "other"}, "^`engine='other'` is unknown"),
        ({"provider": "xyz"}, "^`provider='xyz'` is unknown"),
        ({"tokenizer": None}, r"graph 'classifier\.onnx' (cannot be loaded|h\w+ no vocabulary)"),
        ({"tokenizer": "none"}, "^`tokenizer`: Model 'none' cannot be found"),
        ({"input_names": {"input_ids": "none"}}, "which is not one of the graph's inputs"),
        ({"model": "missing.onnx"}, r"File 'missing\.onnx' does not exist"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_options_that_do_not_fit_a_graph_are_refused(
    float_graph, classify, changes, message
) -> None:
    options = {"model": float_graph, **changes}
    with pytest.raises(UserInputError, match=message):
        classify(options.pop("model"), **options)


@pytest.mark.parametrize(
    "option",
    [
        {"tokenizer": "somewhere"},
        {"input_names": {"input_ids": "ids"}},
        {"output_names": {"logits": "scores"}},
    ],
    ids=lambda option: next(iter(option)),
)
def test_options_of_onnx_files_are_refused_for_a_checkpoint(checkpoints, data, option) -> None:
    (name,) = option
    with pytest.raises(UserInputError, match=rf"`{name}` applies to \.onnx files only") as caught:
        flat.evaluate(checkpoints("classifier"), data, **option)
    assert caught.value.argument == name


@pytest.mark.parametrize("share", [0.1, 0.9])
def test_an_incomplete_file_is_refused(
    float_graph, checkpoints, data, tmp_path, share, capsys
) -> None:
    broken = tmp_path / "broken.onnx"
    content = float_graph.read_bytes()
    broken.write_bytes(content[: int(len(content) * share)])
    words = ["evaluate", str(broken), "--data", str(data), "--task", CLASSIFICATION]
    with pytest.raises(SystemExit, match="2"):
        main([*words, "--tokenizer", str(checkpoints("classifier"))])
    lines = capsys.readouterr().err.strip().splitlines()
    assert lines[-1].startswith("Error: `MODEL`: Graph 'broken.onnx' cannot be used: ")
    assert not any("Traceback" in line for line in lines)


def test_a_graph_that_fails_when_it_runs_is_refused(float_graph, classify, tmp_path) -> None:
    model = onnx.load(float_graph)
    ids = model.graph.input[0].name
    far = helper.make_tensor("far", TensorProto.INT64, [1], [10**6])
    model.graph.initializer.append(far)
    for node in model.graph.node:
        node.input[:] = ["shifted" if name == ids else name for name in node.input]
    model.graph.node.insert(0, helper.make_node("Add", [ids, "far"], ["shifted"]))
    onnx.save(model, tmp_path / "far.onnx")
    with pytest.raises(UserInputError, match=r"Graph 'far\.onnx' fails when it runs"):
        classify(tmp_path / "far.onnx")
