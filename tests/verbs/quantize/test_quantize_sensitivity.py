"""What each layer costs if it is quantized."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from qdqbert.recipes import build_recipe
from qdqbert.spec import TensorSpec
from qdqbert.targets import TARGETS
from qdqbert.targets.target import Plan
from qdqbert.task_kinds import TaskSettings
from qdqbert.tasks.registry import TASKS
from qdqbert.verbs.inference import Baseline
from qdqbert.verbs.quantize.sensitivity import layer_sensitivity

# Noise that each site adds to both logits if it is quantized.
NOISE = {
    "encoder.layer.0.query_input_quantizer": 0.01,
    "encoder.layer.0.query_weight_quantizer": 0.02,
    "encoder.layer.1.query_input_quantizer": 0.5,
    "embeddings_quantizer": 0.0,
}


def test_each_layer_is_quantized_by_itself() -> None:
    logits = np.random.default_rng(0).normal(size=(6, 2)).astype(np.float32)
    # Half of the examples are measured, in another order than that of the float model's results.
    batches: Any = [
        SimpleNamespace(indices=(4, 1), inputs={"index": np.array([4, 1])}),
        SimpleNamespace(indices=(0,), inputs={"index": np.array([0])}),
    ]
    baseline = Baseline(
        task=TASKS["text-classification"],
        encoded=SimpleNamespace(batches=(), features=None, texts=6),  # type: ignore[arg-type]
        predictions=list(logits),
        scores=(),
        id2label={},
        options=TaskSettings(),
    )

    @contextlib.contextmanager
    def quantized_runner(plan, calibration):
        added = sum(NOISE[name] for name, spec in plan.specs.items() if spec is not None)
        yield SimpleNamespace(
            input_names=("index",), run=lambda inputs: {"logits": logits[inputs["index"]] + added}
        )

    sited: Any = SimpleNamespace(
        quantized_runner=quantized_runner,
        weights=lambda: {
            name: np.zeros((2, 2)) for name in NOISE if name.endswith("query_input_quantizer")
        },
    )
    plan = Plan(
        target=TARGETS["portable"],
        recipe=build_recipe("linear"),
        specs={**dict.fromkeys(NOISE, TensorSpec()), "encoder.layer.1.left": None},
    )
    found = layer_sensitivity(plan, sited, None, baseline, batches)  # type: ignore[arg-type]
    assert [each.name for each in found] == [
        "encoder.layer.0",
        "encoder.layer.1",
        "embeddings_quantizer",
    ]
    power = np.square(logits[[4, 1, 0]].astype(np.float64)).sum()
    expected = [10 * np.log10(power / (6 * noise**2)) for noise in (0.03, 0.5)]
    assert [each.sqnr_db for each in found] == pytest.approx([*expected, np.inf], rel=1e-4)
