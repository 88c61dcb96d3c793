"""What models of each task accept as inputs, and what they say about the rest."""

from __future__ import annotations

import functools
import inspect
import random
from typing import Any

import numpy as np
import pandas
import pyarrow
import pytest
import torch
from transformers.pipelines.pt_utils import KeyDataset

import qdqbert
from qdqbert.common.errors import UserInputError
from qdqbert.runtime.inputs import is_text

TEXTS = ["the cat sat on the book", "music", "in the night and the dog " * 3]
CLASSIFIER = "AutoModelForSequenceClassification"
QUESTION = {"question": "who was home", "context": "the cat was home"}
CHOICES = {"context": "the cat", "choices": ["sat", "the book"]}
# Head and config of a model, how it is called, and an input that it can answer.
CALLS: dict[str, tuple[str, dict[str, Any], Any, Any]] = {
    "encode": ("AutoModel", {}, lambda model, inputs: model.encode(inputs), "a cat"),
    "states": ("AutoModel", {}, lambda model, inputs: model(inputs), "a cat"),
    "classes": (CLASSIFIER, {"num_labels": 3}, lambda model, inputs: model(inputs), "a cat"),
    "scores": (
        CLASSIFIER,
        {"num_labels": 1},
        lambda model, inputs: model.predict(inputs),
        ("a", "cat"),
    ),
    "ranks": (
        CLASSIFIER,
        {"num_labels": 1},
        lambda model, inputs: model.rank("a cat", inputs),
        "a cat",
    ),
    "tags": ("AutoModelForTokenClassification", {}, lambda model, inputs: model(inputs), "a cat"),
    "answers": ("AutoModelForQuestionAnswering", {}, lambda model, each: model(each), QUESTION),
    "answers of a context": (
        "AutoModelForQuestionAnswering",
        {},
        lambda model, inputs: model(question="who was home", context=inputs),
        "the cat was home",
    ),
    "fills": ("AutoModelForMaskedLM", {}, lambda model, inputs: model(inputs), "a [MASK]"),
    "choices": ("AutoModelForMultipleChoice", {}, lambda model, inputs: model(inputs), CHOICES),
    "next": (
        "AutoModelForNextSentencePrediction",
        {},
        lambda model, inputs: model(inputs),
        ("a", "cat"),
    ),
}
# Neither an input nor a list of inputs of any task.
NO_INPUTS = {
    "number": 3,
    "nan": float("nan"),
    "bytes": b"a cat",
    "set": {"a cat"},
    "mapping": {"sentence": "a cat"},
    "frame": pandas.DataFrame({"text": ["a cat", "a dog"]}),
    "table": pyarrow.table({"text": ["a cat", "a dog"]}),
    "array of one number": np.array(3),
}
NO_ITEMS = [None, float("nan"), 7, b"a cat", "a \ud800", ["a cat"], {"sentence": "a cat"}]


@pytest.fixture(scope="module")
def opened(tiny_artifact):
    """Return a model for the head and the config of a call."""
    models: dict[str, Any] = {}

    def model(name: str) -> Any:
        head, changes, *_ = CALLS[name]
        key = f"{head}{changes}"
        if key not in models:
            models[key] = qdqbert.load(tiny_artifact(head, **changes)[1], engine="onnxruntime")
        return models[key]

    yield model
    for each in models.values():
        each.close()


@pytest.mark.parametrize("name", CALLS)
def test_what_is_no_list_of_inputs_is_refused(opened, name) -> None:
    model, call = opened(name), CALLS[name][2]
    for value in NO_INPUTS.values():
        with pytest.raises(UserInputError, match=r"has to be|is missing"):
            call(model, value)


@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_item_is_refused_with_its_position_and_type(opened, name) -> None:
    model, call, right = opened(name), *CALLS[name][2:]
    for wrong in NO_ITEMS:
        message = r"(?s)(item 1 is|got) (a string with a lone surr|" + type(wrong).__name__ + ")"
        with pytest.raises(UserInputError, match=message) as found:
            call(model, [right, wrong, right])
        assert "1" in str(found.value)


@pytest.mark.parametrize("name", CALLS)
def test_inputs_can_be_any_sequence(opened, name) -> None:
    model, call, right = opened(name), *CALLS[name][2:]
    expected = call(model, [right, right])
    assert len(expected) == 2
    sequences: list[Any] = [
        (each for each in (right, right)),
        pandas.Series([right, right], index=[7, 3]),
        KeyDataset([{"text": right}, {"text": right}], "text"),
    ]
    if isinstance(right, str):
        sequences += [np.array([right, right]), pyarrow.array([right, right])]
    for each in sequences:
        assert repr(call(model, each)) == repr(expected)


def test_a_tuple_of_two_texts_is_refused_by_a_classifier(opened) -> None:
    model = opened("classes")
    with pytest.raises(UserInputError, match=r"may be a pair or two inputs. Pass \[\(first"):
        model(("the cat", "a dog"))
    assert len(model(["the cat", "a dog"])) == 2
    assert len(model([("the cat", "a dog")])) == 1


def test_a_pair_with_an_unknown_field_is_refused(opened) -> None:
    with pytest.raises(UserInputError, match=r"or {'text': ..., 'text_pair': ...}; got dict"):
        opened("classes")({"text": "the cat", "text_par": "a dog"})


