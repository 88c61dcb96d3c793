"""How limits are checked while sites are searched that have to stay in float."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from qdqbert.evidence.fidelity import compare
from qdqbert.options import Limits
from qdqbert.recipes import build_recipe
from qdqbert.targets import TARGETS
from qdqbert.targets.target import Plan
from qdqbert.task_kinds import TaskSettings
from qdqbert.tasks.registry import TASKS
from qdqbert.verbs.inference import Baseline
from qdqbert.verbs.quantize.mixed_precision import Trials

EXAMPLES = 400
BATCH = 5


class Runner:
    """Returns the logits of the float model, with some noise, and counts its runs."""

    input_names = ("index",)

    def __init__(self, logits: np.ndarray, noise: float) -> None:
        self._logits = logits
        self._noise = noise
        self.runs = 0

    def run(self, inputs: Any) -> dict[str, np.ndarray]:
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
        encoded=SimpleNamespace(batches=batches, features=None, texts=EXAMPLES),  # type: ignore[arg-type]
        predictions=list(logits),
        scores=(),
        id2label={},
        options=TaskSettings(),
    )

    @contextlib.contextmanager
    def quantized_runner(plan, calibration):
        yield runner

    sited: Any = SimpleNamespace(quantized_runner=quantized_runner)
    plan = Plan(target=TARGETS["portable"], recipe=build_recipe("linear"), specs={})
    return Trials(plan, sited, None, baseline), runner  # type: ignore[arg-type]


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
    expected = [row + 0 for row in tried._baseline.predictions]
    fidelity = compare(
        expected,
        found,
        is_embedding=False,
        decisions=([int(np.argmax(row)) for row in expected], [int(np.argmax(r)) for r in found]),
    )
    within = [
        options.max_flips is None or fidelity.flips_interval.high <= options.max_flips,
        options.min_sqnr is None or fidelity.sqnr_interval.low >= options.min_sqnr,
    ]
    assert all(within) is is_met
