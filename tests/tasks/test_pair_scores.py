"""`predict` of classifiers with several outputs, compared with sentence-transformers."""

from __future__ import annotations

import json

import numpy as np
import pytest

import qdqbert

PAIRS = [("where is the cat", "the cat sat on the book"), ("music", "a river " * 9)]


@pytest.fixture(scope="module")
def both(tiny_artifact, tmp_path_factory):
    """The loaded folder, and the CrossEncoder of its checkpoint."""
    sentence_transformers = pytest.importorskip("sentence_transformers")
    checkpoint, folder = tiny_artifact("AutoModelForSequenceClassification", num_labels=3)
    with qdqbert.load(folder) as model:
        yield model, sentence_transformers.CrossEncoder(str(checkpoint), device="cpu")


@pytest.mark.parametrize("options", [{}, {"apply_softmax": True}, {"convert_to_tensor": True}])
def test_scores_of_classes_are_those_of_the_cross_encoder(both, options) -> None:
    model, theirs = both
    for inputs in (PAIRS, PAIRS[0]):
        expected = theirs.predict(inputs, **options)
        found = model.predict(inputs, **options)
        assert type(found) is type(expected)
        assert found.shape == expected.shape
        np.testing.assert_allclose(np.asarray(found), np.asarray(expected), atol=1e-5)
    assert json.dumps(model(PAIRS))
