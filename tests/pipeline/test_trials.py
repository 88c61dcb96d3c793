"""Plans with a part of their sites in float: how limits are checked, and what a layer costs."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from qdqbert.calibration.calibration import CalibrationResult
from qdqbert.common.options.limits import Limits
from qdqbert.data.rows.data import Example
from qdqbert.encoders.task_kinds import TaskSettings
from qdqbert.evidence.fidelity import compare
from qdqbert.graphs.targets import TARGETS
from qdqbert.graphs.targets.target import Plan
from qdqbert.pipeline.predictions import Baseline
from qdqbert.pipeline.trials import Trials, layer_sensitivity
from qdqbert.quantization.recipes import build_recipe
from qdqbert.quantization.spec import TensorSpec
from qdqbert.tasks.registry import TASKS

EXAMPLES = 400
BATCH = 5
FEATURES = SimpleNamespace(
    results=lambda batch, outputs: SimpleNamespace(outputs=outputs),
    examples=[Example(text=str(index)) for index in range(EXAMPLES)],
    encoded=SimpleNamespace(inputs=[{"input_ids": np.array(each)} for each in range(EXAMPLES)]),
    by_example=lambda: [[index] for index in range(EXAMPLES)],
)


class Runner:
    """Returns the logits of the float model, with some noise, and counts its runs."""

    input_names = ("index",)

    def __init__(self, logits: np.ndarray, noise: float) -> None:
        self._logits = logits
        self._noise = noise
        self.runs = 0

    def run(self, inputs: Any, wanted: Any = None) -> dict[str, np.ndarray]:
        self.runs += 1
        rows = self._logits[inputs["index"]]
        return {"logits": rows + self._noise * np.array([1.0, -1.0], dtype=np.float32)}


def trials(noise: float) -> tuple[Trials, Runner]:
    """Return trials of a model with noise in its logits, and what counts its runs."""
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(EXAMPLES, 2)).astype(np.float32)
    runner = Runner(logits, noise)
    batches = tuple(
        SimpleNamespace(
            indices=range(start, start + BATCH), inputs={"index": np.arange(start, start + BATCH)}
        )
        for start in range(0, EXAMPLES, BATCH)
    )
    baseline = Baseline(
        task=TASKS["text-classification"],
        encoded=SimpleNamespace(batches=batches, features=FEATURES, texts=EXAMPLES),  # type: ignore[arg-type]
        predictions=list(logits),
        tokenizer=None,  # type: ignore[arg-type]
        id2label={},
        options=TaskSettings(),
    )

    @contextlib.contextmanager
    def quantized_runner(plan, calibration):
        yield runner

    sited: Any = SimpleNamespace(quantized_runner=quantized_runner)
    plan = Plan(target=TARGETS["portable"], recipe=build_recipe("linear"), specs={})
    made = Trials(plan=plan, sited=sited, calibration=CalibrationResult(), baseline=baseline)
    return made, runner


@pytest.mark.parametrize(
    ("options", "noise", "is_met", "is_early"),
    [
        (Limits(max_flips=5), 0.0, True, False),
        (Limits(max_flips=5), 5.0, False, True),
        (Limits(min_sqnr=20), 0.01, True, False),
        (Limits(min_sqnr=20), 1.0, False, True),
        # One limit is met, and one is missed.
        (Limits(max_flips=50, min_sqnr=60), 0.1, False, True),
    ],
)
def test_what_is_missed_by_a_part_of_the_examples_is_not_run_on_all(
    options, noise, is_met, is_early
) -> None:
    tried, runner = trials(noise)
    assert tried.meets(options, ()) is is_met
    assert (runner.runs < EXAMPLES // BATCH) is is_early
    # The verdict is that of all examples.
    found = tried.predictions(())
    expected = [row + 0 for row in tried.baseline.predictions]
    fidelity = compare(
        expected,
        found,
        decisions=tuple([(int(np.argmax(row)),) for row in each] for each in (expected, found)),
    )
    within = [
        options.max_flips is None or fidelity.flips_interval.high <= options.max_flips,
        options.min_sqnr is None or fidelity.sqnr_interval.low >= options.min_sqnr,
    ]
    assert all(within) is is_met


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
        encoded=SimpleNamespace(batches=(), features=FEATURES, texts=6),  # type: ignore[arg-type]
        predictions=list(logits),
        tokenizer=None,  # type: ignore[arg-type]
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
    trials = Trials(plan=plan, sited=sited, calibration=CalibrationResult(), baseline=baseline)
    found = layer_sensitivity(trials, batches)
    assert [each.name for each in found] == [
        "encoder.layer.0",
        "encoder.layer.1",
        "embeddings_quantizer",
    ]
    power = np.square(logits[[4, 1, 0]].astype(np.float64)).sum()
    expected = [10 * np.log10(power / (6 * noise**2)) for noise in (0.03, 0.5)]
    assert [each.sqnr_db for each in found] == pytest.approx([*expected, np.inf], rel=1e-4)
