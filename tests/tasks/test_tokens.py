from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.special import log_softmax

from qdqbert.common.errors import DataFileError
from qdqbert.data.rows.data import Example
from qdqbert.data.tokenizing.encoding import Encoded
from qdqbert.tasks.task import Features, Outcome
from qdqbert.tasks.tokens import (
    keep_examples,
    log_probabilities,
    most_likely_tokens,
    score_tokens,
    token_scores,
)

PREDICTION = np.array([[math.log(0.5), 3], [math.log(0.125), 1]], np.float32)


def features(*lengths: int) -> Features:
    inputs = tuple({"input_ids": np.arange(n, dtype=np.int32)} for n in lengths)
    return Features(
        examples=tuple(Example(text=str(n)) for n in lengths),
        encoded=Encoded(inputs=inputs, padding={"input_ids": 0}, truncated=1),
        notices=("Cut.",),
    )


def test_scores_are_a_log_softmax_and_an_argmax() -> None:
    logits = np.random.default_rng(0).normal(0, 5, (4, 9)).astype(np.float32)
    ids = np.array([3, 0, 8, 3], np.int32)
    scores = score_tokens(logits, ids)
    assert (scores.shape, scores.dtype) == ((4, 2), np.float32)
    expected = log_softmax(logits.astype(np.float64), axis=1)[np.arange(4), ids]
    # float32 has 24 significant bits.
    np.testing.assert_allclose(scores[:, 0], expected, rtol=1e-7)
    assert scores[:, 1].tolist() == logits.argmax(axis=1).tolist()


def test_huge_logits_do_not_overflow() -> None:
    scores = score_tokens(np.array([[3e38, -3e38]], np.float32), np.array([0], np.int32))
    assert scores.tolist() == [[0, 0]]


def test_ids_of_any_vocabulary_are_exact() -> None:
    logits = np.zeros((1, 300_001), np.float32)
    logits[0, 300_000] = 1
    assert int(score_tokens(logits, np.array([0], np.int32))[0, 1]) == 300_000


def test_perplexity_is_over_all_tokens_by_hand() -> None:
    ids = [np.array([3, 2], np.int32), np.array([3, 1], np.int32)]
    perplexity, accuracy = (each.metric() for each in token_scores([PREDICTION, PREDICTION], ids))
    # exp of the mean of ln 2 and ln 8 is 4.
    # The log-probabilities are float32.
    assert perplexity.value == pytest.approx(4, rel=1e-6)
    assert (perplexity.name, perplexity.is_error, perplexity.examples) == ("perplexity", True, 2)
    assert (accuracy.name, accuracy.is_error, accuracy.value) == ("accuracy", False, 75)


def test_perplexity_is_the_exponential_of_the_cross_entropy_of_pytorch() -> None:
    logits = np.random.default_rng(1).normal(0, 3, (6, 11)).astype(np.float32)
    ids = np.arange(6, dtype=np.int32)
    loss = torch.nn.functional.cross_entropy(
        torch.from_numpy(logits).double(), torch.from_numpy(ids).long()
    )
    (perplexity, _) = token_scores([score_tokens(logits, ids)], [ids])
    # The log-probabilities are float32.
    assert perplexity.metric().value == pytest.approx(math.exp(loss), rel=1e-6)


def test_perplexity_that_overflows_is_infinite() -> None:
    prediction = np.array([[-3e38, 0]], np.float32)
    perplexity = token_scores([prediction], [np.array([1], np.int32)])[0].metric()
    assert perplexity.value == math.inf


def test_decisions_are_the_ids_and_the_signal_is_the_rest() -> None:
    assert most_likely_tokens(Outcome([PREDICTION, PREDICTION[:1]], features(2, 1))) == [
        (3, 1),
        (3,),
    ]
    assert log_probabilities(PREDICTION).tolist() == PREDICTION[:, :1].tolist()


def test_examples_with_nothing_to_predict_are_left_out() -> None:
    kept = keep_examples(features(3, 1, 2), [True, False, True], why="with one token")
    assert [example.text for example in kept.examples] == ["3", "2"]
    assert kept.encoded.lengths == [3, 2]
    assert kept.notices == ("Cut.", "Left out 1 of 3 texts: with one token.")


def test_features_are_unchanged_if_all_examples_are_kept() -> None:
    made = features(3, 2)
    assert keep_examples(made, [True, True], why="with one token") is made


def test_data_with_nothing_to_predict_are_refused() -> None:
    with pytest.raises(DataFileError, match="No text can be used: 2 texts with one token"):
        keep_examples(features(1, 1), [False, False], why="with one token")
