"""Quantizers of a checkpoint are read as the PyTorch model has them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

from models.test_stored_checkpoints import CLASSES, DATA
from qdqbert.encoders.checkpoint import family_of, read_encoder
from qdqbert.encoders.config import Config
from qdqbert.encoders.quantize import Choices, Specs
from qdqbert.encoders.stored import read_stored
from qdqbert.encoders.weights import Weights
from qdqbert.errors import CheckpointError, GraphError
from qdqbert.models.state import stored_calibration, stored_specs
from qdqbert.reference.sited_model import sited_model

QUERY = "encoder.layer.0.attention.self.query"


def read(folder: Path) -> tuple[Specs, Choices]:
    config = Config(values=json.loads((folder / "config.json").read_text()))
    has_head = "Classification" in config.values["architectures"][0]
    weights = Weights(folder)
    task = "text-classification" if has_head else "feature-extraction"
    model = read_encoder(weights, config, task)
    return read_stored(weights, config, model, family_of(config).prefix)


@pytest.mark.parametrize("name", CLASSES)
def test_specs_and_ranges_are_those_of_pytorch(name: str) -> None:
    sited = sited_model(CLASSES[name]().from_pretrained(DATA / name))
    specs, choices = read(DATA / name)
    assert specs == stored_specs(sited)
    expected = stored_calibration(sited)
    enabled = {site for site, spec in specs.items() if spec is not None}
    assert choices.ranges == {k: v for k, v in expected.ranges.items() if k in enabled}
    for found, tensors in (
        (choices.scales, expected.scales),
        (choices.weight_amax, expected.weight_amax),
    ):
        assert found.keys() == tensors.keys() & enabled
        for site, values in found.items():
            np.testing.assert_array_equal(values, tensors[site].numpy(), site)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(DATA / "qdqbert-calibrated", tmp_path / "copy"))


@pytest.mark.parametrize(
    ("state", "error", "message"),
    [
        ({"num_bits": [4, 3]}, GraphError, r"query\._weight_quantizer` has no codes: num_bits="),
        ({"axis": 1}, GraphError, "axis=1 is not the axis of its channels"),
        ({"unsigned": True}, GraphError, "weights need signed codes"),
        ({"symmetric": False}, GraphError, "weights need signed codes"),
        ({"num_bits": 99}, GraphError, "between 2 and 8"),
        ([], CheckpointError, "has to be an object"),
    ],
)
def test_states_without_codes_are_refused(
    folder: Path, state: Any, error: type[Exception], message: str
) -> None:
    content = json.loads((folder / "config.json").read_text())
    content["quantizers"]["changed"][f"{QUERY}._weight_quantizer"] = state
    (folder / "config.json").write_text(json.dumps(content))
    with pytest.raises(error, match=message):
        read(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"qdqbert_format": 3}, "in format 3"),
        ({"qdqbert_format": "3"}, "in format '3'"),
        ({"quantizers": {"amax": {}, "range": {}, "pre_quant_scale": {}, "changed": {}}}, "None"),
        ({"quantizers": {"version": 1}}, r"'quantizers\.amax' is missing"),
        ({"quantizers": "all"}, "has to be an object"),
    ],
)
def test_configs_of_other_versions_are_refused(folder: Path, change: Any, message: str) -> None:
    content = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(content | change))
    with pytest.raises(CheckpointError, match=message):
        read(folder)


@pytest.mark.parametrize(
    ("site", "values", "message"),
    [
        ("_input_quantizer", None, r"has no tensor `encoder.*query\._input_quantizer\._amax`"),
        ("_input_quantizer", [1.0, 2.0], "has 2 values, not 1"),
        ("_weight_quantizer", [1.0, 2.0], "has 2 values, not 8"),
        ("_input_quantizer", [-1.0], "not positive"),
        ("_input_quantizer", [float("nan")], "not finite"),
    ],
)
def test_damaged_ranges_are_refused(folder: Path, site: str, values: Any, message: str) -> None:
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    name = f"{QUERY}.{site}._amax"
    if values is None:
        del tensors[name]
    else:
        tensors[name] = torch.tensor(values)
    safetensors.torch.save_file(tensors, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=message):
        read(folder)
