from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from transformers import AutoModelForTokenClassification, AutoTokenizer
from typer.testing import CliRunner

import qdqbert
from qdqbert.checkpoint.load import load_checkpoint
from qdqbert.cli import app
from qdqbert.errors import UserInputError
from qdqbert.graph.imported.graph_runner import open_graph_file
from qdqbert.graph.imported.tokenizer_and_config import load_tokenizer_and_config
from qdqbert.verbs.benchmark import export_float

CLASSES = "text,label\nthe cat sat on the book,positive\nrain,0\na dog in the city,NEUTRAL\nme,2\n"
PAIRS = """sentence1,sentence2,score
the cat sat,a dog sat,3.5
rain on the river,rain on a river,5
home,house,4
"""
CLASSIFICATION = "text-classification"


@pytest.fixture(scope="module")
def float_graph(checkpoints, tmp_path_factory) -> Path:
    """A classifier's graph, without a tokenizer beside it."""
    path = tmp_path_factory.mktemp("graph") / "classifier.onnx"
    export_float(str(checkpoints("classifier")), path, [8])
    return path


@pytest.fixture
def data(write_file) -> Path:
    return write_file("dev.csv", CLASSES)


def behind_identity(graph: Path, path: Path, name: str, port: str) -> Path:
    """A copy of a graph whose input is called `port`, and read by way of an Identity."""
    model = onnx.load(graph)
    for node in model.graph.node:
        node.input[:] = ["a_inner" if each == name else each for each in node.input]
    next(each for each in model.graph.input if each.name == name).name = port
    model.graph.node.insert(0, helper.make_node("Identity", [port], ["a_inner"]))
    onnx.save(model, path)
    return path


def test_a_graph_scores_as_the_checkpoint_that_it_was_exported_from(
    float_graph, checkpoints, data, engine
) -> None:
    checkpoint = checkpoints("classifier")
    report = qdqbert.evaluate(
        float_graph,
        data,
        task=CLASSIFICATION,
        tokenizer=str(checkpoint),
        engine=engine,
        reference=checkpoint,
    )
    assert report.metrics == qdqbert.evaluate(checkpoint, data).metrics
    assert (report.engine, report.target) == (engine, None)
    # float32 in another order of sums, or bfloat16, which OpenVINO takes where the CPU has it; a
    # wrong input gives less than 20.
    assert report.fidelity.sqnr_db > {"onnxruntime": 80, "openvino": 35}[engine]


def test_a_folder_is_compared_with_a_graph_by_its_own_tokenizer(
    quantized, float_graph, data
) -> None:
    made = quantized("classifier")
    report = qdqbert.evaluate(made.directory, data, reference=float_graph)
    beside = qdqbert.evaluate(made.directory, data, reference=made.checkpoint)
    assert report.reference == str(float_graph)
    assert report.reference_metrics == beside.reference_metrics
    assert report.fidelity.sqnr_db == pytest.approx(beside.fidelity.sqnr_db, abs=0.1)


def test_a_graph_that_is_quantized_already_can_be_scored(quantized, data, tmp_path) -> None:
    made = quantized("classifier")
    copy = shutil.copy(made.directory / "model.onnx", tmp_path / "other.onnx")
    report = qdqbert.evaluate(copy, data, task=CLASSIFICATION, tokenizer=str(made.checkpoint))
    assert report.metrics == qdqbert.evaluate(made.directory, data).metrics


