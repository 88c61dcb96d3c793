"""Arguments of the classes of LangChain and LlamaIndex, compared with sentence-transformers."""

from __future__ import annotations

import inspect
import json

import pytest

from qdqbert.common.errors import UserInputError
from qdqbert.integrations.models import open_model
from qdqbert.tasks.embedder import Embedder
from qdqbert.tasks.pair_scores import PairScorer

library = pytest.importorskip("sentence_transformers", reason="sentence-transformers is missing")


def opened(folder, kind=Embedder, **options):
    return open_model(folder, kind, "LangChain", "class", {"check": False, **options})


def names_of(*classes):
    found = [each for kind in classes for each in inspect.signature(kind).parameters]
    return sorted({*found} - {"trust_remote_code"})


OLD = ["automodel_args", "tokenizer_args", "config_args", "tokenizer_kwargs", "cache_dir"]
OLD += ["default_activation_function", "classifier_dropout", "model_name", "path", "dtype"]
OLD += ["torch_dtype", "attn_implementation", "batch_size", "activation"]
OLD += ["query_instruction", "embed_instruction"]


@pytest.mark.parametrize("name", [*names_of(library.CrossEncoder), *OLD])
def test_each_argument_of_a_cross_encoder_is_obeyed_or_refused(checkpoints, name) -> None:
    known = {"max_length": "max_seq_length"}
    known |= dict.fromkeys(("activation_fn", "default_activation_function"), "activation")
    with pytest.raises(UserInputError, match=f"`{known.get(name, name)}"):
        opened(checkpoints("reranker"), PairScorer, **{name: "x"})


@pytest.mark.parametrize("name", names_of(library.SentenceTransformer))
def test_each_argument_of_a_sentence_transformer_is_obeyed_or_refused(checkpoints, name) -> None:
    with pytest.raises(UserInputError, match=f"`{name}"):
        opened(checkpoints("sentence"), **{name: "x"})


@pytest.mark.parametrize("given", [{"document": "D: "}, {"own": "O "}, {"query": None, "z": None}])
def test_prompts_are_added_to_those_of_the_folder(checkpoint_copy, given) -> None:
    folder = checkpoint_copy("sentence")
    settings = {"prompts": {"query": "where is ", "document": "the "}}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(settings))
    theirs = library.SentenceTransformer(str(folder), prompts=dict(given), device="cpu")
    assert opened(folder, prompts=given).prompts == theirs.prompts


@pytest.mark.parametrize("prompts", ["query: ", ["a"], {"a": 1}, {1: "a"}])
def test_other_prompts_are_refused(checkpoints, prompts) -> None:
    with pytest.raises(UserInputError, match="`prompts` must be a dict of texts by their names"):
        opened(checkpoints("sentence"), prompts=prompts)


def test_the_name_of_the_default_prompt_is_checked_as_sentence_transformers_does(
    checkpoints,
) -> None:
    found = opened(checkpoints("sentence"), default_prompt_name="query")
    assert (found.encode("a") == found.encode("a", prompt="")).all()
    for folder, kind in (("sentence", Embedder), ("reranker", PairScorer)):
        with pytest.raises(UserInputError, match="`default_prompt_name='zz'` is unknown"):
            opened(checkpoints(folder), kind, default_prompt_name="zz")


def test_two_names_of_a_setting_agree(checkpoints) -> None:
    assert opened(checkpoints("sentence"), max_length=8, max_seq_length=8).max_length == 8
    with pytest.raises(UserInputError, match="`max_length=8` and `max_seq_length=10` contradict"):
        opened(checkpoints("sentence"), max_length=8, max_seq_length=10)


def test_a_model_that_was_in_memory_is_not_looked_for(checkpoints) -> None:
    with pytest.raises(UserInputError, match="was a model in memory, which is gone"):
        opened(f"{checkpoints('sentence')} (in memory)")
