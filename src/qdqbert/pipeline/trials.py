"""Run a plan with a part of its sites in float, to see what costs most, and to meet limits."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager

from qdqbert.calibration.calibration import CalibrationResult
from qdqbert.common.options.limits import Limits
from qdqbert.common.progress import Progress
from qdqbert.data.tokenizing.encoding import Batch
from qdqbert.engines.runner import Runner
from qdqbert.evidence.fidelity import signal_and_noise, to_decibels
from qdqbert.evidence.reports import Sensitivity
from qdqbert.graphs.targets.target import Plan
from qdqbert.pipeline.predictions import Baseline, predict, predict_batches
from qdqbert.pipeline.prepare import Ready
from qdqbert.pipeline.sited import SitedSource
from qdqbert.quantization.search.greedy import fewest_units, float_order
from qdqbert.quantization.search.units import Unit, int8_percent, make_units
from qdqbert.tasks.task import Predictions

# Tokens, padding included, on which the gain of a unit is measured. Limits are checked on all.
_TOKENS = 8192

# Parts of the examples that a check runs one after another.
_PARTS = 8


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trials:
    """Runs a plan with some of its sites left in float.

    Everything is computed with fake quantization, without an engine.
    """

    plan: Plan
    sited: SitedSource
    calibration: CalibrationResult
    baseline: Baseline

    @classmethod
    def of(cls, ready: Ready, plan: Plan) -> Trials:
        """Return trials of a plan of a calibrated model."""
        sited, calibration, baseline = ready.sited, ready.calibration, ready.baseline
        return cls(plan=plan, sited=sited, calibration=calibration, baseline=baseline)

    def signal_and_noise(
        self, batches: Sequence[Batch], left: Collection[str]
    ) -> tuple[float, float]:
        """Return the power of the float outputs, and of their error with sites left in float."""
        task, expected = self.baseline.task, self.baseline.predictions
        with self._runner(left) as runner:
            found = predict_batches(task, runner, batches, self.baseline.encoded.features)
        pairs = [
            signal_and_noise(task.signal(expected[index]), task.signal(each))
            for index, each in found.items()
        ]
        return sum(each for each, _ in pairs), sum(each for _, each in pairs)

    def predictions(self, left: Collection[str]) -> Predictions:
        """Return the predictions for all examples, with sites left in float."""
        with self._runner(left) as runner:
            return predict(self.baseline.task, runner, self.baseline.encoded)

    def meets(self, limits: Limits, left: Collection[str]) -> bool:
        """Return whether the limits are met on all examples, with sites left in float.

        The examples run in parts. Examples that have not run yet count as equal to float. So
        a limit that is missed then is also missed by all examples.
        """
        baseline, encoded = self.baseline, self.baseline.encoded
        # By index, in the order of the examples, which updates keep.
        found = dict(enumerate(baseline.predictions))
        with self._runner(left) as runner:
            for start in range(_PARTS):
                part = encoded.batches[start::_PARTS]
                found.update(predict_batches(baseline.task, runner, part, encoded.features))
                checks = baseline.check(list(found.values()), limits, counts_examples=False)
                if any(each.verdict == "missed" for each in checks):
                    return False
        return all(each.verdict == "met" for each in checks)

    def _runner(self, left: Collection[str]) -> AbstractContextManager[Runner]:
        ranges = self.calibration.for_recipe(self.plan.recipe)
        return self.sited.quantized_runner(_in_float(self.plan, left), ranges)


def layer_sensitivity(trials: Trials, batches: Sequence[Batch]) -> tuple[Sensitivity, ...]:
    """Quantize one layer at a time, and return the SQNR of the outputs to the float model's.

    Returns:
        One entry for each layer, and for each site outside the layers, in the order of the model.
    """
    units = make_units(trials.plan.specs, trials.sited.weights(), "layer")
    every = _sites_of(units)
    return tuple(
        Sensitivity(
            name=unit.name,
            sqnr_db=to_decibels(*trials.signal_and_noise(batches, every - set(unit.sites))),
        )
        for unit in units
    )


def can_be_met(limits: Limits, baseline: Baseline) -> bool:
    """Return whether there are limits, and the float model is shown to meet them.

    With too few examples, nothing is.
    """
    if not limits.given():
        return False
    checks = baseline.check(baseline.predictions, limits, counts_examples=False)
    return all(each.verdict == "met" for each in checks)


def meet_limits(
    trials: Trials,
    limits: Limits,
    progress: Progress,
    known: Iterable[tuple[Plan, Plan]] = (),
    *,
    least_percent: float = 0.0,
) -> Plan:
    """Return the plan with as few units in float as the limits need; with all units if none do.

    It stays as it is for a target that runs all linear layers in int8.

    For `limits` see `can_be_met`. `known` are other plans, each with the result of this function:
    targets often have the same specs. A plan with a smaller share of int8 multiplications than
    `least_percent` is of no use, so that it is not looked for.
    """
    plan = trials.plan
    if plan.target.quantizes != "any_sites":
        return plan
    for other, met in known:
        if are_equal(plan, other):
            return dataclasses.replace(plan, specs=met.specs, units_in_float=met.units_in_float)
    weights = trials.sited.weights()
    units = make_units(plan.specs, weights)

    def is_useful(taken: Sequence[Unit]) -> bool:
        return int8_percent(_in_float(plan, _sites_of(taken)).specs, weights) >= least_percent

    few = _some_batches(trials.baseline.encoded.batches)
    with progress.stage(f"Meeting the limits for {plan.target.name}") as advance:

        def is_met(taken: Sequence[Unit]) -> bool:
            advance()
            return trials.meets(limits, _sites_of(taken))

        def noise(left: Collection[str]) -> float:
            advance()
            return trials.signal_and_noise(few, left)[1]

        # Nothing is measured for the order if the limits are met without any unit in float.
        order = float_order(units, noise, lambda unit: is_useful([unit]))
        found = fewest_units(_while(is_useful, order), is_met)
    taken = units if found is None else found
    names = tuple(unit.name for unit in taken)
    return dataclasses.replace(_in_float(plan, _sites_of(taken)), units_in_float=names)


def are_equal(plan: Plan, other: Plan) -> bool:
    """Return whether the same units have to be left in float, whatever the limits are."""
    return (
        plan.specs == other.specs
        and plan.recipe.smoothing == other.recipe.smoothing
        and plan.target.quantizes == other.target.quantizes
    )


def _while(is_useful: Callable[[Sequence[Unit]], bool], order: Iterator[Unit]) -> Iterator[Unit]:
    """Yield units as long as a condition on all of them holds."""
    taken: list[Unit] = []
    for unit in order:
        taken.append(unit)
        if not is_useful(taken):
            return
        yield unit


def _in_float(plan: Plan, left: Collection[str]) -> Plan:
    """Return a plan that leaves some sites in float."""
    specs = {name: None if name in left else spec for name, spec in plan.specs.items()}
    return dataclasses.replace(plan, specs=specs)


def _sites_of(units: Sequence[Unit]) -> set[str]:
    return {site for unit in units for site in unit.sites}


def _some_batches(batches: Sequence[Batch]) -> list[Batch]:
    """Return batches of all lengths with a limited number of tokens."""
    sizes = [next(iter(batch.inputs.values())).size for batch in batches]
    step = max(1, -(-sum(sizes) // _TOKENS))
    return list(batches[step // 2 :: step])
