from __future__ import annotations

from typing import get_args

from qdqbert.calibration.statistics import calibrator_of
from qdqbert.common import choices
from qdqbert.encoders.task_kinds import TASK_KINDS, TASK_NAMES
from qdqbert.engines.native.instruction_sets import INSTRUCTION_SETS
from qdqbert.engines.providers import PROVIDERS
from qdqbert.graphs.targets import TARGETS
from qdqbert.quantization.numerics.ranges import Calibrator
from qdqbert.quantization.recipes import RECIPES, QuantizerOptions
from qdqbert.tasks.registry import TASKS


def test_choices_are_the_keys_of_the_tables() -> None:
    assert tuple(TARGETS) == get_args(choices.TargetName)
    assert set(choices.RECIPE_NAMES) == set(RECIPES)
    assert tuple(PROVIDERS) == choices.PROVIDER_NAMES
    assert tuple(TASKS) == tuple(TASK_KINDS) == TASK_NAMES
    engines = {engine for target in TARGETS.values() for engine in target.engines}
    assert set(choices.ENGINE_NAMES) == engines
    assert set(get_args(choices.KernelName)) == set(INSTRUCTION_SETS)


def test_every_calibrator_has_a_name() -> None:
    named = {
        type(calibrator_of(QuantizerOptions(calibrator=name, percentile=percentile)))
        for name in choices.CALIBRATOR_NAMES
        for percentile in (99.9 if name == "percentile" else None,)
    }
    assert named == set(get_args(Calibrator))
