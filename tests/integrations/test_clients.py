"""Libraries that take a model of sentence-transformers, a vector, or the address of a server."""

from __future__ import annotations

import numpy as np
import pytest

import qdqbert
from qdqbert.integrations.langchain import QdqbertEmbeddings
from qdqbert.integrations.sentence_transformers import load
from server_process import KEY, running

# The libraries warn of much.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
TEXTS = ["the cat sat on the book", "music in the night", "a dog in the rain", "a river at home"]


@pytest.fixture(autouse=True)
def offline(monkeypatch) -> None:
    """No library gets another model from the hub."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.fixture(scope="module")
def model(checkpoints):
    return load(checkpoints("sentence"), check=False)


@pytest.fixture(scope="module")
def plain(checkpoints):
    with qdqbert.load(checkpoints("sentence"), check=False) as model:
        yield model


@pytest.fixture(scope="module")
def vectors(plain):
    return plain.encode(TEXTS)


def test_keybert_embeds_with_the_model(model, plain, vectors) -> None:
    keybert = pytest.importorskip("keybert")
    # It asks the hub for another model, as the guide warns.
    with pytest.raises(OSError, match=r"connect to 'https://huggingface.co'"):
        keybert.KeyBERT(model=plain)
    found = keybert.KeyBERT(model=model)
    np.testing.assert_allclose(found.model.embed(TEXTS), vectors, atol=1e-6)
    words = dict(found.extract_keywords(TEXTS[0], top_n=3))
    first = model.encode([TEXTS[0]])
    for word, score in words.items():
        assert score == pytest.approx((model.encode([word]) @ first.T).item(), abs=1e-3)


def test_bertopic_embeds_with_the_model(model, plain, vectors) -> None:
    bertopic = pytest.importorskip("bertopic")
    with pytest.raises(OSError, match=r"connect to 'https://huggingface.co'"):
        bertopic.BERTopic(embedding_model=plain).fit(TEXTS)
    from bertopic.dimensionality import BaseDimensionalityReduction
    from sklearn.cluster import KMeans

    found = bertopic.BERTopic(
        embedding_model=model,
        umap_model=BaseDimensionalityReduction(),
        hdbscan_model=KMeans(2, random_state=0),
    )
    topics, _ = found.fit_transform(TEXTS * 3)
    np.testing.assert_allclose(found.embedding_model.embed(TEXTS), vectors, atol=1e-6)
    assert topics[:4] == topics[4:8]


def test_mteb_evaluates_the_model(model, tmp_path) -> None:
    mteb = pytest.importorskip("mteb")
    import datasets
    from mteb.abstasks import AbsTaskSTS
    from mteb.cache import ResultCache

    rows = {"sentence1": TEXTS, "sentence2": TEXTS[::-1], "score": [1.0, 5.0, 4.0, 2.0]}
    empty = ("date", "domains", "task_subtypes", "license", "annotations_creators", "dialect")
    empty += ("sample_creation", "bibtex_citation", "reference")

    class Similarity(AbsTaskSTS):
        min_score, max_score = 0, 5
        metadata = mteb.TaskMetadata(
            name="Similarity",
            description="a test",
            type="STS",
            category="t2t",
            dataset={"path": "a/b", "revision": "1"},
            eval_splits=["test"],
            eval_langs=["eng-Latn"],
            main_score="cosine_spearman",
            modalities=["text"],
            **dict.fromkeys(empty),
        )

        def load_data(self, **options: object) -> None:
            self.dataset = {"test": datasets.Dataset.from_dict(rows)}
            self.data_loaded = True

    model.model_card_data.model_name = "me/embedder-int8"
    cache = ResultCache(tmp_path)
    found = mteb.evaluate(model, Similarity(), cache=cache, co2_tracker=False)
    assert found.model_name == "me/embedder-int8"
    cosines = model.similarity_pairwise(model.encode(TEXTS), model.encode(TEXTS[::-1])).numpy()
    (result,) = found.task_results[0].scores["test"]
    order = np.argsort(np.argsort(cosines.round(6)))
    assert order.shape == (4,)
    assert result["cosine_pearson"] == pytest.approx(
        np.corrcoef(cosines, rows["score"])[0, 1], abs=1e-4
    )


def test_chroma_stores_vectors_and_embeds_with_langchains_class(checkpoints, vectors) -> None:
    chroma = pytest.importorskip("chromadb")
    embeddings = QdqbertEmbeddings(checkpoints("sentence"), check=False)

    class Embed(chroma.EmbeddingFunction):
        def __init__(self) -> None:
            """Take no options."""

        def __call__(self, input: list[str]) -> list[np.ndarray]:
            return [np.array(each) for each in embeddings.embed_documents(input)]

    client, names = chroma.EphemeralClient(), [str(number) for number in range(len(TEXTS))]
    one = client.create_collection("given", embedding_function=None)
    one.add(ids=names, documents=TEXTS, embeddings=vectors)
    other = client.create_collection("made", embedding_function=Embed())
    other.add(ids=names, documents=TEXTS)
    query = embeddings.embed_query("the dog")
    nearest = np.argsort(((vectors - query) ** 2).sum(axis=1), kind="stable")
    for found in (
        one.query(query_embeddings=[query], n_results=4),
        other.query(query_texts=["the dog"], n_results=4),
    ):
        assert found["ids"] == [[names[each] for each in nearest]]


def test_haystack_embeds_with_a_server(checkpoints, vectors) -> None:
    pytest.importorskip("haystack")
    from haystack import Document
    from haystack.components.embedders import OpenAIDocumentEmbedder, OpenAITextEmbedder
    from haystack.utils import Secret

    with running(str(checkpoints("sentence"))) as server:
        options = {
            "model": "sentence",
            "api_base_url": f"{server.url}/v1",
            "api_key": Secret.from_token(KEY),
        }
        query = OpenAITextEmbedder(**options).run(TEXTS[0])["embedding"]
        documents = [Document(content=text) for text in TEXTS]
        found = OpenAIDocumentEmbedder(**options).run(documents)["documents"]
    np.testing.assert_allclose(query, vectors[0], atol=1e-5)
    np.testing.assert_allclose([each.embedding for each in found], vectors, atol=1e-5)
