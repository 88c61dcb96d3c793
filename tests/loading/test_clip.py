"""Text towers of CLIP and SigLIP, compared with transformers and sentence-transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentence_transformers
import tokenizers
import torch
import transformers
from tokenizers import models, normalizers, pre_tokenizers, processors

import qdqbert
from conftest import TEXTS
from qdqbert.common.errors import CheckpointError, UserInputError

pytestmark = pytest.mark.usefixtures("own_cache")

START, END = "<|startoftext|>", "<|endoftext|>"
LONG = [*TEXTS[:3], "", "a", "a cat " * 90]
TEXT = {
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 23,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 1,
}
IMAGE = {
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "image_size": 16,
    "patch_size": 8,
}


def make_tokenizer(padding: str = END) -> Any:
    """Return a tokenizer as CLIP's, of words in small letters."""
    made = tokenizers.Tokenizer(models.BPE(unk_token=END, end_of_word_suffix="</w>"))
    made.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()])
    pieces = tokenizers.Regex(r"'s|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+")
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(pieces, "removed", invert=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        end_of_word_suffix="</w>",
        special_tokens=[START, END, "<pad>"],
        show_progress=False,
    )
    made.train_from_iterator(TEXTS, trainer)
    made.post_processor = processors.RobertaProcessing(
        (END, 1), (START, 0), trim_offsets=False, add_prefix_space=False
    )
    names = {"bos_token": START, "eos_token": END, "unk_token": END, "pad_token": padding}
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, model_max_length=23, model_input_names=["input_ids"], **names
    )


def save(folder: Path, model_class: str, *, padding: str = END, **changes: Any) -> Any:
    """Write a random model of a class of transformers and its tokenizer, and return both."""
    tokenizer = make_tokenizer(padding)
    text = {**TEXT, "vocab_size": len(tokenizer) + 5, **changes}
    own = getattr(transformers, model_class)
    if model_class in ("CLIPModel", "SiglipModel"):
        whole = {"projection_dim": 16} if model_class == "CLIPModel" else {}
        config = own.config_class(text_config=text, vision_config=IMAGE, **whole)
    else:
        config = own.config_class(**text)
    torch.manual_seed(0)
    model = own(config).eval()
    for parameter in model.parameters():
        if parameter.dim() == 1:
            parameter.data += 0.3 * torch.randn_like(parameter)
        elif parameter.dim() == 2:
            parameter.data = torch.randn_like(parameter) * 0.3
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return model, tokenizer


def features_of(model: Any, inputs: Any) -> Any:
    """Return the vectors of texts, however the class names them."""
    with torch.no_grad():
        if hasattr(model, "get_text_features"):
            return model.get_text_features(**inputs).pooler_output.numpy()
        found = model(**inputs)
    return (found.text_embeds if "text_embeds" in found else found.pooler_output).numpy()


@pytest.mark.parametrize(
    ("model_class", "changes"),
    [
        ("CLIPTextModelWithProjection", {"projection_dim": 24}),
        ("CLIPTextModel", {"hidden_act": "gelu"}),
        ("CLIPModel", {}),
    ],
)
def test_vectors_of_clip_are_those_of_transformers(model_class, changes, tmp_path) -> None:
    model, tokenizer = save(tmp_path, model_class, **changes)
    options = {"padding": True, "truncation": True, "return_tensors": "pt"}
    inputs = tokenizer(LONG, return_attention_mask=True, **options)
    expected = features_of(model, inputs)
    with qdqbert.load(tmp_path, precision="float") as loaded:
        np.testing.assert_allclose(loaded.encode(LONG), expected, rtol=1e-4, atol=1e-4)
    with qdqbert.load(tmp_path) as loaded:
        found = loaded.encode(LONG)
        alone = [loaded.encode([text])[0] for text in LONG]
    assert np.stack(alone).tobytes() == found.tobytes()
    cosines = (found * expected).sum(axis=1) / np.linalg.norm(found, axis=1)
    assert (cosines / np.linalg.norm(expected, axis=1)).min() > 0.95


