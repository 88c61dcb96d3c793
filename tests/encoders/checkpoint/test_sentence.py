from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling

import flat
import qdqbert
from conftest import TEXTS
from qdqbert.common.errors import CheckpointError
from qdqbert.encoders.checkpoint.layout import refuse_skipped_prompts
from qdqbert.encoders.checkpoint.sentence import (
    SentenceHead,
    read_sentence_head,
)
from qdqbert.encoders.checkpoint.sentence_files import SentenceFiles, file_finder

TRANSFORMER = {"path": "", "type": "sentence_transformers.models.Transformer"}
POOLING = {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}
NORMALIZE = {"path": "2_Normalize", "type": "sentence_transformers.models.Normalize"}
FLAGS = {
    "cls_token": "cls",
    "max_tokens": "max",
    "mean_tokens": "mean",
    "mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "weightedmean_tokens": "weightedmean",
    "lasttoken": "lasttoken",
}


def head_of(modules: list[dict[str, str]], pooling: dict[str, Any], **files: str) -> Any:
    texts = {
        "modules.json": json.dumps(modules),
        "1_Pooling/config.json": json.dumps(pooling),
        **{name.replace("__", "/") + ".json": text for name, text in files.items()},
    }
    return read_sentence_head(SentenceFiles(texts.get))


def flags(*on: str) -> dict[str, bool]:
    return {f"pooling_mode_{flag}": flag in on for flag in FLAGS}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        *((flags(flag), [mode]) for flag, mode in FLAGS.items()),
        *(({"pooling_mode": mode}, [mode]) for mode in FLAGS.values()),
        # Vectors are joined in the order of names, and of flags in an order of their own.
        (flags(*reversed(FLAGS)), [*FLAGS.values()]),
        ({"pooling_mode": [*reversed(FLAGS.values())]}, [*reversed(FLAGS.values())]),
        ({"pooling_mode": ["max"]}, ["max"]),
        ({**flags("mean_tokens"), "pooling_mode": "cls"}, ["cls"]),
        ({}, ["mean"]),
        (flags(), ["mean"]),
    ],
)
def test_the_pooling_is_read_in_the_old_and_the_new_format(config, expected, tmp_path) -> None:
    assert head_of([TRANSFORMER, POOLING], config).poolings == tuple(expected)
    (tmp_path / "config.json").write_text(json.dumps({"word_embedding_dimension": 4, **config}))
    theirs = Pooling.load(str(tmp_path)).pooling_mode
    assert ([theirs] if isinstance(theirs, str) else [*theirs]) == expected


@pytest.fixture(scope="module")
def pooled(checkpoints, tmp_path_factory) -> Path:
    """An embedder that joins the vectors of all poolings."""
    folder = tmp_path_factory.mktemp("pooled") / "model"
    shutil.copytree(checkpoints("sentence"), folder)
    config = {"embedding_dimension": 32, "pooling_mode": [*reversed(FLAGS.values())]}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="module")
def pooled_int8(pooled) -> Path:
    folder = pooled.parent / "int8"
    flat.quantize(
        pooled,
        folder,
        targets=("native", "portable"),
        calibration_samples=16,
        benchmark=False,
    )
    return folder


@pytest.fixture(scope="module")
def expected(pooled) -> np.ndarray:
    return SentenceTransformer(str(pooled), device="cpu").encode(TEXTS[:8])


def test_vectors_of_all_poolings_are_joined(pooled, expected) -> None:
    with qdqbert.load(pooled, precision="float") as model:
        np.testing.assert_allclose(model.encode(TEXTS[:8]), expected, atol=1e-5)


