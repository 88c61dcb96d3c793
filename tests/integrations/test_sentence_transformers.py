"""Folders as models of sentence-transformers, compared with the models of their checkpoints."""

from __future__ import annotations

import copy
import json
import pickle

import numpy as np
import pytest
import torch
import transformers

import qdqbert
from qdqbert.common.errors import UserInputError

library = pytest.importorskip("sentence_transformers", reason="sentence-transformers is missing")
integration = pytest.importorskip("qdqbert.integrations.sentence_transformers")

TEXTS = ["the cat sat on the book", "music", "in the night and the dog " * 3, "", "a Book of rain"]
PAIRS = [("where is the cat", text) for text in TEXTS]


@pytest.fixture(scope="module")
def encoder(quantized, tmp_path_factory):
    """An embedder with prompts, and the folder that it comes from."""
    import shutil

    made = quantized("sentence")
    folder = shutil.copytree(made.directory, tmp_path_factory.mktemp("prompted") / "int8")
    settings = {
        "prompts": {"query": "where is ", "document": ""},
        "default_prompt_name": None,
        "similarity_fn_name": "dot",
    }
    (folder / "config_sentence_transformers.json").write_text(json.dumps(settings))
    return integration.load(folder, engine="onnxruntime"), folder


def test_an_embedder_has_the_options_of_encode(encoder) -> None:
    model, folder = encoder
    assert isinstance(model, library.SentenceTransformer)
    assert model.similarity_fn_name == "dot"
    with qdqbert.load(folder, engine="onnxruntime") as loaded:
        expected = loaded.encode(TEXTS)
        queries = loaded.encode_query(TEXTS)
    found = model.encode(TEXTS, batch_size=2)
    assert found.dtype == np.float32
    # Sums of other batches.
    np.testing.assert_allclose(found, expected, atol=1e-5)
    np.testing.assert_allclose(model.encode_query(TEXTS), queries, atol=1e-5)
    np.testing.assert_allclose(model.encode(TEXTS[0]), expected[0], atol=1e-5)
    tensor = model.encode(TEXTS, convert_to_tensor=True)
    assert isinstance(tensor, torch.Tensor)
    assert model.encode([]).shape == (0,)
    assert model.encode(TEXTS, truncate_dim=5).shape == (5, 5)
    assert model.encode(TEXTS, precision="binary").dtype == np.int8
    lengths = np.linalg.norm(model.encode(TEXTS, normalize_embeddings=True), axis=1)
    np.testing.assert_allclose(lengths, 1, atol=1e-6)
    assert model.get_embedding_dimension() == expected.shape[1]
    assert model.similarity(found, found).shape == (5, 5)


@pytest.mark.parametrize("inputs", [TEXTS, TEXTS[0]])
def test_all_outputs_of_encode_are_served(checkpoints, inputs) -> None:
    model = integration.load(checkpoints("sentence"), precision="float")
    theirs = library.SentenceTransformer(str(checkpoints("sentence")), device="cpu")
    options = {"batch_size": 2, "prompt": "the "}
    found, expected = (
        each.encode(inputs, output_value=None, **options) for each in (model, theirs)
    )
    for one, other in zip(
        *([each] if inputs is TEXTS[0] else each for each in (found, expected)), strict=True
    ):
        for name in ("sentence_embedding", "token_embeddings", "input_ids", "attention_mask"):
            mask = other["attention_mask"].bool() if name == "token_embeddings" else ...
            np.testing.assert_allclose(one[name][mask], other[name][mask], atol=1e-4)
    found, expected = (
        each.encode_query(inputs, output_value="token_embeddings", **options)
        for each in (model, theirs)
    )
    for one, other in zip(
        *([each] if inputs is TEXTS[0] else each for each in (found, expected)), strict=True
    ):
        assert type(one) is type(other)
        np.testing.assert_allclose(one, other, atol=1e-4)
    with pytest.raises(UserInputError, match="`output_value='states'` is unknown"):
        model.encode(TEXTS, output_value="states")


@pytest.mark.parametrize("inputs", ["ab", ("ab",), ["ab"], np.array(["ab"])])
def test_a_text_is_no_pair(checkpoints, inputs) -> None:
    with pytest.raises(UserInputError, match=r"has to be a .*pair.* got .*ab"):
        integration.load(checkpoints("reranker"), check=False).predict(inputs)


def test_old_arguments_of_rank_have_no_effect(checkpoints) -> None:
    model = integration.load(checkpoints("reranker"), check=False)
    options = {"apply_softmax": True, "num_workers": 0, "convert_to_tensor": True}
    expected = model.rank("a dog", TEXTS, activation_fn=torch.nn.Identity())
    found = model.rank("a dog", TEXTS, **options, activation_fct=torch.nn.Identity())
    assert found == expected
    with pytest.raises(TypeError, match="'other'"):
        model.rank("a dog", TEXTS, other=3)


