from __future__ import annotations

import dataclasses
from types import SimpleNamespace

from qdqbert.calibration.calibration import Calibration
from qdqbert.evidence.lowering import Reference
from qdqbert.targets import TARGETS
from qdqbert.targets.target import Plan
from qdqbert.verbs.quantize import measure


def test_targets_with_equal_specs_run_in_pytorch_once(prepared, monkeypatch) -> None:
    bert = prepared("bert")
    made: list[Plan] = []

    def references(plan: Plan, *_: object) -> list[Reference]:
        made.append(plan)
        return []

    evidence = SimpleNamespace(
        calibration=Calibration(without_smoothing=Calibration()),
        baseline=SimpleNamespace(encoded=SimpleNamespace(batches=bert.batches)),
        sited=SimpleNamespace(references=references),
    )
    monkeypatch.setattr(measure, "layer_sensitivity", lambda *_: ())
    monkeypatch.setattr(measure, "_float_references", lambda *_: [])
    known: list[measure._InPyTorch] = []
    plan = bert.plan("portable", "linear")
    assert plan.recipe.smoothing is not None
    unsmoothed = dataclasses.replace(plan.recipe, smoothing=None)
    rougher = dataclasses.replace(plan.target, last_bits=0.1)
    different = (
        bert.plan("portable", "full"),
        dataclasses.replace(plan, target=rougher),
        dataclasses.replace(plan, recipe=unsmoothed),
    )
    equal = dataclasses.replace(plan, target=TARGETS["openvino"])
    for each in (plan, plan, equal, *different):
        measure._in_pytorch(each, evidence, known)
    assert made == [plan, *different]