@pytest.mark.parametrize(
    "engine", ["native", "onnxruntime", pytest.param("openvino", marks=pytest.mark.openvino)]
)
@pytest.mark.usual("native", "onnxruntime")
def test_every_engine_joins_the_vectors_of_all_poolings(pooled_int8, expected, engine) -> None:
    with qdqbert.load(pooled_int8, engine=engine) as model:
        found = model.encode(TEXTS[:8])
    count = len(FLAGS)
    for one, other in zip(np.hsplit(found, count), np.hsplit(expected, count), strict=True):
        lengths = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
        assert ((one * other).sum(axis=1) / lengths).min() > 0.99
    kept = read_sentence_head(SentenceFiles.of_folder(pooled_int8))
    assert kept.poolings == (*reversed(FLAGS.values()),)


@pytest.mark.parametrize(
    "config",
    [
        {"pooling_mode": "median"},
        {"pooling_mode": ["cls", "median"]},
        {"pooling_mode": []},
        {"pooling_mode": [["cls"]]},
    ],
    ids=["name", "one-of-two", "none", "nested"],
)
def test_unsupported_pooling_is_refused(config) -> None:
    with pytest.raises(CheckpointError, match=r"is not supported; expected some of mean, cls, max"):
        head_of([TRANSFORMER, POOLING], config)


def test_a_missing_pooling_is_named() -> None:
    with pytest.raises(CheckpointError, match=r"1_Pooling/config\.json.* is missing"):
        read_sentence_head(SentenceFiles({"modules.json": json.dumps([TRANSFORMER, POOLING])}.get))


def test_a_pooling_that_leaves_out_prompts_is_for_load_alone() -> None:
    head = head_of([TRANSFORMER, POOLING], flags("mean_tokens") | {"include_prompt": False})
    assert head.skips_prompt
    with pytest.raises(
        CheckpointError, match=r"leaves out the tokens of a prompt.* `qdqbert.load`"
    ):
        refuse_skipped_prompts(head)


@pytest.mark.parametrize(
    "modules",
    [
        [TRANSFORMER, POOLING, {"path": "2_LSTM", "type": "sentence_transformers.models.LSTM"}],
        [TRANSFORMER],
        [POOLING],
    ],
    ids=["lstm", "no-pooling", "no-transformer"],
)
def test_unsupported_modules_are_refused(modules) -> None:
    with pytest.raises(
        CheckpointError, match="only Transformer, Pooling and then Dense, LayerNorm, Normalize"
    ):
        head_of(modules, flags("mean_tokens"))


def test_a_plain_folder_has_no_head() -> None:
    assert read_sentence_head(SentenceFiles(lambda path: None)) is None


@pytest.mark.parametrize(
    ("modules", "expected"),
    [([TRANSFORMER, POOLING], False), ([TRANSFORMER, POOLING, NORMALIZE], True)],
    ids=["as-pooled", "normalized"],
)
def test_normalization_is_read(modules, expected) -> None:
    assert head_of(modules, flags("mean_tokens")).normalize is expected


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, None),
        ({"sentence_bert_config": '{"max_seq_length": 256}'}, 256),
        ({"sentence_roberta_config": '{"max_seq_length": 128}'}, 128),
        ({"sentence_bert_config": '{"max_seq_length": null}'}, None),
    ],
    ids=["no-file", "number", "name-of-a-family", "null"],
)
def test_the_longest_input_is_read(files, expected) -> None:
    assert head_of([TRANSFORMER, POOLING], flags("mean_tokens"), **files).max_length == expected


def test_the_settings_of_an_encoder_in_a_subfolder_are_read() -> None:
    transformer = {"path": "0_Transformer", "type": "sentence_transformers.models.Transformer"}
    head = head_of(
        [transformer, POOLING],
        flags("mean_tokens"),
        **{"0_Transformer__sentence_bert_config": '{"max_seq_length": 17}'},
    )
    assert (head.subfolder, head.max_length) == ("0_Transformer", 17)