def test_embeddings_are_near_those_of_the_checkpoint(encoder, quantized) -> None:
    made = quantized("sentence")
    theirs = library.SentenceTransformer(str(made.checkpoint), device="cpu").encode(TEXTS)
    ours = encoder[0].encode(TEXTS)
    assert ours.shape == theirs.shape
    cosines = (
        (ours * theirs).sum(axis=1) / np.linalg.norm(ours, axis=1) / np.linalg.norm(theirs, axis=1)
    )
    assert cosines.min() > 0.95


WAYS = [
    copy.copy,
    copy.deepcopy,
    *(lambda model, each=each: pickle.loads(pickle.dumps(model, each)) for each in (0, 2, 5)),
]


@pytest.mark.parametrize("name", ["sentence", "reranker"])
def test_copies_answer_as_the_model_does(checkpoints, name) -> None:
    model = integration.load(checkpoints(name), threads=1)
    call = (lambda each: each.encode(TEXTS)) if name == "sentence" else (lambda x: x.predict(PAIRS))
    model.max_seq_length = 9
    for through in WAYS:
        other = through(model)
        assert (type(other), other.max_seq_length) == (type(model), 9)
        assert other[0].engine_model is not model[0].engine_model or through is copy.copy
        np.testing.assert_array_equal(call(other), call(model))


def test_inputs_are_cut_at_a_lower_limit(checkpoints) -> None:
    model = integration.load(checkpoints("sentence"))
    theirs = library.SentenceTransformer(str(checkpoints("sentence")), device="cpu")
    model.max_seq_length = theirs.max_seq_length = 6
    found, expected = model.encode(TEXTS), theirs.encode(TEXTS)
    assert ((found * expected).sum(axis=1)).min() > 0.95
    with pytest.raises(UserInputError, match="`max_seq_length` must be above 3"):
        model.max_seq_length = 2


@pytest.mark.parametrize("name", ["sentence", "reranker"])
def test_the_tokenizer_is_that_of_the_checkpoint(checkpoints, name) -> None:
    model = integration.load(checkpoints(name))
    model.max_seq_length = 20
    expected = transformers.AutoTokenizer.from_pretrained(checkpoints(name))
    assert model.tokenizer(TEXTS).input_ids == expected(TEXTS).input_ids
    assert model.tokenizer.model_max_length == 20
    assert model.tokenizer is model.tokenizer
    with pytest.raises(UserInputError, match="`tokenizer` cannot be set to a TokenizersBackend"):
        model.tokenizer = expected


def test_a_model_is_saved_as_its_folder(encoder, tmp_path) -> None:
    with pytest.raises(UserInputError, match="Copy its folder"):
        encoder[0][0].save(str(tmp_path))


@pytest.mark.parametrize("classes", [1, 3])
@pytest.mark.usual("1")
def test_a_reranker_scores_and_ranks_like_qdqbert(tiny_artifact, classes) -> None:
    _, folder = tiny_artifact("AutoModelForSequenceClassification", num_labels=classes)
    if classes > 1:
        with pytest.raises(UserInputError, match="neither an embedder nor a reranker"):
            integration.load(folder)
        return
    model = integration.load(folder, engine="onnxruntime")
    assert isinstance(model, library.CrossEncoder)
    with qdqbert.load(folder, engine="onnxruntime") as loaded:
        np.testing.assert_allclose(model.predict(PAIRS), loaded.predict(PAIRS), atol=1e-6)
        expected = loaded.rank(PAIRS[0][0], TEXTS, top_k=2)
    found = model.rank(PAIRS[0][0], TEXTS, top_k=2)
    assert [each["corpus_id"] for each in found] == [each["corpus_id"] for each in expected]
    prompted = [(f"the {first}", second) for first, second in PAIRS]
    np.testing.assert_allclose(
        model.predict(PAIRS, prompt="the "), model.predict(prompted), atol=1e-6
    )


def test_documents_whose_scores_round_to_one_are_in_the_order_of_their_logits(
    tiny_artifact,
) -> None:
    _, folder = tiny_artifact(
        "AutoModelForSequenceClassification", num_labels=1, initializer_range=5.0
    )
    documents = [f"{text} {word}" for text in TEXTS for word in ("a", "river", "dog", "rain")]
    model = integration.load(folder, engine="onnxruntime")
    with qdqbert.load(folder, engine="onnxruntime") as loaded:
        expected = loaded.rank(TEXTS[0], documents, top_k=9, return_documents=True)
    assert expected[2]["score"] == 1
    assert model.rank(TEXTS[0], documents, top_k=9, return_documents=True) == [
        {**each, "score": pytest.approx(float(each["score"]), abs=1e-6)} for each in expected
    ]
    # A function that turns the order around is obeyed.
    turned = model.rank(TEXTS[0], documents, activation_fn=torch.neg)
    assert [each["corpus_id"] for each in turned[-2:]] == [
        each["corpus_id"] for each in reversed(expected[:2])
    ]
