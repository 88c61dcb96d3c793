"""Reports with known numbers."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from qdqbert.evidence.batch_invariance import BatchInvariance
from qdqbert.evidence.fidelity import Fidelity
from qdqbert.evidence.intervals import Interval
from qdqbert.evidence.lengths import text_lengths
from qdqbert.evidence.limits import LimitCheck, MetricDifference
from qdqbert.evidence.lowering import LayerFidelity, LoweringCheck
from qdqbert.evidence.reporting.evaluate import EvaluateReport
from qdqbert.evidence.reporting.quantize import QuantizeReport
from qdqbert.evidence.reports import CandidateReport, LatencyReport, Sensitivity, TargetReport
from qdqbert.evidence.saturation import Overflow
from qdqbert.tasks.task import Metric

MACHINE: dict[str, Any] = {
    "cpu": "Example CPU",
    "cpu_features": ("avx2", "avx512_vnni"),
    "cores": 2,
    "versions": {"python": "3.11.0", "onnxruntime": "1.23.0"},
}
FIDELITY = Fidelity(
    texts=200,
    sqnr_db=25.5,
    sqnr_interval=Interval(low=24.5, high=26.25),
    cosine_mean=None,
    cosine_min=None,
    flips_percent=1.5,
    flips_interval=Interval(low=0.25, high=4.0),
    decisions=200,
)
DIFFERENCE = MetricDifference(
    name="accuracy", value=-0.5, interval=Interval(low=-1.25, high=0.25), is_error=False
)
TARGET = TargetReport(
    codes="INT8",
    target="portable",
    engine="onnxruntime",
    recipe="linear",
    units_in_float=(),
    int8_percent=94.7,
    model="model.onnx",
    fidelity=FIDELITY,
    metrics=(Metric(name="accuracy", value=90.5, examples=200),),
    differences=(DIFFERENCE,),
    limits=(),
    layers=(
        LayerFidelity(name="embeddings", sqnr_db=40.0),
        LayerFidelity(name="layer.0", sqnr_db=30.0),
        LayerFidelity(name="logits", sqnr_db=25.0),
    ),
    sensitivity=(
        Sensitivity(name="encoder.layer.0", sqnr_db=31.0),
        Sensitivity(name="encoder.layer.1", sqnr_db=28.5),
    ),
    lowering=LoweringCheck(
        engine="onnxruntime",
        worst_layer_db=60.0,
        worst_layer="layer.0",
        end_to_end_db=40.0,
        ties_db=70.0,
        native_db=60.0,
    ),
    overflows=(Overflow(site="layer.0.dense_input_quantizer", percent=0.125),),
    batch_invariance=BatchInvariance(
        texts=64, differing=3, largest_difference=1e-6, changed_decisions=0
    ),
    size_bytes=25_000_000,
    size_ratio=0.25,
    latency=(
        LatencyReport(batch=1, sequence=32, float_ms=8.0, int8_ms=4.0, speedup=2.0),
        LatencyReport(batch=8, sequence=128, float_ms=90.0, int8_ms=30.0, speedup=3.0),
    ),
)
QUANTIZED = QuantizeReport(
    directory="out/my-int8",
    checkpoint="./my-model",
    task="text-classification",
    calibration_texts=6,
    calibration_lengths=text_lengths([3, 4, 4, 9, 12, 40], truncated=1),
    heldout_texts=200,
    float_metrics=(Metric(name="accuracy", value=91.0, examples=200),),
    float_size_bytes=100_000_000,
    targets=(TARGET,),
    **MACHINE,
    command="qdqbert quantize ./my-model",
    warnings=(),
    notices=("Pass `calibration_data`.",),
)
EVALUATED = EvaluateReport(
    model="./my-int8",
    task="text-classification",
    engine="onnxruntime",
    target="portable",
    reference="./my-model",
    data="dev.csv",
    examples=200,
    metrics=TARGET.metrics,
    reference_metrics=QUANTIZED.float_metrics,
    differences=(DIFFERENCE,),
    fidelity=FIDELITY,
    limits=(),
    leaked_examples=0,
    **MACHINE,
    command="qdqbert evaluate ./my-int8",
    notices=(),
)


@pytest.fixture(autouse=True)
def no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Report as where there is no terminal, whose width a test runner may set."""
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture
def quantize_report() -> QuantizeReport:
    """A classifier for one target, measured on labeled texts."""
    return QUANTIZED


@pytest.fixture
def evaluate_report() -> EvaluateReport:
    """The same classifier, compared with float."""
    return EVALUATED


@pytest.fixture
def check() -> LimitCheck:
    """A limit on changed predictions that is met."""
    return LimitCheck(
        option="max_flips",
        limit=5.0,
        value=1.5,
        interval=Interval(low=0.25, high=4.0),
        verdict="met",
    )


@pytest.fixture
def candidates() -> tuple[CandidateReport, ...]:
    """Two candidates of the target `auto`: a chosen one and one that was rejected."""
    chosen = CandidateReport(
        target="native",
        engine="native",
        precision="float32",
        recipe="linear",
        codes="INT8",
        single_ms=1.5,
        texts_per_second=1000.0,
        relative_time=1.0,
        verdict="chosen",
    )
    rejected = dataclasses.replace(
        chosen,
        target="float",
        engine="openvino",
        precision="bf16",
        recipe="float",
        single_ms=2.0,
        texts_per_second=800.0,
        relative_time=1.25,
        verdict="rejected",
        reason="SQNR of 20.0 dB",
    )
    return chosen, rejected
