"""Compare how a checkpoint's files of a tokenizer are read with transformers' tokenizer.

A case is a change of tokenizer.json and tokenizer_config.json. `load` and `quantize` tokenize as
transformers does then, or refuse what it refuses. Settings by which transformers builds another
tokenizer than tokenizer.json describes are not read: tokenizer.json counts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tokenizers import pre_tokenizers
from transformers.models.auto.tokenization_auto import tokenizer_class_from_name

from qdqbert.common.errors import CheckpointError
from qdqbert.data.tokenizing.tokenizer import Tokenizer
from qdqbert.encoders.checkpoint.description import describe_checkpoint
from qdqbert.encoders.checkpoint.tokenizer import runtime_tokenizer, write_tokenizer
from qdqbert.loading.float_checkpoint import open_float_checkpoint
from qdqbert.loading.float_checkpoint.folder import WITH_TYPES

GONE = object()
LONGEST = 40
WORDS = [
    "the",
    "a",
    "river",
    "is",
    "near",
    "house",
    "film",
    "fine",
    "dull",
    "good",
    "bad",
    "great",
    "not",
]
LONG = "good the film is great near a dull house " * 9
ITEMS: list[Any] = [
    *("a fine film", "The Film", LONG, ("a fine film", "the river"), (LONG, "a house")),
    *(("a house", LONG), (LONG, LONG + "bad"), "a [MASK] film [SEP] <mask> </s> house", " a  film"),
]
Change = tuple[Mapping[str, Any], Mapping[str, Any]]


def of_bert() -> Any:
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    return transformers.BertTokenizer(
        vocab={word: index for index, word in enumerate(words)}, model_max_length=24
    )


def generic() -> Any:
    names = {f"{each}_token": f"[{each.upper()}]" for each in ("pad", "unk", "cls", "sep", "mask")}
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=of_bert().backend_tokenizer, model_max_length=24, **names
    )


def of_roberta() -> Any:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", *alphabet]
    vocabulary = {word: index for index, word in enumerate(words)}
    return transformers.RobertaTokenizer(vocab=vocabulary, merges=[], model_max_length=24)


def of_xlm_roberta() -> Any:
    blank = "\u2581"
    pieces = [*("<s>", "<pad>", "</s>", "<unk>"), *(blank + word for word in WORDS), blank]
    words = [(each, -1.0) for each in (*pieces, *"abcdefghijklmnopqrstuvwxyz", "<mask>")]
    return transformers.XLMRobertaTokenizer(vocab=words, model_max_length=24)


TOKENIZERS = {
    "bert": (of_bert, "bert"),
    "generic": (generic, "bert"),
    "roberta": (of_roberta, "roberta"),
    "xlm-roberta": (of_xlm_roberta, "xlm-roberta"),
}


def cut(**changed: Any) -> dict[str, Any]:
    own = {"direction": "Right", "max_length": 16, "strategy": "LongestFirst", "stride": 0}
    return {"truncation": {**own, **changed}}


def pad(**changed: Any) -> dict[str, Any]:
    own = {"strategy": "BatchLongest", "direction": "Right", "pad_to_multiple_of": None}
    token = {"pad_id": 0, "pad_type_id": 0, "pad_token": "[PAD]"}
    return {"padding": {**own, **token, **changed}}


def token(content: str, **flags: bool) -> dict[str, Any]:
    names = ("lstrip", "rstrip", "normalized", "single_word", "special")
    return {"content": content, **dict.fromkeys(names, False), **flags}


LEFT = cut(direction="Left")
CHANGES: dict[str, Change] = {
    "none": ({}, {}),
    "left": (LEFT, {}),
    "left, right in config": (LEFT, {"truncation_side": "right"}),
    "right, left in config": (cut(), {"truncation_side": "left"}),
    "left in config": ({}, {"truncation_side": "left"}),
    "unknown side": ({}, {"truncation_side": "Left"}),
    "limit": (cut(), {}),
    "limit, none in config": (cut(), {"model_max_length": GONE}),
    "first text": (cut(strategy="OnlyFirst"), {}),
    "second text": (cut(strategy="OnlySecond"), {}),
    "stride": (cut(stride=4), {"stride": 4}),
    "strategy": ({}, {"truncation_strategy": "only_first"}),
    "older limit": ({}, {"model_max_length": GONE, "max_len": 12}),
    "both limits": ({}, {"max_len": 12}),
    "null and older limit": ({}, {"model_max_length": None, "max_len": 12}),
    "another limit": ({}, {"max_length": 12}),
    "no limit": ({}, {"model_max_length": GONE}),
    "null limit": ({}, {"model_max_length": None}),
    "huge limit": ({}, {"model_max_length": 10**30}),
    "padding": (pad(), {}),
    "padding to a length": (pad(strategy={"Fixed": 32}), {}),
    "padding left": (pad(direction="Left"), {"padding_side": "left"}),
    "padding to a multiple": (pad(pad_to_multiple_of=8), {"pad_to_multiple_of": 8}),
    "padding of a type": (pad(pad_type_id=1), {"pad_token_type_id": 1}),
    "no class": ({}, {"tokenizer_class": GONE}),
    "null class": ({}, {"tokenizer_class": None}),
    "unknown class": ({}, {"tokenizer_class": "UnknownTokenizer"}),
    "new generic class": ({}, {"tokenizer_class": "TokenizersBackend"}),
    "old generic class": ({}, {"tokenizer_class": "PreTrainedTokenizerFast"}),
    "inputs": ({}, {"model_input_names": ["input_ids", "attention_mask"]}),
    "inputs with types": ({}, {"model_input_names": ["input_ids", "token_type_ids"]}),
    "names are text": ({}, {"split_special_tokens": True}),
    "clean": ({}, {"clean_up_tokenization_spaces": True}),
    "special token": ({}, {"extra_special_tokens": ["fi"]}),
    "older special token": (
        {},
        {"additional_special_tokens": ["fi", {**token("ho"), "__type": "AddedToken"}]},
    ),
    "special token with a name": ({}, {"extra_special_tokens": {"x_token": "fi"}}),
    "token with another name": ({}, {"image_token": "fi"}),
    "known special token": ({}, {"extra_special_tokens": ["film"]}),
    "token of words": ({}, {"added_tokens_decoder": {"400": token("hou")}}),
    "tokens of words": ({}, {"added_tokens_decoder": {"400": token("hou"), "90": token("fi")}}),
    "no padding token": ({}, {"pad_token": GONE}),
    "another padding token": ({}, {"pad_token": "fi"}),
    "another mask": ({}, {"mask_token": {**token("fi", lstrip=True), "__type": "AddedToken"}}),
    "no mask": ({}, {"mask_token": None}),
}
CHEAP = ("left", "older limit", "none", "names are text", "tokens of words", "no class")


def save(kind: str, folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Write a model, and return the content of its tokenizer's files."""
    make, model_type = TOKENIZERS[kind]
    tokenizer = make()
    config = transformers.AutoConfig.for_model(
        model_type,
        vocab_size=len(tokenizer) + 4,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
        intermediate_size=8,
        max_position_embeddings=LONGEST + 2,
        type_vocab_size=2,
    )
    torch.manual_seed(0)
    transformers.AutoModelForSequenceClassification.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    files = (folder / "tokenizer.json", folder / "tokenizer_config.json")
    tokens, settings = (json.loads(each.read_text()) for each in files)
    return tokens, settings


