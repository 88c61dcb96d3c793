"""Texts keep their tokens when others are taken out."""

from __future__ import annotations

import json
import random
import unicodedata
from typing import get_args

import pytest
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from qdqbert.common.choices import ScriptName
from qdqbert.common.errors import CheckpointError
from qdqbert.data.tokenizing.trimming import ids_of_scripts, trimmed, used_ids

SPECIAL = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
LETTERS = "abcdefghijklmnoprstuvwyäöü"


def words(seed: int, count: int) -> list[str]:
    rng = random.Random(seed)
    syllables = ["".join(rng.choices(LETTERS, k=rng.randint(1, 3))) for _ in range(60)]
    return ["".join(rng.choices(syllables, k=rng.randint(1, 4))) for _ in range(count)]


def texts(seed: int, count: int, known: list[str]) -> list[str]:
    rng = random.Random(seed)
    return [" ".join(rng.choices(known, k=rng.randint(1, 8))) for _ in range(count)]


ALL = words(0, 400)
CORPUS, KEPT = texts(1, 400, ALL), texts(2, 40, ALL[:60])


def template(made: tokenizers.Tokenizer) -> processors.TemplateProcessing:
    start, end = (made.token_to_id(token) for token in ("<s>", "</s>"))
    return processors.TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> </s> $B </s>",
        special_tokens=[("<s>", start), ("</s>", end)],
    )


def word_piece() -> tokenizers.Tokenizer:
    made = tokenizers.Tokenizer(models.WordPiece(unk_token="<unk>"))
    made.normalizer, made.decoder = normalizers.Lowercase(), decoders.WordPiece()
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.train_from_iterator(
        CORPUS,
        trainers.WordPieceTrainer(vocab_size=400, special_tokens=SPECIAL, show_progress=False),
    )
    made.post_processor = template(made)
    return made


def unigram() -> tokenizers.Tokenizer:
    made = tokenizers.Tokenizer(models.Unigram())
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=300, special_tokens=SPECIAL[:4], unk_token="<unk>", show_progress=False
    )
    made.train_from_iterator(CORPUS, trainer)
    # As in XLM-RoBERTa, the last token is not one of the model.
    made.add_special_tokens(["<mask>"])
    made.post_processor = processors.RobertaProcessing(
        ("</s>", made.token_to_id("</s>")), ("<s>", made.token_to_id("<s>"))
    )
    return made


def byte_pairs() -> tokenizers.Tokenizer:
    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=700, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator(CORPUS, trainer)
    made.post_processor = processors.Sequence([processors.ByteLevel(), template(made)])
    return made


def suffixed_pairs() -> tokenizers.Tokenizer:
    made = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.decoder = decoders.BPEDecoder("</w>")
    trainer = trainers.BpeTrainer(
        vocab_size=500, special_tokens=SPECIAL, end_of_word_suffix="</w>", show_progress=False
    )
    made.train_from_iterator(CORPUS, trainer)
    made.post_processor = template(made)
    return made


@pytest.fixture(params=[word_piece, unigram, byte_pairs, suffixed_pairs], ids=lambda f: f.__name__)
def whole(request) -> tokenizers.Tokenizer:
    return request.param()


def test_texts_keep_their_tokens(whole) -> None:
    kept, ids = trimmed(whole, used_ids(whole, KEPT))
    assert len(ids) == kept.get_vocab_size() < 0.9 * whole.get_vocab_size()
    assert ids == sorted(set(ids))
    for text in [*KEPT, "", (KEPT[0], KEPT[1])]:
        texts = text if isinstance(text, tuple) else (text,)
        found, expected = (each.encode(*texts) for each in (kept, whole))
        assert found.tokens == expected.tokens
        assert [ids[token] for token in found.ids] == expected.ids
        assert kept.decode(found.ids) == whole.decode(expected.ids)


RUSSIAN = ["Да, это дом 12!", "река и дома", "У дома река."]
GREEK = ["το σπίτι 7", "ένα ποτάμι;"]


@pytest.mark.parametrize(
    "make", [word_piece, unigram, byte_pairs, suffixed_pairs], ids=lambda f: f.__name__
)
def test_texts_of_kept_scripts_keep_their_tokens(make, monkeypatch) -> None:
    monkeypatch.setattr(f"{__name__}.CORPUS", [*CORPUS, *RUSSIAN * 20, *GREEK * 20])
    whole = make()
    kept, ids = trimmed(whole, used_ids(whole, []) | ids_of_scripts(whole, ["cyrillic"]))
    for text in [*RUSSIAN, "дар 34, домик", "12 + 7 = 19"]:
        assert [ids[token] for token in kept.encode(text).ids] == whole.encode(text).ids
    if make is not byte_pairs:
        # Byte-pair encoding keeps all single characters.
        longer = "".join(each for each in kept.get_vocab() if len(each) > 1)
        letters = {unicodedata.name(each).split()[0] for each in longer}
        assert "CYRILLIC" in letters
        assert "GREEK" not in letters
    assert len(ids) < 0.7 * whole.get_vocab_size()
    for text in (GREEK[0], ALL[0]):
        assert [ids[token] for token in kept.encode(text).ids] != whole.encode(text).ids


def test_every_script_that_can_be_chosen_is_known() -> None:
    whole = word_piece()
    assert len(ids_of_scripts(whole, get_args(ScriptName))) == whole.get_vocab_size()


def test_other_words_fall_apart_into_characters(whole) -> None:
    kept, _ = trimmed(whole, used_ids(whole, KEPT))
    unknown = kept.token_to_id("<unk>")
    for word in ALL[60:]:
        if set(word) <= set("".join(KEPT)):
            assert unknown not in kept.encode(word).ids
            assert kept.decode(kept.encode(word).ids).replace(" ", "").replace("##", "") == word


def test_special_tokens_keep_their_names_and_order(whole) -> None:
    kept, _ = trimmed(whole, used_ids(whole, KEPT))
    for token in SPECIAL:
        assert (kept.token_to_id(token) is None) == (whole.token_to_id(token) is None)
    assert kept.token_to_id("<pad>") == whole.token_to_id("<pad>") == 1


def test_all_tokens_can_be_kept(whole) -> None:
    every = range(whole.get_vocab_size())
    kept, ids = trimmed(whole, every)
    assert ids == list(every)
    assert kept.get_vocab() == whole.get_vocab()
    merges = [json.loads(each.to_str())["model"].get("merges") for each in (kept, whole)]
    assert merges[0] == merges[1]


def test_an_unknown_algorithm_is_refused(monkeypatch) -> None:
    made = word_piece()
    content = made.to_str().replace('"type":"WordPiece"', '"type":"Other"')

    class Odd:
        def to_str(self) -> str:
            return content

    with pytest.raises(CheckpointError, match="type 'Other'"):
        trimmed(Odd(), [0])
