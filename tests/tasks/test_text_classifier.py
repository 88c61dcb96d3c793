"""Classes of texts, compared with transformers' pipeline."""

from __future__ import annotations

import pytest
import transformers

import qdqbert
from qdqbert.common.errors import UserInputError

TEXTS = ["the cat sat on the book", "music", "in the night and the dog " * 3]
PAIRS = [{"text": "the cat", "text_pair": "a book of rain"}, {"text": "music", "text_pair": "no"}]
HEAD = "AutoModelForSequenceClassification"
PROBLEMS = {
    "one of three": {"num_labels": 3},
    "a score": {"num_labels": 1},
    "several of three": {"num_labels": 3, "problem_type": "multi_label_classification"},
    "a quantity": {"num_labels": 1, "problem_type": "regression"},
}


@pytest.fixture(scope="module", params=PROBLEMS)
def both(request, tiny_artifact):
    """The loaded folder, and transformers' pipeline on its checkpoint."""
    checkpoint, folder = tiny_artifact(HEAD, **PROBLEMS[request.param])
    pipeline = transformers.pipeline("text-classification", model=str(checkpoint))
    with qdqbert.load(folder) as model:
        yield model, pipeline


@pytest.mark.usual("a quantity", "one of three")
def test_labels_are_in_the_order_of_the_outputs(both) -> None:
    model, pipeline = both
    assert model.labels == list(pipeline.model.config.id2label.values())


def rounded(value):
    """Round scores, at any depth, so that they can be compared."""
    if isinstance(value, list):
        return [rounded(each) for each in value]
    return {**value, "score": pytest.approx(value["score"], abs=1e-5)}


@pytest.mark.parametrize(
    "inputs",
    [TEXTS[0], TEXTS[:1], TEXTS, PAIRS[0], PAIRS],
    ids=["one", "list of one", "texts", "pair", "pairs"],
)
@pytest.mark.parametrize(
    "options",
    [{}, {"top_k": None}, {"top_k": 1}, {"top_k": 2}, {"function_to_apply": "none"}],
    ids=["default", "all", "best", "two", "logits"],
)
def test_answers_are_those_of_the_pipeline(both, inputs, options) -> None:
    model, pipeline = both
    assert model(inputs, **options) == rounded(pipeline(inputs, **options))


def test_a_threshold_selects_classes(both) -> None:
    model, _ = both
    everything = model(TEXTS, top_k=None)
    scores = sorted(each["score"] for answers in everything for each in answers)
    threshold = scores[len(scores) // 2]
    expected = [[each for each in answers if each["score"] > threshold] for answers in everything]
    assert model(TEXTS, threshold=threshold) == expected
    assert model(TEXTS[0], threshold=2.0 + scores[-1]) == []


def test_no_texts_have_no_classes(both) -> None:
    assert both[0]([]) == both[0]([], top_k=None) == []


def test_pairs_can_be_tuples(both) -> None:
    model, _ = both
    assert model([("the cat", "a book of rain"), ("music", "no")]) == model(PAIRS)


@pytest.mark.parametrize(
    ("inputs", "options", "message"),
    [
        ([3], {}, "Each input has to be a text or a pair of texts"),
        ([("a", "b", "c")], {}, "Each input has to be a text or a pair of texts"),
        ("a", {"function_to_apply": "relu"}, "`function_to_apply='relu'` is unknown"),
        ("a", {"truncation": False}, "`truncation=False` cannot be used: .* always cut"),
        ("a", {"max_length": 3}, "`max_length` must be above 3, .* at most 64, .* got 3"),
        ("a", {"max_length": 65}, "`max_length` must be above 3, .* at most 64, .* got 65"),
        ("a", {"batch_size": 0}, "`batch_size` must be at least 1, got 0"),
    ],
)
def test_unusable_arguments_are_refused(both, inputs, options, message) -> None:
    with pytest.raises(UserInputError, match=message):
        both[0](inputs, **options)


def test_long_texts_are_reported(both, caplog) -> None:
    both[0](["the cat", "the dog " * 100])
    assert "1 of 2 inputs was longer than 64 tokens and was cut." in caplog.text


def test_inputs_are_cut_as_by_the_pipeline(both, caplog) -> None:
    limits = {"truncation": True, "max_length": 8, "batch_size": 2}
    with qdqbert.load(both[0].directory) as model:
        assert model(TEXTS, **limits) == rounded(both[1](TEXTS, **limits))
    assert "2 of 3 inputs were longer than 8 tokens and were cut." in caplog.text


def test_classes_whose_scores_round_to_one_are_in_the_order_of_their_logits(tiny_artifact) -> None:
    # The weights are so large that several sigmoids are 1 in float32.
    checkpoint, folder = tiny_artifact(
        HEAD, num_labels=12, problem_type="multi_label_classification", initializer_range=5.0
    )
    pipeline = transformers.pipeline("text-classification", model=str(checkpoint))
    with qdqbert.load(folder) as model:
        for text in TEXTS:
            logits = pipeline(text, top_k=None, function_to_apply="none")
            found = model(text, top_k=None)
            assert found[1]["score"] == 1
            assert [each["label"] for each in found] == [each["label"] for each in logits]
            assert model(text)[0] == found[0]
            chosen = model(text, threshold=0.5)
            assert chosen == [each for each in found if each["score"] > 0.5]
