from __future__ import annotations

import dataclasses
from types import SimpleNamespace

from qdqbert.calibration.calibration import CalibrationResult
from qdqbert.evidence.lowering import Reference
from qdqbert.evidence.reports import LatencyReport
from qdqbert.graphs.targets import TARGETS
from qdqbert.graphs.targets.target import Plan
from qdqbert.pipeline import measure, messages


def test_targets_with_equal_specs_run_in_pytorch_once(prepared, monkeypatch) -> None:
    bert = prepared("bert")
    made: list[Plan] = []

    def references(plan: Plan, *_: object) -> list[Reference]:
        made.append(plan)
        return []

    ready = SimpleNamespace(
        calibration=CalibrationResult(without_smoothing=CalibrationResult()),
        baseline=SimpleNamespace(encoded=SimpleNamespace(batches=bert.batches)),
        sited=SimpleNamespace(references=references),
    )
    monkeypatch.setattr(measure, "layer_sensitivity", lambda *_: ())
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
        measure._in_pytorch(each, ready, known)
    quantized = [each for each in made if any(each.specs.values())]
    assert quantized == [plan, *different]


def notices_of(monkeypatch, features: tuple[str, ...], *latency: LatencyReport) -> list[str]:
    monkeypatch.setattr(messages, "cpu_features", lambda: features)
    exact = SimpleNamespace(is_exact=True, far=(), saturates=False)
    report = SimpleNamespace(
        target="native", engine="native", lowering=exact, batch_invariance=exact, latency=latency
    )
    return messages.report_notices(report)


def shape(float_ms: float, int8_ms: float, speedup: float) -> LatencyReport:
    return LatencyReport(batch=1, sequence=32, float_ms=float_ms, int8_ms=int8_ms, speedup=speedup)


def test_a_cpu_is_not_told_to_have_what_it_has(monkeypatch) -> None:
    slow = shape(4.0, 8.0, 0.5)
    (without,) = notices_of(monkeypatch, ("avx2",), slow)
    assert (
        "runs INT8 slower than it runs float, with 1 text of 32 tokens (0.50 x). Its int8 kernels "
        "are faster on CPUs" in without
    )
    for features in (("avx512_vnni",), ("avx2", "avx_vnni"), ("amx_int8",), ("i8mm",)):
        (notice,) = notices_of(monkeypatch, features, slow)
        assert (
            "1 text of 32 tokens (0.50 x). This CPU has int8 instructions, so the model or these "
            "shapes" in notice
        )


def test_timings_that_varied_are_reported(monkeypatch) -> None:
    assert notices_of(monkeypatch, ("avx512_vnni",), shape(7.8, 6.3, 1.24)) == []
    (notice,) = notices_of(monkeypatch, ("avx512_vnni",), shape(7.8, 6.3, 2.42))
    assert notice.startswith(
        "Timings of native with 1 text of 32 tokens varied, as if something else ran"
    )


def test_a_graph_that_is_mostly_float_gets_a_warning() -> None:
    def warnings(percent: float | None) -> list[str]:
        report = SimpleNamespace(target="portable", int8_percent=percent, is_float=False)
        return messages.share_warnings(report)

    (warning,) = warnings(49.6)
    assert warning.startswith("Only 50 % of the multiplications of portable are INT8, so it is")
    # The target `float` has none, and says so itself.
    assert warnings(50.0) == warnings(None) == []
