"""Entities and classes that a call names: against the package gliner2, on checkpoints it saves."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import qdqbert
from conftest import WORDS
from gliner2_models import chosen, save_gliner2
from gliner_models import metaspace_tokenizer

gliner2 = pytest.importorskip("gliner2")

pytestmark = pytest.mark.slow

# Each ends as a sentence, so that gliner2 reads nothing after it.
TEXTS = (
    "The House of the cat is in London, and the dog came home last night.",
    "new york-city is 3.5 great; books and music!",
    "See https://a.com/b?c=d or WWW.house.org, me@home.com @cat_1?",
    "Straße 東京 naïve (the) [SEP] [E] e-mail_x. हिन्दी İstanbul e\u0301t!",
    "?",
)
LABELS = ("city", "the name of a person", "animal", "城市", "Cat")
SAID = {"city": "a town, or a village", "animal": "", "x": "who wrote the book"}


def saved(folder: Path, family: str = "deberta-v2", **settings: Any) -> tuple[Any, Path]:
    """Return a model of the package, and the folder that the package saves it to."""
    made = save_gliner2(folder / "made", family, **settings)
    reference = gliner2.GLiNER2.from_pretrained(str(made)).eval()
    reference.save_pretrained(str(folder / "saved"))
    return reference, folder / "saved"


def found_by(reference: Any, text: str, labels: Any, **options: Any) -> list[Any]:
    """Return the entities that the package finds, in order."""
    given = list(labels) if isinstance(labels, tuple) else labels
    options = {"include_confidence": True, "include_spans": True, **options}
    with torch.no_grad():
        found = reference.extract_entities(text, given, **options)["entities"]
    return sorted(
        (each["start"], each["end"], label, each["confidence"])
        for label, own in found.items()
        for each in own
    )


def same(found: Sequence[Any], wanted: Sequence[Any]) -> bool:
    """Return whether entities are equal, and their scores within 1e-4."""
    own = sorted((each["start"], each["end"], each["label"], each["score"]) for each in found)
    return [each[:3] for each in own] == [each[:3] for each in wanted] and all(
        abs(one[3] - other[3]) < 1e-4 for one, other in zip(own, wanted, strict=True)
    )


def threshold_of(every: Sequence[Any]) -> float:
    """Return a threshold that a third of all spans exceeds, none of them by little."""
    scores = sorted((each[3] for each in every), reverse=True)
    if len(scores) < 2:
        return 0.0
    places = range(len(scores) // 3, min(len(scores) // 3 + 9, len(scores) - 1))
    best = max(places, key=lambda index: scores[index] - scores[index + 1])
    return (scores[best] + scores[best + 1]) / 2


def check(reference: Any, folder: Path) -> None:
    count = 0
    with qdqbert.load(folder, precision="float") as model:
        for labels in (LABELS, SAID):
            for text in TEXTS:
                every = found_by(reference, text, labels, threshold=0.0, overlap_policy="allow")
                options = {"threshold": threshold_of(every)}
                wanted = found_by(reference, text, labels, **options)
                assert same(model(text, labels, **options), wanted)
                nested = found_by(reference, text, labels, **options, overlap_policy="nested")
                assert same(model(text, labels, **options, flat_ner=False), nested)
                count += len(wanted)
    assert count


@pytest.mark.parametrize("family", ["deberta-v2", "modernbert", "bert"])
@pytest.mark.parametrize("layer", ["count_lstm", "count_lstm_v2", "count_lstm_moe"])
def test_entities_are_those_of_the_package(family, layer, tmp_path) -> None:
    check(*saved(tmp_path, family, counting_layer=layer))


@pytest.mark.parametrize(
    "settings",
    [
        {"token_pooling": "mean"},
        {"token_pooling": "max"},
        {"max_width": None, "span_head": {"max_width": 3}},
        {"max_width": 12},
        {"tokenizer": "metaspace"},
    ],
    ids=str,
)
def test_entities_are_those_of_the_package_with_other_settings(settings, tmp_path) -> None:
    if "tokenizer" in settings:
        settings = {"tokenizer": metaspace_tokenizer()}
    check(*saved(tmp_path, **settings))


@pytest.mark.parametrize("text", ["the house of the cat is in london", "the cat ", "a\n"])
def test_a_full_stop_is_read_after_a_text_and_is_in_no_entity(text, tmp_path) -> None:
    reference, folder = saved(tmp_path)
    every = found_by(reference, text, LABELS, threshold=0.0, overlap_policy="allow")
    assert any(end > len(text) for _, end, _, _ in every)
    own = [each for each in every if each[1] <= len(text)]
    threshold = threshold_of(own)
    with qdqbert.load(folder, precision="float") as model:
        assert same(model(text, LABELS, threshold=threshold), chosen(own, threshold))
        assert model("", LABELS, threshold=0.0) == []


def test_an_address_at_the_end_of_a_text_has_no_full_stop(tmp_path) -> None:
    reference, folder = saved(tmp_path)
    text = "the cat is at https://a.com/b"
    wanted = [
        (start, min(end, len(text)), label, score)
        for start, end, label, score in found_by(reference, text, LABELS, threshold=0.0)
    ]
    with qdqbert.load(folder, precision="float") as model:
        assert same(model(text, LABELS, threshold=0.0), wanted)


def test_texts_have_no_entities_if_their_number_is_none(tmp_path) -> None:
    reference, folder = saved(tmp_path, none=9.0)
    assert found_by(reference, TEXTS[0], LABELS, threshold=0.0) == []
    with qdqbert.load(folder, precision="float") as model:
        assert model(TEXTS[0], LABELS, threshold=0.0) == []


def test_texts_of_more_tokens_than_the_positions_of_deberta_are_read_whole(tmp_path) -> None:
    reference, folder = saved(tmp_path)
    text = f"{' '.join(WORDS[:250])}."
    threshold = threshold_of(found_by(reference, text, LABELS, threshold=0.0))
    with qdqbert.load(folder, precision="float") as model:
        found = model(text, LABELS, threshold=threshold)
    assert found
    assert same(found, found_by(reference, text, LABELS, threshold=threshold))


def test_weights_of_torch_are_read(tmp_path) -> None:
    reference, folder = saved(tmp_path)
    torch.save(reference.state_dict(), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    check(reference, folder)


@pytest.mark.parametrize("temperature", [1.0, 1.7])
def test_classes_of_the_other_architecture_are_those_of_the_package(temperature, tmp_path) -> None:
    made = save_gliner2(tmp_path / "made")
    encoder = transformers.AutoConfig.from_pretrained(made / "encoder_config")
    config = gliner2.configuration.ExtractorConfig(
        model_name="a/model",
        architecture="boundary",
        boundary_head={"classification_temperature": temperature},
    )
    reference = gliner2.AutoExtractor.from_config(
        config,
        encoder_config=encoder,
        tokenizer=transformers.AutoTokenizer.from_pretrained(made),
    ).eval()
    with torch.no_grad():
        reference.classifier[-1].weight *= 10
    folder = tmp_path / "saved"
    reference.save_pretrained(str(folder))
    labels = ["glad", "the name of a book", "sad"]
    tasks = {"mood": {"labels": labels, "multi_label": True, "cls_threshold": 0.0}}
    with qdqbert.load(folder, precision="float") as model:
        for text in TEXTS:
            with torch.no_grad():
                wanted = reference.classify_text(text, tasks, include_confidence=True)["mood"]
            found = model(text, labels, multi_label=True, task_name="mood")
            scores = dict(zip(found["labels"], found["scores"], strict=True))
            expected = {each["label"]: each["confidence"] for each in wanted}
            assert scores == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("family", ["deberta-v2", "modernbert", "bert"])
@pytest.mark.parametrize(
    "labels",
    [
        ["glad", "the name of a book", "悲しい"],
        {"x": "who wrote", "y": "a day"},
        {"one": "a"},
        ["glad"],
    ],
    ids=len,
)
def test_classes_are_those_of_the_package(labels, family, tmp_path) -> None:
    reference, folder = saved(tmp_path, family)
    texts = [*TEXTS, "the cat is in london", "", "a "]
    # All labels, in their order, by both functions.
    config = {"labels": labels, "multi_label": True, "cls_threshold": 0.0}

    def wanted(text: str, function: str) -> list[float]:
        tasks = {"mood of a text": {**config, "class_act": function}}
        with torch.no_grad():
            found = reference.classify_text(text, tasks, include_confidence=True)
        assert [each["label"] for each in found["mood of a text"]] == list(labels)
        return [each["confidence"] for each in found["mood of a text"]]

    options = {"task_name": "mood of a text"}
    with qdqbert.load(folder, precision="float", task="zero-shot-classification") as model:
        for text in texts:
            chances = model.decide(text, labels, **options)["probabilities"]
            expected = dict(zip(labels, wanted(text, "softmax"), strict=True))
            assert chances == pytest.approx(expected, abs=1e-4)
        if isinstance(labels, list):
            for function in ("softmax", "sigmoid"):
                is_alone = function == "sigmoid"
                found = model(texts, labels, multi_label=is_alone, **options)
                for text, each in zip(texts, found, strict=True):
                    scores = dict(zip(each["labels"], each["scores"], strict=True))
                    expected = dict(zip(labels, wanted(text, function), strict=True))
                    assert scores == pytest.approx(expected, abs=1e-4)


def test_several_questions_are_those_of_the_package(tmp_path) -> None:
    reference, folder = saved(tmp_path)
    questions = {"mood": {"glad": None, "sad": None}, "topic": {"cats": "an animal", "books": "x"}}
    tasks = {"mood": ["glad", "sad"], "topic": questions["topic"]}
    with torch.no_grad():
        wanted = reference.classify_text(TEXTS[0], tasks, include_confidence=True)
    asked = {name: {"type": "choice", "criteria": each} for name, each in questions.items()}
    with qdqbert.load(folder, precision="float") as model:
        found = model.decide(TEXTS[0], questions=asked)
    for name, each in wanted.items():
        assert found[name]["choice"] == each["label"]
        chance = found[name]["probabilities"][each["label"]]
        assert chance == pytest.approx(each["confidence"], abs=1e-4)


STRUCTURES: tuple[dict[str, Any], ...] = (
    {"animal": ["name::str", "home", "size::[small|very large|cat]"]},
    {
        "place": ["name::str::what it is called", "kind::[city|house]::list::its kind", "a"],
        "trip": [
            {"name": "day", "dtype": "str", "description": "when"},
            {"name": "by", "choices": ["car", "House"]},
            {"name": "x", "dtype": "str", "choices": ["small", "City"]},
        ],
    },
    {"one": ["a::str"]},
)


def equal(found: Any, wanted: Any) -> bool:
    """Return whether answers are equal, and their numbers within 1e-4."""
    if isinstance(wanted, dict):
        return list(found) == list(wanted) and all(equal(found[x], wanted[x]) for x in wanted)
    if isinstance(wanted, list):
        return len(found) == len(wanted) and all(map(equal, found, wanted))
    return abs(found - wanted) < 1e-4 if isinstance(wanted, float) else found == wanted


@pytest.mark.parametrize("pooling", ["first", "mean"])
@pytest.mark.parametrize("family", ["deberta-v2", "modernbert"])
@pytest.mark.parametrize("layer", ["count_lstm", "count_lstm_v2", "count_lstm_moe"])
def test_structures_are_those_of_the_package(layer, family, pooling, tmp_path) -> None:
    settings = {"counting_layer": layer, "token_pooling": pooling, "none": -9.0}
    reference, folder = saved(tmp_path, family, **settings)
    with torch.no_grad():
        # Numbers of answers that differ.
        reference.count_pred[-1].weight *= 30
    reference.save_pretrained(str(folder))
    numbers = set()
    with qdqbert.load(folder, precision="float") as model:
        for structures in STRUCTURES:
            for text in TEXTS:
                for threshold in (0.4, 0.47, 0.5):
                    for given in (False, True):
                        options: dict[str, Any] = {"threshold": threshold}
                        options |= {"include_confidence": given, "include_spans": given}
                        with torch.no_grad():
                            found = reference.extract_json(text, structures, **options)
                        # The package has an object for none.
                        wanted = {name: each or [] for name, each in found.items()}
                        assert equal(model.extract_json(text, structures, **options), wanted)
                        numbers |= {len(each) for each in wanted.values()}
    assert len(numbers) > 1
