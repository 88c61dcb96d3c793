"""A model as data computes what transformers' modules with quantizers compute."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import transformers

from qdqbert.calibration.calibration import CalibrationResult
from qdqbert.calibration.reference.sited_encoder import SitedEncoder
from qdqbert.calibration.reference.sited_model import observing, quantizing
from qdqbert.encoders.checkpoint.load import load_checkpoint
from qdqbert.encoders.families import FAMILIES
from qdqbert.encoders.task_kinds import TASK_KINDS
from qdqbert.graphs.of_checkpoint import encoder_of
from qdqbert.training.body import GraphBody
from qdqbert.training.insert.sited import insert_quantizers_
from task_files import HEADS

LAYOUTS = [
    name
    for name, each in FAMILIES.items()
    if each.training and name not in ("camembert", "xlm-roberta")
]
# float32 sums in another order, over two layers.
TOLERANCE = 2e-5


def example_inputs(input_names, task) -> dict[str, torch.Tensor]:
    """Return example inputs: two features, one with padding.

    Args:
        input_names: Names of the model's inputs.
        task: transformers' name of the task.

    Returns:
        int64 tensors by name, `(2, 8)`, or `(2, choices, 8)` for multiple choice.
    """
    known = {
        "input_ids": torch.full((2, 8), 5),
        "attention_mask": torch.ones((2, 8), dtype=torch.int64),
        "token_type_ids": torch.zeros((2, 8), dtype=torch.int64),
    }
    known["attention_mask"][1, -1] = 0
    choices = TASK_KINDS[task].choices
    if choices is not None:
        known = {name: x[:, None].repeat(1, choices, 1) for name, x in known.items()}
    return {name: known[name] for name in input_names}


def compare(encoder: SitedEncoder, body: GraphBody, inputs: dict[str, torch.Tensor]) -> None:
    text = inputs["attention_mask"].bool()
    with torch.inference_mode():
        pairs = zip(encoder(**inputs), body(**inputs), strict=True)
    for name, pair in zip(encoder.output_names, pairs, strict=True):
        made, expected = (each[text] if each.shape[:2] == text.shape else each for each in pair)
        np.testing.assert_allclose(made, expected, atol=TOLERANCE, err_msg=name)


def tensors(each) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(array) for name, array in each.batches[0].inputs.items()}


@pytest.mark.parametrize("family", [*LAYOUTS, "sentence"])
def test_outputs_sites_and_layers_are_those_of_transformers(prepared, family) -> None:
    each = prepared(family)
    encoder = SitedEncoder(encoder_of(each.checkpoint), ("layer", "table"))
    assert {site.name: site for site in encoder.sited.sites} == {
        site.name: site for site in each.sited.sites
    }
    assert list(encoder.layer_paths) == each.layers
    assert encoder.output_names == each.body.output_names
    compare(encoder, each.body, tensors(each))


@pytest.mark.parametrize("recipe", ["linear", "full"])
@pytest.mark.parametrize("family", LAYOUTS)
def test_fake_quantization_gives_the_same_outputs(prepared, family, recipe) -> None:
    each = prepared(family)
    encoder = SitedEncoder(encoder_of(each.checkpoint), ("layer", "table"))
    plan = each.plan("portable", recipe)
    found = each.calibration(plan)
    with (
        quantizing(
            encoder.sited, plan.specs, CalibrationResult(ranges=found.ranges, scales=found.scales)
        ),
        quantizing(
            each.sited, plan.specs, CalibrationResult(ranges=found.ranges, scales=found.scales)
        ),
        torch.inference_mode(),
    ):
        made, expected = (body(**tensors(each))[0] for body in (encoder, each.body))
    text = tensors(each)["attention_mask"].bool()
    noise = (made - expected)[text].double().pow(2).sum()
    # Values next to the middle of two codes may get another one.
    assert noise <= 1e-3 * expected[text].double().pow(2).sum()


@pytest.mark.parametrize("family", LAYOUTS)
def test_observers_see_the_same_activations(prepared, family) -> None:
    each = prepared(family)
    encoder = SitedEncoder(encoder_of(each.checkpoint), ("layer", "table"))
    seen: list[dict[str, torch.Tensor]] = [{}, {}]
    inputs = {name: tensor[:1] for name, tensor in tensors(each).items()}
    inputs = {name: x[:, : int(inputs["attention_mask"].sum())] for name, x in inputs.items()}
    bodies = ((encoder.sited, encoder), (each.sited, each.body))
    for values, (sited, body) in zip(seen, bodies, strict=True):

        def observe(site, x, values=values) -> None:
            values[site.name] = x

        with observing(sited, observe), torch.no_grad():
            body(**inputs)
    made, expected = seen
    assert made.keys() == expected.keys()
    for name, x in expected.items():
        np.testing.assert_allclose(made[name], x, atol=TOLERANCE, err_msg=name)


@pytest.mark.parametrize("task", [*HEADS, "sparse-embedding"])
def test_heads_and_choices_are_run(save_tiny, tmp_path, task) -> None:
    head = HEADS.get(task, HEADS["fill-mask"])
    save_tiny(tmp_path, "bert", getattr(transformers, head.auto_class), **head.changes)
    checkpoint = load_checkpoint(str(tmp_path), task=task)
    encoder = SitedEncoder(encoder_of(checkpoint), ())
    assert encoder.sited.sites == ()
    compare(encoder, GraphBody.of(checkpoint), example_inputs(checkpoint.input_names, task))


def test_outputs_of_the_last_group_have_sites(prepared) -> None:
    each = prepared("bert")
    groups = ("layer", "table", "output")
    encoder = SitedEncoder(encoder_of(each.checkpoint), groups)
    model = transformers.AutoModel.from_config(each.checkpoint.config)
    inserted = insert_quantizers_(model, each.checkpoint.family, groups)
    assert set(encoder.sited.sites) == set(inserted.sites)
