"""Heads whose outputs are numbers, compared with transformers' pipeline "text-classification"."""

from __future__ import annotations

import json

import numpy as np
import pytest
import transformers
from scipy import stats
from starlette.testclient import TestClient

import flat
import qdqbert
from qdqbert.common.errors import DataFileError, UserInputError
from qdqbert.common.progress import progress_of
from qdqbert.data.rows.data import Columns, Example
from qdqbert.serving.app import build_app
from qdqbert.serving.models import open_models
from qdqbert.serving.options import ServerOptions
from qdqbert.tasks.regression import ONE_SCORE, REGRESSION, Regressor, numbers_of
from qdqbert.tasks.reranking import Reranker
from qdqbert.tasks.task import Features, Outcome

HEAD = "AutoModelForSequenceClassification"
TEXTS = ["the cat sat on the book", "music in the night", "a dog"]
PAIRS = [{"text": TEXTS[0], "text_pair": each} for each in TEXTS]
CLOSE = {"rtol": 0, "atol": 1e-5}


pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture(scope="module")
def folders(tiny_artifact):
    """Return a checkpoint and its folder with float graphs, by outputs and kind of problem."""

    def make(outputs: int, problem: str | None = "regression"):
        changes = {"num_hidden_layers": 1, "num_labels": outputs, "problem_type": problem}
        return tiny_artifact(HEAD, **changes)

    return make


def scores_of(answers) -> list[dict[str, float]]:
    return [{each["label"]: each["score"] for each in answer} for answer in answers]


def their_scores(folder, inputs) -> list[dict[str, float]]:
    run = transformers.pipeline("text-classification", model=str(folder), device="cpu")
    return scores_of([run(each, top_k=None) for each in inputs])


@pytest.mark.parametrize("is_quantized", [False, True])
@pytest.mark.parametrize("inputs", [TEXTS, PAIRS], ids=["texts", "pairs"])
@pytest.mark.parametrize(
    ("outputs", "problem", "kind"),
    [
        (1, "regression", Regressor),
        (3, "regression", qdqbert.TextClassifier),
        (1, None, Reranker),
        (1, "multi_label_classification", Reranker),
    ],
)
@pytest.mark.usual("3-*", "1-regression-*", "*-pairs-*")
def test_scores_are_those_of_the_pipeline(
    folders, outputs, problem, kind, inputs, is_quantized
) -> None:
    checkpoint, folder = folders(outputs, problem)
    expected = their_scores(checkpoint, inputs)
    options = {"engine": "onnxruntime"} if is_quantized else {"precision": "float"}
    with qdqbert.load(folder if is_quantized else checkpoint, **options) as model:
        assert type(model) is kind
        found = scores_of(model(inputs, top_k=None))
    assert found == [pytest.approx(each, abs=1e-5) for each in expected]


def test_pairs_are_scored_and_ranked_by_the_numbers(folders) -> None:
    checkpoint, _ = folders(1)
    expected = [each["LABEL_0"] for each in their_scores(checkpoint, PAIRS)]
    with qdqbert.load(checkpoint, precision="float") as model:
        found = model.predict([tuple(each.values()) for each in PAIRS])
        np.testing.assert_allclose(found, expected, **CLOSE)
        ranked = model.rank(TEXTS[0], TEXTS)
    assert [each["corpus_id"] for each in ranked] == np.argsort(expected)[::-1].tolist()


def test_a_regression_can_be_loaded_as_a_reranker(folders) -> None:
    checkpoint, _ = folders(1)
    with qdqbert.load(checkpoint, precision="float", task="reranking") as model:
        assert type(model) is Reranker
    with pytest.raises(UserInputError, match="is a model for 'text-classification'"):
        qdqbert.load(checkpoint, precision="float", task="fill-mask")


@pytest.mark.parametrize("columns", [1, 2])
def test_run_writes_the_number_of_texts_and_pairs(folders, tmp_path, columns) -> None:
    checkpoint, folder = folders(1)
    rows = [tuple(each.values())[:columns] for each in PAIRS] if columns > 1 else TEXTS
    data, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    names = ("text", "text_pair")[:columns]
    fields = [dict(zip(names, (row,) if columns == 1 else row, strict=True)) for row in rows]
    data.write_text("\n".join(map(json.dumps, fields)))
    chosen = {"text_pair_column": "text_pair"} if columns == 2 else {}
    qdqbert.run(str(folder), str(data), output=out, **chosen)
    found = [json.loads(line) for line in out.read_text().splitlines()]
    expected = their_scores(checkpoint, TEXTS if columns == 1 else PAIRS)
    assert [each["score"] for each in found] == pytest.approx(
        [each["LABEL_0"] for each in expected], abs=1e-5
    )


