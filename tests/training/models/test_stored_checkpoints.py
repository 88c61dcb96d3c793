"""Checkpoints that earlier versions wrote load with the same ranges and outputs.

Folders in `data/` are never written again. Each was made by the code of its time from a tiny seeded
model; `expected.safetensors` holds a batch, the model's output for it, and its calibration.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file
from torch import Tensor

import qdqbert
from qdqbert.calibration.reference.sited_model import sited_model
from qdqbert.training.models.quantized import quantized_class
from qdqbert.training.models.state import stored_calibration

DATA = Path(__file__).parent / "data"
CLASSES = {
    "qdqbert-calibrated": lambda: qdqbert.QDQBertModel,
    "distilbert-smoothed": lambda: quantized_class(
        transformers.DistilBertForSequenceClassification
    ),
    "roberta-learned": lambda: quantized_class(transformers.RobertaModel),
}


def calibration_tensors(model: torch.nn.Module) -> dict[str, Tensor]:
    chosen = stored_calibration(sited_model(model))
    return {
        **{
            f"range.{name}": torch.tensor([each.amax, each.low, each.high], dtype=torch.float64)
            for name, each in chosen.ranges.items()
        },
        **{f"scale.{name}": scale for name, scale in chosen.scales.items()},
        **{f"weight.{name}": amax for name, amax in chosen.weight_amax.items()},
    }


@pytest.fixture(params=list(CLASSES))
def stored(request):
    """The name of a folder, and the model loaded from it."""
    model = CLASSES[request.param]().from_pretrained(DATA / request.param).eval()
    return request.param, model


def test_an_earlier_checkpoint_loads_with_the_same_ranges_and_outputs(stored) -> None:
    name, model = stored
    expected = load_file(DATA / name / "expected.safetensors")
    inputs = {key: expected.pop(key) for key in ("input_ids", "attention_mask")}
    output = expected.pop("output")
    with torch.no_grad():
        made = model(**inputs)
    found = calibration_tensors(model)
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        assert torch.equal(found[key], value), key
    # Sums differ in the last bits between CPUs, and a code may fall on the other side.
    torch.testing.assert_close(made[0], output, atol=1e-2, rtol=0)


def test_an_earlier_checkpoint_is_saved_again_without_a_change(stored, tmp_path) -> None:
    _, model = stored
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path)
    before, after = model.state_dict(), again.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(after[key], value) for key, value in before.items())
    assert calibration_tensors(again).keys() == calibration_tensors(model).keys()
