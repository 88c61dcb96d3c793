"""Models are pickled, copied and sent to other processes."""

from __future__ import annotations

import concurrent.futures
import copy
import multiprocessing
import pickle
import shutil

import numpy as np
import pytest
import transformers

import qdqbert

TEXTS = ["a dog in the rain", "music"]
TASKS = {
    "sentence": "feature-extraction",
    "classifier": "text-classification",
    "reranker": "reranking",
    "sparse": "sparse-embedding",
    "multi_vector": "multi-vector-embedding",
}


def rows_of(model):
    """Answers that are arrays."""
    if model.task == "sparse-embedding":
        return model.encode(TEXTS).to_dense()
    if model.task == "multi-vector-embedding":
        return np.concatenate(model.encode(TEXTS))
    if model.task == "feature-extraction":
        return model.encode(TEXTS)
    pairs = [(text, TEXTS[0]) for text in TEXTS]
    return np.array([each["score"] for each in model(pairs)])


@pytest.mark.parametrize(
    "through", [copy.deepcopy, copy.copy, lambda model: pickle.loads(pickle.dumps(model))]
)
@pytest.mark.parametrize("name", TASKS)
def test_copies_answer_as_the_model_does(checkpoints, name, through) -> None:
    with qdqbert.load(checkpoints(name), task=TASKS[name], check=False) as model:
        other = through(model)
        with other:
            assert (type(other), other.name) == (type(model), model.name)
            np.testing.assert_array_equal(rows_of(other), rows_of(model))


@pytest.mark.parametrize("engine", ["native", "onnxruntime"])
def test_copies_have_the_options_of_the_model(quantized, engine) -> None:
    folder = quantized("sentence").directory
    with qdqbert.load(folder, engine=engine, threads=1, target=None) as model:
        model.prompts["own"] = "the cat "
        model.max_seq_length = 8
        with pickle.loads(pickle.dumps(model)) as other:
            assert (other.engine, other.target) == (model.engine, model.target)
            assert other.streams == 1
            assert other.prompts == model.prompts
            assert other.max_seq_length == other.max_length == 8


def test_a_relative_path_is_found_from_another_folder(checkpoints, tmp_path, monkeypatch) -> None:
    shutil.copytree(checkpoints("sentence"), tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    with qdqbert.load("model", check=False) as model:
        pickled, expected = pickle.dumps(model), model.encode(TEXTS)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    with pickle.loads(pickled) as other:
        np.testing.assert_array_equal(other.encode(TEXTS), expected)


def test_a_model_in_memory_is_pickled_by_what_was_made_of_it(checkpoints) -> None:
    folder = checkpoints("sentence")
    given = (
        transformers.AutoModel.from_pretrained(folder),
        transformers.AutoTokenizer.from_pretrained(folder),
    )
    with qdqbert.load(given, check=False) as model, pickle.loads(pickle.dumps(model)) as other:
        np.testing.assert_array_equal(other.encode(TEXTS), model.encode(TEXTS))


def test_methods_run_in_another_process(checkpoints) -> None:
    spawned = multiprocessing.get_context("spawn")
    with (
        qdqbert.load(checkpoints("sentence"), check=False) as model,
        concurrent.futures.ProcessPoolExecutor(1, mp_context=spawned) as pool,
    ):
        found = pool.submit(model.encode, TEXTS).result()
        np.testing.assert_array_equal(found, model.encode(TEXTS))