def test_inputs_of_other_names_and_types_and_half_outputs_are_taken(
    float_graph, checkpoints, data, tmp_path
) -> None:
    model = onnx.load(float_graph)
    names = {each.name: f"in.{index}" for index, each in enumerate(model.graph.input)}
    for each in model.graph.input:
        # int32, as older exporters write them.
        model.graph.node.insert(
            0, helper.make_node("Cast", [names[each.name]], [each.name], to=TensorProto.INT64)
        )
        each.name = names[each.name]
        each.type.tensor_type.elem_type = TensorProto.INT32
    out = model.graph.output[0]
    model.graph.node.append(helper.make_node("Cast", [out.name], ["half"], to=TensorProto.FLOAT16))
    out.name, out.type.tensor_type.elem_type = "half", TensorProto.FLOAT16
    onnx.save(model, tmp_path / "other.onnx")

    checkpoint = checkpoints("classifier")
    report = qdqbert.evaluate(
        tmp_path / "other.onnx",
        data,
        task=CLASSIFICATION,
        tokenizer=str(checkpoint),
        input_names=names,
        reference=checkpoint,
    )
    # 11 bits of a float16 give 65 dB or more.
    assert report.fidelity.sqnr_db > 60
    assert np.isfinite(report.fidelity.sqnr_db)


def test_inputs_of_other_names_may_be_those_of_one_of_two_graphs(
    float_graph, checkpoints, data, tmp_path
) -> None:
    odd = behind_identity(float_graph, tmp_path / "odd.onnx", "input_ids", "odd")
    words = {"task": CLASSIFICATION, "tokenizer": str(checkpoints("classifier"))}
    names = {"input_ids": "odd"}
    report = qdqbert.evaluate(float_graph, data, reference=odd, input_names=names, **words)
    assert report.fidelity.sqnr_db > 120
    with pytest.raises(UserInputError, match="cannot be inferred"):
        qdqbert.evaluate(odd, data, **words)


def test_an_identity_behind_an_input_does_not_rename_it(
    float_graph, checkpoints, data, tmp_path, engine
) -> None:
    graph = behind_identity(float_graph, tmp_path / "inner.onnx", "input_ids", "input_ids")
    words = {"task": CLASSIFICATION, "tokenizer": str(checkpoints("classifier"))}
    report = qdqbert.evaluate(graph, data, engine=engine, **words)
    assert report.metrics == qdqbert.evaluate(float_graph, data, **words).metrics


def test_model_and_reference_are_cut_alike(checkpoints, write_file, tmp_path) -> None:
    folder = checkpoints("sentence")
    graph = tmp_path / "sentence.onnx"
    export_float(str(folder), graph, [8])
    long = " ".join(["cat"] * 60)
    data = write_file("sts.csv", f"{PAIRS}{long},{long} dog,4\n")
    words = {"task": "feature-extraction", "tokenizer": str(folder)}
    report = qdqbert.evaluate(graph, data, reference=folder, **words)
    assert report.fidelity.sqnr_db > 100
    assert any("the reference takes no more" in notice for notice in report.notices)


def test_positions_of_roberta_are_those_of_the_checkpoint(checkpoints, tmp_path) -> None:
    folder = checkpoints("roberta")
    graph = tmp_path / "roberta.onnx"
    export_float(str(folder), graph, [8])
    runner = open_graph_file(graph, task="feature-extraction", engine="onnxruntime", input_names={})
    beside = load_tokenizer_and_config(
        graph, task="feature-extraction", tokenizer=str(folder), runner=runner
    )
    assert beside.max_length == load_checkpoint(str(folder)).max_length


def test_a_model_of_one_type_of_tokens_that_its_tokenizer_does_not_make(
    save_tiny, write_file, tmp_path
) -> None:
    # As of every RoBERTa: types are an input, all of them 0.
    folder = save_tiny(tmp_path / "one", "bert", type_vocab_size=1)
    graph = tmp_path / "one.onnx"
    export_float(str(folder), graph, [8])
    assert "token_type_ids" in {each.name for each in onnx.load(graph).graph.input}
    settings = folder / "tokenizer_config.json"
    names = {"model_input_names": ["input_ids", "attention_mask"]}
    settings.write_text(json.dumps(json.loads(settings.read_text()) | names))
    words = {"task": "feature-extraction", "tokenizer": str(folder)}
    data = write_file("sts.csv", PAIRS)
    report = qdqbert.evaluate(graph, data, **words)
    assert report.examples == 3
    made = qdqbert.quantize(
        graph,
        tmp_path / "int8",
        calibration_data=write_file("texts.txt", "the cat sat\n" * 30),
        calibration_samples=8,
        benchmark=False,
        **words,
    )
    assert made.targets[0].lowering.is_exact
    assert qdqbert.evaluate(made.directory, data, reference=graph).fidelity.sqnr_db > 15


