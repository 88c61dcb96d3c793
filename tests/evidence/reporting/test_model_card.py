"""The model card: metadata as the hub's library reads it, and no private names."""

from __future__ import annotations

import dataclasses

import pytest
from huggingface_hub import ModelCard

from qdqbert.evidence.reporting import model_card as cards
from qdqbert.evidence.reporting.model_card import Origin, example_call
from qdqbert.tasks.registry import TASKS

LOCAL = Origin(
    hub_id=None, card={}, model_type="bert", is_sentence_transformer=False, eval_data=None
)


def model_card(report, origin: Origin) -> str:
    call = example_call(report.task, origin)
    return cards.model_card(dataclasses.replace(report, call=call), origin)


def test_metadata_of_the_source_are_inherited(quantize_report) -> None:
    card = {"language": ["en"], "license": "mit", "tags": ["other"], "base_model": "them/base"}
    origin = dataclasses.replace(LOCAL, hub_id="them/tuned", card=card)
    data = ModelCard(model_card(quantize_report, origin)).data.to_dict()
    assert data == {
        "base_model": "them/tuned",
        "base_model_relation": "quantized",
        "language": ["en"],
        "library_name": "qdqbert",
        "license": "mit",
        "pipeline_tag": "text-classification",
        "tags": ["qdqbert", "int8", "quantized", "onnx", "bert"],
    }


def test_a_local_model_has_the_base_that_its_card_names(quantize_report) -> None:
    origin = dataclasses.replace(LOCAL, card={"base_model": "them/base"})
    data = ModelCard(model_card(quantize_report, origin)).data.to_dict()
    assert data["base_model"] == "them/base"
    assert "base_model_relation" not in data
    assert "base_model" not in ModelCard(model_card(quantize_report, LOCAL)).data.to_dict()


@pytest.mark.parametrize(
    ("eval_data", "dataset"),
    [
        ("/home/me/dev@2.csv", {"name": "dev@2", "type": "dev@2"}),
        (
            "hub:them/reviews@test",
            {"name": "them/reviews", "type": "them/reviews", "split": "test"},
        ),
    ],
)
def test_metrics_are_in_the_model_index(quantize_report, eval_data, dataset) -> None:
    text = model_card(quantize_report, dataclasses.replace(LOCAL, eval_data=eval_data))
    (result,) = ModelCard(text).data.eval_results
    assert (result.metric_type, result.metric_value) == ("accuracy", 90.5)
    assert result.metric_name == "accuracy (portable on onnxruntime)"
    found = {
        "name": result.dataset_name,
        "type": result.dataset_type,
        **({} if result.dataset_split is None else {"split": result.dataset_split}),
    }
    assert found == dataset


def test_the_card_names_no_folder_of_this_machine(quantize_report) -> None:
    report = dataclasses.replace(
        quantize_report, directory="/home/me/out/int8", checkpoint="/home/me/models/tuned"
    )
    text = model_card(report, dataclasses.replace(LOCAL, eval_data="/home/me/dev.csv"))
    assert "/home/me" not in text
    assert "`tuned` in INT8" in text
    assert "qdqbert.load('int8')" in text


def test_hostile_names_are_code(quantize_report) -> None:
    name = "a`](x)\n---\nlicense: mit\n|<b>'\"\\"
    report = dataclasses.replace(quantize_report, directory=name, checkpoint=name)
    card = ModelCard(model_card(report, dataclasses.replace(LOCAL, eval_data="dev.csv")))
    assert card.data.license is None
    assert card.data.model_name == name
    assert "\nlicense" not in card.text
    assert "`a'](x) --- license: mit /<b>'\"\\` in INT8" in card.text


def test_every_task_has_a_name_on_the_hub(quantize_report) -> None:
    for task in TASKS:
        report = dataclasses.replace(quantize_report, task=task)
        assert ModelCard(model_card(report, LOCAL)).data.pipeline_tag


@pytest.mark.parametrize(
    ("engines", "package"),
    [
        (("onnxruntime",), "'qdqbert[serve]'"),
        (("native",), "'qdqbert[serve]'"),
        (("native", "openvino"), "'qdqbert[serve]'"),
        (("openvino",), "'qdqbert[openvino,serve]'"),
        (("onnxruntime", "openvino"), "'qdqbert[serve]'"),
        ((), "'qdqbert[serve]'"),
    ],
)
def test_the_package_is_installed_with_what_the_folder_needs(
    quantize_report, engines, package
) -> None:
    (target,) = quantize_report.targets
    targets = tuple(dataclasses.replace(target, engine=engine) for engine in engines)
    text = model_card(dataclasses.replace(quantize_report, targets=targets), LOCAL)
    assert f"```\npip install {package}\n" in text


@pytest.mark.parametrize(
    ("task", "changes", "call"),
    [
        (
            "text-classification",
            {"labels": ("bad", "good")},
            'model(["A fine film.", "A dull one."])',
        ),
        (
            "text-classification",
            {"labels": ("no", "yes"), "takes_pairs": True},
            'model({"text": "A man is eating.", "text_pair": "Someone eats."})',
        ),
        ("text-classification", {"labels": ("LABEL_0",)}, "model.predict([("),
        ("feature-extraction", {}, "model.encode(["),
        ("fill-mask", {"mask_token": "<mask>"}, "model('The capital of France is <mask>.')"),
    ],
)
def test_the_call_is_that_of_the_task(quantize_report, task, changes, call) -> None:
    report = dataclasses.replace(quantize_report, task=task)
    text = model_card(report, dataclasses.replace(LOCAL, **changes))
    assert f"print({call}" in text
    labels = ", ".join(f"`{each}`" for each in changes.get("labels", ()))
    assert (f"Labels: {labels}." in text) == (len(changes.get("labels", ())) > 1)


def test_a_task_that_load_does_not_run_has_no_call(quantize_report) -> None:
    text = model_card(dataclasses.replace(quantize_report, task="text-generation"), LOCAL)
    assert "## Is it as good as the float model?" in text
    assert "qdqbert.load" not in text