def test_documents_are_no_single_text_and_a_query_is_one(opened) -> None:
    model = opened("ranks")
    with pytest.raises(UserInputError, match="`documents` has to be a list of texts, got str"):
        model.rank("a cat", "a dog")
    with pytest.raises(UserInputError, match="`query`: Each input has to be a text; got list"):
        model.rank(["a cat"], ["a dog"])


def test_no_inputs_have_no_answers(opened) -> None:
    for name, (*_, call, _) in CALLS.items():
        assert len(call(opened(name), [])) == 0
    assert opened("encode").encode([]).shape == (0, 32)
    assert opened("encode").encode([], truncate_dim=8).shape == (0, 8)
    assert opened("scores").predict([]).shape == (0,)


@pytest.mark.parametrize(
    "name", [name for name in CALLS if name not in ("states", "answers of a context")]
)
def test_a_stream_returns_the_error_of_an_input_in_its_place(opened, name) -> None:
    model, right = opened(name), CALLS[name][3]
    right = ("a", "cat") if name == "ranks" else right
    job = model.scoring_job() if name in ("scores", "ranks") else model.job()
    items = [right] * 40
    wrong = random.Random(0).sample(range(40), len(NO_ITEMS))
    for position, each in zip(wrong, NO_ITEMS, strict=True):
        items[position] = each
    found = list(model.stream(job, items, return_errors=True))
    errors = [index for index, each in enumerate(found) if isinstance(each, UserInputError)]
    assert errors == sorted(wrong)
    first = min(wrong)
    with pytest.raises(UserInputError, match=rf"This is input {first}, counted from 0\."):
        list(model.stream(job, items))


@pytest.mark.parametrize(("text", "expected"), [("a\0b", True), ("é😀", True), ("\udc80", False)])
def test_halves_of_characters_are_no_text(text, expected) -> None:
    assert is_text(text) == expected


SIZES = {
    "batch_size": 3,
    "top_k": 2,
    "truncate_dim": 5,
    "chunk_overlap": 2,
    "max_length": 8,
    "doc_stride": 2,
    "max_answer_len": 3,
    "max_seq_len": 40,
    "max_question_len": 4,
    "stride": 2,
    "max_active_dims": 3,
}
# Methods of models with sizes among their parameters, and their other arguments.
SIZED: dict[str, tuple[str, str, tuple[Any, ...]]] = {
    "encode": ("encode", "encode", (TEXTS,)),
    "classes": ("classes", "__call__", (TEXTS,)),
    "scores": ("scores", "predict", ([("a", text) for text in TEXTS],)),
    "ranks": ("ranks", "rank", ("a cat", TEXTS)),
    "tags": ("tags", "__call__", (TEXTS,)),
    "answers": ("answers", "__call__", (QUESTION,)),
    "fills": ("fills", "__call__", ("a [MASK]",)),
}
KINDS: list[Any] = [np.int8, np.uint8, np.int64, lambda value: np.array(value), torch.tensor]


def check_sizes(call, names) -> None:
    """Check a method for numbers of NumPy and torch, and for what is no whole number."""
    for name in names:
        expected = call(**{name: SIZES[name]})
        for kind in KINDS:
            np.testing.assert_equal(call(**{name: kind(SIZES[name])}), expected)
        for wrong in (True, 2.5, np.float64(3), np.True_, "3", np.array([3]), -1):
            with pytest.raises(UserInputError, match=f"`{name}` must be"):
                call(**{name: wrong})


@pytest.mark.parametrize("name", SIZED)
def test_sizes_can_be_numbers_of_numpy_and_torch(opened, name) -> None:
    which, method, inputs = SIZED[name]
    call = getattr(opened(which), method)
    names = SIZES.keys() & inspect.signature(call).parameters.keys()
    assert "batch_size" in names
    check_sizes(functools.partial(call, *inputs), names)


@pytest.mark.parametrize(
    ("name", "method"), [("sparse", "encode"), ("multi_vector", "encode"), ("multi_vector", "rank")]
)
def test_sizes_of_further_embedders_can_be_numbers_of_numpy(checkpoints, name, method) -> None:
    with qdqbert.load(checkpoints(name), check=False) as model:

        def call(**options: Any) -> Any:
            if method == "rank":
                return model.rank("a cat", TEXTS, **options)
            found = model.encode(TEXTS, **options)
            return found.to_dense() if name == "sparse" else found

        parameters = inspect.signature(getattr(model, method)).parameters
        check_sizes(call, SIZES.keys() & parameters.keys())


def test_jobs_and_limits_take_numbers_of_numpy(opened) -> None:
    model = opened("answers")
    job = model.job(doc_stride=np.uint8(2), max_seq_len=np.uint8(40), top_k=np.int16(2))
    (found,) = model.stream(job, [QUESTION])
    (expected,) = model.stream(model.job(doc_stride=2, max_seq_len=40, top_k=2), [QUESTION])
    assert found == expected
    longest = model.max_seq_length
    model.max_seq_length = np.uint8(40)
    assert type(model.max_seq_length) is int
    model.max_seq_length = longest