def test_a_graph_of_another_task_is_told_by_what_it_gives(
    float_graph, checkpoints, data, tmp_path
) -> None:
    model = onnx.load(float_graph)
    model.graph.output[0].type.tensor_type.ClearField("shape")
    onnx.save(model, tmp_path / "shapeless.onnx")
    tokenizer = str(checkpoints("classifier"))
    with pytest.raises(UserInputError, match="has 2 dimensions, and task `token-classification`"):
        qdqbert.evaluate(
            tmp_path / "shapeless.onnx", data, task="token-classification", tokenizer=tokenizer
        )


@pytest.mark.parametrize("more", [-64, 1])
def test_a_config_of_another_vocabulary_is_told(
    float_graph, checkpoint_copy, data, more, engine
) -> None:
    folder = checkpoint_copy("classifier")
    config = json.loads((folder / "config.json").read_text())
    config["vocab_size"] += more
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserInputError, match=r"has embeddings for \d+ token ids, and the config"):
        qdqbert.evaluate(
            float_graph, data, task=CLASSIFICATION, tokenizer=str(folder), engine=engine
        )


def test_a_table_of_words_may_be_padded(float_graph, checkpoint_copy, data) -> None:
    folder = checkpoint_copy("classifier")
    config = json.loads((folder / "config.json").read_text())
    config["vocab_size"] -= 6
    (folder / "config.json").write_text(json.dumps(config))
    words = {"task": CLASSIFICATION, "tokenizer": str(folder)}
    assert qdqbert.evaluate(float_graph, data, **words).examples == 4


@pytest.mark.parametrize("with_config", [True, False])
def test_a_word_that_the_graph_does_not_know_is_told(
    float_graph, checkpoint_copy, write_file, data, with_config, engine
) -> None:
    folder = checkpoint_copy("classifier")
    rows = json.loads((folder / "config.json").read_text())["vocab_size"]
    if not with_config:
        (folder / "config.json").unlink()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens([f"more{index}x" for index in range(rows + 1 - len(tokenizer))])
    tokenizer.save_pretrained(folder)
    last = tokenizer.convert_ids_to_tokens(rows)
    words = {"task": CLASSIFICATION, "tokenizer": str(folder), "engine": engine}
    label = "2" if not with_config else "positive"
    fine = write_file("fine.csv", f"text,label\nthe cat,{label}\n")
    assert qdqbert.evaluate(float_graph, fine, **words).examples == 1
    unknown = write_file("unknown.csv", f"text,label\nthe {last} cat,{label}\n")
    with pytest.raises(UserInputError, match=f"token ids, and the tokenizer returned id {rows}"):
        qdqbert.evaluate(float_graph, unknown, **words)


def test_a_graph_that_predicts_no_words_is_told(save_tiny, write_file, tmp_path) -> None:
    folder = save_tiny(tmp_path / "tagger", "bert", AutoModelForTokenClassification)
    export_float(str(folder), tmp_path / "tagger.onnx", [8])
    texts = write_file("texts.csv", "text\nthe cat sat\n")
    with pytest.raises(UserInputError, match=r"task `fill-mask` reads one for each of its \d+"):
        qdqbert.evaluate(tmp_path / "tagger.onnx", texts, task="fill-mask", tokenizer=str(folder))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"provider": "xyz"}, "^`provider='xyz'`"),
        ({"engine": "other"}, "^Engine 'other' is unknown"),
    ],
)
def test_what_is_wrong_with_an_engine_is_not_blamed_on_the_graph(
    float_graph, checkpoints, data, changes, message
) -> None:
    words = {"task": CLASSIFICATION, "tokenizer": str(checkpoints("classifier")), **changes}
    with pytest.raises(UserInputError, match=message):
        qdqbert.evaluate(float_graph, data, **words)


