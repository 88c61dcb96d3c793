"""Filled masks, compared with transformers' pipeline."""

from __future__ import annotations

import pytest
import torch
import transformers

import qdqbert
from qdqbert.common.errors import UserInputError
from qdqbert.data.tables.inputs import open_source

TEXTS = ["the [MASK] sat on the book.", "a dog and [MASK]", "in the night " * 4 + "[MASK]"]
SEVERAL = "the [MASK] sat on [MASK] book."


@pytest.fixture(scope="module")
def both(tiny_artifact):
    """The loaded folder, and transformers' pipeline on its checkpoint."""
    checkpoint, folder = tiny_artifact("AutoModelForMaskedLM")
    pipeline = transformers.pipeline("fill-mask", model=str(checkpoint))
    with qdqbert.load(folder) as model:
        yield model, pipeline


def rounded(value):
    """Round scores, at any depth, so that they can be compared."""
    if isinstance(value, list):
        return [rounded(each) for each in value]
    return {**value, "score": pytest.approx(value["score"], abs=1e-6)}


@pytest.mark.parametrize(
    "inputs",
    [TEXTS[0], TEXTS, TEXTS[:1], SEVERAL, [SEVERAL, TEXTS[0]], [SEVERAL]],
    ids=["one", "texts", "list-of-one", "masks", "mixed", "list-with-masks"],
)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"top_k": 2},
        {"targets": ["cat", "dog", "river"]},
        {"targets": ["cat", "xylophone"], "top_k": 9},
        {"targets": "cat"},
    ],
    ids=["default", "two", "targets", "unknown-target", "one-target"],
)
def test_answers_are_those_of_the_pipeline(both, inputs, options) -> None:
    model, pipeline = both
    assert model(inputs, **options) == rounded(pipeline(inputs, **options))


def test_unknown_targets_are_reported(both, caplog) -> None:
    both[0](TEXTS[0], targets=["cat", "xylophone"])
    assert "Target 'xylophone' is not in the vocabulary: 'x' is used." in caplog.text


@pytest.mark.parametrize(
    ("inputs", "options", "message"),
    [
        (["the cat"], {}, "Each text must have a mask token '\\[MASK\\]'; 'the cat' has none"),
        ("the cat " * 60 + "[MASK]", {}, "has none in its first 64 tokens"),
        ([3], {}, "`inputs` has to be a text or a list of texts"),
        (TEXTS[0], {"top_k": 0}, "`top_k` must be at least 1, got 0"),
        (TEXTS[0], {"targets": []}, "`targets=\\[\\]` has no word that can be used"),
    ],
)
def test_unusable_arguments_are_refused(both, inputs, options, message) -> None:
    with pytest.raises(UserInputError, match=message):
        both[0](inputs, **options)


def test_no_texts_have_no_answers(both) -> None:
    assert both[0]([]) == []


def test_run_writes_a_list_for_each_mask(both, tmp_path) -> None:
    model, _ = both
    data = tmp_path / "in.txt"
    data.write_text("\n".join([TEXTS[0], SEVERAL, "the cat", "the cat " * 60 + "[MASK]"]))
    for name in ("a.jsonl", "a.parquet"):
        report = qdqbert.run(
            folder_of(model), data, tmp_path / name, engine=model.engine, top_k=2, on_error="skip"
        )
        assert (report.rows, report.skipped) == (2, 2)
        found = [row.values["fills"] for row in open_source(str(tmp_path / name)).rows()]
        expected = [model(TEXTS[0], top_k=2)], model(SEVERAL, top_k=2)
        assert found == [[rounded(fills) for fills in each] for each in expected]


def folder_of(model):
    return model._loaded.artifact.directory


def test_tokens_whose_probabilities_round_to_zero_are_in_the_order_of_their_logits(
    tiny_artifact,
) -> None:
    checkpoint, folder = tiny_artifact("AutoModelForMaskedLM", initializer_range=10.0)
    text = "the [MASK] sat on the book"
    tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint)
    float_model = transformers.AutoModelForMaskedLM.from_pretrained(checkpoint)
    inputs = tokenizer(text, return_tensors="pt")
    with torch.no_grad():
        logits = float_model(**inputs).logits[0, 2]
    with qdqbert.load(folder) as model:
        found = model(text, top_k=600)
        words = model(text, targets=["cat", "dog", "river", "music", "book", "house"])
    assert found[-1]["score"] == found[-2]["score"] == 0
    for answers in (found, words):
        # Logits differ from those of transformers in their last bits.
        ordered = logits[[each["token"] for each in answers]]
        assert (ordered.diff() < 1e-2).all()
    assert found[0]["token"] == logits.argmax()
