from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
import transformers

import qdqbert
from qdqbert.common.errors import CheckpointError
from qdqbert.encoders.checkpoint.load import load_checkpoint
from torch_files import to_torch


def change(folder: Path, **fields: object) -> str:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))
    return str(folder)


def test_a_folder_of_an_adapter_alone_says_how_to_merge_it(write_file, tmp_path) -> None:
    write_file("adapter_config.json", '{"peft_type": "LORA"}')
    write_file("adapter_model.safetensors", "")
    for load in (load_checkpoint, qdqbert.load):
        with pytest.raises(CheckpointError, match=r"is an adapter .*merge_and_unload\(\)"):
            load(str(tmp_path))


def test_an_adapter_next_to_a_model_is_refused(checkpoint_copy) -> None:
    folder = checkpoint_copy("classifier")
    (folder / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    with pytest.raises(CheckpointError, match=r"has an adapter next to the model.*remove adapter_"):
        load_checkpoint(str(folder))


def test_a_folder_without_a_config_says_so(checkpoint_copy) -> None:
    folder = checkpoint_copy("bert")
    (folder / "config.json").unlink()
    with pytest.raises(CheckpointError, match=r"bert-copy' has no config\.json\. Expected"):
        load_checkpoint(str(folder))


def test_a_config_without_a_family_says_so(checkpoint_copy) -> None:
    folder = change(checkpoint_copy("bert"), model_type=None)
    with pytest.raises(CheckpointError, match=r"names no `model_type`"):
        load_checkpoint(folder)


@pytest.mark.parametrize("model_type", ["bloom", "funnel"])
def test_an_unknown_family_is_named_with_the_known_ones(checkpoint_copy, model_type) -> None:
    folder = change(checkpoint_copy("bert"), model_type=model_type)
    message = (
        rf"^Checkpoints of type `{model_type}` are not supported(: they have layers that shorten a "
        r"text, which no engine here computes)?\. Supported families: bert, "
    )
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint(folder)


def test_a_model_that_is_code_of_the_checkpoint_is_refused(checkpoint_copy) -> None:
    folder = checkpoint_copy("bert")
    custom = {"AutoConfig": "own.Config", "AutoModelForMaskedLM": "own.JinaBertForMaskedLM"}
    with pytest.raises(CheckpointError, match=r"`auto_map` .* own\.JinaBertForMaskedLM\. Code of"):
        load_checkpoint(change(folder, auto_map=custom))
    # A config of its own has no arithmetic.
    assert load_checkpoint(change(folder, auto_map={"AutoConfig": "own.Config"})).notices


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "classifier",
            "AutoModelForSequenceClassification.from_pretrained(folder).save_pretrained",
        ),
        ("bert", "AutoModel.from_pretrained(folder).save_pretrained(new_folder)"),
        ("sentence", "SentenceTransformer(folder).save_pretrained(new_folder)"),
    ],
)
def test_the_advice_for_old_pickles_keeps_head_and_tokenizer(
    checkpoints, checkpoint_copy, tmp_path, name, expected
) -> None:
    folder = to_torch(checkpoint_copy(name), _use_new_zipfile_serialization=False)
    with pytest.raises(CheckpointError) as caught:
        qdqbert.load(folder)
    message = str(caught.value)
    with pytest.raises(CheckpointError, match=re.escape(message)):
        load_checkpoint(str(folder))
    assert "only pickled weights (pytorch_model.bin)" in message
    assert expected in message
    # Followed to the letter, the advice gives the checkpoint back.
    autos = ("AutoModel", "AutoModelForSequenceClassification", "AutoTokenizer")
    names = {each: getattr(transformers, each) for each in autos}
    names |= {"folder": str(folder), "new_folder": str(tmp_path / "new")}
    if name == "sentence":
        module = pytest.importorskip("sentence_transformers")
        names["SentenceTransformer"] = module.SentenceTransformer
    for code in message.split("`")[1::2]:
        eval(code, names)
    right = load_checkpoint(str(checkpoints(name)))
    found = load_checkpoint(str(tmp_path / "new"))
    assert (found.task, found.max_length) == (right.task, right.max_length)
    assert (found.head is None) is (right.head is None)
    torch.testing.assert_close(found.model.state_dict(), right.model.state_dict())