def test_a_server_returns_the_numbers(folders) -> None:
    checkpoint, folder = folders(1)
    single = [each["LABEL_0"] for each in their_scores(checkpoint, TEXTS)]
    paired = [each["LABEL_0"] for each in their_scores(checkpoint, PAIRS)]
    options = ServerOptions(models=[str(folder)])
    with open_models(options, progress_of(False)) as models:
        client = TestClient(build_app(models))
        answers = client.post("/predict", json={"inputs": [[each] for each in TEXTS]}).json()
        assert [each["score"] for (each,) in answers] == pytest.approx(single, abs=1e-5)
        body = {"text_1": TEXTS[0], "text_2": TEXTS}
        answers = client.post("/score", json=body).json()["data"]
        assert [each["score"] for each in answers] == pytest.approx(paired, abs=1e-5)
        answers = client.post("/rerank", json={"query": TEXTS[0], "texts": TEXTS}).json()
        assert {each["index"]: each["score"] for each in answers} == pytest.approx(
            dict(enumerate(paired)), abs=1e-5
        )
        answers = client.post("/text-classification", json={"inputs": TEXTS}).json()
        assert [each["score"] for (each,) in answers] == pytest.approx(single, abs=1e-5)


@pytest.mark.parametrize("outputs", [1, 3])
def test_evaluate_correlates_and_measures_errors(folders, tmp_path, outputs) -> None:
    checkpoint, folder = folders(outputs)
    texts = [f"{a} {b}" for a in TEXTS for b in TEXTS]
    labels = np.random.default_rng(0).normal(size=(len(texts), outputs)).round(3)
    rows = [
        {"text": text, "label": label.tolist() if outputs > 1 else label[0]}
        for text, label in zip(texts, labels, strict=True)
    ]
    data = tmp_path / "rows.jsonl"
    data.write_text("\n".join(map(json.dumps, rows)))
    names = [f"LABEL_{index}" for index in range(outputs)]
    found = [[each[name] for name in names] for each in their_scores(checkpoint, texts)]
    columns = list(zip(np.array(found).T, labels.T, strict=True))
    expected = {
        "spearman": 100 * np.mean([stats.spearmanr(*each)[0] for each in columns]),
        "pearson": 100 * np.mean([stats.pearsonr(*each)[0] for each in columns]),
        "rmse": np.sqrt(np.mean((found - labels) ** 2)),
    }
    for model in (checkpoint, folder):
        metrics = flat.evaluate(str(model), str(data)).metrics
        assert {each.name: each.value for each in metrics} == pytest.approx(expected, rel=1e-4)
        assert [each.is_error for each in metrics] == [False, False, True]


def features(labels) -> Features:
    examples = tuple(Example(text="a", label=each, row=row) for row, each in enumerate(labels))
    return Features(examples=examples, encoded=None)


def test_a_sigmoid_has_no_error_on_the_scale_of_labels() -> None:
    predictions = [np.array([x], np.float32) for x in (1.0, 3.0, 2.0)]
    found = ONE_SCORE.metrics(Outcome(predictions, features("132"), {0: "score"}))
    assert [(each.name, each.value) for each in found] == [("spearman", 100), ("pearson", 100)]


@pytest.mark.parametrize(
    ("label", "outputs", "expected"),
    [
        ("2.5", 1, [2.5]),
        ("[1, -2.5, 1e3]", 3, [1, -2.5, 1000]),
        ("1|2", 2, [1, 2]),
        ("0.5; 1.5", 2, [0.5, 1.5]),
    ],
)
def test_labels_are_numbers(label, outputs, expected) -> None:
    assert numbers_of(Example(text="a", label=label, row=1), outputs) == expected


@pytest.mark.parametrize(
    ("label", "outputs"),
    [
        ("", 1),
        ("good", 1),
        ("nan", 1),
        ("[1]", 1),
        ("[1, 2]", 3),
        ("1", 2),
        ("[1, null]", 2),
        ("1|x", 2),
    ],
)
def test_other_labels_are_refused(label, outputs) -> None:
    with pytest.raises(DataFileError, match=r"[Ll]abel"):
        numbers_of(Example(text="a", label=label, row=1), outputs)


def test_a_label_that_is_no_number_is_refused_with_its_row(write_file) -> None:
    path = write_file("rows.csv", "text,label\na,2.5\nb,good\n")
    dataset = REGRESSION.read(str(path), columns=Columns(), max_examples=None)
    with pytest.raises(DataFileError, match=r"^Line 3 of .* 'good' is not a finite number"):
        REGRESSION.check_labels(dataset, {0: "LABEL_0"})


def test_a_model_is_trained_with_the_numbers() -> None:
    assert REGRESSION.labels(features(("1", "2.5")), {0: "a"}) == [{"labels": 1}, {"labels": 2.5}]
    (several,) = REGRESSION.labels(features(["[1, 2.5]"]), {0: "a", 1: "b"})
    np.testing.assert_array_equal(several["labels"], np.array([1, 2.5], np.float32))


def test_labels_that_are_equal_for_one_output_are_refused(write_file) -> None:
    path = write_file(
        "rows.jsonl", '{"text": "a", "label": [1, 2]}\n{"text": "b", "label": [1, 3]}'
    )
    dataset = REGRESSION.read(str(path), columns=Columns(), max_examples=None)
    with pytest.raises(DataFileError, match=r"All scores of .*, number 0 of each list, are 1"):
        REGRESSION.check_metrics(dataset, {0: "a", 1: "b"})


def test_answers_have_a_number_for_each_output() -> None:
    predictions = [np.array([1, -2], np.float32)]
    (answer,) = REGRESSION.answers(Outcome(predictions, features(["[0, 0]"]), {0: "a", 1: "b"}))
    assert answer.found == {"scores": [1.0, -2.0]}