def test_files_of_the_checkpoint_are_copied(tmp_path) -> None:
    pooling = {"word_embedding_dimension": 32, "include_prompt": True, "pooling_mode": "cls"}
    settings = {"max_seq_length": 17, "do_lower_case": True}
    prompts = {"prompts": {"q": "query: "}, "default_prompt_name": "q", "similarity_fn_name": "dot"}
    head = head_of(
        [TRANSFORMER | {"path": "0_Transformer"}, POOLING, NORMALIZE],
        pooling,
        **{
            "0_Transformer__sentence_bert_config": json.dumps(settings),
            "config_sentence_transformers": json.dumps(prompts),
        },
    )
    assert (head.lower_case, head.default_prompt) == (True, "query: ")
    head.write(tmp_path, hidden=32, find=file_finder(tmp_path))
    assert json.loads((tmp_path / "1_Pooling" / "config.json").read_text()) == pooling
    assert json.loads((tmp_path / "sentence_bert_config.json").read_text()) == settings
    assert json.loads((tmp_path / "config_sentence_transformers.json").read_text()) == prompts
    modules = json.loads((tmp_path / "modules.json").read_text())
    assert [(each["path"], each["type"].rpartition(".")[2]) for each in modules] == [
        ("", "Transformer"),
        ("1_Pooling", "Pooling"),
        ("2_Normalize", "Normalize"),
    ]
    assert (tmp_path / "2_Normalize").is_dir()
    again = read_sentence_head(SentenceFiles.of_folder(tmp_path))
    assert again == dataclasses.replace(head, subfolder="")
    assert again.files == head.files


@pytest.mark.parametrize("normalize", [True, False])
def test_a_head_that_was_given_is_written_as_flags(tmp_path, normalize) -> None:
    head = SentenceHead(poolings=("max",), normalize=normalize, max_length=None)
    head.write(tmp_path, hidden=8, find=file_finder(tmp_path))
    assert read_sentence_head(SentenceFiles.of_folder(tmp_path)) == head
    config = json.loads((tmp_path / "1_Pooling" / "config.json").read_text())
    assert config == {"word_embedding_dimension": 8, **flags("max_tokens")}


def test_another_pooling_replaces_the_file_of_the_checkpoint(tmp_path) -> None:
    head = head_of([TRANSFORMER, POOLING, NORMALIZE], flags("mean_tokens"))
    find = file_finder(tmp_path)
    head.with_pooling("cls").write(tmp_path, hidden=8, find=find)
    found = read_sentence_head(SentenceFiles.of_folder(tmp_path))
    assert (found.poolings, found.normalize) == (("cls",), True)


def test_the_folder_of_a_quantized_embedder_has_the_head_of_its_checkpoint(
    quantized, checkpoints
) -> None:
    found = read_sentence_head(SentenceFiles.of_folder(quantized("sentence").directory))
    expected = read_sentence_head(SentenceFiles.of_folder(checkpoints("sentence")))
    assert found == expected
    assert found.files == expected.files


@pytest.mark.parametrize(
    ("name", "text", "place"),
    [
        ("modules.json", "{", "not JSON"),
        ("modules.json", "{}", "setting 'modules' is"),
        ("modules.json", '[{"type": "a.Transformer"}]', r"setting 'modules\.0\.path' is missing"),
        ("config_sentence_transformers.json", "[]", "object"),
        ("config_sentence_transformers.json", '{"prompts": [1]}', "setting 'prompts' is"),
        ("config_sentence_transformers.json", '{"prompts": {"a": 1}}', r"setting 'prompts\.a' is"),
        ("config_sentence_transformers.json", '{"truncate_dim": "8"}', "setting 'truncate_dim'"),
        ("sentence_bert_config.json", '{"max_seq_length": "64"}', "setting 'max_seq_length' is"),
        ("1_Pooling/config.json", "null", "object"),
    ],
)
def test_damaged_files_are_named_in_errors(name: str, text: str, place: str) -> None:
    modules = [
        {"type": "sentence_transformers.models.Transformer", "path": ""},
        {"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"},
    ]
    pooling = json.dumps({"pooling_mode_mean_tokens": True})
    files = {"modules.json": json.dumps(modules), "1_Pooling/config.json": pooling, name: text}
    with pytest.raises(CheckpointError, match=place) as caught:
        read_sentence_head(SentenceFiles(files.get))
    assert name in str(caught.value)
