from __future__ import annotations

import dataclasses
import json

import pytest

from conftest import add_sentence_files
from qdqbert.common.errors import UserInputError
from qdqbert.encoders.checkpoint.tokenizer_and_config import (
    GraphFacts,
    choose_task,
    load_tokenizer_and_config,
)


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


# Files of sentence-transformers next to the tokenizer.


STATES = GraphFacts(
    input_names=("input_ids", "attention_mask"),
    outputs=32,
    is_pooled=False,
    vocabulary_size=None,
    max_length=None,
)


@pytest.mark.parametrize(
    ("pooling", "normalize", "expected"),
    [
        (None, False, "no modules.json next to the tokenizer, so the pooling is not known"),
        (
            "cls",
            True,
            "modules.json specifies pooling cls, but graph 'm.onnx' returns token states",
        ),
        ("mean", True, "modules.json specifies vectors of length 1, but graph 'm.onnx'"),
        ("mean", False, None),
    ],
    ids=["unknown", "cls", "normalized", "mean"],
)
def test_the_pooling_of_token_states_is_said_where_it_may_be_wrong(
    checkpoint_copy, pooling, normalize, expected
) -> None:
    folder = checkpoint_copy("bert")
    if pooling:
        add_sentence_files(folder, {"pooling_mode": pooling}, normalize=normalize)
        assert choose_task(folder / "m.onnx", task=None, tokenizer=None) == "feature-extraction"
    found = load_tokenizer_and_config(
        folder / "m.onnx",
        task="feature-extraction",
        tokenizer=None,
        graph=STATES,
    )
    assert found.max_length == (32 if pooling else 64)
    if expected is None:
        assert found.notices == ()
    else:
        assert expected in found.notices[0]


def test_a_pooled_output_needs_no_pooling(checkpoint_copy) -> None:
    folder = checkpoint_copy("bert")
    found = load_tokenizer_and_config(
        folder / "m.onnx",
        task="feature-extraction",
        tokenizer=None,
        graph=dataclasses.replace(STATES, is_pooled=True),
    )
    assert found.notices == ()


def test_a_cross_encoder_keeps_its_files(checkpoint_copy) -> None:
    folder = checkpoint_copy("reranker")
    settings = {
        "model_type": "CrossEncoder",
        "activation_fn": "torch.nn.modules.linear.Identity",
        "prompts": {"q": "query: "},
        "default_prompt_name": "q",
    }
    (folder / "config_sentence_transformers.json").write_text(json.dumps(settings))
    assert choose_task(folder / "m.onnx", task=None, tokenizer=None) == "reranking"
    found = load_tokenizer_and_config(
        folder / "m.onnx",
        task="reranking",
        tokenizer=None,
        graph=dataclasses.replace(STATES, outputs=1),
    )
    (text,) = found.cross_encoder.files.values()
    assert json.loads(text) == settings
    assert "puts the prompt 'query: '" in found.notices[-1]


@pytest.mark.parametrize(("pad", "expected"), [(1, 64), (3, 62)])
def test_positions_follow_the_padding_token_of_the_config(
    save_tiny, tmp_path, pad, expected
) -> None:
    folder = save_tiny(tmp_path / "roberta", "roberta", pad_token_id=pad)
    found = load_tokenizer_and_config(
        folder / "m.onnx",
        task="feature-extraction",
        tokenizer=None,
        graph=STATES,
    )
    assert found.max_length == expected
