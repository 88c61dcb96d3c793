from __future__ import annotations

import numpy as np
import pytest
import torch
import transformers
from scipy import stats

import qdqbert
from qdqbert.errors import MissingExtraError, UserInputError

CLASSES = "text,label\nthe cat sat on the book,positive\nrain,0\na dog in the city,NEUTRAL\nme,2\n"
PAIRS = """sentence1,sentence2,score
the cat sat,a dog sat,3.5
rain on the river,rain on a river,5
music,the little state of the night is good,0.2
home,house,4
"""


def test_accuracy_is_that_of_a_computation_by_hand(checkpoints, write_file) -> None:
    folder = checkpoints("classifier")
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    texts = [line.split(",")[0] for line in CLASSES.splitlines()[1:]]
    with torch.inference_mode():
        answers = [
            int(model(**tokenizer(text, return_tensors="pt")).logits.argmax()) for text in texts
        ]
    right = [answer == label for answer, label in zip(answers, [2, 0, 1, 2], strict=True)]

    report = qdqbert.evaluate(folder, write_file("dev.csv", CLASSES), batch_size=3)
    assert report.metrics[0].value == 100 * np.mean(right)
    assert (report.task, report.engine) == ("text-classification", "pytorch")
    assert (report.examples, report.metrics[0].examples) == (4, 4)
    assert report.fidelity is None


def test_spearman_is_that_of_sentence_transformers_embeddings(checkpoints, write_file) -> None:
    library = pytest.importorskip("sentence_transformers")
    folder = checkpoints("sentence")
    rows = [line.split(",") for line in PAIRS.splitlines()[1:]]
    encoder = library.SentenceTransformer(str(folder), device="cpu")
    first, second = (encoder.encode([row[index] for row in rows]) for index in (0, 1))
    cosines = (first * second).sum(axis=1)
    expected = stats.spearmanr(cosines, [float(row[2]) for row in rows]).statistic

    report = qdqbert.evaluate(folder, write_file("sts.csv", PAIRS))
    metrics = {metric.name: metric.value for metric in report.metrics}
    assert set(metrics) == {"spearman", "pearson"}
    assert metrics["spearman"] == pytest.approx(100 * expected, abs=1e-6)  # float64 rounding
    assert report.examples == 4


def test_a_reranker_is_scored_on_pairs_read_together(checkpoints, write_file) -> None:
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
    report = qdqbert.evaluate(folder, write_file("sts.csv", PAIRS))
    assert report.metrics[0].name == "spearman"
    assert report.metrics[0].value == pytest.approx(100 * expected, abs=1e-6)  # float64 rounding


@pytest.mark.parametrize(("name", "data"), [("classifier", CLASSES), ("sentence", PAIRS)])
def test_a_checkpoint_is_exactly_itself(checkpoints, write_file, name, data) -> None:
    folder = checkpoints(name)
    fidelity = qdqbert.evaluate(folder, write_file("dev.csv", data), reference=folder).fidelity
    assert fidelity.sqnr_db == np.inf
    if name == "sentence":
        assert fidelity.texts == 8
        # float64 rounding of a product of norms.
        assert fidelity.cosine_min == pytest.approx(1, abs=1e-12)
    else:
        assert fidelity.flips_percent == 0


@pytest.mark.parametrize(("name", "data"), [("classifier", CLASSES), ("sentence", PAIRS)])
def test_an_int8_folder_is_near_its_checkpoint(quantized, write_file, engine, name, data) -> None:
    made = quantized(name)
    report = qdqbert.evaluate(
        made.directory, write_file("dev.csv", data), engine=engine, reference=made.checkpoint
    )
    assert report.engine == engine
    # 8 bits without outliers give about 35 dB; a wrong scale gives less than 20.
    assert report.fidelity.sqnr_db > 25


def test_an_int8_folder_runs_on_onnx_runtime_unless_told(quantized, write_file) -> None:
    directory = quantized("sentence").directory
    report = qdqbert.evaluate(directory, write_file("sts.csv", PAIRS))
    assert report.engine == "onnxruntime"


def test_the_report_says_which_graph_and_how_the_reference_does(
    quantized, checkpoints, write_file
) -> None:
    made, data = quantized("classifier"), write_file("dev.csv", CLASSES)
    report = qdqbert.evaluate(made.directory, data, reference=made.checkpoint)
    assert (report.target, report.reference) == ("portable", str(made.checkpoint))
    alone = qdqbert.evaluate(made.checkpoint, data)
    assert report.reference_metrics == alone.metrics
    assert (alone.target, alone.reference, alone.reference_metrics) == (None, None, ())


def test_only_the_first_rows_are_read_on_wish(checkpoints, write_file) -> None:
    data = write_file("dev.csv", CLASSES)
    report = qdqbert.evaluate(checkpoints("classifier"), data, max_examples=2)
    assert (report.examples, report.metrics[0].examples) == (2, 2)


def test_columns_can_be_named(checkpoints, write_file) -> None:
    data = write_file("dev.csv", "body,stars\nthe cat,2\nrain,0\n")
    columns = qdqbert.Columns(text="body", label="stars")
    report = qdqbert.evaluate(checkpoints("classifier"), data, columns=columns)
    assert report.examples == 2


def test_texts_that_are_cut_are_counted_and_told(checkpoints, write_file) -> None:
    data = write_file("dev.csv", f"text,label\n{'cat ' * 63},0\n{'cat ' * 62},0\n")
    report = qdqbert.evaluate(checkpoints("classifier"), data)
    assert "1 of 2 texts was longer than 64 tokens and was cut." in report.notices


def test_an_engine_is_for_int8_folders(checkpoints, write_file) -> None:
    data = write_file("dev.csv", CLASSES)
    with pytest.raises(UserInputError, match="`--engine onnxruntime` is for quantized folders"):
        qdqbert.evaluate(checkpoints("classifier"), data, engine="onnxruntime")


def test_a_reference_of_another_width_is_refused(checkpoints, write_file) -> None:
    data = write_file("dev.csv", "text,text_pair,label\nthe cat,a dog,1\nrain,river,2\n")
    with pytest.raises(UserInputError, match="gives 1 numbers a text, the model 3"):
        qdqbert.evaluate(checkpoints("classifier"), data, reference=checkpoints("reranker"))


def test_an_engine_that_is_not_installed_says_what_to_install(
    quantized, write_file, monkeypatch
) -> None:
    directory, data = quantized("sentence").directory, write_file("sts.csv", PAIRS)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"pip install 'qdqbert\[openvino\]'"):
        qdqbert.evaluate(directory, data, engine="openvino")
