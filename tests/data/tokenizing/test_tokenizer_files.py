"""tokenizer.json is checked before `tokenizers` sees it, and panics of the library are errors."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import transformers
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from qdqbert.common.errors import CheckpointError
from qdqbert.data.tokenizing.tokenizer_files import (
    contradictions,
    raising,
    read_tokenizer,
    set_limits,
)


def content() -> dict[str, Any]:
    vocab = {"<s>": 0, "</s>": 1, "a": 2, "b": 3, "ab": 4}
    tokenizer = Tokenizer(models.BPE(vocab, [("a", "b")]))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        "<s> $A </s>", "<s> $A </s> $B </s>", [("<s>", 0), ("</s>", 1)]
    )
    return json.loads(tokenizer.to_str())


@pytest.fixture
def write(tmp_path: Path) -> Callable[[dict[str, Any]], Path]:
    def write(content: dict[str, Any]) -> Path:
        path = tmp_path / "tokenizer.json"
        path.write_text(json.dumps(content))
        return path

    return write


def test_the_tokenizer_neither_cuts_nor_pads(write) -> None:
    tokenizer = Tokenizer.from_str(json.dumps(content()))
    tokenizer.enable_truncation(3)
    tokenizer.enable_padding(length=8)
    stored = json.loads(tokenizer.to_str())
    found = read_tokenizer(write(stored))
    assert found.tokenizer.encode("ab a").ids == [0, 4, 2, 1]
    assert found.largest_id == 4


@pytest.mark.parametrize("value", [2**31 - 1, 2**24, -1])
@pytest.mark.parametrize("place", ["vocab", "added", "template", "cls"])
def test_ids_beyond_any_vocabulary_are_refused(write, place: str, value: int) -> None:
    stored = content()
    if place == "vocab":
        stored["model"]["vocab"]["b"] = value
    elif place == "added":
        stored["added_tokens"].append({"id": value, "content": "<x>", "special": True})
    elif place == "template":
        stored["post_processor"]["special_tokens"]["<s>"]["ids"] = [value]
    else:
        inner = {"type": "BertProcessing", "sep": ["</s>", 1], "cls": ["<s>", value]}
        stored["post_processor"] = {"type": "Sequence", "processors": [inner]}
    with pytest.raises(CheckpointError, match=f"has the id {value}") as caught:
        read_tokenizer(write(stored))
    assert "tokenizer.json" in str(caught.value)


def test_the_largest_id_counts_those_of_the_post_processor(write) -> None:
    stored = content()
    stored["post_processor"]["special_tokens"]["<s>"]["ids"] = [77]
    assert read_tokenizer(write(stored)).largest_id == 77


def test_the_largest_id_of_a_unigram_model_is_its_last(write) -> None:
    model = models.Unigram([("<unk>", 0.0), ("a", -1.0), ("b", -2.0)], unk_id=0)
    assert read_tokenizer(write(json.loads(Tokenizer(model).to_str()))).largest_id == 2


@pytest.mark.parametrize(
    ("part", "value"),
    [
        # The library panics at this slice of the merges.
        (("model", "continuing_subword_prefix"), "#####"),
        (("model", "continuing_subword_prefix"), "\0"),
        (("post_processor", "single"), [{"SpecialToken": {"id": "<x>", "type_id": 0}}]),
        (("post_processor", "single"), [{"Sequence": {"id": "B", "type_id": 0}}]),
        (("normalizer",), {"type": "Precompiled", "precompiled_charsmap": ""}),
        (("model",), None),
        (("model", "vocab"), []),
        (("model", "vocab", "a"), "2"),
        (("added_tokens",), {}),
        (("post_processor",), []),
    ],
)
def test_what_the_library_cannot_run_is_an_error(write, part: tuple[str, ...], value: Any) -> None:
    stored = content()
    inner = stored
    for name in part[:-1]:
        inner = inner[name]
    inner[part[-1]] = value
    with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        read_tokenizer(write(stored))


def test_a_panic_at_a_text_is_an_error(write) -> None:
    path = write(content() | {"pre_tokenizer": {"type": "FixedLength", "length": 0}})
    with pytest.raises(CheckpointError, match=r"tokenizer\.json.*chunk size"), raising(path):
        read_tokenizer(path).tokenizer.encode("ab")


def test_other_errors_pass(write) -> None:
    path = write(content())
    with pytest.raises(KeyboardInterrupt), raising(path):
        raise KeyboardInterrupt
    with pytest.raises(TypeError), raising(path):
        read_tokenizer(path).tokenizer.encode(5)


def test_limits_are_written_and_cutting_and_padding_are_not(tmp_path) -> None:
    tokenizer = Tokenizer.from_str(json.dumps(content()))
    stored = json.loads(tokenizer.to_str())
    tokenizer.enable_truncation(3, direction="left")
    tokenizer.enable_padding(length=8)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    config = {"pad_token": "</s>", "max_length": 3, "model_max_length": 512}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    set_limits(tmp_path, 64)
    assert json.loads((tmp_path / "tokenizer.json").read_text()) == stored
    limits = {"max_length": 64, "model_max_length": 64, "truncation_side": "left"}
    assert json.loads((tmp_path / "tokenizer_config.json").read_text()) == config | limits


def test_a_limit_is_added_only_to_files_that_there_are(tmp_path) -> None:
    set_limits(tmp_path, 64)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "tokenizer_config.json").write_text("{}")
    set_limits(tmp_path, 64)
    found = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert found == {"model_max_length": 64}


@pytest.mark.parametrize(
    ("kind", "model_type", "prepends"),
    [
        ("LlamaTokenizer", "llama", True),
        ("LlamaTokenizerFast", "llama", True),
        ("LlamaTokenizer", "llama", False),
        ("LlamaTokenizer", "mistral", True),
        ("PreTrainedTokenizerFast", "llama", True),
    ],
)
def test_a_class_of_llama_is_named_if_it_reads_blanks_otherwise(
    kind: str, model_type: str, prepends: bool, tmp_path: Path
) -> None:
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2, "\u2581": 3, "a": 4, "\u2581a": 5}
    made = Tokenizer(models.BPE(vocab, [("\u2581", "a")], unk_token="<unk>"))
    if prepends:
        # As Llama 2 has it.
        steps = [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
        made.normalizer = normalizers.Sequence(steps)
    else:
        made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    made.save(str(tmp_path / "tokenizer.json"))
    settings = {"tokenizer_class": kind, "add_bos_token": False, "unk_token": "<unk>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    differs = theirs(" a")["input_ids"] != made.encode(" a").ids
    assert contradictions(settings, made, model_type) == [f"tokenizer_class={kind!r}"] * differs
    assert differs == (prepends and kind != "PreTrainedTokenizerFast" and model_type == "llama")
