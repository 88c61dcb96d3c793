"""The vocabulary of sentencepiece as a tokenizer: by hand, and against sentencepiece."""

from __future__ import annotations

import contextlib
import random

import pytest

from qdqbert.common.errors import CheckpointError
from qdqbert.data.tokenizing.sentencepiece_model import read_sentencepiece
from spm_models import CONTROL, NAMED, NORMAL, SPECIAL, pieces, spm_bytes

SMALL = [
    *SPECIAL,
    ("▁", -4.0, NORMAL),
    ("a", -4.0, NORMAL),
    ("b", -4.0, NORMAL),
    ("▁ab", -5.0, NORMAL),
    ("ba", -5.0, NORMAL),
    ("<<x>>", 0.0, NAMED),
    ("[H]", 0.0, CONTROL),
]


@pytest.fixture
def path(tmp_path):
    found = tmp_path / "spm.model"
    found.write_bytes(spm_bytes(SMALL))
    return found


def test_words_become_their_most_probable_pieces(path) -> None:
    made = read_sentencepiece(path, {})
    # "▁ab" and "a" have -9, "▁" and "a" and "ba" -13.
    assert made.encode("aba").tokens == ["[CLS]", "▁ab", "a", "[SEP]"]
    assert made.encode(" ab  ba ").tokens[1:-1] == ["▁ab", "▁", "ba"]
    assert made.encode("aQ").ids[1:-1] == [4, 5, 3]
    pair = made.encode("a", "b")
    assert pair.tokens == ["[CLS]", "▁", "a", "[SEP]", "▁", "b", "[SEP]"]
    assert pair.type_ids == [0, 0, 0, 0, 1, 1, 1]


def test_tokens_have_the_ids_of_the_file_and_the_mask_follows(path) -> None:
    made = read_sentencepiece(path, {})
    assert [made.token_to_id(text) for text, _, _ in SMALL] == [*range(len(SMALL))]
    assert made.token_to_id("[MASK]") == len(SMALL)
    assert made.encode("a<<x>>b[H]").tokens[1:-1] == ["▁", "a", "<<x>>", "▁", "b", "[H]"]
    kinds = {each.content: each.special for each in made.get_added_tokens_decoder().values()}
    assert not kinds["<<x>>"]
    assert kinds["[H]"]


def test_settings_of_the_class_count(path) -> None:
    made = read_sentencepiece(path, {"do_lower_case": True, "split_by_punct": True})
    assert made.encode("AB").tokens[1:-1] == ["▁ab"]
    assert made.encode("a.b").tokens[1:-1] == ["▁", "a", "▁", ".", "▁", "b"]
    named = read_sentencepiece(path, {"mask_token": {"content": "[H]"}})
    assert named.token_to_id("[MASK]") is None


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (spm_bytes([*SMALL, ("c", float("nan"), NORMAL)]), "has the score nan"),
        (spm_bytes(SMALL, kind=2), "is of the type 2 of sentencepiece, and only 1"),
        (spm_bytes(SMALL, table=b"\xff\xff\xff\xff"), "^The tokenizer .* cannot be used"),
        (spm_bytes(SMALL[:3]) + b"\x12\x03\xc0\x02\x09", "^The tokenizer .* cannot be used"),
        (b"", "is damaged: it has no pieces of words. Download"),
        (b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", "a number does not end"),
        (b"\x0a\x04\x0a\x02\xff\xfe", "is damaged"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:4d\nsize 1\n", "Git LFS"),
    ],
)
def test_files_that_are_damaged_are_refused(content, message, path) -> None:
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=message):
        read_sentencepiece(path, {})


def test_files_that_end_too_early_are_refused_or_have_fewer_pieces(path) -> None:
    whole = path.read_bytes()
    for end in range(len(whole)):
        path.write_bytes(whole[:end])
        # Any other error would fail the test.
        with contextlib.suppress(CheckpointError):
            read_sentencepiece(path, {})


@pytest.mark.slow
def test_ids_are_those_of_sentencepiece(path) -> None:
    sentencepiece = pytest.importorskip("sentencepiece")
    source = path.with_name("texts.txt")
    words = ["the", "house", "of", "a", "cat", "東京", "電話", "café", "ﬁne", "ＦＵＬＬ", "½"]
    words += ["in", "London", "e-mail", "3.5", "(x)", "Straße"]
    rng = random.Random(0)
    source.write_text("\n".join(" ".join(rng.choices(words, k=12)) for _ in range(2000)))
    for limit in (80, 120):
        sentencepiece.SentencePieceTrainer.train(
            input=str(source),
            model_prefix=str(path.with_suffix("")),
            vocab_size=limit,
            hard_vocab_limit=False,
            character_coverage=1.0,
            pad_id=0,
            bos_id=1,
            eos_id=2,
            unk_id=3,
            pad_piece="[PAD]",
            bos_piece="[CLS]",
            eos_piece="[SEP]",
            unk_piece="[UNK]",
        )
        wanted = sentencepiece.SentencePieceProcessor(model_file=str(path))
        made = read_sentencepiece(path, {})
        texts = ["".join(rng.choices(f"{' '.join(words)} \t\n�Ⅷ①﷽", k=30)) for _ in range(3000)]
        for text in texts:
            assert made.encode(text, add_special_tokens=False).ids == wanted.encode(text), text


def test_a_large_vocabulary_is_read(path) -> None:
    path.write_bytes(spm_bytes([*pieces(), *((f"▁{i}x", -9.0, NORMAL) for i in range(20_000))]))
    made = read_sentencepiece(path, {})
    assert made.encode("19999x the").tokens[1:-1] == ["▁19999x", "▁the"]