def test_a_folder_made_without_a_config_is_scored(
    float_graph, checkpoint_copy, write_file, quantized, tmp_path
) -> None:
    folder = checkpoint_copy("classifier")
    (folder / "config.json").unlink()
    made = tmp_path / "int8"
    qdqbert.quantize(
        float_graph,
        made,
        task=CLASSIFICATION,
        tokenizer=str(folder),
        calibration_data=str(quantized("classifier").data),
        calibration_samples=24,
        benchmark=False,
    )
    numbers = write_file("numbers.csv", "text,label\nthe cat,2\nrain,0\n")
    report = qdqbert.evaluate(made, numbers, reference=float_graph)
    assert report.fidelity.sqnr_db > 15


def test_a_graph_that_gives_sentence_embeddings_alone_is_scored(
    checkpoints, write_file, tmp_path
) -> None:
    folder = checkpoints("sentence")
    export_float(str(folder), tmp_path / "both.onnx", [8])
    model = onnx.load(tmp_path / "both.onnx")
    (other,) = (each for each in model.graph.output if each.name != "sentence_embedding")
    model.graph.output.remove(other)
    onnx.save(model, tmp_path / "pooled.onnx")
    words = {"task": "feature-extraction", "tokenizer": str(folder)}
    data = write_file("sts.csv", PAIRS)
    report = qdqbert.evaluate(tmp_path / "pooled.onnx", data, **words)
    assert report.metrics == qdqbert.evaluate(tmp_path / "both.onnx", data, **words).metrics


def test_an_input_that_tokenizers_do_not_make_is_told(
    float_graph, checkpoints, data, tmp_path
) -> None:
    model = onnx.load(float_graph)
    positions = onnx.ValueInfoProto()
    positions.CopyFrom(model.graph.input[0])
    positions.name = "position_ids"
    model.graph.input.append(positions)
    onnx.save(model, tmp_path / "positions.onnx")
    tokenizer = str(checkpoints("classifier"))
    with pytest.raises(
        UserInputError, match=r"reads position_ids in addition to .* Export it without"
    ):
        qdqbert.evaluate(
            tmp_path / "positions.onnx", data, task=CLASSIFICATION, tokenizer=tokenizer
        )


def test_positions_are_not_taken_for_types_of_tokens(
    float_graph, checkpoints, data, tmp_path
) -> None:
    path = tmp_path / "positions.onnx"
    graph = behind_identity(float_graph, path, "token_type_ids", "position_ids")
    words = {"task": CLASSIFICATION, "tokenizer": str(checkpoints("classifier"))}
    with pytest.raises(
        UserInputError, match=r"reads position_ids in addition to .* Export it without"
    ):
        qdqbert.evaluate(graph, data, **words)


def test_names_of_inputs_that_neither_graph_has_are_told(float_graph, checkpoints, data) -> None:
    words = {"task": CLASSIFICATION, "tokenizer": str(checkpoints("classifier"))}
    for names in ({"input_ids": "typo"}, {"ids": "input_ids"}, {"typo": "typo"}):
        with pytest.raises(UserInputError, match=r"input.names.* expected one of input_ids"):
            qdqbert.evaluate(float_graph, data, reference=float_graph, input_names=names, **words)


def test_a_file_beside_a_quantized_folder_is_its_own(quantized, checkpoints, data) -> None:
    made = quantized("classifier")
    other = shutil.copy(made.directory / "model.onnx", made.directory / "mine.onnx")
    try:
        report = qdqbert.evaluate(other, data, task=CLASSIFICATION)
    finally:
        Path(other).unlink()
    assert report.examples == 4


def test_without_a_config_classes_have_numbers(float_graph, checkpoint_copy, data) -> None:
    folder = checkpoint_copy("classifier")
    (folder / "config.json").unlink()
    numbered = data.with_name("numbers.csv")
    numbered.write_text("text,label\nthe cat,2\nrain,0\n")
    words = {"task": CLASSIFICATION, "tokenizer": str(folder)}
    report = qdqbert.evaluate(float_graph, numbered, **words)
    assert report.metrics[0].examples == 2
    assert any("classes have numbers" in notice for notice in report.notices)


