"""Float checkpoints with an adapter for each task, as jina-embeddings-v3 and v5."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from starlette.testclient import TestClient
from torch.nn import functional

import conftest
import qdqbert
from jina_models import (
    ADAPTERS,
    PROMPTS,
    ROTARY,
    TASKS,
    adapted,
    flash_reference,
    nano_reference,
    save_embedder,
    save_nano,
)
from qdqbert.common.errors import CheckpointError, ModelClosedError, UserInputError
from qdqbert.encoders.checkpoint.load import load_checkpoint
from qdqbert.serving.app import build_app

TEXTS = ["the old house", "a train to the city", "dog"]


@pytest.fixture(scope="module")
def folder(checkpoints, tmp_path_factory) -> Path:
    """A tiny jina-embeddings-v3: rotated, with adapters, prompts and modules of its own code."""
    source = checkpoints("xlm-roberta")
    return save_embedder(source, tmp_path_factory.mktemp("jina") / "model")


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


def test_transformers_has_the_weights_and_an_adapter(folder) -> None:
    weights = adapted(torch.load(folder / "pytorch_model.bin"), "text-matching")
    found = load_checkpoint(str(folder), adapter="text-matching").model
    assert type(found).__name__ == "JinaEmbeddingsV3Model"
    ids = torch.randint(2, 131, (1, 30), generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        states = found(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state[0]
    wanted = flash_reference(weights, ROTARY, ids[0])
    torch.testing.assert_close(states, wanted, atol=1e-4, rtol=1e-4)
    notices = " ".join(load_checkpoint(str(folder)).notices)
    assert "adapters of the checkpoint are left out: retrieval.query, " in notices


@pytest.mark.slow
def test_a_quantized_model_has_one_adapter(folder, tmp_path) -> None:
    data = tmp_path / "texts.txt"
    data.write_text("\n".join(conftest.make_texts(40, seed=1)))
    adapter = qdqbert.TaskOptions(adapter="text-matching")
    qdqbert.quantize(
        folder,
        tmp_path / "int8",
        calibration_data=data,
        calibration=qdqbert.Calibration(samples=16),
        targets=("native",),
        task_options=adapter,
        benchmark=False,
    )
    report = qdqbert.evaluate(
        tmp_path / "int8", data, reference=folder, task_options=adapter, allow_leakage=True
    )
    assert report.fidelity.sqnr_db > 15
    config = json.loads((tmp_path / "int8" / "config.json").read_text())
    assert not [name for name in config if name.startswith("lora_")]
    with qdqbert.load(tmp_path / "int8") as model:
        assert model.adapters == ()
        found = model.encode(TEXTS)
    wanted = expected(folder, "text-matching", "")
    assert (found * wanted).sum(axis=1).min() > 0.97
    with pytest.raises(UserInputError, match="`adapter='text-matching'` applies to checkpoints"):
        qdqbert.evaluate(tmp_path / "int8", data, task_options=adapter)


def test_run_and_serve_choose_the_adapter_by_name(folder, model, tmp_path) -> None:
    wanted = model.encode(TEXTS, task="retrieval.passage")
    rows, output = tmp_path / "rows.jsonl", tmp_path / "out.jsonl"
    rows.write_text("".join(json.dumps({"text": each}) + "\n" for each in TEXTS))
    qdqbert.run(folder, rows, output, target="float", prompt_name="retrieval.passage")
    written = [json.loads(each)["embedding"] for each in output.read_text().splitlines()]
    np.testing.assert_allclose(written, wanted, atol=1e-5)
    with TestClient(build_app({"jina": model})) as client:
        body = {"input": TEXTS, "task": "retrieval.passage"}
        found = client.post("/v1/embeddings", json=body).json()["data"]
        np.testing.assert_allclose([each["embedding"] for each in found], wanted, atol=1e-5)
        body = {"inputs": TEXTS, "prompt_name": "retrieval.passage"}
        np.testing.assert_allclose(client.post("/embed", json=body).json(), wanted, atol=1e-5)
        response = client.post("/v1/embeddings", json={"input": TEXTS, "task": "passage"})
        assert response.status_code == 422
        assert "It has: retrieval.query" in response.text


def test_an_unknown_task_is_refused_with_the_known_ones(model, checkpoints) -> None:
    with pytest.raises(UserInputError, match=r"`task='query'` is no.* It has: retrieval\.query, "):
        model.encode(TEXTS, task="query")
    with qdqbert.load(checkpoints("sentence"), check=False) as other:
        with pytest.raises(UserInputError, match="It has none: leave it out") as caught:
            other.encode(TEXTS, task="query")
        assert caught.value.argument == "task"


def test_an_unknown_adapter_is_refused(folder, quantized) -> None:
    fixed = quantized("sentence").directory
    for path, message in ((folder, "It has: retrieval"), (fixed, "weights are fixed")):
        with pytest.raises(UserInputError, match=message) as caught:
            qdqbert.load(path, adapter="query")
        assert caught.value.argument == "adapter"


@pytest.fixture(scope="module")
def nano(checkpoints, tmp_path_factory) -> Path:
    return save_nano(tmp_path_factory.mktemp("nano") / "model", checkpoints("roberta"))


@pytest.fixture(scope="module")
def nano_model(nano):
    with qdqbert.load(nano, precision="float") as found:
        yield found


@pytest.mark.parametrize(
    ("options", "task", "prompt"),
    [
        ({"task": "retrieval"}, "retrieval", "a book "),
        ({"task": "retrieval", "prompt_name": "query"}, "retrieval", "the dog "),
        ({"task": "text-matching", "prompt": ""}, "text-matching", ""),
        ({"task": "retrieval.query"}, "retrieval", "the dog "),
        ({"task": "retrieval.passage"}, "retrieval", "a book "),
        ({"prompt_name": "retrieval.query"}, "retrieval", "the dog "),
        ({"prompt": "a cat "}, None, "a cat "),
    ],
)
def test_folders_of_peft_are_adapters(nano, nano_model, options, task, prompt) -> None:
    assert nano_model.adapters == TASKS
    ids = [nano_model.tokenize([prompt + text])["input_ids"][0] for text in TEXTS]
    found = nano_model.encode(TEXTS, **options)
    np.testing.assert_allclose(found, nano_reference(nano, task, ids), atol=1e-4)
    by_kind = {"the dog ": nano_model.encode_query, "a book ": nano_model.encode_document}
    if prompt in by_kind:
        np.testing.assert_array_equal(by_kind[prompt](TEXTS), found)


def test_a_model_that_needs_a_task_says_so(nano, nano_model) -> None:
    for options, message in (
        ({}, "needs an adapter .* It has: retrieval, text-matching"),
        ({"prompt_name": "query"}, "needs an adapter"),
        ({"task": "separation"}, "`task='separation'` is not an adapter"),
    ):
        with pytest.raises(UserInputError, match=message) as caught:
            nano_model.encode(TEXTS, **options)
        assert caught.value.argument == "task"
    with qdqbert.load(nano, precision="float", adapter="retrieval") as fixed:
        wanted = nano_model.encode(TEXTS, task="retrieval")
        np.testing.assert_array_equal(fixed.encode(TEXTS), wanted)


def test_an_adapter_of_peft_is_quantized(nano, nano_model, tmp_path) -> None:
    data = tmp_path / "texts.txt"
    data.write_text("\n".join(conftest.make_texts(40, seed=1)))
    qdqbert.quantize(
        nano,
        tmp_path / "int8",
        calibration_data=data,
        calibration=qdqbert.Calibration(samples=16),
        targets=("native",),
        task_options=qdqbert.TaskOptions(adapter="retrieval"),
        benchmark=False,
    )
    with qdqbert.load(tmp_path / "int8") as model:
        assert model.adapters == ()
        cosines = (model.encode(TEXTS) * nano_model.encode(TEXTS, task="retrieval")).sum(axis=1)
        assert cosines.min() > 0.97
    config = json.loads((tmp_path / "int8" / "config.json").read_text())
    assert not config.keys() & {"task_names", "lora_adaptations"}


def test_transformers_has_an_adapter_of_peft(nano, nano_model) -> None:
    found = load_checkpoint(str(nano), adapter="text-matching")
    ids = nano_model.tokenize([TEXTS[0]])["input_ids"][0].tolist()
    with torch.no_grad():
        state = found.model(torch.tensor([ids])).last_hidden_state[0, -1]
    vector = functional.normalize(state, dim=-1).numpy()
    np.testing.assert_allclose(vector, nano_reference(nano, "text-matching", [ids])[0], atol=1e-5)


def test_the_larger_model_with_another_encoder_is_refused(checkpoints, tmp_path) -> None:
    folder = save_nano(tmp_path / "small", checkpoints("roberta"), is_decoder=None)
    with pytest.raises(CheckpointError, match="`jina_embeddings_v5` are not supported"):
        qdqbert.load(folder)
