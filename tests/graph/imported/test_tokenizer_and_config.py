from __future__ import annotations

import json

import pytest

from qdqbert.errors import UserInputError
from qdqbert.graph.imported.tokenizer_and_config import _generation_config, choose_task


@pytest.fixture
def graph(tmp_path):
    """Path of a graph in a folder whose config.json names an architecture."""
    config = {"model_type": "bert", "architectures": ["BertForTokenClassification"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    return tmp_path / "model.onnx"


def test_the_task_is_inferred_from_the_architecture(graph, tmp_path) -> None:
    assert choose_task(graph, task=None, tokenizer=None) == "token-classification"
    elsewhere = tmp_path / "elsewhere" / "model.onnx"
    found = choose_task(elsewhere, task=None, tokenizer=str(tmp_path))
    assert found == "token-classification"


def test_a_given_task_takes_precedence(graph) -> None:
    assert choose_task(graph, task="fill-mask", tokenizer=None) == "fill-mask"


def test_an_unknown_task_is_refused(graph) -> None:
    with pytest.raises(UserInputError, match="`task='guess'` is unknown") as caught:
        choose_task(graph, task="guess", tokenizer=None)
    assert caught.value.argument == "task"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no config.json next to its tokenizer"),
        ("{}", "no config.json next to its tokenizer that names an architecture"),
        ('{"architectures": ["BertThing"]}', "names the architecture BertThing"),
    ],
    ids=["no-config", "no-architecture", "unknown"],
)
def test_a_task_that_cannot_be_inferred_is_asked_for(graph, content, message) -> None:
    config = graph.with_name("config.json")
    config.unlink()
    if content is not None:
        config.write_text(content)
    with pytest.raises(UserInputError, match=message) as caught:
        choose_task(graph, task=None, tokenizer=None)
    assert caught.value.argument == "task"


@pytest.mark.parametrize("content", ["{", "[1, 2]"], ids=["json", "list"])
def test_a_damaged_config_is_not_a_missing_one(graph, content) -> None:
    graph.with_name("config.json").write_text(content)
    with pytest.raises(UserInputError, match=r"config\.json of graph 'model\.onnx' cannot be used"):
        choose_task(graph, task=None, tokenizer=None)


def test_settings_of_text_generation_are_read_for_text_generation_only(tmp_path) -> None:
    assert _generation_config(str(tmp_path), "text-generation") is None
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [4, 5]}')
    assert _generation_config(str(tmp_path), "text-generation").eos_token_id == [4, 5]
    assert _generation_config(str(tmp_path), "fill-mask") is None
