"""Files of cross-encoders, compared with sentence-transformers' CrossEncoder."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import qdqbert
from qdqbert.common.errors import CheckpointError
from qdqbert.encoders.checkpoint.calls import files_of
from qdqbert.encoders.checkpoint.cross_encoder import (
    CrossEncoderFiles,
    activation_of,
)
from qdqbert.encoders.checkpoint.description import infer_task
from qdqbert.encoders.checkpoint.load import load_checkpoint
from qdqbert.encoders.checkpoint.model_settings import ModelSettings
from qdqbert.encoders.checkpoint.text_heads import read_layout

PAIRS = [
    ("where is the cat", "the cat sat on the book"),
    ("the river", "music"),
    ("a dog", "in the night and the dog"),
]
IDENTITY = "torch.nn.modules.linear.Identity"


@pytest.fixture(scope="module")
def saved(checkpoints, tmp_path_factory) -> Path:
    """A cross-encoder with a prompt and logits as scores, as sentence-transformers saves it."""
    sentence_transformers = pytest.importorskip("sentence_transformers")
    model = sentence_transformers.CrossEncoder(
        str(checkpoints("reranker")),
        device="cpu",
        activation_fn=torch.nn.Identity(),
        prompts={"q": "where is "},
        default_prompt_name="q",
        max_length=24,
    )
    folder = tmp_path_factory.mktemp("cross-encoder") / "saved"
    model.save_pretrained(str(folder))
    return folder


@pytest.fixture
def theirs(saved):
    sentence_transformers = pytest.importorskip("sentence_transformers")
    return sentence_transformers.CrossEncoder(str(saved), device="cpu")


def test_a_cross_encoder_is_a_reranker_with_its_length(saved) -> None:
    checkpoint = load_checkpoint(str(saved))
    assert (checkpoint.task, checkpoint.max_length) == ("reranking", 24)
    assert checkpoint.head is None
    (notice,) = checkpoint.notices
    assert "puts the prompt 'where is ' before the first text of each pair" in notice
    assert infer_task(str(saved)) == "reranking"
    # Its encoder alone is no cross-encoder.
    assert load_checkpoint(str(saved), task="feature-extraction").cross_encoder is None


@pytest.mark.parametrize("has_modules", [True, False], ids=["as-saved", "without-modules"])
@pytest.mark.usual("as-saved")
def test_scores_of_the_quantized_folder_are_those_of_the_cross_encoder(
    saved, theirs, tmp_path, write_file, has_modules
) -> None:
    folder = Path(shutil.copytree(saved, tmp_path / "copy"))
    if not has_modules:
        (folder / "modules.json").unlink()
    rows = "\n".join(
        f"{query},{document},{index % 2}" for index, (query, document) in enumerate(PAIRS)
    )
    data = write_file("pairs.csv", f"query,document,label\n{rows}\n")
    report = qdqbert.quantize(
        str(folder),
        tmp_path / "int8",
        calibration_data=str(data),
        targets=("onnxruntime",),
        quantizers=qdqbert.Quantizers(quant_disable=True),
        benchmark=False,
    )
    assert report.task == "reranking"
    with qdqbert.load(tmp_path / "int8") as model:
        assert model.activation == "none"
        np.testing.assert_allclose(model.predict(PAIRS), theirs.predict(PAIRS), atol=1e-5)
        right = theirs.predict(PAIRS, prompt="")
        np.testing.assert_allclose(model.predict(PAIRS, prompt=""), right, atol=1e-5)
        documents = [document for _, document in PAIRS]
        assert [each["corpus_id"] for each in model.rank("the cat", documents)] == [
            each["corpus_id"] for each in theirs.rank("the cat", documents)
        ]
    settings = json.loads((tmp_path / "int8" / "config_sentence_transformers.json").read_text())
    assert settings["activation_fn"] == IDENTITY


def test_a_written_folder_is_read_by_sentence_transformers(saved, theirs, tmp_path) -> None:
    sentence_transformers = pytest.importorskip("sentence_transformers")
    folder = Path(shutil.copytree(saved, tmp_path / "copy"))
    files = read_layout(files_of(str(folder)))
    for name in ("modules.json", "config_sentence_transformers.json", "sentence_bert_config.json"):
        (folder / name).unlink()
    files.write(folder, hidden=8, find=lambda path: None)
    again = sentence_transformers.CrossEncoder(str(folder), device="cpu")
    np.testing.assert_array_equal(again.predict(PAIRS), theirs.predict(PAIRS))
    # Without settings of the encoder, too.
    bare = CrossEncoderFiles(
        max_length=None,
        files={
            "config_sentence_transformers.json": files.files["config_sentence_transformers.json"]
        },
    )
    (folder / "sentence_bert_config.json").unlink()
    bare.write(folder, hidden=8, find=lambda path: None)
    again = sentence_transformers.CrossEncoder(str(folder), device="cpu")
    np.testing.assert_array_equal(again.predict(PAIRS), theirs.predict(PAIRS))


@pytest.mark.parametrize(
    ("settings", "config", "outputs", "expected"),
    [
        (None, {}, 1, "sigmoid"),
        (None, {}, 3, "none"),
        (IDENTITY, {"sentence_transformers": {"activation_fn": "torch.nn.Sigmoid"}}, 1, "none"),
        (None, {"sentence_transformers": {"activation_fn": IDENTITY}}, 1, "none"),
        (None, {"sbert_ce_default_activation_function": IDENTITY}, 1, "none"),
        ("torch.nn.modules.activation.Softmax", {}, 3, "softmax"),
        # sentence-transformers does not run such code, and takes the default.
        ("mine.Function", {}, 1, "sigmoid"),
    ],
    ids=["one", "several", "settings-first", "version-5", "version-3", "softmax", "custom"],
)
def test_the_activation_is_found_in_each_layout(settings, config, outputs, expected) -> None:
    assert activation_of(config, ModelSettings(activation=settings), outputs) == expected


def test_another_activation_is_refused(checkpoint_copy) -> None:
    folder = checkpoint_copy("reranker")
    settings = {"model_type": "CrossEncoder", "activation_fn": "torch.nn.modules.activation.Tanh"}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(settings))
    with pytest.raises(CheckpointError, match=r"activation function torch\.nn.*Tanh .* not supp"):
        load_checkpoint(str(folder))


def test_a_cross_encoder_of_an_older_version_is_a_reranker(checkpoint_copy) -> None:
    folder = checkpoint_copy("reranker")
    path = folder / "config.json"
    older = {"sentence_transformers": {"activation_fn": IDENTITY, "version": "5.1.0"}}
    path.write_text(json.dumps(json.loads(path.read_text()) | older))
    assert load_checkpoint(str(folder)).task == "reranking"
