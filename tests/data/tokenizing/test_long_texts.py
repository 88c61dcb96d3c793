"""The start and the end of long texts, compared with the tokens of the whole texts."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest
import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, processors, trainers

from qdqbert.common.errors import UserInputError
from qdqbert.data.tokenizing.tokenizer import Tokenizer

PIECES = [
    *("the ", "night ", "a ", "b", "_", "aB1_ ", "\u4e2d", "\U0001f600", "e\u0301 ", "\n\n"),
    *("   ", "book,", "x" * 30 + " ", "y" * 120 + " ", "[SEP]", "[MASK] ", " <mask>", "\u200b"),
    *("'s ", "12345 ", "====", "\u00a0", "\u3000"),
]
LIMIT = 64


def make_text(generator: random.Random, length: int) -> str:
    kinds = generator.sample(PIECES, generator.choice([1, 2, 3, 10]))
    return "".join(generator.choices(kinds, k=length))[:length]


def unigram(folder: Path) -> Path:
    """Save a tokenizer as that of XLM-RoBERTa."""
    made = tokenizers.Tokenizer(models.Unigram())
    made.normalizer = normalizers.NFKC()
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]
    )
    specials = ["<s>", "</s>", "<unk>"]
    trainer = trainers.UnigramTrainer(vocab_size=90, special_tokens=specials, unk_token="<unk>")
    made.train_from_iterator(["the cat sat on the book in the night 12345 ==== __"] * 9, trainer)
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> </s> $B </s>",
        special_tokens=[("<s>", 0), ("</s>", 1)],
    )
    made.save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture(params=["bert", "roberta", "unigram", "plain"])
def tokenizer(request, checkpoints, tmp_path) -> Tokenizer:
    if request.param in ("bert", "roberta"):
        return Tokenizer.from_folder(checkpoints(request.param), max_length=LIMIT)
    made = Tokenizer.from_folder(unigram(tmp_path), max_length=LIMIT)
    if request.param == "plain":
        made.backend.post_processor = None
    return made


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.usual("*-right", "bert-left")
def test_kept_ids_are_those_of_the_whole_text(tokenizer, side) -> None:
    cut = tokenizer.cutting(LIMIT, side=side)
    generator = random.Random(0)
    lengths = [0, 5, 2047, 2049, 2600, 20_000]
    texts = [make_text(generator, length) for length in lengths * 2]
    few = [make_text(generator, length) for length in (0, 200, 2500, 2600)]
    for item in (*texts, *itertools.product(few, few)):
        (found,) = cut.encode_start([item])
        (expected,) = cut.encode_batch([item])
        assert list(found.ids) == expected.ids
        assert list(found.type_ids) == expected.type_ids
        assert found.truncated == bool(expected.overflowing)
    together = cut.encode_start(texts)
    assert [list(each.ids) for each in together] == [
        list(cut.encode_start([each])[0].ids) for each in texts
    ]


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.usual("*-right", "bert-left")
def test_only_the_first_text_is_cut(tokenizer, side) -> None:
    cut = tokenizer.cutting(LIMIT, side=side)
    whole = tokenizer.cutting(None).backend
    whole.enable_truncation(LIMIT, strategy="only_first", direction=side)
    generator = random.Random(0)
    texts = [make_text(generator, length) for length in (0, 5, 200, 2047, 2600, 20_000)]
    seconds = ["the cat", "", "a book in the night"]
    found = cut.encode_each(texts, seconds)
    for text, pairs in zip(texts, found, strict=True):
        for second, pair in zip(seconds, pairs, strict=True):
            (expected,) = whole.encode_batch_fast([(text, second)])
            assert list(pair.ids) == expected.ids
            if tokenizer.backend.post_processor is not None:
                assert list(pair.type_ids) == expected.type_ids
            assert pair.truncated == bool(expected.overflowing)


def test_a_second_text_leaves_room_for_the_first(tokenizer) -> None:
    with pytest.raises(UserInputError, match="Pass a shorter one"):
        tokenizer.encode_each(["the cat"], ["the cat " * LIMIT])


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("blanks", [1020, 2030, 2047, 20_000, 100_000])
def test_blanks_that_a_token_takes_are_no_tokens(tmp_path, side, blanks) -> None:
    words = {word: index for index, word in enumerate(pre_tokenizers.ByteLevel.alphabet())}
    made = tokenizers.Tokenizer(models.BPE(words, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.add_special_tokens([tokenizers.AddedToken("<gap>", lstrip=True, rstrip=True)])
    made.save(str(tmp_path / "tokenizer.json"))
    cut = Tokenizer.from_folder(tmp_path, max_length=LIMIT).cutting(LIMIT, side=side)
    for text in ("a", "the night " * 100):
        for part in (" " * blanks + "<gap>", "<gap>" + "\n" * blanks, " " * blanks):
            (found,) = cut.encode_start([f"{text}{part}{text}"])
            assert list(found.ids) == cut.encode_batch([f"{text}{part}{text}"])[0].ids


@pytest.mark.parametrize(
    "text",
    ["a" * 300_000, "\n" * 300_000, "e" + "\u0301" * 300_000, ("a" * 1000 + " ") * 300],
    ids=["word", "lines", "accents", "words"],
)
def test_few_tokens_of_many_characters_are_those_of_the_whole_text(checkpoints, text) -> None:
    cut = Tokenizer.from_folder(checkpoints("bert"), max_length=LIMIT)
    (found,) = cut.encode_start([text])
    assert list(found.ids) == cut.encode_batch([text])[0].ids
    assert found.truncated


def test_what_is_tokenized_does_not_grow_with_the_text(checkpoints, monkeypatch) -> None:
    cut = Tokenizer.from_folder(checkpoints("bert"), max_length=LIMIT)
    seen: list[int] = []
    encode = cut._start._encode

    def count(texts, **options):
        seen.extend(len(each) if isinstance(each, str) else sum(map(len, each)) for each in texts)
        return encode(texts, **options)

    monkeypatch.setattr(cut._start, "_encode", count)
    query = "the night " * 100_000
    cut.encode_start([query, *((query, each) for each in ("a", "b", "a"))])
    # The query once, each document, and what shows the special tokens.
    assert sum(seen) < 2100


def test_a_long_query_is_tokenized_once_for_many_batches(checkpoints, monkeypatch) -> None:
    cut = Tokenizer.from_folder(checkpoints("bert"), max_length=LIMIT)
    query = "the night " * 1000
    (first,) = cut.encode_start([(query, "a book")])
    seen: list[str] = []
    encode = cut._start._encode

    def note(texts, **options):
        seen.extend(texts)
        return encode(texts, **options)

    monkeypatch.setattr(cut._start, "_encode", note)
    assert list(cut.encode_start([(query, "a book")])[0].ids) == list(first.ids)
    assert all(len(each) < 128 for each in seen)
