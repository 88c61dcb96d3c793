"""Embedders that are the encoder of T5, compared with sentence-transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentence_transformers
import tokenizers
import torch
import transformers
from safetensors.torch import load_file, save_file

import qdqbert
from conftest import TEXTS
from qdqbert.common.errors import CheckpointError, UserInputError
from qdqbert.encoders.checkpoint.description import describe_checkpoint
from qdqbert.encoders.checkpoint.tokenizer import runtime_tokenizer

pytestmark = pytest.mark.usefixtures("own_cache")

# The last is longer than the model takes.
LONG = [*TEXTS[:3], "", "a cat " * 90]


def save_t5(folder: Path, auto: Any, model_type: str = "t5", **changes: Any) -> Any:
    """Write a random model and a tokenizer as T5's, and return the model."""
    made = tokenizers.Tokenizer(tokenizers.models.Unigram())
    made.normalizer = tokenizers.normalizers.NFKC()
    made.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    made.decoder = tokenizers.decoders.Metaspace()
    special = ["<pad>", "</s>", "<unk>"]
    trainer = tokenizers.trainers.UnigramTrainer(
        vocab_size=150, special_tokens=special, unk_token="<unk>", show_progress=False
    )
    made.train_from_iterator(TEXTS, trainer)
    made.post_processor = tokenizers.processors.TemplateProcessing(
        single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 1)]
    )
    names = dict(zip(("pad_token", "eos_token", "unk_token"), special, strict=True))
    transformers.PreTrainedTokenizerFast(tokenizer_object=made, **names).save_pretrained(folder)
    fields = {
        "vocab_size": made.get_vocab_size() + 3,
        "d_model": 48,
        "d_ff": 80,
        "d_kv": 20,
        "num_layers": 2,
        "num_heads": 4,
        "relative_attention_max_distance": 24,
        "initializer_factor": 3.0,
        "pad_token_id": 0,
        "eos_token_id": 1,
        "decoder_start_token_id": 0,
    }
    config = transformers.AutoConfig.for_model(model_type, **{**fields, **changes})
    torch.manual_seed(0)
    model = auto.from_config(config).eval()
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1:
            parameter.data += 0.3 * torch.randn_like(parameter)
        if "relative_attention_bias" in name:
            parameter.data = torch.randn_like(parameter)
    model.save_pretrained(folder)
    return model


def save_embedder(
    folder: Path, *, pooling: str = "mean", include_prompt: bool = True, **changes: Any
) -> Path:
    """Write a folder as sentence-transformers saves gtr-t5."""
    save_t5(folder / "states", transformers.AutoModelForTextEncoding, **changes)
    modules = sentence_transformers.sentence_transformer.modules
    torch.manual_seed(0)
    dense = modules.Dense(48, 72, bias=False, activation_function=torch.nn.Identity())
    states = modules.Transformer(str(folder / "states"), max_seq_length=64)
    every = [
        states,
        modules.Pooling(48, pooling, include_prompt=include_prompt),
        dense,
        modules.Normalize(),
    ]
    sentence_transformers.SentenceTransformer(modules=every, device="cpu").save(
        str(folder / "whole")
    )
    return folder / "whole"


@pytest.mark.parametrize("kind", ["t5", "umt5"])
@pytest.mark.usual("umt5")
def test_an_embedder_is_that_of_sentence_transformers(kind, tmp_path) -> None:
    folder = save_embedder(tmp_path, model_type=kind)
    expected = sentence_transformers.SentenceTransformer(str(folder), device="cpu").encode(LONG)
    with qdqbert.load(folder, precision="float") as model:
        np.testing.assert_allclose(model.encode(LONG), expected, atol=1e-5)
    with qdqbert.load(folder) as model:
        found = model.encode(LONG)
        alone = [model.encode([text])[0] for text in LONG]
    assert np.stack(alone).tobytes() == found.tobytes()
    assert (found * expected).sum(axis=1).min() > 0.97


