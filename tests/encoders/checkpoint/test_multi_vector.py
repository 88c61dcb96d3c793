"""Files of multi-vector encoders of sentence-transformers and PyLate."""

from __future__ import annotations

import json

import pytest

from qdqbert.common.errors import CheckpointError, UserInputError
from qdqbert.encoders.checkpoint.multi_vector import (
    Expansion,
    TokenRules,
    is_multi_vector,
    read_multi_vector_head,
    read_token_rules,
)
from qdqbert.encoders.checkpoint.sentence_files import SentenceFiles
from qdqbert.encoders.checkpoint.text_heads import own_head, read_layout

PACKAGE = "sentence_transformers.base.modules"
POOLING = "sentence_transformers.multi_vector_encoder.modules.HierarchicalTokenPooling"


def files(*kinds, settings=None, **configs):
    """Return the files of a model with modules, and the contents of their config.json by kind."""
    entries = [
        {"idx": index, "name": str(index), "path": f"{index}_x" if index else "", "type": kind}
        for index, kind in enumerate(kinds)
    ]
    found = {
        "modules.json": json.dumps(entries),
        "config_sentence_transformers.json": json.dumps(
            settings or {"model_type": "MultiVectorEncoder"}
        ),
    }
    for index, kind in enumerate(kinds):
        name = kind.rpartition(".")[2]
        path = f"{index}_x/config.json" if index else "sentence_bert_config.json"
        if name in configs:
            found[path] = json.dumps(configs[name])
    return SentenceFiles(found.get)


TOKENS = {"module_input_name": "token_embeddings"}
DENSE = {"in_features": 4, "out_features": 2, **TOKENS}
KINDS = [f"{PACKAGE}.{each}" for each in ("Transformer", "Dense", "MultiVectorMask", "Normalize")]


def test_modules_and_rules_are_read() -> None:
    transformer = {"query_length": 40, "query_expansion": {"strategy": "min", "length": 32}}
    mask = {"skiplist_words": [","], "skiplist_tasks": "query", "keep_only_token_ids": []}
    read = files(
        *KINDS, Dense=DENSE, Normalize=TOKENS, MultiVectorMask=mask, Transformer=transformer
    )
    head = read_layout(read)
    assert [each.name for each in head.modules] == ["Dense", "Normalize"]
    expansion = Expansion(length=32, strategy="min", attends=False, token=None, is_scored=True)
    assert head.rules == TokenRules(
        query_length=40, expansion=expansion, skipped_words=(",",), skipped_in=("query",)
    )
    assert [head.rules.longest(kind) for kind in (None, "query", "document")] == [None, 40, None]


def test_rules_are_written_and_read(tmp_path) -> None:
    transformer = {"document_length": 9, "query_expansion": {"strategy": "fixed", "length": 5}}
    mask = {"skiplist_words": ["a", "b"], "keep_only_token_ids": [3, 5]}
    read = files(*KINDS[:3], Dense=DENSE, MultiVectorMask=mask, Transformer=transformer)
    head = read_multi_vector_head(read)
    head.write(tmp_path, hidden=4, find=lambda path: None)
    assert read_token_rules(tmp_path) == head.rules
    path = tmp_path / "multi_vector.json"
    content = json.loads(path.read_text())
    for changes in ({"document_length": 0}, {"kept_ids": [0.5]}, {"skipped_words": "a"}):
        path.write_text(json.dumps({**content, **changes}))
        with pytest.raises(CheckpointError, match=next(iter(changes))):
            read_token_rules(tmp_path)


@pytest.mark.parametrize(
    ("kinds", "configs", "message"),
    [
        ([*KINDS, POOLING], {}, "HierarchicalTokenPooling; only Transformer, and then Dense, Norm"),
        ([KINDS[1]], {}, "the modules Dense; only Transformer"),
        ([*KINDS[:3], KINDS[2]], {"Dense": DENSE}, "lists MultiVectorMask 2 times"),
        ([KINDS[0], KINDS[3]], {"Normalize": {}}, "has no `module_input_name`"),
        (
            KINDS[:2],
            {"Dense": {**DENSE, "module_output_name": "x"}},
            "and write 'token_embeddings'",
        ),
        (
            KINDS[:1],
            {"Transformer": {"query_expansion": {"strategy": "all", "length": 3}}},
            "query_expansion.strategy",
        ),
    ],
)
def test_other_modules_and_settings_are_refused(kinds, configs, message) -> None:
    with pytest.raises(CheckpointError, match=message):
        read_multi_vector_head(files(*kinds, **configs))


def test_models_are_known_by_their_settings_or_modules() -> None:
    assert is_multi_vector(files(*KINDS[:2]))
    assert is_multi_vector(files(*KINDS[:2], settings={"model_type": "ColBERT"}))
    other = {"model_type": "SentenceTransformer"}
    assert is_multi_vector(files(*KINDS[:3], settings=other))
    assert not is_multi_vector(files(*KINDS[:2], settings=other))


def test_other_checkpoints_have_no_such_head() -> None:
    with pytest.raises(UserInputError, match="'x' has no files of a multi-vector encoder"):
        own_head(None, "x", "multi-vector-embedding")
    assert own_head(None, "x", "fill-mask") == (None, ())


def test_a_tokenizer_needs_a_token_that_expands_queries() -> None:
    expansion = Expansion(length=5, strategy="min", attends=False, token=None, is_scored=True)
    rules = TokenRules(expansion=expansion)
    with pytest.raises(CheckpointError, match=r"has neither \[MASK\] nor an end of text"):
        rules.expansion_token({}.get)
    assert rules.expansion_token({"eos_token": "</s>"}.get) == "</s>"
    with pytest.raises(CheckpointError, match="token '</s>', which is not in the vocabulary"):
        rules.unattended_id({"eos_token": "</s>"}.get, {}.get)
