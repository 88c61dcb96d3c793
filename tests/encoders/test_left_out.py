"""Tensors of a checkpoint that the model of a task does not use."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from encoders.test_families import save_model
from qdqbert.common.errors import CheckpointError
from qdqbert.encoders.config import Config
from qdqbert.encoders.of_checkpoint import read_encoder
from qdqbert.encoders.task_kinds import TaskName
from qdqbert.encoders.tensor_files import SAFETENSORS
from qdqbert.encoders.weights import Weights


def notices_of(folder: Path, task: TaskName, *names: str) -> list[str]:
    """Return what reading BERT's classifier for a task says about it and tensors of more names."""
    model = save_model("bert", "text-classification", folder)
    tensors = load_file(folder / SAFETENSORS)
    save_file({**tensors, **{name: np.ones(2, np.float32) for name in names}}, folder / SAFETENSORS)
    notices: list[str] = []
    read_encoder(Weights(folder), Config(values=model.config.to_dict()), task, notices=notices)
    return notices


@pytest.mark.parametrize(
    ("task", "expected"),
    [
        ("text-classification", []),
        ("feature-extraction", ["`feature-extraction` does not use are left out: `classifier`."]),
    ],
)
def test_a_head_that_the_task_does_not_use_is_named(
    tmp_path: Path, task: TaskName, expected: list[str]
) -> None:
    found = notices_of(tmp_path, task, "bert.embeddings.position_ids")
    assert [each.partition("task ")[2] for each in found] == expected


def test_modules_inside_the_encoder_that_no_task_needs_are_named(tmp_path: Path) -> None:
    names = ("bert.contact_head.regression.weight", "bert.encoder.embed_positions.weight")
    (found,) = notices_of(tmp_path, "text-classification", *names)
    assert found.endswith("does not use are left out: `contact_head`.")


def test_ranges_without_quantizers_in_the_config_are_named(tmp_path: Path) -> None:
    name = "bert.encoder.layer.0.output.dense._input_quantizer._amax"
    (found,) = notices_of(tmp_path, "text-classification", name)
    assert "has ranges of quantizers, but its config.json describes no quantizers" in found


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("bert.encoder.layer.0.output.dense.lora_A.weight", "weights of an adapter, among them"),
        (
            "bert.encoder.layer.9.output.dense.bias",
            "1 weight in the encoder .* parts that a model of",
        ),
        (
            "crf.transitions",
            "1 weight that a model of type `bert` does not use, among them `crf.trans",
        ),
        (
            "bert.gate.weight",
            "1 weight that a model of type `bert` does not use, among them `bert.gate",
        ),
    ],
)
def test_tensors_that_may_take_part_in_the_results_are_refused(
    tmp_path: Path, name: str, message: str
) -> None:
    with pytest.raises(CheckpointError, match=message):
        notices_of(tmp_path, "text-classification", name)


def test_a_missing_head_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no head for task `fill-mask`: it lacks `cls") as got:
        notices_of(tmp_path, "fill-mask")
    assert got.value.argument == "task"
