"""What the texts of a call begin with is computed once, and changes no answer."""

from __future__ import annotations

import numpy as np
import pytest

import qdqbert
from decoder_models import save_embedder
from rerankers import recorded_prefixes, save_reranker

QUERY = "what sat on the mat"
DOCUMENTS = [f"{number}: the cat sat " + "on the mat " * (number % 7) for number in range(40)]


@pytest.fixture
def prefixes():
    """Return the lengths of the prefixes that are computed."""
    with recorded_prefixes() as found:
        yield found


@pytest.fixture(scope="module")
def reranker(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reranker") / "model"
    save_reranker(folder)
    with qdqbert.load(folder, check=False) as model:
        yield model


def test_documents_of_a_query_share_all_before_them(reranker, prefixes) -> None:
    expected = [reranker.predict((QUERY, each)) for each in DOCUMENTS]
    assert prefixes == []
    pairs = [(QUERY, each) for each in DOCUMENTS]
    found = reranker.predict(pairs)
    np.testing.assert_array_equal(found, np.array(expected))
    texts = [each.ids for each in reranker._loaded.tokenizer.encode_start(pairs)]
    (tokens,) = prefixes
    same = [len(set(each)) == 1 for each in zip(*texts, strict=False)]
    assert tokens == same.index(False)
    assert tokens > len(texts[0]) / 2
    ranked = reranker.rank(QUERY, DOCUMENTS)
    scores = {each["corpus_id"]: each["score"] for each in ranked}
    np.testing.assert_array_equal([scores[index] for index in range(len(DOCUMENTS))], found)


def test_pairs_of_several_queries_share_the_template(reranker, prefixes) -> None:
    pairs = [(f"{number} sat?", each) for number, each in enumerate(DOCUMENTS)]
    expected = [reranker.predict(each) for each in pairs]
    np.testing.assert_array_equal(reranker.predict(pairs), np.array(expected))
    assert len(prefixes) == 1


def test_few_tokens_are_not_shared(reranker, prefixes) -> None:
    reranker.predict([(QUERY, DOCUMENTS[0])])
    assert prefixes == []


def test_texts_share_their_prompt(tmp_path, prefixes) -> None:
    folder = save_embedder(tmp_path / "model", pooling="lasttoken", max_position_embeddings=300)
    with qdqbert.load(folder, check=False) as model:
        expected = [model.encode(each, prompt_name="query") for each in DOCUMENTS]
        assert prefixes == []
        found = model.encode(DOCUMENTS, prompt_name="query")
        np.testing.assert_array_equal(found, np.array(expected))
        assert len(prefixes) == 1
        model.encode(DOCUMENTS, prompt_name="query", output_value="token_embeddings")
        assert len(prefixes) == 1


def test_means_are_of_all_tokens(tmp_path, prefixes) -> None:
    folder = save_embedder(tmp_path / "model", pooling="mean", max_position_embeddings=300)
    with qdqbert.load(folder, check=False) as model:
        model.encode(DOCUMENTS, prompt_name="query")
    assert prefixes == []
