"""Token ids, compared with transformers' tokenizers."""

from __future__ import annotations

import pytest
import transformers

from qdqbert.inference.tokenizer import FolderTokenizer

TEXTS = [
    "",
    " the cat",
    "The CAT sat, on 3 books!",
    "é ünïcode 猫 \u2028 x",
    "night " * 40,
    "[MASK] a",
]


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_ids_are_those_of_transformers(checkpoints, family) -> None:
    theirs = transformers.AutoTokenizer.from_pretrained(checkpoints(family))
    ours = FolderTokenizer(checkpoints(family), max_length=16)
    pairs = [(text, other) for text in TEXTS for other in TEXTS]
    for items, columns in ((TEXTS, (TEXTS,)), (pairs, tuple(map(list, zip(*pairs, strict=True))))):
        expected = theirs(*columns, truncation=True, max_length=16)
        uncut = theirs(*columns)
        for offsets in (False, True):
            found = ours.encode_batch(items, offsets=offsets)
            assert [each.ids for each in found] == expected["input_ids"]
            if "token_type_ids" in expected:
                assert [each.type_ids for each in found] == expected["token_type_ids"]
            assert [bool(each.overflowing) for each in found] == [
                len(ids) > 16 for ids in uncut["input_ids"]
            ]
        assert [ours.encode(item).ids for item in items] == expected["input_ids"]
    assert ours.padding["input_ids"] == theirs.pad_token_id
    assert ours.special_id("mask_token") == theirs.mask_token_id
