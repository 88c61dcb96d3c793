"""Each module that sentence-transformers has is run or refused by name."""

from __future__ import annotations

import importlib
import json

import pytest
from sentence_transformers.base.modules import Dense, Normalize
from sentence_transformers.cross_encoder.modules import LogitScore
from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask
from sentence_transformers.sentence_transformer.modules import Dropout, LayerNorm, Pooling
from sentence_transformers.sparse_encoder.modules import SpladePooling

from qdqbert.common.errors import CheckpointError
from qdqbert.encoders.checkpoint.sentence_files import SentenceFiles
from qdqbert.encoders.checkpoint.text_heads import read_layout

PACKAGES = (
    "base",
    "cross_encoder",
    "multi_vector_encoder",
    "sentence_transformer",
    "sparse_encoder",
)
EXPORTED = {
    name: getattr(found, name)
    for package in PACKAGES
    for found in [importlib.import_module(f"sentence_transformers.{package}.modules")]
    for name in found.__all__
}
TOKENS = {"module_input_name": "token_embeddings"}
# What the modules that are run save, by name and the model they belong to.
SAVED = {
    "Dense": Dense(4, 4),
    "Dropout": Dropout(0.1),
    "LayerNorm": LayerNorm(4),
    "Normalize": Normalize(),
    "Pooling": Pooling(4),
    "SpladePooling": SpladePooling(),
    "MultiVectorMask": MultiVectorMask(),
    "LogitScore": LogitScore(1, 2),
}
OF_TOKENS = {"Dense": Dense(4, 4, **TOKENS), "Normalize": Normalize(**TOKENS)}
SCORE = Dense(4, 1, module_output_name="scores")
# Modules that a model of sentence-transformers has around another one, which `*` stands for.
PLACES = {
    "SentenceTransformer": [
        "*",
        "* Pooling",
        "Transformer *",
        "Transformer * Pooling",
        "Transformer Pooling *",
    ],
    "CrossEncoder": [
        "*",
        "Transformer *",
        "Transformer * Score",
        "Transformer * Pooling Score",
        "Transformer Pooling * Score",
    ],
    "SparseEncoder": ["*", "* SpladePooling", "Transformer *", "Transformer SpladePooling *"],
    "MultiVectorEncoder": ["*", "Transformer *", "Transformer * MultiVectorMask"],
}
OF_EMBEDDERS = {"Dense", "Dropout", "LayerNorm", "Normalize", "Pooling", "Transformer"}
# Sparse and multi-vector encoders are also known by their last module. Tests of sparse encoders
# have Router, which needs a file.
RUN = {
    "SentenceTransformer": {*OF_EMBEDDERS, "MultiVectorMask", "SpladePooling", "StaticEmbedding"},
    "CrossEncoder": {*OF_EMBEDDERS, "LogitScore"},
    "SparseEncoder": {"MLMTransformer", "MultiVectorMask", "SpladePooling", "Transformer"},
    "MultiVectorEncoder": {"Dense", "MultiVectorMask", "Normalize", "Transformer"},
}


def files_of(model: str, names: list[str]) -> dict[str, str]:
    modules = [
        {"path": str(index), "type": f"a.{'Dense' if name == 'Score' else name}"}
        for index, name in enumerate(names)
    ]
    known = {**SAVED, "Score": SCORE} | (OF_TOKENS if model == "MultiVectorEncoder" else {})
    configs = {
        f"{index}/config.json": json.dumps(known[name].get_config_dict())
        for index, name in enumerate(names)
        if name in known
    }
    settings = {"model_type": model}
    return {
        "modules.json": json.dumps(modules),
        "config_sentence_transformers.json": json.dumps(settings),
        **configs,
    }


def refusal_of(files: dict[str, str]) -> str | None:
    """Return why files are refused; `None` if they are read."""
    try:
        found = read_layout(SentenceFiles(files.get))
    except CheckpointError as error:
        return str(error)
    assert found is not None
    return None


@pytest.mark.parametrize("model", RUN)
def test_each_module_is_run_or_refused_by_name(model: str) -> None:
    assert len(EXPORTED) > 25
    run = set()
    for name in EXPORTED:
        for place in PLACES[model]:
            names = place.replace("*", name).split()
            refusal = refusal_of(files_of(model, names))
            if refusal is None:
                run.add(name)
            else:
                assert name.lower() in refusal.lower(), names
    assert run == RUN[model]


def test_padding_to_the_longest_input_changes_nothing() -> None:
    files = files_of("SentenceTransformer", ["Transformer", "Pooling"])
    expected = read_layout(SentenceFiles(files.get))
    settings = {
        "processing_kwargs": {"text": {"padding": "max_length"}},
        "model_kwargs": {"dtype": "bfloat16", "attn_implementation": "sdpa"},
        "tokenizer_args": {"padding_side": "left"},
    }
    files["0/sentence_bert_config.json"] = json.dumps(settings)
    assert read_layout(SentenceFiles(files.get)) == expected


def test_the_length_for_the_tokenizer_counts_before_the_other_one() -> None:
    files = files_of("SentenceTransformer", ["Transformer", "Pooling"])
    settings = {"max_seq_length": 20, "processing_kwargs": {"text": {"max_length": 5}}}
    files["0/sentence_bert_config.json"] = json.dumps(settings)
    found = read_layout(SentenceFiles(files.get))
    assert found is not None
    assert found.max_length == 5


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"transformer_task": "fill-mask"}, "transformer_task='fill-mask'.* need 'feature-extr"),
        (
            {"modality_config": {"text": {}, "message": {"method": "forward"}}},
            "'message': texts are put into a chat template",
        ),
        (
            {
                "modality_config": {
                    "text": {"method": "forward", "method_output_name": "pooler_output"}
                }
            },
            "'method_output_name': 'pooler_output'",
        ),
        ({"processing_kwargs": {"text": {"padding": False}}}, "padding=False"),
        (
            {"max_seq_length": 9, "processing_kwargs": {"common": {"add_special_tokens": False}}},
            "add_special_tokens=False",
        ),
        ({"config_kwargs": {"num_hidden_layers": 1}}, "config_kwargs.num_hidden_layers=1"),
        ({"config_args": {"is_causal": False}}, "config_args.is_causal=False"),
        ({"model_args": {"revisions": 1}}, "model_args.revisions=1"),
        ({"tokenizer_args": {"truncation_side": "left"}}, "tokenizer_args.truncation_side='left'"),
    ],
)
def test_a_transformer_that_returns_something_else_is_refused(settings, message) -> None:
    files = files_of("SentenceTransformer", ["Transformer", "Pooling"])
    files["0/sentence_bert_config.json"] = json.dumps(settings)
    with pytest.raises(CheckpointError, match=message):
        read_layout(SentenceFiles(files.get))