PROMPT = "Represent the sentence for retrieval: "


@pytest.mark.parametrize("pooling", ["mean", "cls", "lasttoken", "max", "weightedmean"])
@pytest.mark.usual("mean", "lasttoken")
def test_tokens_of_a_prompt_are_not_pooled(pooling, tmp_path) -> None:
    folder = save_embedder(tmp_path, include_prompt=False, pooling=pooling)
    reference = sentence_transformers.SentenceTransformer(str(folder), device="cpu")
    assert not reference[1].include_prompt
    long = [text for text in LONG if text]
    expected = [reference.encode(long, prompt=PROMPT), reference.encode(long)]
    assert np.abs(expected[0] - expected[1]).max() > 0.05
    with qdqbert.load(folder, precision="float") as model:
        found = [model.encode(long, prompt=PROMPT), model.encode(long)]
    np.testing.assert_allclose(found, expected, atol=1e-4)
    with qdqbert.load(folder) as model:
        one = model.encode(long, prompt=PROMPT)
        alone = [model.encode([text], prompt=PROMPT)[0] for text in long]
        # A part of a long text has the prompt, too.
        model.encode(long, prompt=PROMPT, chunk_overlap=3)
    assert np.stack(alone).tobytes() == one.tobytes()
    with pytest.raises(CheckpointError, match=r"Only the engine .*`include_prompt: false`"):
        qdqbert.load(folder, precision="float", engine="onnxruntime")


def test_the_decoder_of_a_whole_model_is_left_out(tmp_path) -> None:
    reference = save_t5(tmp_path, transformers.AutoModelForSeq2SeqLM)
    with pytest.raises(
        UserInputError, match=r"T5ForConditionalGeneration` is not known\. Pass `task`"
    ):
        qdqbert.load(tmp_path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    with torch.no_grad():
        inputs = tokenizer(TEXTS[0], return_tensors="pt")
        states = reference.get_encoder()(**inputs).last_hidden_state
    with qdqbert.load(tmp_path, task="feature-extraction", precision="float") as model:
        found = model.encode(TEXTS[:1])
    np.testing.assert_allclose(found, states.mean(dim=1).numpy(), atol=1e-4)


def test_texts_of_a_tokenizer_without_a_limit_are_not_cut_for_training(tmp_path) -> None:
    save_t5(tmp_path, transformers.AutoModelForTextEncoding)
    found = describe_checkpoint(str(tmp_path))
    text = "a cat " * 900
    (cut,) = runtime_tokenizer(found.tokenizer).cutting(found.max_length).encode_batch([text])
    assert cut.ids == found.tokenizer(text)["input_ids"]


def test_the_table_of_words_has_one_of_two_names(tmp_path) -> None:
    save_t5(tmp_path, transformers.AutoModelForTextEncoding)
    path = tmp_path / "model.safetensors"
    weights = load_file(path)
    table, other = weights.pop("shared.weight"), "encoder.embed_tokens.weight"
    found = {}
    for name, given in {
        "shared": {"shared.weight": table},
        "both": {"shared.weight": table, other: table.clone()},
        "encoder": {other: table},
    }.items():
        save_file({**weights, **given}, path, {"format": "pt"})
        with qdqbert.load(tmp_path) as model:
            found[name] = model.encode(TEXTS).tobytes()
    assert len(set(found.values())) == 1
    save_file({**weights, "shared.weight": table, other: table + 1}, path, {"format": "pt"})
    with pytest.raises(CheckpointError, match="two values for one tensor"):
        qdqbert.load(tmp_path)


def test_heads_on_the_decoder_are_refused(tmp_path) -> None:
    save_t5(tmp_path, transformers.AutoModelForSequenceClassification, num_labels=3)
    with pytest.raises(UserInputError, match=r"models of type `t5` have no such head"):
        qdqbert.load(tmp_path)
