"""Every task on the native engine: its answers are close to ONNX Runtime's for the same recipe."""

from __future__ import annotations

import importlib.util
import json
import shutil
from typing import Any

import numpy as np
import pytest
import transformers

import qdqbert
from python_process import run_python
from qdqbert.common.errors import MissingExtraError, UserInputError
from qdqbert.engines.native.instruction_sets import usable_sets
from task_files import HEADS

TEXTS = [
    "the cat sat on the book",
    "music",
    "in the night and the dog " * 4,
    "a river in the rain was home",
]
PAIRS = list(zip(TEXTS, TEXTS[::-1], strict=True))
QUESTIONS = [{"question": "who was home", "context": text} for text in TEXTS]
CHOICES = [
    {"context": "the cat", "choices": ["sat", "the book", "music in rain"]},
    {"context": "a dog in the night", "choices": ["was", "home", "a river"]},
]


def by_label(answers: Any) -> list[dict[Any, float]]:
    return [{each["label"]: each["score"] for each in one} for one in answers]


def mask_scores(model: Any) -> list[dict[Any, float]]:
    answers = model([f"{text} [MASK]" for text in TEXTS], top_k=1024)
    return [{each["token"]: each["score"] for each in one} for one in answers]


def span_scores(model: Any) -> list[list[float]]:
    # Spans of almost equal scores may change places.
    return [[each["score"] for each in one] for one in model(QUESTIONS, top_k=4)]


def tag_scores(model: Any) -> list[float]:
    answers = model(TEXTS, aggregation_strategy="none", ignore_labels=[])
    return [each["score"] for one in answers for each in one]


# Head and config of a model for each task, and its answers as numbers.
TASKS: dict[str, tuple[str, dict[str, Any], Any]] = {
    "feature-extraction": ("feature-extraction", {}, lambda model: model.encode(TEXTS)),
    "fill-mask": ("fill-mask", {}, mask_scores),
    "multiple-choice": (
        "multiple-choice",
        {},
        lambda model: [each["scores"] for each in model(CHOICES)],
    ),
    "next-sentence-prediction": (
        "next-sentence-prediction",
        {},
        lambda model: [each["score"] for each in model(PAIRS)],
    ),
    "question-answering": ("question-answering", {}, span_scores),
    "reranking": ("text-classification", {"num_labels": 1}, lambda model: model.predict(PAIRS)),
    "text-classification": (
        "text-classification",
        {"num_labels": 3},
        lambda model: by_label(model(TEXTS, top_k=None)),
    ),
    "token-classification": ("token-classification", {"num_labels": 3}, tag_scores),
}


@pytest.fixture
def folder(quantized, tmp_path):
    """A copy of a folder for all engines."""
    return shutil.copytree(quantized("sentence").directory, tmp_path / "int8")


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.usual("feature-extraction", "fill-mask", "question-answering")
def test_answers_are_close_to_those_of_onnxruntime(tiny_artifact, task) -> None:
    head, changes, answers = TASKS[task]
    _, folder = tiny_artifact(HEADS[head].auto_class, is_float=False, **changes)
    found = []
    for engine in ("native", "onnxruntime"):
        with qdqbert.load(folder, engine=engine) as model:
            assert (model.engine, model.target) == (engine, engine)
            found.append(answers(model))
    ours, theirs = found
    assert len(ours) == len(theirs) > 0
    for one, other in zip(ours, theirs, strict=True):
        assert one == pytest.approx(other, abs=0.05)


@pytest.mark.parametrize("family", ["roberta", "mpnet"])
@pytest.mark.usual("roberta")
def test_texts_that_spell_special_tokens_are_answered_as_by_transformers(
    tiny_artifact, family
) -> None:
    checkpoint, folder = tiny_artifact(
        "AutoModelForSequenceClassification", family, is_float=False, num_labels=3
    )
    texts = ["a <pad> cat", "<pad>", "a </s> b <pad> <pad> was home", "<pad> <mask> <unk>"]
    classify = transformers.pipeline("text-classification", model=str(checkpoint), top_k=None)
    expected = by_label(classify(texts))
    for engine in ("native", "onnxruntime"):
        with qdqbert.load(folder, engine=engine) as model:
            together = by_label(model([*texts, *TEXTS], top_k=None))
            for text, one, other in zip(texts, together, expected, strict=False):
                assert one == pytest.approx(other, abs=0.02)
                assert by_label([model(text, top_k=None)])[0] == pytest.approx(one, abs=1e-4)


