"""Labels of a call, compared with transformers' pipeline "zero-shot-classification"."""

from __future__ import annotations

import json
import pickle

import numpy as np
import pytest
import transformers

import qdqbert
from qdqbert.common.errors import UserInputError
from qdqbert.encoders.checkpoint.load import load_checkpoint
from qdqbert.runtime.options import AnswerOptions

HEAD = transformers.AutoModelForSequenceClassification
TASK = "zero-shot-classification"
TEXTS = ["the cat sat on the book", "music", "in the night and the dog " * 30]
LABELS = ["music", "a dog in the night", "rain", "the book"]
CLASSES = {
    "last": ["contradiction", "neutral", "entailment"],
    "first": ["Entailment", "neutral", "contradiction"],
    "two": ["entailment", "not_entailment"],
}
OPTIONS = [{}, {"multi_label": True}, {"hypothesis_template": "It is about {}."}]
# Tokenizers with and without segments, and one that cuts on the left.
FAMILIES = ["bert", "roberta", "deberta-v2", "modernbert"]


def save(folder, save_tiny, family, names, **settings):
    """Save a classifier with these classes."""
    kept = {"num_labels": len(names), "id2label": dict(enumerate(names))}
    kept["label2id"] = {name: number for number, name in enumerate(names)}
    save_tiny(folder, family, HEAD, **kept)
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **settings}))
    return folder


def pipeline_of(folder, model):
    made = transformers.pipeline(TASK, model=str(folder))
    made.tokenizer.model_max_length = model.max_length
    return made


@pytest.fixture(scope="module")
def nli(tmp_path_factory, save_tiny):
    return save(tmp_path_factory.mktemp("nli") / "nli", save_tiny, "bert", CLASSES["last"])


@pytest.fixture(scope="module")
def model(nli):
    with qdqbert.load(nli, task=TASK, precision="float") as loaded:
        yield loaded


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("classes", CLASSES)
@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.usual("right-last-deberta-v2", "left-first-bert", "right-two-modernbert")
def test_answers_are_those_of_the_pipeline(tmp_path, save_tiny, family, classes, side) -> None:
    folder = save(tmp_path / "nli", save_tiny, family, CLASSES[classes], truncation_side=side)
    with qdqbert.load(folder, task=TASK, precision="float") as loaded:
        pipeline = pipeline_of(folder, loaded)
        for options in OPTIONS:
            found = loaded(TEXTS, LABELS, **options)
            expected = pipeline(TEXTS, candidate_labels=LABELS, **options)
            for ours, theirs in zip(found, expected, strict=True):
                assert ours["sequence"] == theirs["sequence"]
                assert ours["labels"] == theirs["labels"]
                np.testing.assert_allclose(ours["scores"], theirs["scores"], atol=1e-5)


@pytest.mark.parametrize("limit", [None, 80])
def test_pairs_of_deberta_are_cut_where_the_tokenizer_cuts(tmp_path, save_tiny, limit) -> None:
    # The config has 64 positions, all of them relative.
    given = {"model_max_length": limit or 10**30}
    folder = save(tmp_path / "nli", save_tiny, "deberta-v2", CLASSES["last"], **given)
    expected = transformers.pipeline(TASK, model=str(folder))(TEXTS[2], candidate_labels=LABELS)
    with qdqbert.load(folder, task=TASK, precision="float") as loaded:
        found = loaded(TEXTS[2], LABELS)
        assert loaded.truncated_inputs == (limit is not None)
        assert loaded.max_length == limit or limit is None
    assert found["labels"] == expected["labels"]
    np.testing.assert_allclose(found["scores"], expected["scores"], atol=1e-5)
    checkpoint = load_checkpoint(str(folder))
    assert checkpoint.max_length == loaded.max_length
    assert checkpoint.config.max_relative_positions == 64


def test_one_text_gets_one_answer_and_one_label_its_own_score(model, nli) -> None:
    found = model(TEXTS[0], candidate_labels="music")
    expected = pipeline_of(nli, model)(TEXTS[0], candidate_labels="music")
    assert found["labels"] == ["music"]
    assert found["scores"] == pytest.approx(expected["scores"], abs=1e-5)


