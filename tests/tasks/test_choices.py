"""Decisions: `decide` of models that read labels, against transformers, and their calibration."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import transformers
from transformers.decision.template_utils import Question as Reference

import qdqbert
from qdqbert import TaskOptions
from qdqbert.common.errors import UserInputError
from qdqbert.tasks.decisions import (
    calibration_error,
    fitted_temperature,
    read_questions,
    rows_of_decisions,
)
from qdqbert.tasks.hypotheses import LabelLogits

TASK = "zero-shot-classification"
CLASSES = ["contradiction", "neutral", "entailment"]
TEXTS = ["the cat sat on the book", "music", "a dog in the night"]
QUESTIONS = {
    "tone": {"type": "choice", "criteria": {"calm": "a nice book", "angry": None, "sad": "rain"}},
    "level": {"type": "score", "criteria": ["rain", "music", "a cat"], "instructions": "How?"},
    "refund": {"type": "noul", "criteria": {"true": "a dog", "false": "a cat"}},
}


@pytest.fixture(scope="module")
def nli(tmp_path_factory, save_tiny):
    names = {"id2label": dict(enumerate(CLASSES))}
    head = transformers.AutoModelForSequenceClassification
    return save_tiny(tmp_path_factory.mktemp("nli") / "nli", "bert", head, **names)


@pytest.fixture(scope="module")
def model(nli):
    with qdqbert.load(nli, task=TASK, precision="float") as loaded:
        yield loaded


def reference(name: str, probabilities):
    config = transformers.DecisionConfig()
    return Reference.from_request(name, QUESTIONS[name], config).answer(list(probabilities))


def close(found, expected) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        if isinstance(value, dict):
            close(found[name], value)
        else:
            assert found[name] == (value if isinstance(value, str) else pytest.approx(value))


@pytest.mark.parametrize("temperature", [1.0, 0.3])
@pytest.mark.parametrize("values", [(2.0, -1.0, 0.5), (0.0, 0.0, 0.0), (-3.0, 4.0, 4.5)])
def test_answers_are_computed_as_by_transformers(temperature, values) -> None:
    own, asked = np.array(values, np.float32), read_questions(QUESTIONS)
    powers = np.exp(own.astype(np.float64) / temperature)
    for name in ("tone", "level"):
        found = asked[name].answer(LabelLogits(own, own), temperature, None)
        close(found, reference(name, powers / powers.sum()))
    found = asked["refund"].answer(LabelLogits(own[:1], own[:1]), temperature, None)
    share = 1 / (1 + math.exp(-values[0]))
    # transformers has the order of the options from its config.
    close(found, reference("refund", (share, 1 - share)))


def test_an_only_option_is_certain() -> None:
    (asked,) = read_questions({"a": {"type": "choice", "criteria": {"b": None}}}).values()
    one = np.array([0.5], np.float32)
    found = asked.answer(LabelLogits(one, one), 1.0, 0.9)
    assert found == {
        "type": "choice",
        "choice": "b",
        "confidence": 1.0,
        "probabilities": {"b": 1.0},
    }


def test_probabilities_are_scores_of_the_descriptions(model) -> None:
    options = {"calm": "a nice book", "angry": None}
    scored = model(TEXTS, ["a nice book", "angry"])
    for found, expected in zip(model.decide(TEXTS, options), scored, strict=True):
        by_text = dict(zip(expected["labels"], expected["scores"], strict=True))
        wanted = {"calm": by_text["a nice book"], "angry": by_text["angry"]}
        close(found["probabilities"], wanted)
        assert found["choice"] == max(wanted, key=wanted.get)


def test_a_request_of_transformers_is_answered(model) -> None:
    found = model.decide({"state": TEXTS[0], "questions": QUESTIONS})
    assert found == model.decide(TEXTS[:1], questions=QUESTIONS)[0]
    assert found.keys() == QUESTIONS.keys()
    alone = model(TEXTS[0], ["a dog"])["scores"][0]
    assert found["refund"]["noul"] == pytest.approx(alone)


def test_an_option_below_the_threshold_is_not_chosen(model) -> None:
    best = max(model.decide(TEXTS[0], TEXTS)["probabilities"].values())
    sure = model.decide(TEXTS[0], TEXTS, threshold=best - 1e-6)
    unsure = model.decide(TEXTS[0], TEXTS, threshold=best + 1e-6)
    assert sure["choice"] is not None
    assert unsure == {**sure, "choice": None}


def test_a_high_temperature_makes_options_equal(model) -> None:
    found = model.decide(TEXTS[0], TEXTS, temperature=1e6)["probabilities"]
    assert list(found.values()) == pytest.approx([1 / 3] * 3, abs=1e-4)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "either `options` or `questions`"),
        ({"options": ["a"], "questions": QUESTIONS}, "either `options` or `questions`"),
        ({"options": []}, "`options` has to be labels"),
        ({"options": {"a": 3}}, "`options`: the description of 'a'"),
        (
            {"questions": {"a": {"type": "choice", "criteria": {"b": " "}}}},
            "`questions`: the description of 'b' has to be None or a text that is not blank",
        ),
        ({"options": ["a"], "temperature": 0}, "`temperature` has to be"),
        ({"options": ["a"], "temperature": "hot"}, "`temperature` has to be"),
        ({"options": ["a"], "temperature": 1e-40}, "`temperature` has to be"),
        ({"options": {None: "a"}}, "`options` has to be labels"),
        ({"questions": {"": QUESTIONS["tone"], "b": QUESTIONS["tone"]}}, "names have to be texts"),
        ({"options": ["a"], "threshold": 1.5}, "`threshold` has to be"),
        ({"questions": {}}, "maps names to questions"),
        ({"questions": {"a": {"type": "essay"}}}, "choice, score, noul"),
        ({"questions": {"a": {"type": "choice", "options": []}}}, "the field 'options'"),
        ({"questions": {"a": {"type": "choice"}}}, "descriptions or null"),
        ({"questions": {"a": {"type": "score", "criteria": "b"}}}, "a list of levels"),
        ({"questions": {"a": {"type": "noul", "instructions": "b"}}}, "no `instructions`"),
    ],
)
def test_wrong_questions_are_refused(model, given, message) -> None:
    with pytest.raises(UserInputError, match=message):
        model.decide(TEXTS, **given)


def test_a_request_has_nothing_beside_it(model) -> None:
    with pytest.raises(UserInputError, match="no other argument"):
        model.decide({"state": TEXTS[0], "questions": QUESTIONS}, ["a"])


def test_the_temperature_that_made_the_labels_is_found() -> None:
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(4000, 5)) * 2
    for temperature in (0.4, 1.0, 3.0):
        # Labels drawn by the Gumbel trick from the softmax at that temperature.
        right = (logits / temperature + rng.gumbel(size=logits.shape)).argmax(axis=1)
        assert fitted_temperature(logits, right) == pytest.approx(temperature, rel=0.1)
        rows = [rows_of_decisions(logits, right, each) for each in (temperature, temperature / 4)]
        true, sure = (calibration_error(each, np.ones((1, 4000)))[0] for each in rows)
        assert true < 3
        assert sure > 10


def test_the_calibration_error_is_the_gap_of_each_bin() -> None:
    rows = np.array([[0.95, 1.0], [0.95, 0.0], [0.5, 1.0], [0.52, 1.0]])
    even = calibration_error(rows, np.ones((1, 4)))
    assert even == pytest.approx([100 * (abs(1 - 1.9) + abs(2 - 1.02)) / 4])
    one = calibration_error(rows, np.array([[0.0, 0.0, 1.0, 0.0]]))
    assert one == pytest.approx([50])


@pytest.fixture(scope="module")
def labeled(tmp_path_factory, model):
    """Texts with the label that the model chooses, and each fifth with another one."""
    rng = np.random.default_rng(0)
    words = ["the", "cat", "sat", "on", "a", "book", "night", "music", "rain", "dog", "house"]
    texts = [" ".join(rng.choice(words, 6)) for _ in range(60)]
    answers = model(texts, ["music", "rain", "a dog"])
    labels = [each["labels"][number % 5 == 0] for number, each in enumerate(answers)]
    rows = zip(texts, labels, strict=True)
    path = tmp_path_factory.mktemp("labeled") / "data.jsonl"
    path.write_text("".join(json.dumps({"text": text, "label": x}) + "\n" for text, x in rows))
    return path


def quantized(nli, labeled, folder, **options):
    report = qdqbert.quantize(
        str(nli),
        folder,
        task=TASK,
        eval_data=str(labeled),
        targets=["native"],
        benchmark=False,
        **options,
    )
    with qdqbert.load(folder) as model:
        return report, model.facts["decision_temperature"], model.decide(TEXTS[0], TEXTS)


def test_quantize_fits_a_temperature_and_stores_it(nli, labeled, tmp_path, model) -> None:
    report, temperature, found = quantized(nli, labeled, tmp_path / "fitted")
    # The model is right more often than its probabilities say.
    assert temperature < 0.8
    assert any(f"temperature of decisions is {temperature:g}" in each for each in report.notices)
    errors = {each.name: each.value for each in report.float_metrics}
    assert errors["ece_at_temperature"] < errors["ece"]
    expected = model.decide(TEXTS[0], TEXTS, temperature=temperature)
    assert list(found["probabilities"].values()) == pytest.approx(
        list(expected["probabilities"].values()), abs=0.02
    )


def test_a_temperature_that_is_named_is_stored(nli, labeled, tmp_path) -> None:
    options = TaskOptions(decision_temperature=1.5)
    report, temperature, _ = quantized(nli, labeled, tmp_path / "named", task_options=options)
    assert temperature == 1.5
    assert not any("temperature of decisions" in each for each in report.notices)
    assert any(each.name == "ece_at_temperature" for each in report.float_metrics)
