"""Scores of pairs, compared with sentence-transformers' CrossEncoder."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
import transformers

import qdqbert
from qdqbert.common.errors import UserInputError
from qdqbert.tasks.reranking import Reranker

HEAD = "AutoModelForSequenceClassification"
# Weights so large that most logits are beyond 17, where float32 sigmoids are 1.
SATURATED = {"initializer_range": 5.0}

QUERY = "where is the cat"
DOCUMENTS = ["the cat sat on the book", "music", "in the night and the dog " * 3, "a river"]
PAIRS = [(QUERY, each) for each in DOCUMENTS]
IDENTITY = "torch.nn.modules.linear.Identity"


@pytest.fixture(scope="module", params=["default", "identity"])
def both(request, tiny_artifact, tmp_path_factory):
    """The loaded folder, and the CrossEncoder of its checkpoint."""
    sentence_transformers = pytest.importorskip("sentence_transformers")
    checkpoint, folder = tiny_artifact(HEAD, num_labels=1)
    if request.param == "identity":
        import shutil

        root = tmp_path_factory.mktemp("identity")
        checkpoint, folder = (
            shutil.copytree(path, root / path.name) for path in (checkpoint, folder)
        )
        for path in (checkpoint, folder):
            config = json.loads((path / "config.json").read_text())
            config["sentence_transformers"] = {"activation_fn": IDENTITY}
            (path / "config.json").write_text(json.dumps(config))
    with qdqbert.load(folder) as model:
        yield model, sentence_transformers.CrossEncoder(str(checkpoint), device="cpu")


def test_scores_are_those_of_the_cross_encoder(both) -> None:
    model, theirs = both
    found = model.predict(PAIRS)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, theirs.predict(PAIRS), atol=1e-5)
    np.testing.assert_allclose(model.predict(PAIRS[0]), theirs.predict(PAIRS[0]), atol=1e-5)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"top_k": 2, "return_documents": True},
        {"convert_to_tensor": True},
        {"apply_softmax": True, "num_workers": 0, "activation_fct": torch.nn.Identity()},
    ],
)
def test_documents_are_ranked_as_by_the_cross_encoder(both, options) -> None:
    model, theirs = both
    expected = [
        {**each, "score": pytest.approx(float(each["score"]), abs=1e-5)}
        for each in theirs.rank(QUERY, DOCUMENTS, **options)
    ]
    found = model.rank(QUERY, DOCUMENTS, **options)
    assert found == expected
    assert json.loads(json.dumps(found)) == found


@pytest.mark.parametrize(
    "options", [{"activation_fn": torch.nn.Sigmoid()}, {"activation_fn": torch.nn.Identity()}]
)
def test_activations_can_be_those_of_torch(both, options) -> None:
    model, theirs = both
    np.testing.assert_allclose(
        model.predict(PAIRS, **options), theirs.predict(PAIRS, **options), atol=1e-5
    )


@pytest.mark.parametrize("inputs", ["ab", ["ab"], [PAIRS[0], "ab"], [{"text": "ab"}]])
def test_a_text_is_no_pair(both, inputs) -> None:
    with pytest.raises(UserInputError, match=r"has to be a pair of texts.* got str 'ab'"):
        both[0].predict(inputs)


def test_an_activation_that_is_not_known_is_refused(both) -> None:
    with pytest.raises(UserInputError, match=r"`activation_fn=ReLU\(\)` must be a Sigmoid, "):
        both[0].predict(PAIRS, activation_fn=torch.nn.ReLU())


def test_the_activation_can_be_chosen(both) -> None:
    logits = both[0].predict(PAIRS, activation="none")
    np.testing.assert_allclose(
        both[0].predict(PAIRS, activation="sigmoid"), 1 / (1 + np.exp(-logits)), atol=1e-6
    )


def float_logits(checkpoint, pairs):
    """Return the logits of transformers."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint)
    made = transformers.AutoModelForSequenceClassification.from_pretrained(checkpoint)
    with torch.no_grad():
        inputs = tokenizer(*map(list, zip(*pairs, strict=True)), padding=True, return_tensors="pt")
        return made(**inputs).logits[:, 0].numpy()


def test_documents_whose_scores_round_to_one_are_in_the_order_of_their_logits(
    tiny_artifact,
) -> None:
    checkpoint, folder = tiny_artifact(HEAD, num_labels=1, **SATURATED)
    documents = [f"{first} {second}" for first in DOCUMENTS for second in ("a", "river", "dog")]
    pairs = [(QUERY, each) for each in documents]
    logits = float_logits(checkpoint, pairs)
    with qdqbert.load(folder) as model:
        ranked = model.rank(QUERY, documents)
        scores = model.predict(pairs)
    assert np.count_nonzero(scores == 1) > 2
    order = np.argsort(-logits, kind="stable")
    assert [each["corpus_id"] for each in ranked] == order.tolist()
    assert [each["score"] for each in ranked] == scores[order].tolist()


@pytest.mark.parametrize(
    ("top_k", "words"), [(0, "be at least 1, got 0"), ("2", "be a whole number, got '2'")]
)
def test_a_number_of_documents_that_cannot_be_is_refused(both, top_k, words) -> None:
    with pytest.raises(UserInputError, match=f"`top_k` must {words}"):
        both[0].rank(QUERY, ["a"], top_k=top_k)


def test_a_model_with_several_outputs_cannot_rank(tiny_artifact, tmp_path) -> None:
    _, folder = tiny_artifact(HEAD, num_labels=3)
    with qdqbert.load(folder) as classifier:
        model = Reranker(classifier._loaded)
        with pytest.raises(UserInputError, match="`rank` needs a model with one output"):
            model.rank(QUERY, DOCUMENTS)