def test_labels_can_be_one_text_with_commas(model) -> None:
    assert model(TEXTS, "music, rain") == model(TEXTS, ["music", "rain"])


def test_no_texts_have_no_answers(model) -> None:
    assert model([], LABELS) == []


def test_an_answer_does_not_depend_on_other_texts(nli) -> None:
    with qdqbert.load(nli, task=TASK) as loaded:
        assert loaded(TEXTS, LABELS) == [loaded(text, LABELS) for text in TEXTS]


def test_texts_that_are_cut_are_counted_once(nli) -> None:
    with qdqbert.load(nli, task=TASK) as loaded:
        loaded(TEXTS, LABELS)
        assert loaded.truncated_inputs == 1


def test_a_pickle_has_the_task(model) -> None:
    with pickle.loads(pickle.dumps(model)) as again:
        assert type(again) is qdqbert.ZeroShotClassifier
        assert again(TEXTS[0], LABELS) == model(TEXTS[0], LABELS)


def test_the_model_says_what_scores_a_label(model) -> None:
    assert model.task == TASK
    assert "entailment_label='entailment'" in repr(model)


@pytest.mark.parametrize(
    ("labels", "options", "message"),
    [
        ([], {}, "`candidate_labels` has to be labels"),
        (" , ", {}, "`candidate_labels` has to be labels"),
        (["music", ""], {}, "`candidate_labels` has to be labels"),
        (["music", 3], {}, "got int 3"),
        (["music", "rain", "music"], {}, "has 'music' twice"),
        (["word " * 80], {}, "Pass a shorter one"),
        (LABELS, {"hypothesis_template": "It is so."}, "needs `{}`"),
        (LABELS, {"hypothesis_template": "{} {0.__class__}"}, "no other braces"),
        (LABELS, {"entailment_label": "yes"}, "'yes'` is not a class"),
        (LABELS, {"entailment_label": 5}, "`entailment_label` has to be a text, got int 5"),
        (LABELS, {"hypothesis_template": ""}, "`hypothesis_template` has to be a text, got str ''"),
        (["music", None], {}, "got NoneType None"),
        ({"topic": ["cats"]}, {}, "has to be a list of labels, got dict"),
    ],
)
def test_wrong_options_are_refused(model, labels, options, message) -> None:
    with pytest.raises(UserInputError, match=message):
        model(TEXTS, labels, **options)


def test_labels_of_rows_are_refused_by_their_name_there(model) -> None:
    with pytest.raises(UserInputError, match="`labels` has 'a' twice"):
        model.rows.job(model, AnswerOptions(labels=("a", "a")))


def test_texts_have_to_be_texts(model) -> None:
    with pytest.raises(UserInputError, match="has to be a text"):
        model([("a", "b")], LABELS)


@pytest.mark.parametrize("names", [["bad", "good"], ["entailment"]])
def test_models_without_entailment_are_refused(tmp_path, save_tiny, names) -> None:
    folder = save(tmp_path / "other", save_tiny, "bert", names)
    with pytest.raises(UserInputError, match="natural language inference") as error:
        qdqbert.load(folder, task=TASK)
    assert error.value.argument == "task"


def test_classes_without_names_are_named_in_the_call(tmp_path, save_tiny, model) -> None:
    folder = save(tmp_path / "unnamed", save_tiny, "bert", ["LABEL_0", "LABEL_1", "LABEL_2"])
    with qdqbert.load(folder, task=TASK, precision="float") as loaded:
        with pytest.raises(UserInputError, match="Name the one of entailment"):
            loaded(TEXTS, LABELS)
        # The weights are those of `model`.
        assert loaded(TEXTS, LABELS, entailment_label="label_2") == model(TEXTS, LABELS)


def test_a_classifier_of_entailment_names_its_other_task(nli, save_tiny, tmp_path, caplog) -> None:
    caplog.set_level("INFO", logger="qdqbert")
    qdqbert.load(nli).close()
    assert "zero-shot-classification" in caplog.text
    caplog.clear()
    qdqbert.load(nli, task=TASK).close()
    qdqbert.load(save(tmp_path / "other", save_tiny, "bert", ["bad", "good"])).close()
    assert "zero-shot-classification" not in caplog.text
