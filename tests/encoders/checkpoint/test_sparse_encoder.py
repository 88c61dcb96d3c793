"""Files of sparse encoders of sentence-transformers."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
from safetensors.numpy import save_file

from qdqbert.common.errors import CheckpointError
from qdqbert.encoders.checkpoint.cross_encoder import task_of_files
from qdqbert.encoders.checkpoint.sentence_files import SentenceFiles, file_finder
from qdqbert.encoders.checkpoint.sparse_encoder import (
    SpladeHead,
    read_query_weights,
    read_splade_head,
    splade_head,
)
from qdqbert.encoders.checkpoint.text_heads import read_layout

OLD = "sentence_transformers.sparse_encoder.models"
NEW = "sentence_transformers.sparse_encoder.modules.splade_pooling.SpladePooling"
TRANSFORMER = "sentence_transformers.base.modules.transformer.Transformer"
STATIC = f"{OLD}.SparseStaticEmbedding"


def modules(*kinds: tuple[str, str]) -> str:
    entries = [
        {"idx": index, "name": str(index), "path": path, "type": kind}
        for index, (path, kind) in enumerate(kinds)
    ]
    return json.dumps(entries)


def files_of(encoder: str, pooling: str, **settings: object) -> dict[str, str]:
    return {
        "modules.json": modules(("", encoder), ("1_SpladePooling", pooling)),
        "1_SpladePooling/config.json": json.dumps(settings),
    }


def router(
    queries: tuple[str, ...] = (STATIC,), documents: tuple[str, ...] = (TRANSFORMER, NEW), **options
) -> dict[str, str]:
    """Return the files of a Router. Its kinds of modules have no folder of their own."""
    structure = {
        name: [f"{name}_{index}_{kind.rpartition('.')[2]}" for index, kind in enumerate(kinds)]
        for name, kinds in (("query", queries), ("document", documents))
    }
    types = dict(zip(itertools.chain(*structure.values()), (*queries, *documents), strict=True))
    content = {"types": types, "structure": structure, "parameters": options}
    return {
        "modules.json": modules(("", "sentence_transformers.base.modules.router.Router")),
        "router_config.json": json.dumps(content),
    }


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (files_of(f"{OLD}.MLMTransformer", f"{OLD}.SpladePooling"), ("max", ("relu", "log1p"))),
        (
            files_of(TRANSFORMER, NEW, pooling_strategy="sum"),
            ("sum", ("relu", "log1p")),
        ),
        (
            files_of(TRANSFORMER, NEW, activation_function="log1p_relu"),
            ("max", ("relu", "log1p", "log1p")),
        ),
        (
            {"config_sentence_transformers.json": '{"model_type": "SparseEncoder"}'},
            ("max", ("relu", "log1p")),
        ),
    ],
)
def test_files_of_all_versions_are_read(files, expected) -> None:
    head = read_layout(SentenceFiles(files.get))
    assert isinstance(head, SpladeHead)
    assert (*head.row_poolings, head.steps(lambda path: None)) == expected
    assert task_of_files(["BertForMaskedLM"], {}, head) == "sparse-embedding"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"pooling_strategy": "mean"}, "pooling_strategy.* one of max, sum"),
        ({"activation_function": "gelu"}, "activation_function.* one of relu, log1p_relu"),
    ],
)
def test_other_settings_are_refused(settings, message) -> None:
    with pytest.raises(CheckpointError, match=message):
        read_layout(SentenceFiles(files_of(TRANSFORMER, NEW, **settings).get))


def test_embeddings_of_a_sparse_autoencoder_are_refused() -> None:
    kinds = (("", TRANSFORMER), ("1_Pooling", "x.Pooling"), ("2", "x.SparseAutoEncoder"))
    files = {
        "modules.json": modules(*kinds),
        "config_sentence_transformers.json": '{"model_type": "SparseEncoder"}',
    }
    with pytest.raises(CheckpointError, match="modules Transformer, Pooling, SparseAutoEncoder"):
        read_layout(SentenceFiles(files.get))


def test_a_masked_language_model_has_the_usual_head_and_a_notice() -> None:
    head, (notice,) = splade_head(None, "my-model")
    assert (head.strategy, head.function) == ("max", "relu")
    assert "'my-model' has no modules.json of a sparse encoder" in notice


@pytest.mark.parametrize(
    ("options", "is_default"),
    [({"default_route": "document"}, False), ({"default_route": "query"}, True), ({}, True)],
)
def test_a_router_names_the_weights_of_queries(options, is_default) -> None:
    head = read_splade_head(SentenceFiles(router(**options).get))
    assert head.subfolder == "document_0_Transformer"
    assert head.query_path == "query_0_SparseStaticEmbedding"
    # sentence-transformers takes the first route if none is named.
    assert head.routes_to_queries == is_default


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (router(queries=(TRANSFORMER, NEW)), "query: Transformer, SpladePooling; document"),
        (router(documents=(TRANSFORMER,)), "has the modules Transformer; only"),
        (
            {**router(), "query_0_SparseStaticEmbedding/config.json": '{"path": "idf.json"}'},
            "query_0_SparseStaticEmbedding/model.safetensors",
        ),
        (
            {**router(), "query_0_SparseStaticEmbedding/tokenizer.json": "{}"},
            "The tokenizers of 'query_0_SparseStaticEmbedding' and 'document_0_Transformer' differ",
        ),
        (
            {**router(), "router_config.json": '{"types": {"../x": "y"}, "structure": {}}'},
            "'../x' leads out of the folder",
        ),
    ],
)
def test_other_routers_are_refused(files, message) -> None:
    with pytest.raises(CheckpointError, match=message):
        read_splade_head(SentenceFiles(files.get))


def test_weights_of_queries_are_kept_in_a_folder(tmp_path) -> None:
    source, folder = tmp_path / "source", tmp_path / "folder"
    (source / "queries").mkdir(parents=True)
    folder.mkdir()
    weights = np.random.default_rng(0).standard_normal(7).astype(np.float32)
    save_file({"weight": weights}, source / "queries" / "model.safetensors")
    head = SpladeHead(max_length=None, query_path="queries", routes_to_queries=True)
    head.write(folder, hidden=8, find=file_finder(source))
    found = read_query_weights(folder, vocabulary=9)
    assert found is not None
    assert found.is_default
    # Rows of the table of words that no token has.
    np.testing.assert_array_equal(found.weights, [*weights, 0, 0])
    with pytest.raises(CheckpointError, match="weights of 7 tokens, expected 6"):
        read_query_weights(folder, vocabulary=6)
    assert read_query_weights(source, vocabulary=9) is None


def test_missing_and_wrong_weights_of_queries_are_refused(tmp_path) -> None:
    head = SpladeHead(max_length=None, query_path="queries")
    with pytest.raises(CheckpointError, match=r"'queries' of router_config\.json has no"):
        head.write_settings(tmp_path, file_finder(tmp_path))
    (tmp_path / "queries").mkdir()
    save_file({"weight": np.ones((2, 2), np.float32)}, tmp_path / "queries/model.safetensors")
    with pytest.raises(CheckpointError, match=r"one finite number .* \(2, 2\)"):
        head.write_settings(tmp_path, file_finder(tmp_path))
