"""What an exported model has to do before it is written."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from qdqbert.common.errors import UserInputError
from qdqbert.encoders.checkpoint.sample_texts import HARD
from qdqbert.integrations.exporting.checks import check_results, check_tokens, expected_results
from qdqbert.integrations.exporting.samples import check_pairs, check_texts
from qdqbert.integrations.exporting.source import open_source


@pytest.fixture
def source(quantized):
    return open_source(
        quantized("sentence").directory,
        "onnxruntime",
        target=None,
        returns=None,
        default="sentence_embedding",
        name=None,
    )


def test_hard_texts_have_no_nul_character_at_which_c_strings_end() -> None:
    assert len(HARD) > 15
    assert not [name for name, text in HARD.items() if "\0" in text]
    assert all(first and second for first, second in check_pairs())


def test_equal_results_agree_without_noise() -> None:
    values = [np.ones(3, np.float32), np.zeros(3, np.float32)]
    found = check_results("logits", values, values)
    assert (found.texts, found.sqnr_db, found.worst_sqnr_db) == (2, np.inf, np.inf)


def test_the_worst_text_is_measured_against_the_mean_signal() -> None:
    # By hand: the signal is 1, and the noises are 0.0025 and 0.
    values = [np.ones(2, np.float32), np.ones(2, np.float32)]
    found = check_results("logits", values, [values[0] + np.float32(0.05), values[1]])
    assert found.worst_sqnr_db == pytest.approx(10 * np.log10(1 / 0.0025), abs=1e-3)
    assert found.sqnr_db == pytest.approx(10 * np.log10(1 / 0.00125), abs=1e-3)


def test_other_results_are_refused_with_their_distance() -> None:
    values = [np.ones(2, np.float32)]
    with pytest.raises(UserInputError, match=r"logits has an SQNR of 6\.0 dB for one text, below"):
        check_results("logits", values, [values[0] / 2])
    with pytest.raises(UserInputError, match=r"logits has shape \(3,\) instead of \(2,\)"):
        check_results("logits", values, [np.ones(3, np.float32)])


def test_another_pooling_is_refused(source) -> None:
    texts = check_texts()
    whole = dataclasses.replace(source, outputs=("last_hidden_state", "sentence_embedding"))
    expected = expected_results(whole, texts)
    means = [each.mean(axis=0) for each in expected["last_hidden_state"]]
    normal = [each / np.linalg.norm(each) for each in means]
    right = expected["sentence_embedding"]
    assert check_results("sentence_embedding", right, normal).worst_sqnr_db > 60
    with pytest.raises(UserInputError, match="does not compute what the folder computes"):
        check_results("sentence_embedding", right, means)
    firsts = [each[0] / np.linalg.norm(each[0]) for each in expected["last_hidden_state"]]
    with pytest.raises(UserInputError, match="does not compute what the folder computes"):
        check_results("sentence_embedding", right, firsts)


def test_other_tokens_are_refused_with_the_kind_of_text(source) -> None:
    tokenizer = source.tokenizer()

    def tokenize(texts):
        return [tokenizer.encode(text.replace("中", "")).ids for text in texts]

    check_tokens(source, lambda texts: [tokenizer.encode(text).ids for text in texts], converter="")
    with pytest.raises(
        UserInputError, match=r"A converter gives other tokens .* for Chinese and Japanese\."
    ) as it:
        check_tokens(source, tokenize, converter="A converter")
    assert it.value.argument == "to"


def test_a_prompt_is_expected_before_each_text(source) -> None:
    tokenizer = source.tokenizer()
    with pytest.raises(UserInputError, match="for a sentence"):
        check_tokens(
            source,
            lambda texts: [tokenizer.encode(text).ids for text in texts],
            converter="A converter",
            prompt="the ",
        )
