"""Float checkpoints with an adapter for each task, as jina-embeddings-v3."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional

import qdqbert
from conftest import FLAT_POOLING, add_sentence_files
from encoders.test_older_layouts import (
    ADAPTERS,
    LORA,
    ROTARY,
    adapted,
    flash_reference,
    save_flash,
    with_adapters,
)
from qdqbert.errors import ModelClosedError, UserInputError

TEXTS = ["the old house", "a train to the city", "dog"]
PROMPTS = {"retrieval.query": "the dog ", "retrieval.passage": "a book ", "text-matching": ""}


@pytest.fixture(scope="module")
def folder(checkpoints, tmp_path_factory) -> Path:
    """A tiny jina-embeddings-v3: rotated, with adapters, prompts and modules of its own code."""
    source = checkpoints("xlm-roberta")
    found = tmp_path_factory.mktemp("jina") / "model"
    found.mkdir()
    for path in source.iterdir():
        (found / path.name).write_bytes(path.read_bytes())
    save_flash(found, {**ROTARY, **LORA}, architectures=["XLMRobertaLoRA"])
    weights = found / "pytorch_model.bin"
    torch.save(with_adapters(torch.load(weights)), weights)
    add_sentence_files(found, {**FLAT_POOLING, "word_embedding_dimension": 40})
    modules = json.loads((found / "modules.json").read_text())
    modules[0] = {**modules[0], "type": "custom_st.Transformer", "kwargs": ["task"]}
    (found / "modules.json").write_text(json.dumps(modules))
    settings = {"prompts": PROMPTS, "default_prompt_name": None}
    (found / "config_sentence_transformers.json").write_text(json.dumps(settings))
    return found


@pytest.fixture(scope="module")
def model(folder):
    with qdqbert.load(folder, precision="float") as found:
        yield found


def expected(folder: Path, adapter: str | None, prompt: str) -> np.ndarray:
    """Embeddings of the texts, computed without the package but for its tokenizer."""
    weights = torch.load(folder / "pytorch_model.bin")
    if adapter is None:
        weights = {
            name.replace("parametrizations.weight.original", "weight"): each
            for name, each in weights.items()
        }
    else:
        weights = adapted(weights, adapter)
    found = []
    with qdqbert.load(folder, precision="float") as model:
        for text in TEXTS:
            ids = torch.from_numpy(model.tokenize([prompt + text])["input_ids"][0])
            states = flash_reference(weights, ROTARY, ids)
            found.append(functional.normalize(states.mean(0), dim=0).numpy())
    return np.array(found)


@pytest.mark.parametrize("adapter", [None, *ADAPTERS])
def test_a_task_chooses_the_adapter_and_its_prompt(folder, model, adapter) -> None:
    assert model.adapters == ADAPTERS
    wanted = expected(folder, adapter, PROMPTS.get(adapter or "", ""))
    np.testing.assert_allclose(model.encode(TEXTS, task=adapter), wanted, atol=1e-4)
    # In sentence-transformers both are passed, and in others the name of a prompt.
    both = model.encode(TEXTS, task=adapter, prompt_name=adapter)
    named = model.encode(TEXTS, prompt_name=adapter)
    np.testing.assert_array_equal(both, named)
    np.testing.assert_allclose(named, wanted, atol=1e-4)
    with qdqbert.load(folder, precision="float", adapter=adapter) as fixed:
        prompt = PROMPTS.get(adapter or "", "")
        np.testing.assert_array_equal(fixed.encode(TEXTS, prompt=prompt), named)
        assert fixed.adapters == (ADAPTERS if adapter is None else ())


def test_a_prompt_and_the_adapter_can_differ(folder, model) -> None:
    wanted = expected(folder, "text-matching", "a cat ")
    found = model.encode(TEXTS, task="text-matching", prompt="a cat ")
    np.testing.assert_allclose(found, wanted, atol=1e-4)
    # A text chooses no adapter.
    wanted = expected(folder, None, PROMPTS["retrieval.query"])
    found = model.encode(TEXTS, prompt=PROMPTS["retrieval.query"])
    np.testing.assert_allclose(found, wanted, atol=1e-4)


def test_queries_and_documents_have_the_adapters_of_retrieval(model) -> None:
    for method, task in (
        (model.encode_query, "retrieval.query"),
        (model.encode_document, "retrieval.passage"),
    ):
        np.testing.assert_array_equal(method(TEXTS), model.encode(TEXTS, task=task))
        np.testing.assert_array_equal(
            method(TEXTS, task="text-matching"), model.encode(TEXTS, task="text-matching")
        )


def test_int8_is_close_to_float(folder, model) -> None:
    with qdqbert.load(folder, check=False) as int8:
        for task in ("retrieval.query", "retrieval.passage"):
            cosines = (int8.encode(TEXTS, task=task) * model.encode(TEXTS, task=task)).sum(axis=1)
            assert cosines.min() > 0.97
        job = int8.job(prompt_name="retrieval.query")
        streamed = np.array(list(int8.stream(job, TEXTS)))
        np.testing.assert_array_equal(streamed, int8.encode(TEXTS, task="retrieval.query"))
        again = pickle.loads(pickle.dumps(int8))
        with again:
            np.testing.assert_array_equal(again.encode(TEXTS, task="retrieval.query"), streamed)
    with pytest.raises(ModelClosedError):
        int8.encode(TEXTS, task="retrieval.query")


def test_an_unknown_task_is_refused_with_the_known_ones(model, checkpoints) -> None:
    with pytest.raises(
        UserInputError, match=r"`task='query'` is not an adapter of .*retrieval\.qu"
    ):
        model.encode(TEXTS, task="query")
    with qdqbert.load(checkpoints("sentence"), check=False) as other:
        with pytest.raises(UserInputError, match="It has none: leave it out") as caught:
            other.encode(TEXTS, task="query")
        assert caught.value.argument == "task"


def test_an_unknown_adapter_is_refused(folder, quantized) -> None:
    for path, message in (
        (folder, "It has: retrieval"),
        (quantized("sentence").directory, "fixed"),
    ):
        with pytest.raises(UserInputError, match=message) as caught:
            qdqbert.load(path, adapter="query")
        assert caught.value.argument == "adapter"
