"""Modules after the pooling. sentence-transformers writes them, and is the reference."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import sentence_transformers
import torch
from sentence_transformers.base.modules import Dense, Normalize
from sentence_transformers.sentence_transformer.modules import LayerNorm
from torch import nn

import flat
import qdqbert
from conftest import TEXTS
from qdqbert.calibration.reference.body import run_steps, tensor_of
from qdqbert.common.errors import CheckpointError, UserInputError
from qdqbert.common.json_files import Fields
from qdqbert.encoders.checkpoint.sentence import read_sentence_head
from qdqbert.encoders.checkpoint.sentence_files import SentenceFiles, file_finder
from qdqbert.encoders.checkpoint.sentence_modules import head_module, steps_of, write_modules
from torch_files import to_torch

SAMPLE = TEXTS[:8]


@pytest.fixture(scope="module")
def projected(checkpoints, tmp_path_factory) -> Path:
    """An embedder with two projections, a LayerNorm, and a Normalize before them."""
    torch.manual_seed(0)
    plain = sentence_transformers.SentenceTransformer(str(checkpoints("sentence")))
    hidden = plain.get_embedding_dimension()
    after = [
        Normalize(),
        Dense(hidden, 48, activation_function=nn.Tanh()),
        LayerNorm(48),
        Dense(48, 24, bias=False, activation_function=nn.GELU()),
        Normalize(),
    ]
    model = sentence_transformers.SentenceTransformer(modules=[*list(plain)[:2], *after])
    nn.init.normal_(model[4].norm.weight)
    nn.init.normal_(model[4].norm.bias)
    folder = tmp_path_factory.mktemp("projected") / "model"
    model.save(str(folder))
    return folder


@pytest.fixture(scope="module")
def expected(projected) -> np.ndarray:
    return sentence_transformers.SentenceTransformer(str(projected)).encode(SAMPLE)


def cosines(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    lengths = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    return (first * second).sum(1) / lengths


def test_embeddings_in_float_are_those_of_sentence_transformers(projected, expected) -> None:
    with qdqbert.load(projected, precision="float") as model:
        np.testing.assert_allclose(model.encode(SAMPLE), expected, atol=1e-5)
        assert model.get_sentence_embedding_dimension() == 24


def test_every_engine_computes_them_and_the_folder_keeps_them(
    projected, expected, tmp_path
) -> None:
    with qdqbert.load(projected) as model:
        assert cosines(model.encode(SAMPLE), expected).min() > 0.995
    folder = tmp_path / "int8"
    report = flat.quantize(projected, folder, calibration_samples=16, benchmark=False)
    assert min(each.fidelity.cosine_min for each in report.targets) > 0.98
    for engine in ("native", "onnxruntime"):
        with qdqbert.load(folder, engine=engine) as model:
            assert cosines(model.encode(SAMPLE), expected).min() > 0.99
    kept, before = (
        read_sentence_head(SentenceFiles.of_folder(each)) for each in (folder, projected)
    )
    assert [each.name for each in kept.modules] == ["Normalize", "Dense", "LayerNorm", "Dense"]
    for mine, its in zip(
        kept.steps(file_finder(folder)), before.steps(file_finder(projected)), strict=True
    ):
        assert type(mine) is type(its)
        if not isinstance(mine, str):
            np.testing.assert_array_equal(mine.weight, its.weight)


def test_training_refuses_them(projected, checkpoints, tmp_path) -> None:
    data = tmp_path / "pairs.csv"
    data.write_text("sentence1,sentence2,score\na cat,a dog,0.5\n")
    with pytest.raises(UserInputError, match="Dense, LayerNorm, Dense after the pooling"):
        qdqbert.train(projected, tmp_path / "out", train_data=data)
    teacher = qdqbert.Distillation(teacher=str(projected))
    with pytest.raises(UserInputError, match=r"`distill_from=.* has Normalize, Dense, LayerN"):
        qdqbert.train(
            checkpoints("sentence"), tmp_path / "out", train_data=data, distillation=teacher
        )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"activation_function": "code.of.its.own"}, "activation_function='code.of.its.own'"),
        ({"activation_function": "torch.nn.modules.activation.Hardtanh"}, "expected one of"),
        ({"use_residual": True}, "a residual is added with GELU, Identity, ReLU, SiLU only"),
        ({"module_input_name": "token_embeddings"}, "has to read 'sentence_embedding' and write"),
        ({"out_features": -1}, "out_features"),
    ],
)
def test_a_module_that_computes_something_else_is_refused(changes, message) -> None:
    config = {"in_features": 4, "out_features": 2, **changes}
    with pytest.raises(CheckpointError, match=message):
        head_module("Dense", "2_Dense", Fields.of_text(json.dumps(config), "2_Dense/config.json"))


@pytest.mark.parametrize("outputs", [6, 4], ids=["same-width", "other-width"])
@pytest.mark.parametrize("activation", [nn.Identity(), nn.GELU(), nn.ReLU(), nn.SiLU()], ids=repr)
def test_a_residual_is_added_as_in_sentence_transformers(activation, outputs, tmp_path) -> None:
    torch.manual_seed(0)
    dense = Dense(6, outputs, activation_function=activation, use_residual=True)
    dense.save(str(tmp_path))
    module = head_module("Dense", "", Fields.of_file(tmp_path / "config.json"))
    x = 3 * torch.randn(5, 6)
    with torch.inference_mode():
        expected = dense({"sentence_embedding": x.clone()})["sentence_embedding"]
        found = run_steps(x, steps_of((module,), file_finder(tmp_path)), tensor_of)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_weights_have_to_be_there_and_of_the_shape_in_the_config(projected, tmp_path) -> None:
    text = json.dumps({"in_features": 4, "out_features": 2})
    module = head_module("Dense", "3_Dense", Fields.of_text(text, "3_Dense/config.json"))
    with pytest.raises(CheckpointError, match=r"has no weights: neither model\.safetensors nor"):
        steps_of((module,), file_finder(tmp_path))
    with pytest.raises(CheckpointError, match=r"3_Dense/config.json describes \(2\)"):
        steps_of((module,), file_finder(projected))


def test_weights_of_torch_are_read_and_written_as_safetensors(projected, tmp_path) -> None:
    copy, new = to_torch(Path(shutil.copytree(projected, tmp_path / "copy"))), tmp_path / "new"
    new.mkdir()
    head = read_sentence_head(SentenceFiles.of_folder(copy))
    expected = steps_of(head.modules, file_finder(projected))
    names = write_modules(head.modules, new, file_finder(copy))
    again = [
        dataclasses.replace(each, path=path)
        for each, (_, path) in zip(head.modules, names, strict=True)
    ]
    assert not list(new.rglob("*.bin"))
    for folder, modules in ((copy, head.modules), (new, tuple(again))):
        for step, wanted in zip(steps_of(modules, file_finder(folder)), expected, strict=True):
            assert type(step) is type(wanted)
            if not isinstance(step, str):
                np.testing.assert_array_equal(step.weight, wanted.weight)
                np.testing.assert_array_equal(step.bias, wanted.bias)


@pytest.mark.parametrize("path", ["/etc", "../other", "a/../../b"])
def test_a_path_that_leads_out_of_the_folder_is_refused(path) -> None:
    modules = [
        {"idx": 0, "name": "0", "path": path, "type": "sentence_transformers.models.Pooling"}
    ]
    with pytest.raises(CheckpointError, match="leads out of the folder"):
        read_sentence_head(SentenceFiles({"modules.json": json.dumps(modules)}.get))
