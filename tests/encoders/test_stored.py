"""Quantizers of a checkpoint are read as the PyTorch model has them."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import Tensor

from qdqbert.calibration.reference.sited_model import sited_model
from qdqbert.common.errors import CheckpointError, GraphError
from qdqbert.encoders.config import Config
from qdqbert.encoders.families import family_of
from qdqbert.encoders.of_checkpoint import read_encoder
from qdqbert.encoders.quantize import Choices, Specs
from qdqbert.encoders.stored import read_stored
from qdqbert.encoders.weights import Weights
from qdqbert.training.models.state import stored_calibration, stored_specs
from training.models.test_stored_checkpoints import CLASSES, DATA

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
        ({"adjacent_sum_limit": 1}, GraphError, "adjacent_sum_limit=1 is not 128"),
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
        ({"qdqbert_format": 4}, "in format 4"),
        ({"qdqbert_format": "4"}, "in format '4'"),
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


DAMAGE: dict[str, Callable[[Tensor], Tensor]] = {
    "NaN": lambda x: torch.full_like(x, torch.nan),
    "infinite": lambda x: torch.full_like(x, torch.inf),
    "negative": lambda x: -1 - x.abs(),
    "zero": torch.zeros_like,
    "huge": lambda x: torch.full_like(x, 1e35),
    "one more": lambda x: torch.cat([x, x[-1:]]) if x.dim() else torch.stack([x, x]),
    "one less": lambda x: x[:-1] if x.dim() else x.reshape(1)[:0],
    "turned": lambda x: x.T if x.dim() == 2 else x[None],
    "one value": lambda x: x.reshape(-1)[0].clone(),
}
Q_LIN, ADD = "transformer.layer.0.attention.q_lin", "transformer.layer.0.attention.add_local_input"
# Tensors of each kind at each kind of site, by folder, and what leaves them usable: ranges may be
# 0, one value may be for all channels and of any shape, and learned ends may have one sign.
STORED: dict[str, dict[str, set[str]]] = {
    "qdqbert-calibrated": {
        f"{QUERY}._input_quantizer._amax": {"zero", "turned", "one value"},
        f"{QUERY}._weight_quantizer._amax": {"zero", "one value"},
    },
    "distilbert-smoothed": {
        f"{Q_LIN}._input_quantizer._range": {"zero"},
        f"{Q_LIN}._input_quantizer._pre_quant_scale": set(),
        f"{Q_LIN}._weight_quantizer._amax": {"zero", "one value"},
        f"{Q_LIN}._weight_quantizer._pre_quant_scale": set(),
        f"{ADD}_quantizer._range": {"zero"},
        f"{ADD}_quantizer._pre_quant_scale": {"one value"},
    },
    "roberta-learned": {
        f"{QUERY}._input_quantizer._range": {"zero"},
        f"{QUERY}._input_quantizer.clip.clip_value_min": {"zero", "negative", "one value"},
        f"{QUERY}._input_quantizer.clip.clip_value_max": {"zero", "one value"},
    },
}
TENSORS = [(folder, name) for folder, names in STORED.items() for name in names]


@pytest.mark.parametrize(
    ("name", "tensor", "damage"),
    [
        pytest.param(
            *TENSORS[index],
            damage,
            # Each tensor once, and each damage.
            marks=[pytest.mark.slow] * bool((index - kind) % len(DAMAGE)),
        )
        for index in range(len(TENSORS))
        for kind, damage in enumerate(DAMAGE)
    ],
)
def test_all_readers_take_a_range_or_refuse_it_by_name(tmp_path, name, tensor, damage) -> None:
    folder = Path(shutil.copytree(DATA / name, tmp_path / "copy"))
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    key = next(each for each in tensors if each.endswith(tensor))
    tensors[key] = DAMAGE[damage](tensors[key]).contiguous()
    safetensors.torch.save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    content = json.loads((folder / "config.json").read_text())
    site, _, buffer = tensor.rpartition(".")
    if buffer.startswith("_"):
        # As if it had been saved so.
        shape = ",".join(map(str, tensors[key].shape))
        content["quantizers"][buffer.removeprefix("_")][site] = shape
    (folder / "config.json").write_text(json.dumps(content))
    kind = CLASSES[name]()
    if damage in STORED[name][tensor]:
        expected = stored_calibration(sited_model(kind.from_pretrained(folder)))
        specs, found = read(folder)
        assert found.ranges == {k: v for k, v in expected.ranges.items() if specs[k] is not None}
        return
    # One factor for all channels is right, if its layer has one inverse, too.
    part = "._" if damage == "one value" else "_quantizer."
    pattern = re.escape(tensor.partition(part)[0] + part)
    with pytest.raises(CheckpointError, match=pattern):
        read(folder)
    with pytest.raises(CheckpointError, match=pattern):
        stored_calibration(sited_model(kind.from_pretrained(folder)))
    if "_weight_quantizer._pre" not in tensor and damage != "one value":
        # A state dict has no settings, and what does not fit together is seen when it is read.
        with pytest.raises(RuntimeError, match=pattern):
            kind.from_pretrained(DATA / name).load_state_dict(tensors, strict=False)


@pytest.mark.parametrize(
    ("change", "message"), [("removed", "has no tensor"), ("added", "does not describe")]
)
def test_ranges_that_contradict_the_config_are_refused(folder, change, message) -> None:
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    name = f"{QUERY}._input_quantizer._amax"
    if change == "removed":
        del tensors[name]
    else:
        content = json.loads((folder / "config.json").read_text())
        del content["quantizers"]["amax"][name.removesuffix("._amax")]
        (folder / "config.json").write_text(json.dumps(content))
    safetensors.torch.save_file(tensors, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=f"{message}|{message} `.*{re.escape(name)}"):
        read(folder)