@pytest.mark.parametrize("model_class", ["SiglipTextModel", "SiglipModel"])
def test_vectors_of_siglip_are_those_of_texts_with_padding(model_class, tmp_path) -> None:
    # The config names another token than the tokenizer.
    model, tokenizer = save(tmp_path, model_class, padding="<pad>", projection_size=24)
    options = {"padding": "max_length", "truncation": True, "return_tensors": "pt"}
    inputs = tokenizer(LONG, **options)
    assert list(inputs) == ["input_ids"]
    assert inputs["input_ids"][3].tolist() == [0, 1, *[2] * 21]
    expected = features_of(model, inputs)
    with qdqbert.load(tmp_path, precision="float") as loaded:
        np.testing.assert_allclose(loaded.encode(LONG), expected, rtol=1e-4, atol=1e-4)
        assert loaded.encode([]).shape == (0, 24)
    with qdqbert.load(tmp_path) as loaded:
        found = loaded.encode(LONG)
        alone = [loaded.encode([text])[0] for text in LONG]
    assert np.stack(alone).tobytes() == found.tobytes()
    cosines = (found * expected).sum(axis=1) / np.linalg.norm(found, axis=1)
    assert (cosines / np.linalg.norm(expected, axis=1)).min() > 0.95


def save_sentence_files(folder: Path, states: str = "") -> Path:
    """Add the files that sentence-transformers 6 writes for CLIP, with the model in a folder."""
    kinds = [(states, "Transformer"), ("1_Normalize", "Normalize")]
    package = "sentence_transformers.base.modules"
    entries = [
        {"idx": i, "name": str(i), "path": path, "type": f"{package}.{kind.lower()}.{kind}"}
        for i, (path, kind) in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(entries))
    (folder / "1_Normalize").mkdir()
    method = {"method": "get_text_features", "method_output_name": "pooler_output"}
    settings = {
        "transformer_task": "feature-extraction",
        "modality_config": {"text": method},
        "module_output_name": "sentence_embedding",
    }
    (folder / states / "sentence_bert_config.json").write_text(json.dumps(settings))
    return folder


def test_clip_of_sentence_transformers_is_read(tmp_path) -> None:
    save(tmp_path, "CLIPModel")
    image = {"size": {"shortest_edge": 16}, "image_processor_type": "CLIPImageProcessor"}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(image))
    (tmp_path / "processor_config.json").write_text(
        json.dumps({"image_processor": image, "processor_class": "CLIPProcessor"})
    )
    save_sentence_files(tmp_path)
    reference = sentence_transformers.SentenceTransformer(str(tmp_path), device="cpu")
    assert [type(each).__name__ for each in reference] == ["Transformer", "Normalize"]
    with qdqbert.load(tmp_path, precision="float") as model:
        np.testing.assert_allclose(model.encode(LONG), reference.encode(LONG), atol=1e-5)


def test_the_module_of_older_versions_is_read(tmp_path) -> None:
    save(tmp_path / "0_CLIPModel", "CLIPModel")
    entry = {"idx": 0, "name": "0", "path": "0_CLIPModel"}
    kind = {"type": "sentence_transformers.models.CLIPModel"}
    (tmp_path / "modules.json").write_text(json.dumps([{**entry, **kind}]))
    found = []
    for folder in (tmp_path, tmp_path / "0_CLIPModel"):
        with qdqbert.load(folder) as model:
            found.append(model.encode(LONG))
    np.testing.assert_array_equal(*found)


def test_the_older_field_of_a_whole_config_counts_first(tmp_path) -> None:
    save(tmp_path, "CLIPModel")
    path = tmp_path / "config.json"
    values = json.loads(path.read_text())
    with qdqbert.load(tmp_path) as model:
        expected = model.encode(TEXTS)
    own = values["text_config"]
    changed = {"text_config": {**own, "num_hidden_layers": 7}, "text_config_dict": own}
    path.write_text(json.dumps({**values, **changed}))
    assert transformers.CLIPConfig.from_pretrained(tmp_path).text_config.num_hidden_layers == 2
    with qdqbert.load(tmp_path) as model:
        np.testing.assert_array_equal(model.encode(TEXTS), expected)
    path.write_text(json.dumps({**values, "text_config": [3]}))
    with pytest.raises(CheckpointError, match=r"text_config=\[3\].* expected an object"):
        qdqbert.load(tmp_path)


def test_a_tower_is_not_quantized_with_data(tmp_path) -> None:
    save(tmp_path / "model", "CLIPTextModelWithProjection")
    with pytest.raises(
        (CheckpointError, UserInputError), match=r"do not support .*clip_text_model"
    ):
        qdqbert.quantize(tmp_path / "model", tmp_path / "out", targets=("native",))
