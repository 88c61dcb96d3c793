"""Cross-encoders whose scores modules make. sentence-transformers writes them: the reference."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import CrossEncoder
from sentence_transformers.base.modules import Dense, Transformer
from sentence_transformers.sentence_transformer.modules import Dropout, LayerNorm, Pooling
from starlette.testclient import TestClient
from torch import nn

import flat
import qdqbert
from conftest import TEXTS
from qdqbert.common.errors import CheckpointError, UserInputError
from qdqbert.encoders.checkpoint.description import infer_task
from qdqbert.encoders.checkpoint.load import load_checkpoint
from qdqbert.encoders.checkpoint.sentence_files import SentenceFiles
from qdqbert.encoders.checkpoint.text_heads import read_layout
from qdqbert.serving.app import build_app

QUERY, DOCUMENTS = "the river", TEXTS[:10]
PAIRS = [(QUERY, each) for each in DOCUMENTS]


@pytest.fixture(scope="module")
def modular(checkpoints, tmp_path_factory) -> Path:
    """A reranker with two poolings, two Denses and a LayerNorm between them, and a prompt."""
    encoder = Transformer(str(checkpoints("modernbert")))
    torch.manual_seed(0)
    modules = [
        encoder,
        Pooling(32, pooling_mode=["cls", "lasttoken"]),
        Dense(64, 48, bias=False, activation_function=nn.GELU()),
        LayerNorm(48),
        Dropout(0.2),
        Dense(48, 1, activation_function=nn.Identity(), module_output_name="scores"),
    ]
    nn.init.normal_(modules[3].norm.weight)
    nn.init.normal_(modules[3].norm.bias)
    made = CrossEncoder(
        modules=modules, device="cpu", prompts={"q": "where is "}, default_prompt_name="q"
    )
    folder = tmp_path_factory.mktemp("modular") / "model"
    made.save_pretrained(str(folder))
    return folder


@pytest.fixture(scope="module")
def theirs(modular) -> CrossEncoder:
    return CrossEncoder(str(modular), device="cpu")


@pytest.fixture(scope="module")
def ranking(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("data") / "ranking.csv"
    rows = [
        f"{TEXTS[index // 4]},{text},{int(index % 4 == 0)}"
        for index, text in enumerate(each.replace(",", " ") for each in TEXTS[:24])
    ]
    path.write_text("\n".join(["query,document,relevance", *rows]))
    return path


def as_ranked(found: list[dict[str, Any]]) -> list[int]:
    return [each["corpus_id"] for each in found]


@pytest.mark.parametrize("in_memory", [False, True], ids=["folder", "in-memory"])
def test_scores_in_float_are_those_of_sentence_transformers(modular, theirs, in_memory) -> None:
    with qdqbert.load(theirs if in_memory else modular, precision="float") as model:
        np.testing.assert_allclose(model.predict(PAIRS), theirs.predict(PAIRS), atol=1e-5)
        expected = theirs.predict(PAIRS, prompt="")
        np.testing.assert_allclose(model.predict(PAIRS, prompt=""), expected, atol=1e-5)
        logits = theirs.predict(PAIRS, activation_fn=nn.Identity())
        found = model.predict(PAIRS, activation="none")
        np.testing.assert_allclose(found, logits, atol=1e-5)
        ranks = as_ranked(theirs.rank(QUERY, DOCUMENTS))
        assert as_ranked(model.rank(QUERY, DOCUMENTS)) == ranks
        assert (model.task, model.num_labels) == ("reranking", 1)


@pytest.mark.slow
def test_int8_runs_without_data(modular, theirs) -> None:
    with qdqbert.load(modular) as model:
        np.testing.assert_allclose(model.predict(PAIRS), theirs.predict(PAIRS), atol=0.02)


@pytest.mark.slow
def test_every_engine_runs_the_quantized_folder(modular, theirs, ranking, tmp_path) -> None:
    folder = tmp_path / "int8"
    report = flat.quantize(
        modular,
        folder,
        calibration_data=ranking,
        targets=("native", "onnxruntime", "portable"),
        benchmark=False,
    )
    assert report.task == "reranking"
    assert min(each.fidelity.sqnr_db for each in report.targets) > 12
    (notice,) = [each for each in report.notices if "prompt" in each]
    assert "'where is ' before the first text of each pair" in notice
    for engine in ("native", "onnxruntime"):
        with qdqbert.load(folder, engine=engine) as model:
            np.testing.assert_allclose(model.predict(PAIRS), theirs.predict(PAIRS), atol=0.02)
    assert not (folder / "modules.json").exists()
    assert json.loads((folder / "config.json").read_text())["id2label"] == {"0": "LABEL_0"}


def test_pytorch_evaluates_it(modular, theirs, ranking) -> None:
    assert infer_task(str(modular)) == "reranking"
    assert type(load_checkpoint(str(modular)).model).__name__ == "ModernBertModel"
    report = flat.evaluate(modular, ranking)
    found = {each.name: each.value for each in report.metrics}
    rows = [row.split(",") for row in ranking.read_text().split("\n")[1:]]
    scores = theirs.predict([(query, text) for query, text, _ in rows], prompt="").reshape(-1, 4)
    # The first of four documents is relevant.
    places = (scores >= scores[:, :1]).sum(axis=1)
    assert found["mrr"] == pytest.approx(100 * (1 / places).mean(), abs=1e-3)


def test_the_server_ranks_with_it(modular, theirs) -> None:
    with (
        qdqbert.load(modular, precision="float") as model,
        TestClient(build_app({"reranker": model})) as client,
    ):
        body = {"query": QUERY, "documents": DOCUMENTS}
        found = client.post("/v1/rerank", json=body).json()["results"]
    expected = theirs.rank(QUERY, DOCUMENTS)
    assert [each["index"] for each in found] == as_ranked(expected)
    np.testing.assert_allclose(
        [each["relevance_score"] for each in found], [each["score"] for each in expected], atol=1e-5
    )


def test_training_refuses_it(modular, ranking, tmp_path) -> None:
    with pytest.raises(UserInputError, match="has Dense, LayerNorm, Dense after the pooling"):
        qdqbert.train(modular, tmp_path / "out", train_data=ranking)


def test_several_scores_are_classes(modular) -> None:
    ranker = CrossEncoder(str(modular), device="cpu")
    torch.manual_seed(0)
    last = Dense(48, 3, activation_function=nn.Identity(), module_output_name="scores")
    theirs = CrossEncoder(modules=[*list(ranker)[:-1], last], device="cpu")
    expected = theirs.predict(PAIRS, apply_softmax=True)
    with qdqbert.load(theirs, precision="float") as model:
        assert model.task == "text-classification"
        found = model(PAIRS, top_k=None)
    scores = [{each["label"]: each["score"] for each in row} for row in found]
    rows = [[row[f"LABEL_{index}"] for index in range(3)] for row in scores]
    np.testing.assert_allclose(rows, expected, atol=1e-5)


def test_modules_of_another_width_are_refused(modular, tmp_path) -> None:
    folder = Path(shutil.copytree(modular, tmp_path / "copy"))
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": "cls"}))
    with pytest.raises(CheckpointError, match="reads vectors of 64 channels, and gets 32"):
        qdqbert.load(folder)


LAST = {"in_features": 4, "out_features": 1, "module_output_name": "scores"}


@pytest.mark.parametrize(
    ("kinds", "last", "message"),
    [
        (("Pooling", "LogitScore"), LAST, "LogitScore; of cross-encoders only Transformer alone"),
        (("Dense",), LAST, "lists Transformer, Dense; of cross-encoders only Transformer alone"),
        (("Pooling", "Normalize"), LAST, "Normalize; of cross-encoders only"),
        (("Pooling", "CNN", "Dense"), LAST, "lists Transformer, Pooling, CNN, Dense; of cross"),
        (("Pooling", "Dense"), {**LAST, "module_output_name": None}, "and write 'scores'"),
        (("Pooling", "Dense", "Dense"), LAST, "module_output_name='scores'.* and write 'sentence_"),
    ],
    ids=["logits", "no-pooling", "no-score", "cnn", "unnamed", "two-scores"],
)
def test_other_modules_are_refused_by_name(kinds, last, message) -> None:
    modules = [
        {"path": f"{index}", "type": f"a.{kind}"}
        for index, kind in enumerate(("Transformer", *kinds))
    ]
    files = {
        "modules.json": json.dumps(modules),
        "config_sentence_transformers.json": json.dumps({"model_type": "CrossEncoder"}),
        "1/config.json": json.dumps({"pooling_mode": "cls"}),
        "2/config.json": json.dumps(last),
        "3/config.json": json.dumps(last),
    }
    with pytest.raises(CheckpointError, match=message):
        read_layout(SentenceFiles(files.get))
