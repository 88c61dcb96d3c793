"""Settings of loaded models, and what they give to other code."""

from __future__ import annotations

import json

import numpy as np
import pytest
import transformers
from sentence_transformers import SentenceTransformer

import qdqbert
from qdqbert.common.errors import UserInputError

LONG = ["a dog in the rain and the night and the book", "music"]
PAIRS = [("a dog", "the rain in the night"), {"text": "music", "text_pair": "a book"}]


def test_texts_are_cut_to_a_lowered_limit_as_by_sentence_transformers(checkpoints) -> None:
    folder = str(checkpoints("sentence"))
    reference = SentenceTransformer(folder, device="cpu")
    with qdqbert.load(folder, precision="float", check=False) as model:
        model.max_seq_length = reference.max_seq_length = 6
        assert model.max_length == model.max_seq_length == 6
        np.testing.assert_allclose(model.encode(LONG), reference.encode(LONG), atol=1e-5)


@pytest.mark.parametrize(
    ("limit", "message"), [(3, "above 3"), (10_000, "at most"), (7.5, "whole")]
)
def test_a_limit_that_cannot_be_is_refused(checkpoints, limit, message) -> None:
    with qdqbert.load(checkpoints("sentence"), check=False) as model:
        before = model.max_seq_length
        with pytest.raises(UserInputError, match=f"`max_seq_length` must be .*{message}"):
            model.max_seq_length = limit
        assert model.max_seq_length == before


@pytest.mark.parametrize("texts", [LONG, PAIRS, []], ids=["texts", "pairs", "none"])
def test_token_ids_are_those_of_transformers_and_can_be_run(checkpoints, texts) -> None:
    folder = checkpoints("reranker")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    with qdqbert.load(folder, check=False) as model:
        found = model.tokenize(texts)
        if not texts:
            assert all(each.shape == (0, 0) for each in found.values())
            return
        pairs = [tuple(each.values()) if isinstance(each, dict) else each for each in texts]
        expected = tokenizer(pairs, padding=True, return_tensors="np")
        assert found.keys() == expected.keys()
        for name, ids in expected.items():
            np.testing.assert_array_equal(found[name], ids)
        logits = model.forward(found)["logits"][:, 0]
        if texts is PAIRS:
            np.testing.assert_array_equal(logits, model.predict(pairs, activation="none"))


def test_answers_of_the_tasks_can_be_written_as_json(checkpoints) -> None:
    with qdqbert.load(checkpoints("classifier"), check=False) as classifier:
        for answers in (classifier(LONG), classifier(LONG, top_k=None)):
            assert json.loads(json.dumps(answers)) == answers
    with qdqbert.load(checkpoints("reranker"), check=False) as reranker:
        ranked = reranker.rank("music", LONG)
        assert json.loads(json.dumps(ranked)) == ranked


def test_the_package_has_its_version() -> None:
    assert qdqbert.__version__.split(".")[0].isdigit()
