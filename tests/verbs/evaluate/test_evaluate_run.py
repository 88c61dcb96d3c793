"""Evaluation of checkpoints and quantized folders."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
import transformers
from scipy import stats

import flat
import qdqbert
from qdqbert.common.errors import CheckpointError, DataFileError, MissingExtraError, UserInputError
from qdqbert.evidence.reporting.page import page

CLASSES = "text,label\nthe cat sat on the book,positive\nrain,0\na dog in the city,NEUTRAL\nme,2\n"
PAIRS = """sentence1,sentence2,score
the cat sat,a dog sat,3.5
rain on the river,rain on a river,5
music,the little state of the night is good,0.2
home,house,4
"""
QUESTIONS = {
    "id": "q1",
    "question": "who sat",
    "context": "the cat sat on the book",
    "answers": {"text": ["the cat"], "answer_start": [0]},
}


pytestmark = pytest.mark.usefixtures("own_cache")


each_output = pytest.mark.parametrize(
    ("name", "data"),
    [("classifier", CLASSES), ("sentence", PAIRS)],
    ids=["classifier", "sentence"],
)


def test_accuracy_matches_a_computation_by_hand(checkpoints, write_file) -> None:
    folder = checkpoints("classifier")
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    texts = [line.split(",")[0] for line in CLASSES.splitlines()[1:]]
    with torch.inference_mode():
        answers = [
            int(model(**tokenizer(text, return_tensors="pt")).logits.argmax()) for text in texts
        ]
    right = [answer == label for answer, label in zip(answers, [2, 0, 1, 2], strict=True)]

    report = flat.evaluate(folder, write_file("dev.csv", CLASSES), batch_size=3)
    assert report.metrics[0].value == 100 * np.mean(right)
    assert (report.task, report.engine) == ("text-classification", "pytorch")
    assert (report.examples, report.metrics[0].examples) == (4, 4)
    assert (report.fidelity, report.target, report.reference) == (None, None, None)
    assert report.reference_metrics == ()


def test_rows_in_memory_have_the_metrics_of_the_same_rows_in_a_file(
    checkpoints, write_file
) -> None:
    folder = checkpoints("classifier")
    rows = [
        dict(zip(("text", "label"), row.split(","), strict=True))
        for row in CLASSES.splitlines()[1:]
    ]
    expected = flat.evaluate(folder, write_file("dev.csv", CLASSES))
    report = flat.evaluate(folder, rows)
    assert report.metrics == expected.metrics
    assert (report.data, report.examples) == ("<list of 4 rows>", 4)
    assert report.command.endswith("--data '<list of 4 rows>'")
    with pytest.raises(
        UserInputError, match=r"^`data`: Row 2 of `<list of 2 rows>`, column"
    ) as caught:
        flat.evaluate(folder, [*rows[:1], {"text": "me", "label": "no class"}])
    assert caught.value.argument == "data"


def test_spearman_matches_embeddings_of_sentence_transformers(checkpoints, write_file) -> None:
    library = pytest.importorskip("sentence_transformers")
    folder = checkpoints("sentence")
    rows = [line.split(",") for line in PAIRS.splitlines()[1:]]
    encoder = library.SentenceTransformer(str(folder), device="cpu")
    first, second = (encoder.encode([row[index] for row in rows]) for index in (0, 1))
    cosines = (first * second).sum(axis=1)
    expected = stats.spearmanr(cosines, [float(row[2]) for row in rows]).statistic

    report = flat.evaluate(folder, write_file("sts.csv", PAIRS))
    metrics = {metric.name: metric.value for metric in report.metrics}
    assert set(metrics) == {"spearman", "pearson"}
    # Rounding of float64.
    assert metrics["spearman"] == pytest.approx(100 * expected, abs=1e-6)
    assert report.examples == 4


def test_a_reranker_reads_both_texts_of_a_pair_together(checkpoints, write_file) -> None:
    folder = checkpoints("reranker")
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    rows = [line.split(",") for line in PAIRS.splitlines()[1:]]
    with torch.inference_mode():
        scores = [
            float(model(**tokenizer(first, second, return_tensors="pt")).logits)
            for first, second, _ in rows
        ]
    expected = stats.spearmanr(scores, [float(row[2]) for row in rows]).statistic
    report = flat.evaluate(folder, write_file("sts.csv", PAIRS))
    assert report.metrics[0].name == "spearman"
    # Rounding of float64.
    assert report.metrics[0].value == pytest.approx(100 * expected, abs=1e-6)


@pytest.mark.parametrize("name", ["sentence", "reranker"])
def test_equal_scores_are_refused_before_the_model_runs(checkpoints, write_file, name) -> None:
    data = write_file("sts.csv", "sentence1,sentence2,score\na,b,3\nc,d,3\n")
    with pytest.raises(UserInputError, match=r"^`data`: All scores of .*sts.csv") as caught:
        flat.evaluate(checkpoints(name), data)
    assert caught.value.argument == "data"


@each_output
@pytest.mark.usual("sentence")
def test_a_checkpoint_equals_itself(checkpoints, write_file, name, data) -> None:
    folder = checkpoints(name)
    fidelity = flat.evaluate(folder, write_file("dev.csv", data), reference=folder).fidelity
    assert fidelity.sqnr_db == np.inf
    if name == "sentence":
        assert fidelity.texts == 8
        # Rounding of a product of norms in float64.
        assert fidelity.cosine_min == pytest.approx(1, abs=1e-12)
    else:
        assert fidelity.flips_percent == 0


@each_output
@pytest.mark.usual("onnxruntime-sentence", "openvino-classifier")
def test_a_quantized_folder_is_close_to_its_checkpoint(
    quantized, write_file, engine, name, data
) -> None:
    made, path = quantized(name), write_file("dev.csv", data)
    report = flat.evaluate(made.directory, path, engine=engine, reference=made.checkpoint)
    assert (report.engine, report.reference) == (engine, str(made.checkpoint))
    # A folder with several graphs has one for each engine.
    assert report.target == (engine if name == "sentence" else "portable")
    # 8 bits without outliers give about 35 dB. A wrong scale gives less than 20.
    assert report.fidelity.sqnr_db > 25
    assert report.reference_metrics == flat.evaluate(made.checkpoint, path).metrics


def test_differences_and_limits_are_reported(quantized, write_file) -> None:
    made, path = quantized("sentence"), write_file("sts.csv", PAIRS)
    report = flat.evaluate(
        made.directory, path, reference=made.checkpoint, min_sqnr=10, min_cosine=1
    )
    for each, ours, theirs in zip(
        report.differences, report.metrics, report.reference_metrics, strict=True
    ):
        assert each.value == ours.value - theirs.value
        assert each.interval.low <= each.value <= each.interval.high
    assert [(each.option, each.verdict) for each in report.limits] == [
        ("min_sqnr", "met"),
        ("min_cosine", "missed"),
    ]
    assert not report.meets_limits


def test_a_limit_without_a_reference_is_refused_before_the_model_is_loaded() -> None:
    with pytest.raises(UserInputError, match=r"`max_drop=0\.5` compares the model") as caught:
        flat.evaluate("./missing", "dev.csv", max_drop=0.5)
    assert caught.value.argument == "max_drop"


def test_the_native_engine_has_the_metrics_of_onnx_runtime(quantized, write_file) -> None:
    folder, path = quantized("sentence").directory, write_file("sts.csv", PAIRS)
    native = flat.evaluate(folder, path, engine="native")
    assert (native.engine, native.target) == ("native", "native")
    expected = flat.evaluate(folder, path, engine="onnxruntime").metrics
    assert [each.name for each in native.metrics] == [each.name for each in expected]
    for ours, theirs in zip(native.metrics, expected, strict=True):
        assert ours.value == pytest.approx(theirs.value, abs=5)


def test_a_quantized_folder_runs_on_the_engine_of_load_by_default(quantized, write_file) -> None:
    folder = quantized("sentence").directory
    report = flat.evaluate(folder, write_file("sts.csv", PAIRS))
    with qdqbert.load(folder) as model:
        assert (report.engine, report.target) == (model.engine, model.target)


def test_the_number_of_examples_can_be_limited(checkpoints, write_file) -> None:
    data = write_file("dev.csv", CLASSES)
    report = flat.evaluate(checkpoints("classifier"), data, max_examples=2)
    assert (report.examples, report.metrics[0].examples) == (2, 2)


def test_columns_can_be_named(checkpoints, write_file) -> None:
    data = write_file("dev.csv", "body,stars\nthe cat,2\nrain,0\n")
    report = flat.evaluate(
        checkpoints("classifier"), data, text_column="body", label_column="stars"
    )
    assert report.examples == 2


@pytest.mark.parametrize("name", ["checkpoint", "directory"])
def test_a_length_above_the_limit_of_the_model_is_reported(quantized, write_file, name) -> None:
    model = getattr(quantized("classifier"), name)
    data = write_file("dev.csv", "text,label\nthe cat,Positive\n")
    report = flat.evaluate(
        model, data, max_length=65, reference=model if name == "checkpoint" else None
    )
    message = "`max_length=65` exceeds the model's limit of 64 tokens, which is used."
    assert [each for each in report.notices if "max_length" in each] == [message]


def test_pooling_is_refused_where_no_checkpoint_reads_it(quantized, write_file) -> None:
    made = quantized("sentence")
    data = write_file("sts.csv", "sentence1,sentence2,score\nthe cat,a dog,1\nrain,night,2\n")
    with pytest.raises(UserInputError, match="`pooling='cls'` applies to checkpoints") as caught:
        flat.evaluate(made.directory, data, pooling="cls")
    assert caught.value.argument == "pooling"
    flat.evaluate(made.directory, data, pooling="cls", reference=made.checkpoint)


def test_truncated_texts_are_counted(checkpoints, write_file) -> None:
    data = write_file("dev.csv", f"text,label\n{'cat ' * 63},0\n{'cat ' * 62},0\n")
    report = flat.evaluate(checkpoints("classifier"), data)
    assert any("1 of 2 texts" in notice and "64 tokens" in notice for notice in report.notices)


def test_the_files_of_a_task_are_written(save_tiny, write_file, tmp_path) -> None:
    folder = save_tiny(tmp_path / "reader", "bert", transformers.AutoModelForQuestionAnswering)
    data = write_file("dev.jsonl", json.dumps(QUESTIONS))
    flat.evaluate(folder, data, output=tmp_path / "files", doc_stride=16)
    predictions = json.loads((tmp_path / "files" / "predictions.json").read_text())
    assert set(predictions) == {"q1"}
    blocked = write_file("blocked", "")
    with pytest.raises(UserInputError, match="cannot be written") as caught:
        flat.evaluate(folder, data, output=blocked / "files", doc_stride=16)
    assert caught.value.argument == "output"


def test_the_report_is_a_page_in_the_output(checkpoints, write_file, tmp_path) -> None:
    data = write_file("dev.csv", CLASSES)
    report = flat.evaluate(checkpoints("classifier"), data, output=tmp_path / "files")
    assert report.directory == str(tmp_path / "files")
    assert {path.name for path in (tmp_path / "files").iterdir()} == set(report.files)
    assert report.files == ("predictions.jsonl", "report.html")
    assert (tmp_path / "files" / "report.html").read_text() == page(report)


@pytest.mark.parametrize("name", ["sentence", "sparse", "multi_vector"])
def test_texts_alone_are_listed_by_how_far_their_vectors_change(
    checkpoints, write_file, tmp_path, name
) -> None:
    data, output = write_file("dev.txt", "the cat sat\nrain\nmusic\n"), tmp_path / "files"
    folder = checkpoints(name)
    flat.evaluate(folder, data, engine="native", reference=folder, output=output)
    rows = [
        [json.loads(line) for line in (output / file).read_text().splitlines()]
        for file in ("predictions.jsonl", "changed.jsonl")
    ]
    assert [each["text"] for each in rows[0]] == ["the cat sat", "rain", "music"]
    changes = [each["change"] for each in rows[1]]
    assert 0 < changes[-1] < changes[0] < 1
    assert changes == sorted(changes, reverse=True)


@pytest.mark.parametrize("tag", ["B-ORG", "-100"])
def test_labels_that_the_model_lacks_are_refused_next_to_a_reference(
    save_tiny, tmp_path, tag
) -> None:
    folder = save_tiny(
        tmp_path / "tagger",
        "bert",
        transformers.AutoModelForTokenClassification,
        id2label={0: "O", 1: "B-PER"},
    )
    rows = [{"tokens": ["the", "cat"], "ner_tags": ["O", each]} for each in ("O", tag)]
    with pytest.raises(DataFileError, match=f"Row 2 of .*{tag}"):
        qdqbert.evaluate(folder, rows, reference=folder)


@pytest.mark.parametrize("option", [{"engine": "onnxruntime"}, {"target": "portable"}])
def test_an_engine_or_a_target_of_a_checkpoint_is_refused(checkpoints, write_file, option) -> None:
    data = write_file("dev.csv", CLASSES)
    (name,) = option
    with pytest.raises(UserInputError, match=f"`{name}=.*is a checkpoint, which runs in PyTorch"):
        flat.evaluate(checkpoints("classifier"), data, **option)


@each_output
@pytest.mark.usual("sentence")
def test_the_native_engine_runs_a_checkpoint_in_int8(checkpoints, write_file, name, data) -> None:
    folder, file = checkpoints(name), write_file("dev.csv", data)
    report = flat.evaluate(folder, file, engine="native", reference=folder)
    assert (report.engine, report.target) == ("native", "native-dynamic")
    assert 14 < report.fidelity.sqnr_db < 60
    assert any("the float checkpoint in INT8" in notice for notice in report.notices)
    reference = flat.evaluate(folder, file)
    assert reference.engine == "pytorch"
    values = [each.value for each in report.reference_metrics]
    assert values == [each.value for each in reference.metrics]


def test_int8_of_a_checkpoint_has_the_answers_of_load(checkpoints, write_file, tmp_path) -> None:
    folder, file = checkpoints("classifier"), write_file("dev.csv", CLASSES)
    flat.evaluate(folder, file, engine="native", output=tmp_path / "files")
    lines = (tmp_path / "files" / "predictions.jsonl").read_text().splitlines()
    found = [json.loads(line)["prediction"] for line in lines]
    with qdqbert.load(folder, check=False) as model:
        answers = model([line.split(",")[0] for line in CLASSES.splitlines()[1:]])
    assert found == [each["label"] for each in answers]


@pytest.mark.slow
def test_int8_of_a_checkpoint_reads_as_many_tokens_as_float(checkpoint_copy, write_file) -> None:
    folder = checkpoint_copy("classifier")
    content = {"format": "qdqbert-training/2", "max_length": 12, "task_options": {}}
    (folder / "training.json").write_text(json.dumps({**content, "calibration": {}}))
    data = write_file("dev.csv", f"text,label\n{'cat ' * 11},0\n{'cat ' * 10},0\n")
    notices = [flat.evaluate(folder, data, engine=each).notices for each in (None, "native")]
    assert all(any("1 of 2 texts" in notice for notice in each) for each in notices)


def test_int8_of_a_checkpoint_with_quantizers_has_their_ranges(checkpoint_copy, write_file) -> None:
    folder = checkpoint_copy("classifier")
    model = qdqbert.QDQBertForSequenceClassification.from_pretrained(folder)
    batch = {"input_ids": torch.arange(2, 18)[None]}
    qdqbert.calibrate(model, [batch]).save_pretrained(folder)
    data = write_file("dev.csv", "text,label\nthe cat,0\nrain,1\n")
    report = flat.evaluate(folder, data, engine="native")
    assert any("with the ranges that it stores" in notice for notice in report.notices)


def test_int8_of_a_checkpoint_whose_code_transformers_lacks(checkpoint_copy, write_file) -> None:
    folder = checkpoint_copy("classifier")
    sizes = {"vocab_size": 263, "hidden_size": 32, "num_attention_heads": 2}
    config = transformers.AutoConfig.for_model(
        "gte", **sizes, num_hidden_layers=1, intermediate_size=48, max_position_embeddings=64
    )
    model = transformers.AutoModelForSequenceClassification.from_config(config)
    model.save_pretrained(folder)
    content = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**content, "model_type": "new"}))
    data = write_file("dev.csv", "text,label\nthe cat,0\nrain,1\n")
    report = flat.evaluate(folder, data, engine="native", reference=folder)
    assert (report.engine, report.examples) == ("native", 2)
    assert any("Reference: It runs in float on the native" in each for each in report.notices)
    assert 14 < report.fidelity.sqnr_db < 60
    with pytest.raises(
        CheckpointError, match="in PyTorch do not support checkpoints of type `new`"
    ):
        flat.evaluate(folder, data, reference=folder)
    with pytest.raises(UserInputError, match=r"`reference=.* runs on the native engine\. Leave"):
        flat.evaluate(folder, data, engine="native", reference=folder, pooling="cls")


def test_what_fixes_the_outputs_of_float_is_refused_for_int8(checkpoints, write_file) -> None:
    data = write_file("sts.csv", PAIRS)
    with pytest.raises(UserInputError, match="`pooling='cls'` applies to checkpoints in PyTorch"):
        flat.evaluate(checkpoints("sentence"), data, engine="native", pooling="cls")
    with pytest.raises(UserInputError, match="`task='fill-mask'` does not fit"):
        flat.evaluate(checkpoints("sentence"), data, engine="native", task="fill-mask")


def test_a_missing_folder_is_reported_before_an_engine_that_does_not_apply(write_file) -> None:
    data = write_file("dev.csv", CLASSES)
    with pytest.raises(CheckpointError, match=r"'./no-such-dir' does not exist"):
        flat.evaluate("./no-such-dir", data, engine="onnxruntime")


def test_a_reference_with_other_outputs_is_refused(checkpoints, write_file) -> None:
    data = write_file("dev.csv", "text,text_pair,label\nthe cat,a dog,1\nrain,river,2\n")
    with pytest.raises(UserInputError, match="returns 1 values for a text, and the model 3"):
        flat.evaluate(checkpoints("classifier"), data, reference=checkpoints("reranker"))


def test_the_error_for_a_missing_engine_names_the_package_to_install(
    quantized, write_file, monkeypatch
) -> None:
    directory, data = quantized("sentence").directory, write_file("sts.csv", PAIRS)
    monkeypatch.setattr("qdqbert.engines.registry.is_installed", lambda engine: False)
    with pytest.raises(MissingExtraError, match=r"pip install 'qdqbert\[openvino\]'"):
        flat.evaluate(directory, data, engine="openvino")


def test_labels_count_as_the_names_say(save_tiny, tmp_path, write_file) -> None:
    names = {0: "1 star", 1: "2 stars", 2: "3 stars"}
    folder = save_tiny(
        tmp_path / "stars",
        "bert",
        transformers.AutoModelForSequenceClassification,
        id2label=names,
        label2id={name: index for index, name in names.items()},
    )
    texts, stars = ("the cat sat", "rain", "a dog in the city", "night"), (3, 1, 2, 1)
    rows = [f"{text},{star}.0" for text, star in zip(texts, stars, strict=True)]
    numbers = write_file("numbers.csv", "\n".join(["text,label", *rows]))
    rows = [f"{text},{names[star - 1]}" for text, star in zip(texts, stars, strict=True)]
    spelled = write_file("names.csv", "\n".join(["text,label", *rows]))

    report = flat.evaluate(folder, numbers, output=tmp_path / "out")
    assert report.metrics == flat.evaluate(folder, spelled).metrics
    assert report.notices[0].startswith("Labels are read as the numbers in the names of classes: ")
    lines = (tmp_path / "out" / "predictions.jsonl").read_text().splitlines()
    assert [json.loads(line)["label"] for line in lines] == [names[star - 1] for star in stars]
