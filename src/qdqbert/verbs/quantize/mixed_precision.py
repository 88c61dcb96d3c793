"""Leave the sites in float that cost most, until the limits of a call are met."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence

from qdqbert.calibration.calibration import CalibrationResult
from qdqbert.encoding import Batch
from qdqbert.evidence.fidelity import signal_and_noise
from qdqbert.options import Limits
from qdqbert.progress import Progress
from qdqbert.search.greedy import fewest_units, float_order
from qdqbert.search.units import Unit, make_units
from qdqbert.targets.target import Plan
from qdqbert.tasks.task import Predictions
from qdqbert.verbs.inference import Baseline, predict, predict_batches
from qdqbert.verbs.quantize.source.sited import SitedSource

# Tokens, padding included, on which the gain of a unit is measured. Limits are checked on all.
_TOKENS = 8192

# Parts of the examples that a check runs one after another.
_PARTS = 8


class Trials:
    """Runs a plan with some of its sites left in float."""

    def __init__(
        self, plan: Plan, sited: SitedSource, calibration: CalibrationResult, baseline: Baseline
    ) -> None:
        """Keep what a trial needs.

        Args:
            plan: The plan.
            sited: The model with sites.
            calibration: Ranges of the plan's recipe.
            baseline: The float model's results.
        """
        self._plan, self._sited, self._calibration = plan, sited, calibration
        self._baseline = baseline
        self._few = _some_batches(baseline.encoded.batches)

    def noise(self, left: Collection[str]) -> float:
        """Return the power of the error on a part of the examples, with sites left in float."""
        task, encoded = self._baseline.task, self._baseline.encoded
        plan = in_float(self._plan, left)
        with self._sited.quantized_runner(plan, self._calibration) as runner:
            found = predict_batches(task, runner, self._few, encoded.features)
        expected = self._baseline.predictions
        return sum(
            signal_and_noise(task.signal(expected[index]), task.signal(each))[1]
            for index, each in found.items()
        )

    def predictions(self, left: Collection[str]) -> Predictions:
        """Return the predictions for all examples, with sites left in float."""
        plan = in_float(self._plan, left)
        with self._sited.quantized_runner(plan, self._calibration) as runner:
            return predict(self._baseline.task, runner, self._baseline.encoded)

    def meets(self, limits: Limits, left: Collection[str]) -> bool:
        """Return whether the limits are met on all examples, with sites left in float.

        The examples run in parts. Those that have not run yet count as equal to float, so that a
        limit which is missed by then is missed by all.
        """
        baseline = self._baseline
        task, encoded = baseline.task, baseline.encoded
        # By index, in the order of the examples, which updates keep.
        found = dict(enumerate(baseline.predictions))
        plan = in_float(self._plan, left)
        with self._sited.quantized_runner(plan, self._calibration) as runner:
            for start in range(_PARTS):
                part = encoded.batches[start::_PARTS]
                found.update(predict_batches(task, runner, part, encoded.features))
                verdicts = baseline.verdicts(limits, list(found.values()))
                if "missed" in verdicts:
                    return False
        return all(each == "met" for each in verdicts)


def in_float(plan: Plan, left: Collection[str]) -> Plan:
    """Return a plan that leaves some sites in float."""
    specs = {name: None if name in left else spec for name, spec in plan.specs.items()}
    return dataclasses.replace(plan, specs=specs)


def meet_limits(
    plans: Sequence[Plan],
    sited: SitedSource,
    calibration: CalibrationResult,
    baseline: Baseline,
    limits: Limits,
    progress: Progress,
) -> tuple[list[Plan], list[tuple[Unit, ...]]]:
    """Leave units in float until each plan meets the limits, as far as its target allows.

    Plans stay as they are for targets that run all linear layers in int8, and if even the float
    model is not shown to meet the limits, because there are too few examples.

    Args:
        plans: One plan for each target.
        sited: The model with sites.
        calibration: Ranges of the call.
        baseline: The float model's results.
        limits: The limits.
        progress: Receives the stages.

    Returns:
        The plans, and the units that each plan leaves in float.

    Raises:
        UserInputError: A limit does not apply to the task.
    """
    unchanged = baseline.verdicts(limits, baseline.predictions) if limits.given() else []
    if not unchanged or any(each != "met" for each in unchanged):
        return list(plans), [() for _ in plans]
    changed: list[Plan] = []
    units: list[tuple[Unit, ...]] = []
    known: list[tuple[Plan, tuple[Unit, ...]]] = []
    for plan in plans:
        if plan.target.quantizes != "any_sites":
            changed.append(plan)
            units.append(())
            continue
        same = (each for other, each in known if _are_equal(plan, other))
        found = next(same, None)
        if found is None:
            ranges = calibration.for_recipe(plan.recipe)
            trials = Trials(plan, sited, ranges, baseline)
            every = make_units(plan.specs, sited.weights())
            found = _search(trials, every, limits, plan.target.name, progress)
            known.append((plan, found))
        changed.append(in_float(plan, {site for unit in found for site in unit.sites}))
        units.append(found)
    return changed, units


def _are_equal(plan: Plan, other: Plan) -> bool:
    return plan.specs == other.specs and plan.recipe.smoothing == other.recipe.smoothing


def _search(
    trials: Trials,
    units: Sequence[Unit],
    limits: Limits,
    target: str,
    progress: Progress,
) -> tuple[Unit, ...]:
    with progress.stage(f"Meeting the limits for {target}") as advance:

        def is_met(taken: Sequence[Unit]) -> bool:
            advance()
            return trials.meets(limits, {site for unit in taken for site in unit.sites})

        def noise(left: Collection[str]) -> float:
            advance()
            return trials.noise(left)

        # Nothing is measured for the order if the limits are met without any unit in float.
        found = fewest_units(float_order(units, noise), is_met)
    return tuple(units) if found is None else found


def _some_batches(batches: Sequence[Batch]) -> list[Batch]:
    """Return batches of all lengths with a limited number of tokens."""
    sizes = [next(iter(batch.inputs.values())).size for batch in batches]
    step = max(1, -(-sum(sizes) // _TOKENS))
    return list(batches[step // 2 :: step])
