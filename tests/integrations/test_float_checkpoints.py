"""Float checkpoints in other frameworks, compared with what these make of them in float."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
import transformers
from starlette.testclient import TestClient

import qdqbert
from qdqbert.common.errors import ModelClosedError, UserInputError
from qdqbert.common.progress import progress_of
from qdqbert.integrations import ray
from qdqbert.integrations.transformers import pipeline
from qdqbert.serving.app import build_app
from qdqbert.serving.models import open_models
from qdqbert.serving.options import ServerOptions

TEXTS = ["the cat sat on the book", "music in the night", "a dog"]
# Probabilities and cosines of INT8 models this narrow. A wrong part would change far more.
LEAST_COSINE, LARGEST_STEP = 0.97, 0.08


pytestmark = pytest.mark.usefixtures("own_cache")


def probabilities(answers) -> np.ndarray:
    """Return the scores of each text in the order of the labels."""
    return np.array(
        [
            [each["score"] for each in sorted(answer, key=lambda each: each["label"])]
            for answer in answers
        ]
    )


def cosines(found, expected) -> np.ndarray:
    found, expected = np.asarray(found), np.asarray(expected)
    lengths = np.linalg.norm(found, axis=-1) * np.linalg.norm(expected, axis=-1)
    return (found * expected).sum(axis=-1) / lengths


def test_a_pipeline_classifies_texts_as_that_of_transformers(checkpoints) -> None:
    folder = checkpoints("classifier")
    found = pipeline(folder, top_k=None)(TEXTS)
    real = transformers.pipeline("text-classification", model=str(folder), device="cpu")
    expected = probabilities(real(TEXTS, top_k=None))
    assert {each["label"] for each in found[0]} == {
        each["label"] for each in real(TEXTS[0:1], top_k=None)[0]
    }
    assert np.abs(probabilities(found) - expected).max() < LARGEST_STEP


def test_a_pipeline_tags_the_words_of_that_of_transformers(save_tiny, tmp_path) -> None:
    labels = {0: "O", 1: "B-PER", 2: "B-LOC"}
    folder = save_tiny(
        tmp_path / "tagger", "bert", transformers.AutoModelForTokenClassification, id2label=labels
    )
    real = transformers.pipeline("token-classification", model=str(folder), device="cpu")
    every = {"ignore_labels": []}
    found, expected = pipeline(folder, **every)(TEXTS), real(TEXTS, **every)
    for ours, theirs in zip(found, expected, strict=True):
        assert [(each["word"], each["start"]) for each in ours] == [
            (each["word"], each["start"]) for each in theirs
        ]
        steps = [abs(a["score"] - b["score"]) for a, b in zip(ours, theirs, strict=True)]
        assert max(steps) < LARGEST_STEP


def test_a_pipeline_has_the_token_states_of_that_of_transformers(checkpoints) -> None:
    folder = checkpoints("sentence")
    real = transformers.pipeline("feature-extraction", model=str(folder), device="cpu")
    for text in TEXTS:
        assert cosines(pipeline(folder)(text), real(text)).min() > LEAST_COSINE


@pytest.mark.slow
def test_a_pipeline_runs_a_model_that_transformers_does_not_have(checkpoint_copy) -> None:
    folder = checkpoint_copy("classifier")
    sizes = {"vocab_size": 263, "hidden_size": 32, "num_attention_heads": 2}
    config = transformers.AutoConfig.for_model(
        "gte", **sizes, num_hidden_layers=1, intermediate_size=48, max_position_embeddings=64
    )
    transformers.AutoModel.from_config(config).save_pretrained(folder)
    content = json.loads((folder / "config.json").read_text())
    named = {"model_type": "new", "architectures": ["NewModel"]}
    (folder / "config.json").write_text(json.dumps({**content, **named}))
    states = np.array(pipeline(folder)(TEXTS[0]))
    with qdqbert.load(folder, check=False) as model:
        np.testing.assert_allclose([states], model(TEXTS[0]), atol=1e-5)


def test_sentence_transformers_embeds_close_to_the_checkpoint(checkpoints) -> None:
    library = pytest.importorskip("sentence_transformers")
    from qdqbert.integrations.sentence_transformers import load

    folder = checkpoints("sentence")
    found = load(folder)
    expected = library.SentenceTransformer(str(folder)).encode(TEXTS)
    assert isinstance(found, library.SentenceTransformer)
    assert cosines(found.encode(TEXTS), expected).min() > LEAST_COSINE


def test_sentence_transformers_scores_close_to_the_checkpoint(checkpoints) -> None:
    library = pytest.importorskip("sentence_transformers")
    from qdqbert.integrations.sentence_transformers import load

    folder = checkpoints("reranker")
    pairs = [(TEXTS[0], each) for each in TEXTS]
    found = load(folder)
    assert isinstance(found, library.CrossEncoder)
    expected = library.CrossEncoder(str(folder)).predict(pairs)
    assert np.abs(found.predict(pairs) - expected).max() < LARGEST_STEP


@pytest.mark.parametrize(
    ("module", "name", "method"),
    [
        ("langchain", "QdqbertEmbeddings", "embed_documents"),
        ("llama_index", "QdqbertEmbedding", "get_text_embedding_batch"),
    ],
)
def test_embeddings_of_frameworks_are_those_of_load(checkpoints, module, name, method) -> None:
    package = {"langchain": "langchain_core", "llama_index": "llama_index.core"}[module]
    pytest.importorskip(package, reason=f"{package} is missing")
    kind = getattr(pytest.importorskip(f"qdqbert.integrations.{module}"), name)
    folder = checkpoints("sentence")
    found = getattr(kind(str(folder)), method)(TEXTS)
    with qdqbert.load(folder, check=False) as model:
        np.testing.assert_allclose(found, model.encode(TEXTS), atol=1e-5)
    with pytest.raises(UserInputError, match="is a model for 'text-classification'"):
        kind(str(checkpoints("classifier")))


def test_a_predictor_can_be_sent_to_workers(checkpoints) -> None:
    folder = checkpoints("classifier")
    predict = pickle.loads(pickle.dumps(ray.Predictor(folder, threads=1)))
    found = predict({"text": np.array(TEXTS)})
    with qdqbert.load(folder, check=False) as model:
        answers = model(TEXTS)
    assert found["label"].tolist() == [each["label"] for each in answers]
    np.testing.assert_allclose(found["score"], [each["score"] for each in answers], atol=1e-6)


@pytest.mark.slow
def test_a_server_has_several_checkpoints_under_the_names_of_their_folders(
    checkpoints,
) -> None:
    folders = [checkpoints("sentence"), checkpoints("classifier"), checkpoints("reranker")]
    options = ServerOptions(models=tuple(map(str, folders)))
    with (
        open_models(options, progress_of(False)) as models,
        TestClient(build_app(models)) as client,
    ):
        assert list(models) == ["sentence", "classifier", "reranker"]
        found = client.post("/v1/embeddings", json={"input": TEXTS, "model": "sentence"}).json()
        expected = models["sentence"].encode(TEXTS)
        np.testing.assert_allclose([each["embedding"] for each in found["data"]], expected, 1e-4)
        answers = client.post("/models/classifier/predict", json={"inputs": TEXTS[0]}).json()
        best = max(answers, key=lambda each: each["score"])
        assert best["label"] == models["classifier"](TEXTS[:1])[0]["label"]


def test_files_are_answered_as_by_load(checkpoints, tmp_path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"text": each}) + "\n" for each in TEXTS))
    report = qdqbert.run(checkpoints("classifier"), rows, tmp_path / "out.jsonl")
    assert (report.engine, report.target, report.rows) == ("native", "native-dynamic", 3)
    found = [json.loads(each) for each in Path(report.output).read_text().splitlines()]
    with qdqbert.load(checkpoints("classifier"), check=False) as model:
        assert [each["label"] for each in found] == [each["label"] for each in model(TEXTS)]


@pytest.mark.slow
def test_messages_name_the_checkpoint_and_not_the_cache(checkpoints) -> None:
    folder = str(checkpoints("classifier"))
    with qdqbert.load(folder, check=False) as model:
        assert folder in repr(model)
    with pytest.raises(ModelClosedError, match=f"{folder!r} was closed"):
        model(TEXTS)
    with pytest.raises(UserInputError, match=f"{folder!r} is a model for 'text-classification'"):
        pipeline(folder, "fill-mask")
