"""Results as arrays or tensors, compared with sentence-transformers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sentence_transformers import CrossEncoder, SentenceTransformer

import qdqbert
from qdqbert.common.errors import MissingExtraError, UserInputError

TEXTS = ["a dog in the rain", "music"]
PAIRS = [("a dog", "the rain"), ("music", "a book")]
FORMS = [
    {},
    {"convert_to_tensor": True},
    {"convert_to_numpy": False},
    {"convert_to_numpy": False, "convert_to_tensor": True},
]


def assert_alike(found, expected) -> None:
    """Types and shapes are equal, and values within a tolerance."""
    assert type(found) is type(expected)
    if isinstance(expected, list):
        for each, other in zip(found, expected, strict=True):
            assert_alike(each, other)
    else:
        assert found.dtype == expected.dtype
        np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("inputs", [TEXTS, TEXTS[0], []], ids=["texts", "one", "none"])
def test_embeddings_are_in_the_form_of_sentence_transformers(checkpoints, inputs, form) -> None:
    folder = str(checkpoints("sentence"))
    reference = SentenceTransformer(folder, device="cpu")
    with qdqbert.load(folder, precision="float", check=False) as model:
        found = model.encode(inputs, device="cpu", **form)
    if not inputs:
        # Ours keeps the dimensions of no texts.
        assert len(found) == 0
        assert type(found) is type(reference.encode(inputs, **form))
        return
    assert_alike(found, reference.encode(inputs, **form))


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("inputs", [PAIRS, PAIRS[0]], ids=["pairs", "one"])
def test_scores_are_in_the_form_of_sentence_transformers(checkpoints, inputs, form) -> None:
    folder = str(checkpoints("reranker"))
    reference = CrossEncoder(folder, device="cpu")
    with qdqbert.load(folder, precision="float", check=False) as model:
        assert_alike(model.predict(inputs, **form), reference.predict(inputs, **form))


def test_sparse_embeddings_become_a_sparse_tensor(checkpoints) -> None:
    with qdqbert.load(checkpoints("sparse"), task="sparse-embedding", check=False) as model:
        found = model.encode(TEXTS, convert_to_tensor=True)
        assert found.is_sparse
        np.testing.assert_array_equal(found.to_dense(), model.encode(TEXTS).to_dense())


def test_vectors_of_tokens_become_tensors(checkpoints) -> None:
    with qdqbert.load(checkpoints("multi_vector"), check=False) as model:
        found = model.encode_query(TEXTS, convert_to_numpy=False)
        for tensor, array in zip(found, model.encode_query(TEXTS), strict=True):
            assert torch.equal(tensor, torch.from_numpy(array))


def test_tensors_need_torch_alone(checkpoints, monkeypatch) -> None:
    with qdqbert.load(checkpoints("sentence"), check=False) as model:
        find = "qdqbert.common.extras.importlib.util.find_spec"
        monkeypatch.setattr(find, lambda name: None if name == "torch" else name)
        assert model.encode(TEXTS).shape[0] == 2
        with pytest.raises(MissingExtraError, match=r"as a tensor of torch needs .* torch"):
            model.encode(TEXTS, convert_to_tensor=True)


@pytest.mark.parametrize("device", ["cuda", "mps", 0, ["cpu", "cuda"]], ids=str)
def test_another_device_is_refused(checkpoints, device) -> None:
    with (
        qdqbert.load(checkpoints("sentence"), check=False) as model,
        pytest.raises(UserInputError, match=r"`device=.*`: a model runs where it was loaded"),
    ):
        model.encode(TEXTS, device=device)
