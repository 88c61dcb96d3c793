"""Tokenizers that are rewritten for OpenVINO Tokenizers."""

from __future__ import annotations

import pytest
import tokenizers
from tokenizers import models, normalizers, pre_tokenizers

from conftest import BERT_SPECIAL, make_tokenizer
from qdqbert.encoders.checkpoint.sample_texts import HARD, SPECIAL_TOKENS
from qdqbert.integrations.exporting.tokenizer_file import equivalent_tokenizer


def bert() -> tokenizers.Tokenizer:
    return make_tokenizer(BERT_SPECIAL).backend_tokenizer


def words_and_metaspace() -> tokenizers.Tokenizer:
    made = tokenizers.Tokenizer(models.Unigram([("<unk>", 0.0), ("▁", -1.0), ("a", -2.0)], 0))
    made.normalizer = normalizers.NFKC()
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]
    )
    return made


def plain() -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer(models.BPE({"a": 0, "b": 1}, []))


def bytes_after_a_space() -> tokenizers.Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = tokenizers.Tokenizer(models.BPE({each: i for i, each in enumerate(alphabet)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    return made


@pytest.mark.parametrize("make", [bert, words_and_metaspace, bytes_after_a_space, plain])
def test_a_rewritten_tokenizer_gives_the_same_ids(make) -> None:
    original = make()
    before = original.to_str()
    rewritten = equivalent_tokenizer(original)
    for text in (*HARD.values(), SPECIAL_TOKENS, "a\ufffda", " a\u2003 a\t"):
        assert rewritten.encode(text).ids == original.encode(text).ids
    assert original.to_str() == before


def test_only_what_is_misunderstood_is_rewritten() -> None:
    assert equivalent_tokenizer(plain()).to_str() == plain().to_str()
    steps = equivalent_tokenizer(bert()).normalizer
    assert str(steps).count("Replace") == 1
    assert equivalent_tokenizer(words_and_metaspace()).pre_tokenizer.__class__ is (
        pre_tokenizers.Metaspace
    )
