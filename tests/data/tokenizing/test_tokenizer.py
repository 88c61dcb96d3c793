"""Token ids, compared with transformers' tokenizers."""

from __future__ import annotations

import concurrent.futures

import pytest
import transformers

from qdqbert.data.tokenizing.tokenizer import Tokenizer

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
    ours = Tokenizer.from_folder(checkpoints(family), max_length=16)
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


@pytest.mark.parametrize("family", ["bert", "roberta"])
@pytest.mark.parametrize("strategy", ["longest_first", "only_second"])
def test_windows_are_those_of_transformers(checkpoints, family, strategy) -> None:
    theirs = transformers.AutoTokenizer.from_pretrained(checkpoints(family))
    ours = Tokenizer.from_folder(checkpoints(family), max_length=64)
    columns = [["where is it"], ["in the night " * 20]]
    pairs = list(zip(*columns, strict=True)) if strategy == "only_second" else columns[1]
    expected = theirs(
        *(columns if strategy == "only_second" else columns[1:]),
        truncation=strategy,
        max_length=24,
        stride=5,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
    )
    (first,) = ours.cutting(24, strategy=strategy, stride=5).encode_batch(pairs, offsets=True)
    windows = [first, *first.overflowing]
    assert len(windows) > 3
    assert [each.ids for each in windows] == expected["input_ids"]
    assert [each.offsets for each in windows] == expected["offset_mapping"]


def test_settings_are_kept_apart_in_several_threads(checkpoints) -> None:
    ours = Tokenizer.from_folder(checkpoints("bert"), max_length=64)

    def lengths(limit: int) -> set[int]:
        cut = ours.cutting(limit)
        return {len(cut.encode_batch([text])[0].ids) for text in ["night " * 80] * 20}

    limits = [8, 9, 10, 64] * 4
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lengths, limits)) == [{limit} for limit in limits]
    assert ours.cutting(8) is ours.cutting(8)
    first = ours.cutting(8)
    for limit in range(10, 40):
        ours.cutting(limit)
    # Callers choose any number of lengths, of which the last few are kept.
    assert ours.cutting(8) is not first
    assert len(ours.encode("night " * 80).ids) == 64


def test_decoded_texts_are_those_of_transformers(checkpoints, tmp_path) -> None:
    theirs = transformers.AutoTokenizer.from_pretrained(checkpoints("bert"))
    theirs.clean_up_tokenization_spaces = True
    theirs.save_pretrained(tmp_path)
    for folder in (checkpoints("bert"), tmp_path):
        theirs = transformers.AutoTokenizer.from_pretrained(folder)
        ours = Tokenizer.from_folder(folder, max_length=None)
        for text in TEXTS:
            ids = theirs(text)["input_ids"]
            for skip in (False, True):
                expected = theirs.decode(ids, skip_special_tokens=skip)
                assert ours.decode(ids, skip_special=skip) == expected
            tokens = theirs.convert_ids_to_tokens(ids)
            assert ours.join(tokens) == theirs.convert_tokens_to_string(tokens)