def test_results_depend_on_neither_the_batch_nor_its_order_nor_the_threads(quantized) -> None:
    made = quantized("sentence")
    texts = made.data.read_text().splitlines()
    expected = None
    for threads in (1, 2):
        with qdqbert.load(made.directory, engine="native", threads=threads) as model:
            together = model.encode(texts)
            alone = [model.encode(text) for text in texts[:8]]
            backwards = model.encode(texts[::-1])
        np.testing.assert_array_equal(together[:8], alone)
        np.testing.assert_array_equal(together, backwards[::-1])
        expected = together if expected is None else expected
        np.testing.assert_array_equal(together, expected)
    with qdqbert.load(made.directory, engine="native", batch_invariant=True) as model:
        # Its results are as they are, so that batches stay.
        assert model._loaded.scheduler._schedule.plan.tokens > 1
        np.testing.assert_array_equal(model.encode(texts), expected)


def test_each_kernel_of_this_cpu_can_be_chosen(quantized) -> None:
    vectors = []
    for each in usable_sets():
        # A kernel belongs to the native engine.
        with qdqbert.load(quantized("sentence").directory, kernel=each.name) as model:
            assert model.engine == "native"
            vectors.append(model.encode(TEXTS))
            assert model._loaded.runners.single.kernel == each.name
    for each in vectors[1:]:
        np.testing.assert_allclose(each, vectors[0], atol=0.01)


def missing_kernel() -> str:
    """Return a kernel that this CPU does not have."""
    usable = {each.name for each in usable_sets()}
    return next(name for name in ("neon-i8mm", "avx2") if name not in usable)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"kernel": missing_kernel()},
            "This CPU does not have the kernel '.*'. It has: .*portable",
        ),
        ({"engine": "onnxruntime", "kernel": "avx2"}, "`kernel='avx2'` is a kernel of the native"),
        ({"engine": "native", "provider": "cuda"}, "`provider='cuda'` is an execution provider"),
        ({"target": "portable", "engine": "native"}, "does not run on engine 'native'"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_what_does_not_fit_is_refused(quantized, options, message) -> None:
    with pytest.raises(UserInputError, match=message):
        qdqbert.load(quantized("sentence").directory, **options)


def test_without_llvmlite_the_package_is_named_and_another_engine_is_chosen(
    quantized, folder, monkeypatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "llvmlite" else find(name)
    )
    install = r"Engine 'native' is not installed. Install it with: pip install llvmlite"
    with pytest.raises(MissingExtraError, match=install):
        qdqbert.load(folder, engine="native")
    with qdqbert.load(folder) as model:
        assert model.engine != "native"
    keep_target(folder, "native")
    with pytest.raises(MissingExtraError, match=install):
        qdqbert.load(folder)


def keep_target(folder, target) -> None:
    path = folder / "quantization.json"
    content = json.loads(path.read_text())
    content["targets"] = {target: content["targets"][target]}
    path.write_text(json.dumps(content))


def test_a_damaged_file_is_refused(folder) -> None:
    path = folder / "native" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-64])
    with pytest.raises(qdqbert.CheckpointError, match="is damaged: it is not the file"):
        qdqbert.load(folder, engine="native")
    (folder / "SHA256SUMS").unlink()
    with pytest.raises(qdqbert.CheckpointError, match="is damaged: it ends too early"):
        qdqbert.load(folder, engine="native")


def test_running_imports_only_numpy_llvmlite_and_tokenizers(quantized) -> None:
    code = f"""
import sys, qdqbert
with qdqbert.load({str(quantized("sentence").directory)!r}, engine="native") as model:
    assert model.encode(["the cat", "a dog"]).shape == (2, 32)
heavy = {{"torch", "transformers", "onnx", "onnx_ir", "onnxruntime", "openvino", "safetensors"}}
print(sorted(heavy & set(sys.modules)))
"""
    assert run_python("-c", code) == "[]"
