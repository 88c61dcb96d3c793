"""Models are pickled, copied and sent to other processes."""

from __future__ import annotations

import concurrent.futures
import copy
import functools
import io
import json
import multiprocessing
import pickle
import shutil

import joblib
import numpy as np
import pytest
import transformers

import qdqbert
from python_process import run_python
from qdqbert.common.errors import CheckpointError
from task_files import HEADS

TEXTS = ["a dog in the rain", "music"]
PAIRS = [(text, TEXTS[0]) for text in TEXTS]
CLASSIFIER = "AutoModelForSequenceClassification"
CALLS = {
    "sentence": lambda model: model.encode(TEXTS),
    "sparse": lambda model: model.encode(TEXTS).to_dense(),
    "multi_vector": lambda model: model.encode(TEXTS),
    "classifier": lambda model: model(TEXTS, top_k=None),
    "multi-label": lambda model: model(TEXTS, top_k=None),
    "regression": lambda model: model(TEXTS),
    "reranker": lambda model: model.predict(PAIRS),
    "token-classification": lambda model: model(TEXTS),
    "question-answering": lambda model: model(question="who was home", context="a cat"),
    "fill-mask": lambda model: model("a [MASK]"),
    "multiple-choice": lambda model: model({"context": "a cat", "choices": TEXTS}),
    "next-sentence-prediction": lambda model: model(PAIRS),
}
CHANGES = {
    "multi-label": {"problem_type": "multi_label_classification", "num_labels": 3},
    "regression": {"problem_type": "regression", "num_labels": 1},
}


def through_file(model):
    """Return a model that joblib wrote and read."""
    file = io.BytesIO()
    joblib.dump(model, file)
    file.seek(0)
    return joblib.load(file)


def cloned(model):
    """Return the model in a clone of an estimator of scikit-learn."""
    from sklearn.base import clone
    from sklearn.preprocessing import FunctionTransformer

    return clone(FunctionTransformer(kw_args={"model": model})).kw_args["model"]


def through_closure(model):
    """Return a model that cloudpickle sent with a function, as Spark and Ray do."""
    import cloudpickle

    return pickle.loads(cloudpickle.dumps(lambda: model))()


WAYS = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "joblib": through_file,
    "clone": cloned,
    "cloudpickle": through_closure,
    **{
        f"protocol {each}": lambda model, each=each: pickle.loads(pickle.dumps(model, each))
        for each in range(pickle.HIGHEST_PROTOCOL + 1)
    },
}


@pytest.fixture(scope="module")
def folder_of(checkpoints, save_tiny, tmp_path_factory):
    """Return a checkpoint for a call."""

    @functools.cache
    def make(name):
        if name not in HEADS and name not in CHANGES:
            return checkpoints(name)
        head = HEADS[name].auto_class if name in HEADS else CLASSIFIER
        changes = HEADS[name].changes if name in HEADS else CHANGES[name]
        folder = tmp_path_factory.mktemp("copies") / name
        return save_tiny(folder, "bert", getattr(transformers, head), **changes)

    return make


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.usual("sparse", "token-classification", "sentence", "reranker")
def test_copies_answer_as_the_model_does(folder_of, name) -> None:
    task = "sparse-embedding" if name == "sparse" else None
    with qdqbert.load(folder_of(name), task=task, check=False) as model:
        expected = CALLS[name](model)
        for way, through in WAYS.items():
            with through(model) as other:
                assert other is not model
                assert (type(other), other.name) == (type(model), model.name), way
                np.testing.assert_equal(CALLS[name](other), expected, way)


@pytest.mark.parametrize(
    "options",
    [
        {"engine": "native", "threads": 1},
        {"engine": "onnxruntime", "threads": np.uint8(2), "batch_invariant": True},
        {"provider": "cpu", "engine": "onnxruntime"},
    ],
)
def test_copies_have_the_options_of_the_model(quantized, options) -> None:
    with qdqbert.load(quantized("sentence").directory, **options) as model:
        model.prompts["own"] = "the cat "
        model.default_prompt_name = "own"
        model.max_seq_length = 8
        model.truncate_dim = np.int64(20)
        with pickle.loads(pickle.dumps(model)) as other:
            assert (other.engine, other.target) == (model.engine, model.target)
            assert (other.streams, other.window) == (model.streams, model.window)
            assert other.prompts == model.prompts
            assert (other.default_prompt_name, other.truncate_dim) == ("own", 20)
            assert other.max_seq_length == other.max_length == 8
            np.testing.assert_array_equal(other.encode(TEXTS), model.encode(TEXTS))


