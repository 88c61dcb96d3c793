"""A tokenizer.json gives its own ids, whatever its class is in transformers."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import transformers
from tokenizers import (
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from conftest import BERT_SPECIAL, ROBERTA_SPECIAL, TEXTS
from qdqbert.common.errors import CheckpointError
from qdqbert.data.tokenizing.tokenizer import Tokenizer as RuntimeTokenizer
from qdqbert.encoders.checkpoint.sample_texts import HARD, SPECIAL_TOKENS
from qdqbert.encoders.checkpoint.tokenizer import load_tokenizer, runtime_tokenizer, write_tokenizer

SAMPLES = [*HARD.values(), SPECIAL_TOKENS]
# transformers takes an empty second text for none.
PAIRS = [("a text", text) for text in SAMPLES if text]
CORPUS = [*TEXTS, *SAMPLES]


def word_pieces(normalizer: Any, splitter: Any, special=BERT_SPECIAL) -> Tokenizer:
    made = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    made.normalizer, made.pre_tokenizer = normalizer, splitter
    made.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(
        vocab_size=500, special_tokens=list(special), show_progress=False
    )
    made.train_from_iterator(CORPUS, trainer)
    ids = [(token, made.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
    made.post_processor = processors.TemplateProcessing(
        "[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", ids
    )
    return made


def of_bert(**options: Any) -> Tokenizer:
    """Return a tokenizer as that of BERT."""
    return word_pieces(normalizers.BertNormalizer(**options), pre_tokenizers.BertPreTokenizer())


def odd_word_pieces() -> Tokenizer:
    steps = [normalizers.NFKC(), normalizers.Lowercase(), normalizers.Replace("’", "'")]
    splitters = [pre_tokenizers.Whitespace(), pre_tokenizers.Punctuation()]
    return word_pieces(normalizers.Sequence(steps), pre_tokenizers.Sequence(splitters))


def without_special_tokens() -> Tokenizer:
    made = of_bert(lowercase=True)
    content = json.loads(made.to_str())
    return Tokenizer.from_str(json.dumps({**content, "post_processor": None}))


def with_bert_processing() -> Tokenizer:
    made = of_bert(lowercase=True)
    ends = [(token, made.token_to_id(token)) for token in ("[SEP]", "[CLS]")]
    made.post_processor = processors.BertProcessing(*ends)
    return made


def roberta_ends(made: Tokenizer) -> Tokenizer:
    made.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    return made


def unigram() -> Tokenizer:
    made = Tokenizer(models.Unigram())
    steps = [normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")]
    made.normalizer = normalizers.Sequence(steps)
    made.pre_tokenizer, made.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=400,
        special_tokens=list(ROBERTA_SPECIAL),
        unk_token="<unk>",
        show_progress=False,
    )
    made.train_from_iterator(CORPUS, trainer)
    return roberta_ends(made)


def byte_pairs(*splitters: Any) -> Tokenizer:
    made = Tokenizer(models.BPE())
    bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.pre_tokenizer = bytes_
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        special_tokens=list(ROBERTA_SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(CORPUS, trainer)
    if splitters:
        made.pre_tokenizer = pre_tokenizers.Sequence([*splitters, bytes_])
    return roberta_ends(made)


def named(special: tuple[str, ...]) -> dict[str, str]:
    names = ("pad", "unk", "cls", "sep", "mask")
    order = special if special is BERT_SPECIAL else [special[i] for i in (1, 3, 0, 2, 4)]
    return {f"{name}_token": token for name, token in zip(names, order, strict=True)}


OF_BERT, OF_ROBERTA = named(BERT_SPECIAL), named(ROBERTA_SPECIAL)
# Tokenizers, and classes and settings whose rules transformers 5 would apply instead.
OTHERS: dict[str, tuple[Callable[[], Tokenizer], dict[str, Any]]] = {
    "odd-bert": (odd_word_pieces, {"tokenizer_class": "BertTokenizer", **OF_BERT}),
    "cased": (lambda: of_bert(lowercase=False), {"tokenizer_class": "BertTokenizerFast"}),
    "accents": (lambda: of_bert(strip_accents=False), {"tokenizer_class": "DistilBertTokenizer"}),
    "no-ends": (without_special_tokens, {"tokenizer_class": "BertTokenizer", **OF_BERT}),
    "mpnet": (odd_word_pieces, {"tokenizer_class": "MPNetTokenizer", **OF_BERT}),
    "unigram-without-class": (unigram, OF_ROBERTA),
    "unigram-roberta": (unigram, {"tokenizer_class": "RobertaTokenizer", **OF_ROBERTA}),
    "unigram-xlm-roberta": (unigram, {"tokenizer_class": "XLMRobertaTokenizer", **OF_ROBERTA}),
    "unigram-camembert": (unigram, {"tokenizer_class": "CamembertTokenizer"}),
    "unigram-deberta": (unigram, {"tokenizer_class": "DebertaV2Tokenizer", **OF_ROBERTA}),
    "split-roberta": (
        lambda: byte_pairs(pre_tokenizers.Split("a", "isolated")),
        {"tokenizer_class": "RobertaTokenizer", **OF_ROBERTA},
    ),
}
# Those that transformers 5 builds as they are.
USUAL: dict[str, tuple[Callable[[], Tokenizer], dict[str, Any]]] = {
    "bert": (lambda: of_bert(lowercase=True), {"tokenizer_class": "BertTokenizer"}),
    "electra": (lambda: of_bert(lowercase=True), {"tokenizer_class": "ElectraTokenizerFast"}),
    "roberta": (byte_pairs, {"tokenizer_class": "RobertaTokenizer", **OF_ROBERTA}),
    "other-form-of-ends": (with_bert_processing, {"tokenizer_class": "BertTokenizer"}),
    "as-stored": (odd_word_pieces, {"tokenizer_class": "PreTrainedTokenizerFast", **OF_BERT}),
}


def save(folder: Path, tokenizer: Tokenizer, **settings: Any) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "config.json").write_text('{"model_type": "bert"}')
    return str(folder)


def write(loaded: Any, folder: Path, max_length: int = 64) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "bert"}')
    write_tokenizer(loaded.tokenizer, folder, max_length=max_length)
    return folder


def ids_of(tokenizer: Tokenizer) -> list[list[int]]:
    return [
        *(tokenizer.encode(text).ids for text in SAMPLES),
        *(tokenizer.encode(*pair).ids for pair in PAIRS),
    ]


def ids_in_transformers(tokenizer: Any) -> list[list[int]]:
    return [
        *(tokenizer(text, verbose=False)["input_ids"] for text in SAMPLES),
        *(tokenizer(*pair, verbose=False)["input_ids"] for pair in PAIRS),
    ]


@pytest.mark.parametrize("name", [*OTHERS, *USUAL])
def test_everything_gives_the_ids_of_the_file(name, tmp_path) -> None:
    make, settings = {**OTHERS, **USUAL}[name]
    original = make()
    loaded = load_tokenizer(save(tmp_path / "model", original, **settings))
    written = write(loaded, tmp_path / "written")
    expected = ids_of(original)
    assert ids_in_transformers(loaded.tokenizer) == expected
    assert ids_of(RuntimeTokenizer.from_folder(written, max_length=None).backend) == expected
    assert ids_in_transformers(transformers.AutoTokenizer.from_pretrained(written)) == expected
    again = load_tokenizer(str(written))
    assert again.notices == ()
    assert again.tokenizer.model_input_names == loaded.tokenizer.model_input_names
    content = json.loads((written / "tokenizer.json").read_text())
    stored = json.loads(original.to_str())
    for part in ("normalizer", "pre_tokenizer", "post_processor", "decoder", "added_tokens"):
        assert content[part] == stored[part], part


@pytest.mark.parametrize("name", OTHERS)
def test_a_notice_counts_the_texts_that_transformers_tokenizes_differently(name, tmp_path) -> None:
    make, settings = OTHERS[name]
    folder = save(tmp_path / "model", make(), **settings)
    loaded = load_tokenizer(folder)
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    own = Tokenizer.from_file(f"{folder}/tokenizer.json")
    differing = 0
    for text in SAMPLES:
        pair = own.encode("A text.", text) if text else own.encode("A text.")
        found = theirs(text)["input_ids"], theirs("A text.", text)["input_ids"]
        differing += found != (own.encode(text).ids, pair.ids)
    assert differing > 0
    (notice,) = loaded.notices
    assert f"would tokenize {differing} of {len(SAMPLES)} sample texts differently" in notice


def test_a_step_that_no_sample_shows_is_kept(tmp_path) -> None:
    original = byte_pairs(pre_tokenizers.Split("\u0378", "isolated"))
    folder = save(tmp_path / "model", original, tokenizer_class="RobertaTokenizer", **OF_ROBERTA)
    loaded = load_tokenizer(folder)
    assert loaded.notices == ()
    written = write(loaded, tmp_path / "written")
    theirs = transformers.AutoTokenizer.from_pretrained(written)
    assert theirs.backend_tokenizer.to_str() == original.to_str()


@pytest.mark.parametrize("name", USUAL)
def test_a_tokenizer_that_transformers_builds_as_it_is_keeps_its_class(name, tmp_path) -> None:
    make, settings = USUAL[name]
    folder = save(tmp_path / "model", make(), **settings)
    loaded = load_tokenizer(folder)
    assert loaded.notices == ()
    assert type(loaded.tokenizer) is type(transformers.AutoTokenizer.from_pretrained(folder))
    config = json.loads((write(loaded, tmp_path / "written") / "tokenizer_config.json").read_text())
    if name == "as-stored":
        # Version 4 of transformers does not know the name that version 5 gives it.
        assert config["tokenizer_class"] == "PreTrainedTokenizerFast"
    else:
        assert config["tokenizer_class"] == type(loaded.tokenizer).__name__


@pytest.mark.parametrize("place", ["tokenizer_config", "added_tokens", "special_tokens_map"])
@pytest.mark.parametrize("make", [lambda: of_bert(lowercase=True), odd_word_pieces])
def test_tokens_that_only_other_files_add_have_the_ids_of_transformers(
    place, make, tmp_path
) -> None:
    original = make()
    size = original.get_vocab_size()
    folder = save(tmp_path / "model", original, tokenizer_class="BertTokenizer")
    if place == "tokenizer_config":
        token = {"content": "<new>", "special": True, "normalized": False}
        flags = dict.fromkeys(("lstrip", "rstrip", "single_word"), False)
        settings = {"added_tokens_decoder": {str(size): {**token, **flags}}}
        save(tmp_path / "model", original, tokenizer_class="BertTokenizer", **settings)
    elif place == "added_tokens":
        (tmp_path / "model" / "added_tokens.json").write_text(json.dumps({"<new>": size}))
    else:
        stored = {"additional_special_tokens": ["<new>"]}
        (tmp_path / "model" / "special_tokens_map.json").write_text(json.dumps(stored))
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    loaded = load_tokenizer(folder)
    written = RuntimeTokenizer.from_folder(write(loaded, tmp_path / "written"), max_length=None)
    assert theirs.convert_tokens_to_ids("<new>") == size
    text = "the cat <new> sat"
    assert loaded.tokenizer(text) == theirs(text)
    assert written.backend.encode(text).ids == theirs(text)["input_ids"]


def test_tokens_that_only_the_class_names_are_not_added(tmp_path) -> None:
    original = unigram()
    folder = save(tmp_path / "model", original, tokenizer_class="CamembertTokenizer")
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    assert len(theirs) > original.get_vocab_size()
    assert len(load_tokenizer(folder).tokenizer) == original.get_vocab_size()


def test_names_of_special_tokens_that_the_file_has_come_from_the_class(tmp_path) -> None:
    folder = save(tmp_path / "model", odd_word_pieces(), tokenizer_class="BertTokenizer")
    tokenizer = load_tokenizer(folder).tokenizer
    assert tokenizer.special_tokens_map == OF_BERT
    assert tokenizer.model_input_names == ["input_ids", "token_type_ids", "attention_mask"]
    written = write(load_tokenizer(folder), tmp_path / "written")
    assert (
        RuntimeTokenizer.from_folder(written, max_length=None).special_token("mask_token")
        == "[MASK]"
    )


def test_cutting_and_padding_of_the_file_are_ignored_and_not_written(tmp_path) -> None:
    original = odd_word_pieces()
    original.enable_truncation(5)
    original.enable_padding(length=12)
    folder = save(tmp_path / "model", original, tokenizer_class="BertTokenizer")
    loaded = load_tokenizer(folder)
    text = "the cat sat on the book in the night"
    tokens = len(loaded.tokenizer(text)["input_ids"])
    assert tokens > 8
    loaded.tokenizer([text, "a"], truncation=True, padding=True, max_length=6)
    written = write(loaded, tmp_path / "written", max_length=32)
    content = json.loads((written / "tokenizer.json").read_text())
    assert (content["truncation"], content["padding"]) == (None, None)
    config = json.loads((written / "tokenizer_config.json").read_text())
    assert (config["model_max_length"], config["max_length"]) == (32, 32)
    assert len(Tokenizer.from_file(str(written / "tokenizer.json")).encode(text).ids) == tokens


def test_the_file_is_used_if_the_class_cannot_take_it(tmp_path) -> None:
    settings = {"tokenizer_class": "XLMRobertaTokenizer", **OF_BERT}
    original = of_bert(lowercase=True)
    folder = save(tmp_path / "model", original, **settings)
    with pytest.raises(TypeError):
        transformers.AutoTokenizer.from_pretrained(folder)
    loaded = load_tokenizer(folder)
    assert ids_in_transformers(loaded.tokenizer) == ids_of(original)
    assert re.search(r"cannot build this tokenizer \(.*\)\. tokenizer.json is", loaded.notices[0])


def test_a_tokenizer_with_code_of_its_own_is_refused(tmp_path) -> None:
    own = {"auto_map": {"AutoTokenizer": [None, "own.OwnTokenizer"]}, "tokenizer_class": "Own"}
    folder = save(tmp_path / "model", of_bert(), **own)
    (tmp_path / "model" / "config.json").write_text('{"model_type": "own"}')
    with pytest.raises(ValueError, match="trust_remote_code"):
        load_tokenizer(folder)


@pytest.mark.slow
def test_a_tokenizer_in_python_gives_way_to_the_file(tmp_path) -> None:
    original = of_bert(lowercase=True)
    folder = save(tmp_path / "model", original, tokenizer_class="CanineTokenizer", **OF_BERT)
    assert not transformers.AutoTokenizer.from_pretrained(folder).is_fast
    loaded = load_tokenizer(folder)
    assert ids_in_transformers(loaded.tokenizer) == ids_of(original)
    assert "sample texts differently" in loaded.notices[0]


def test_without_the_file_the_tokenizer_is_that_of_transformers(tmp_path) -> None:
    original = of_bert(lowercase=True)
    folder = save(tmp_path / "model", original, tokenizer_class="BertTokenizer")
    vocabulary = sorted(original.get_vocab().items(), key=lambda item: item[1])
    (tmp_path / "model" / "vocab.txt").write_text("".join(f"{token}\n" for token, _ in vocabulary))
    (tmp_path / "model" / "tokenizer.json").unlink()
    loaded = load_tokenizer(folder)
    assert loaded.notices == ()
    assert ids_in_transformers(loaded.tokenizer) == ids_of(original)


def test_a_file_that_cannot_be_read_is_named(tmp_path) -> None:
    folder = save(tmp_path / "model", of_bert(), tokenizer_class="BertTokenizer")
    path = tmp_path / "model" / "tokenizer.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "model": {"type": "Word"}}))
    with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        load_tokenizer(folder)


def test_the_file_of_a_subfolder_is_read(tmp_path) -> None:
    original = odd_word_pieces()
    save(tmp_path / "model" / "encoder", original, tokenizer_class="BertTokenizer")
    loaded = load_tokenizer(str(tmp_path / "model"), subfolder="encoder")
    assert ids_in_transformers(loaded.tokenizer) == ids_of(original)


def test_a_tokenizer_in_python_cannot_run_models() -> None:
    class Slow:
        is_fast = False
        name_or_path = "a-model"

    with pytest.raises(CheckpointError, match=r"The tokenizer of 'a-model', Slow, exists only in"):
        runtime_tokenizer(Slow())
