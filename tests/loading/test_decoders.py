"""Decoders that are used as encoders, compared with sentence-transformers and transformers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import sentence_transformers
import torch
import transformers
from safetensors.torch import load_file, save_file

import qdqbert
from decoder_models import PROMPTS, change_config, save_decoder, save_embedder
from qdqbert.common.errors import CheckpointError, UserInputError

TEXTS = ["The cat sat on the mat.", "", "x", "A train\n\nto the <|im_end|> city. " * 9, "café 東京"]


GEMMA = {
    "head_dim": 24,
    "layer_types": ["sliding_attention", "full_attention"],
    "num_key_value_heads": 1,
    "sliding_window": 12,
}

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.mark.parametrize(
    ("pooling", "changes"),
    [
        ("lasttoken", {}),
        ("lasttoken", {"use_sliding_window": True, "max_window_layers": 1, "sliding_window": 6}),
        ("mean", {"is_causal": False, "head_dim": 8}),
        ("lasttoken", {"model_type": "gemma3_text", **GEMMA}),
    ],
    ids=["causal", "windows", "both ways", "Gemma 3"],
)
def test_an_embedder_is_that_of_sentence_transformers(pooling, changes, tmp_path) -> None:
    folder = save_embedder(tmp_path / "model", pooling=pooling, **changes)
    reference = sentence_transformers.SentenceTransformer(str(folder), device="cpu")
    query = PROMPTS["query"]
    expected = [reference.encode(TEXTS), reference.encode(TEXTS, prompt=query)]
    with qdqbert.load(folder, precision="float") as model:
        found = [model.encode(TEXTS), model.encode(TEXTS, prompt_name="query")]
    np.testing.assert_allclose(found, expected, atol=1e-5)
    with qdqbert.load(folder) as model:
        found = [model.encode(TEXTS), model.encode(TEXTS, prompt_name="query")]
        alone = [model.encode([text])[0] for text in TEXTS]
    assert np.stack(alone).tobytes() == found[0].tobytes()
    assert (np.stack(found) * np.stack(expected)).sum(axis=-1).min() > 0.97


def save_embedding_gemma(folder: Path) -> Path:
    """Write a folder as sentence-transformers saves EmbeddingGemma."""
    save_decoder(folder / "states", "gemma3_text", use_bidirectional_attention=True, **GEMMA)
    modules = sentence_transformers.sentence_transformer.modules
    torch.manual_seed(0)
    both = [
        modules.Dense(*sizes, bias=False, activation_function=torch.nn.Identity())
        for sizes in ((48, 192), (192, 48))
    ]
    states = modules.Transformer(str(folder / "states"), max_seq_length=64)
    model = sentence_transformers.SentenceTransformer(
        modules=[states, modules.Pooling(48, "mean"), *both, modules.Normalize()],
        prompts={"query": "task: search result | query: ", "document": "title: none | text: "},
        device="cpu",
    )
    model.save(str(folder / "whole"))
    return folder / "whole"


def test_embedding_gemma_is_that_of_sentence_transformers(tmp_path) -> None:
    folder = save_embedding_gemma(tmp_path)
    kinds = [
        each["type"].rpartition(".")[2]
        for each in json.loads((folder / "modules.json").read_text())
    ]
    assert kinds == ["Transformer", "Pooling", "Dense", "Dense", "Normalize"]
    reference = sentence_transformers.SentenceTransformer(str(folder), device="cpu")
    expected = [reference.encode_query(TEXTS), reference.encode_document(TEXTS)]
    with qdqbert.load(folder, precision="float") as model:
        found = [model.encode_query(TEXTS), model.encode_document(TEXTS)]
    np.testing.assert_allclose(found, expected, atol=1e-5)
    with qdqbert.load(folder) as model:
        found = [model.encode_query(TEXTS), model.encode_document(TEXTS)]
        alone = [model.encode_query([text])[0] for text in TEXTS]
    assert np.stack(alone).tobytes() == found[0].tobytes()
    assert (np.stack(found) * np.stack(expected)).sum(axis=-1).min() > 0.97


def test_voyages_field_makes_a_model_bidirectional(tmp_path) -> None:
    folder = save_embedder(tmp_path / "model", pooling="mean")
    found = {}
    for name, fields in {
        "causal": {},
        "both": {"use_bidirectional_attention": True, "is_causal": True},
        "as transformers": {"use_bidirectional_attention": None, "is_causal": False},
    }.items():
        change_config(folder, **fields)
        with qdqbert.load(folder) as model:
            found[name] = model.encode(TEXTS)
    np.testing.assert_array_equal(found["both"], found["as transformers"])
    assert np.abs(found["both"] - found["causal"]).max() > 0.01


@pytest.mark.parametrize("pooling", ["mean", "lasttoken"])
def test_voyages_projection_is_on_the_state_of_each_token(pooling, tmp_path) -> None:
    folder = save_embedder(tmp_path / "model", pooling=pooling)
    code = {"AutoModel": "modeling_qwen3_bidirectional.Qwen3BidirectionalModel"}
    change_config(folder, auto_map=code, num_labels=72)
    path = folder / "model.safetensors"
    weights = {f"model.{name}": each for name, each in load_file(path).items()}
    projection = torch.randn(72, 48, generator=torch.Generator().manual_seed(0))
    save_file({**weights, "linear.weight": projection}, path, {"format": "pt"})
    with qdqbert.load(folder, precision="float") as model:
        found = model.encode(TEXTS)
    model = transformers.AutoModel.from_pretrained(
        save_embedder(tmp_path / "plain", pooling=pooling, is_causal=False)
    )
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    for text, vector in zip(TEXTS, found, strict=True):
        inputs = tokenizer(text, return_tensors="pt", truncation=True, max_length=64)
        with torch.no_grad():
            states = model(**inputs).last_hidden_state[0] @ projection.T
        pooled = states.mean(dim=0) if pooling == "mean" else states[-1]
        wanted = torch.nn.functional.normalize(pooled, dim=0)
        np.testing.assert_allclose(vector, wanted.numpy(), atol=1e-5)


def test_a_classifier_reads_the_last_token(tmp_path) -> None:
    auto = transformers.AutoModelForSequenceClassification
    reference = save_decoder(tmp_path / "model", auto=auto, ends=False, num_labels=3)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "model")
    texts = [text for text in TEXTS if text]
    inputs = tokenizer(texts, return_tensors="pt", padding=True, truncation=True, max_length=100)
    with torch.no_grad():
        expected = reference(**inputs).logits.softmax(dim=-1).numpy()
    with qdqbert.load(tmp_path / "model", precision="float") as model:
        for row, answers in zip(expected, model(texts, top_k=None), strict=True):
            found = {each["label"]: each["score"] for each in answers}
            np.testing.assert_allclose([found[f"LABEL_{i}"] for i in range(3)], row, atol=1e-5)


def test_a_reranker_scores_as_its_cross_encoder(tmp_path) -> None:
    auto, folder = transformers.AutoModelForSequenceClassification, tmp_path / "model"
    save_decoder(folder, auto=auto, ends=False, num_labels=1)
    sigmoid = {"activation_fn": "torch.nn.modules.activation.Sigmoid"}
    change_config(folder, sentence_transformers=sigmoid)
    pairs = [("What sat?", "The cat sat on the mat."), ("x", "A train to the city. " * 30)]
    expected = sentence_transformers.CrossEncoder(str(folder), device="cpu").predict(pairs)
    with qdqbert.load(folder, precision="float") as model:
        np.testing.assert_allclose(model.predict(pairs), expected, atol=1e-5)


def test_a_generator_is_run_as_an_encoder_only(tmp_path) -> None:
    auto = transformers.AutoModelForCausalLM
    reference = save_decoder(tmp_path / "model", auto=auto, tie_word_embeddings=False)
    with pytest.raises(UserInputError, match=r"no such head.* feature-extraction"):
        qdqbert.load(tmp_path / "model")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "model")
    with torch.no_grad():
        states = reference.model(**tokenizer(TEXTS[0], return_tensors="pt")).last_hidden_state
    with qdqbert.load(tmp_path / "model", task="feature-extraction", precision="float") as model:
        found = model.encode(TEXTS[:1])
    np.testing.assert_allclose(found, states.mean(dim=1).numpy(), atol=1e-4)


def test_a_classifier_whose_tokenizer_ends_texts_with_padding_is_refused(tmp_path) -> None:
    # transformers takes the token before it.
    auto = transformers.AutoModelForSequenceClassification
    save_decoder(tmp_path / "model", auto=auto)
    with pytest.raises(CheckpointError, match=r"ends texts with .*<\|endoftext\|>"):
        qdqbert.load(tmp_path / "model")