def test_classes_that_a_config_does_not_name_have_numbers(
    float_graph, checkpoint_copy, write_file
) -> None:
    folder = checkpoint_copy("classifier")
    config = json.loads((folder / "config.json").read_text())
    left = {name: value for name, value in config.items() if "label" not in name}
    (folder / "config.json").write_text(json.dumps(left))
    numbered = write_file("numbers.csv", "text,label\nthe cat,2\nrain,0\n")
    words = {"task": CLASSIFICATION, "tokenizer": str(folder)}
    report = qdqbert.evaluate(float_graph, numbered, **words)
    assert any("names no classes" in notice for notice in report.notices)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"task": None, "tokenizer": None}, "`task` is missing, and cannot be inferred"),
        ({"task": "question-answering"}, "has outputs logits, and task `question-answering` reads"),
        ({"target": "portable"}, "`--target portable` is for quantized folders"),
        ({"task": "other"}, "^`task='other'` is unknown. Pass one of"),
        ({"tokenizer": None}, r"next to graph 'classifier\.onnx' .* pass `tokenizer`"),
        ({"tokenizer": "none"}, "`tokenizer='none'` (cannot be loaded|has no vocabulary)"),
        ({"input_names": {"input_ids": "none"}}, "expected one of input_ids"),
        ({"model": "missing.onnx"}, "there is no such file"),
    ],
)
def test_what_a_graph_cannot_be_asked_for_is_told(
    float_graph, checkpoints, data, changes, message
) -> None:
    words = {
        "model": float_graph,
        "task": CLASSIFICATION,
        "tokenizer": str(checkpoints("classifier")),
        **changes,
    }
    with pytest.raises(UserInputError, match=message):
        qdqbert.evaluate(words.pop("model"), data, **words)


def test_a_graph_of_a_quantized_folder_is_scored_as_the_folder(quantized, data) -> None:
    made = quantized("classifier")
    with pytest.raises(UserInputError, match="is part of a quantized folder"):
        qdqbert.evaluate(made.directory / "model.onnx", data, task=CLASSIFICATION)


def test_a_tokenizer_is_for_graphs(checkpoints, data) -> None:
    checkpoint = checkpoints("classifier")
    with pytest.raises(UserInputError, match=r"`--tokenizer` is for \.onnx files"):
        qdqbert.evaluate(checkpoint, data, tokenizer=str(checkpoint))


@pytest.mark.parametrize("share", [0.1, 0.9])
def test_a_part_of_a_file_is_refused(float_graph, checkpoints, data, tmp_path, share) -> None:
    broken = tmp_path / "broken.onnx"
    content = float_graph.read_bytes()
    broken.write_bytes(content[: int(len(content) * share)])
    words = ["evaluate", str(broken), "--data", str(data), "--task", CLASSIFICATION]
    result = CliRunner().invoke(app, [*words, "--tokenizer", str(checkpoints("classifier"))])
    assert result.exit_code == 2
    *_, last = result.stderr.strip().splitlines()
    assert last.startswith("Error: Graph 'broken.onnx' cannot be used: ")
    assert "Traceback" not in result.stderr


def test_a_graph_that_fails_when_it_runs_is_refused(
    float_graph, checkpoints, data, tmp_path
) -> None:
    model = onnx.load(float_graph)
    ids = model.graph.input[0].name
    far = helper.make_tensor("far", TensorProto.INT64, [1], [10**6])
    model.graph.initializer.append(far)
    for node in model.graph.node:
        node.input[:] = ["shifted" if name == ids else name for name in node.input]
    model.graph.node.insert(0, helper.make_node("Add", [ids, "far"], ["shifted"]))
    onnx.save(model, tmp_path / "far.onnx")
    with pytest.raises(UserInputError, match=r"Graph 'far\.onnx' fails when it runs"):
        qdqbert.evaluate(
            tmp_path / "far.onnx",
            data,
            task=CLASSIFICATION,
            tokenizer=str(checkpoints("classifier")),
        )