def expected(folder: Path, longest: int) -> list[Any] | None:
    """Return transformers' ids and segments, if it reads the files."""
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    except (TypeError, ValueError):
        return None
    limit = min(tokenizer.model_max_length, longest)
    found = []
    for item in ITEMS:
        texts = (item,) if isinstance(item, str) else item
        each = tokenizer(*texts, truncation=True, max_length=limit)
        found.append((each["input_ids"], each.get("token_type_ids")))
    return found


def loaded(folder: Path) -> list[Any]:
    """Return the ids and segments of `load`."""
    artifact = open_float_checkpoint(folder, name="model", check=False)
    tokenizer = Tokenizer.from_folder(artifact.directory, max_length=artifact.max_length)
    return kept(tokenizer, "token_type_ids" in artifact.input_names)


def quantized(folder: Path, written: Path) -> list[list[Any]]:
    """Return the ids and segments of `quantize`, and of the folder that it writes."""
    found = describe_checkpoint(str(folder))
    own = runtime_tokenizer(found.tokenizer).cutting(found.max_length)
    write_tokenizer(found.tokenizer, written, max_length=found.max_length)
    again = Tokenizer.from_folder(written, max_length=found.max_length)
    has_types = "token_type_ids" in found.input_names
    return [kept(own, has_types), kept(again, has_types)]


def kept(tokenizer: Tokenizer, has_types: bool) -> list[Any]:
    found = tokenizer.encode_start(ITEMS)
    return [(list(each.ids), list(each.type_ids) if has_types else None) for each in found]


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        pytest.param(
            kind,
            name,
            marks=() if kind == "generic" and name in CHEAP else pytest.mark.slow,
            id=f"{kind} {name}",
        )
        for kind in TOKENIZERS
        for name in CHANGES
    ],
)
def test_texts_are_tokenized_as_by_transformers(
    own_cache, kind, name, tmp_path, monkeypatch
) -> None:
    folder = tmp_path / "model"
    files = zip(("tokenizer.json", "tokenizer_config.json"), save(kind, folder), strict=True)
    for (file, own), changed in zip(files, CHANGES[name], strict=True):
        content = {key: value for key, value in {**own, **changed}.items() if value is not GONE}
        (folder / file).write_text(json.dumps(content))
    wanted = expected(folder, LONGEST + 2 if TOKENIZERS[kind][1] == "bert" else LONGEST)
    if wanted is None:
        for read in (loaded, lambda each: quantized(each, tmp_path / "written")):
            with pytest.raises(CheckpointError):
                read(folder)
        return
    assert loaded(folder) == wanted
    for found in quantized(folder, tmp_path / "written"):
        assert found == wanted


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("special_tokens_map.json", {"additional_special_tokens": ["fi"]}),
        ("special_tokens_map.json", {"mask_token": token("fi", lstrip=True)}),
        ("added_tokens.json", {"fi": 18, "hou": 17}),
    ],
)
def test_older_files_name_tokens_too(own_cache, file, content, tmp_path, monkeypatch) -> None:
    save("generic", tmp_path / "model")
    (tmp_path / "model" / file).write_text(json.dumps(content))
    assert loaded(tmp_path / "model") == expected(tmp_path / "model", LONGEST)


@pytest.mark.parametrize("name", WITH_TYPES)
def test_classes_of_tokenizers_that_make_token_types_are_transformers(name) -> None:
    own = tokenizer_class_from_name(f"{name}Tokenizer")
    assert "token_type_ids" in own.model_input_names