def test_copies_of_a_checkpoint_have_its_precision(checkpoints) -> None:
    with (
        qdqbert.load(checkpoints("sentence"), precision="float") as model,
        copy.deepcopy(model) as other,
    ):
        assert (other.engine, other.target) == (model.engine, model.target)
        np.testing.assert_array_equal(other.encode(TEXTS), model.encode(TEXTS))


def test_a_relative_path_is_found_from_another_folder(checkpoints, tmp_path, monkeypatch) -> None:
    shutil.copytree(checkpoints("sentence"), tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    with qdqbert.load("model", check=False) as model:
        pickled, expected = pickle.dumps(model), model.encode(TEXTS)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    with pickle.loads(pickled) as other:
        np.testing.assert_array_equal(other.encode(TEXTS), expected)


@pytest.fixture
def in_memory(own_cache, checkpoints, tmp_path, monkeypatch):
    """A model that was made of one in memory, with a cache of its own."""
    folder = checkpoints("sentence")
    given = (
        transformers.AutoModel.from_pretrained(folder),
        transformers.AutoTokenizer.from_pretrained(folder),
    )
    with qdqbert.load(given, check=False) as model:
        yield model


def test_a_model_in_memory_is_pickled_by_what_was_made_of_it(in_memory) -> None:
    with pickle.loads(pickle.dumps(in_memory)) as other, copy.copy(other) as third:
        assert other.name == third.name == in_memory.name
        for each in (other, third):
            np.testing.assert_array_equal(each.encode(TEXTS), in_memory.encode(TEXTS))


def test_a_model_in_memory_cannot_be_read_where_its_cache_is_not(in_memory, tmp_path) -> None:
    pickled = pickle.dumps(in_memory)
    shutil.rmtree(tmp_path / "cache")
    with pytest.raises(CheckpointError, match=r"\(in memory\) was pickled, .*`save_pretrained`"):
        pickle.loads(pickled)


def test_pickles_tell_changed_folders_apart(quantized, checkpoint_copy, tmp_path) -> None:
    made = shutil.copytree(quantized("sentence").directory, tmp_path / "made")
    float_one = checkpoint_copy("sentence")

    def hashes():
        found = []
        for folder in (made, float_one):
            with qdqbert.load(folder, check=False) as model:
                found.append(joblib.hash(model))
        return found

    before = hashes()
    assert before == hashes()
    sums = made / "SHA256SUMS"
    sums.write_text("".join(sums.read_text().splitlines(keepends=True)[::-1]))
    config = json.loads((float_one / "config.json").read_text())
    (float_one / "config.json").write_text(json.dumps(config | {"layer_norm_eps": 0.01}))
    assert all(ours != theirs for ours, theirs in zip(before, hashes(), strict=True))


@pytest.mark.slow
def test_methods_run_in_another_process(checkpoints) -> None:
    spawned = multiprocessing.get_context("spawn")
    with (
        qdqbert.load(checkpoints("sentence"), check=False) as model,
        concurrent.futures.ProcessPoolExecutor(1, mp_context=spawned) as pool,
    ):
        found = pool.submit(model.encode, TEXTS).result()
        np.testing.assert_array_equal(found, model.encode(TEXTS))


@pytest.mark.slow
def test_joblib_runs_methods_in_processes(checkpoints) -> None:
    with qdqbert.load(checkpoints("sentence"), check=False) as model:
        run = joblib.delayed(model.encode)
        found = joblib.Parallel(n_jobs=2, backend="loky")(run([text]) for text in TEXTS)
        np.testing.assert_array_equal(np.concatenate(found), model.encode(TEXTS))


MAP = """
import sys
import datasets, qdqbert
model = qdqbert.load(sys.argv[1], check=False)
rows = datasets.Dataset.from_dict({"text": ["a dog", "music"]}).save_to_disk("rows")
rows = datasets.load_from_disk("rows")
done = []
def embed(batch):
    done.append(1)
    return {"embedding": model.encode(batch["text"])}
print(rows.map(lambda batch: {"embedding": model.encode(batch["text"])}, batched=True)._fingerprint)
print(datasets.fingerprint.Hasher.hash(model.encode))
"""


@pytest.mark.slow
def test_the_cache_of_datasets_is_hit_by_another_process(checkpoints, tmp_path) -> None:
    def run():
        printed = run_python("-c", MAP, checkpoints("sentence"), cwd=tmp_path)
        return printed, len(list(tmp_path.glob("rows/cache-*.arrow")))

    first = run()
    assert first[1] == 1
    assert run() == first
