"""Measurements of a graph, as they appear in reports."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Literal

from qdqbert.data.rows.lines import counted
from qdqbert.evidence.batch_invariance import BatchInvariance
from qdqbert.evidence.fidelity import Fidelity
from qdqbert.evidence.latency import Timing, speedup
from qdqbert.evidence.limits import LimitCheck, MetricDifference
from qdqbert.evidence.lowering import LayerFidelity, LoweringCheck
from qdqbert.evidence.predictions import ChangedExample
from qdqbert.evidence.saturation import Overflow
from qdqbert.evidence.vector_recall import VectorRecall
from qdqbert.tasks.task import Metric

# Largest difference between the ratio of two medians and the median of ratios, as a share. Above
# it, one of them is wrong.
_MOST_VARIATION = 0.15

LEAST_INT8_PERCENT = 10.0
"""Share of int8 multiplications below which limits are not met by INT8, but by a float model."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class LatencyReport:
    """Latency of INT8 and float at one shape.

    Attributes:
        batch: Batch size.
        sequence: Length in tokens.
        float_ms: Median latency of the float graph on the same engine, in milliseconds. On ONNX
            Runtime for the native engine, which runs no float graph.
        int8_ms: Median latency of the INT8 graph, in milliseconds.
        speedup: Median over all rounds of the ratio of float to INT8.
    """

    batch: int
    sequence: int
    float_ms: float
    int8_ms: float
    speedup: float

    @property
    def shape(self) -> str:
        """Batch size and length, in words."""
        return f"{counted(self.batch, 'text')} of {self.sequence} tokens"

    @property
    def varied(self) -> bool:
        """Whether the rounds differed so much that `speedup` is not the ratio of the medians."""
        return abs(self.speedup * self.int8_ms / self.float_ms - 1) > _MOST_VARIATION


def latency_reports(floats: Sequence[Timing], int8: Sequence[Timing]) -> tuple[LatencyReport, ...]:
    """Pair the timings of float and of INT8, which are at the same shapes."""
    return tuple(
        LatencyReport(
            batch=fast.batch,
            sequence=fast.sequence,
            float_ms=slow.median_ms,
            int8_ms=fast.median_ms,
            speedup=speedup(slow, fast),
        )
        for slow, fast in zip(floats, int8, strict=True)
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sensitivity:
    """Error of the outputs if a part of a model is quantized.

    Attributes:
        name: Path of the layer, or name of a site outside the layers.
        sqnr_db: SQNR of the outputs to the float model's if only this part is quantized, dB.
    """

    name: str
    sqnr_db: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class TargetReport:
    """Measurements of one graph on one engine.

    Attributes:
        target: Target of the graph.
        engine: Engine that ran it.
        recipe: Recipe that placed its Q/DQ pairs.
        codes: Widths of their codes: "INT8", or "W4A8" for weights of 4 bits.
        units_in_float: Linear layers and sites that were left in float to meet the limits.
        int8_percent: Share of the multiplications for a text of 128 tokens that are int8. `None`
            for the target `float`.
        model: Path of the graph in the folder.
        fidelity: How close it is to the float model, on held-out texts.
        metrics: Its metrics, if the texts have labels.
        differences: These metrics minus the float model's.
        limits: Check of each limit of the call.
        layers: How close PyTorch's fake quantization of it is to the float model, layer by layer.
        sensitivity: Error if only one layer is quantized, for each layer in order.
        lowering: How close it is to PyTorch's fake quantization, layer by layer.
        overflows: Linear layers whose int8 sums would saturate on CPUs without VNNI, worst first.
            `None` if this was not emulated, as the weights are exact on all CPUs.
        batch_invariance: Whether results depend on the other texts of a batch.
        size_bytes: Size of the graph.
        size_ratio: Size divided by the float graph's.
        latency: Latency next to the float graph's, one entry for each shape.
        verification_db: SQNR on the rows that `verify` runs again, dB. `None` if there are none.
        changed: Examples whose prediction changed, at most ten, the largest change first.
        recall: Recall of small vectors on held-out texts; `None` for tasks other than embeddings,
            and for fewer than 50 texts.
    """

    target: str
    engine: str
    recipe: str
    codes: str
    units_in_float: tuple[str, ...]
    int8_percent: float | None
    model: str
    fidelity: Fidelity
    metrics: tuple[Metric, ...]
    differences: tuple[MetricDifference, ...]
    limits: tuple[LimitCheck, ...]
    layers: tuple[LayerFidelity, ...]
    sensitivity: tuple[Sensitivity, ...]
    lowering: LoweringCheck
    overflows: tuple[Overflow, ...] | None
    batch_invariance: BatchInvariance
    size_bytes: int
    size_ratio: float
    latency: tuple[LatencyReport, ...]
    verification_db: float | None = None
    changed: tuple[ChangedExample, ...] = ()
    recall: VectorRecall | None = None

    @property
    def is_float(self) -> bool:
        """Whether the limits are met by a model that hardly computes in int8 any more."""
        is_left = self.int8_percent is not None and self.int8_percent < LEAST_INT8_PERCENT
        return is_left and bool(self.units_in_float)

    @property
    def meets_limits(self) -> bool:
        """Whether all limits of the call are met, by a model that computes in int8."""
        return not self.is_float and all(each.verdict == "met" for each in self.limits)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CandidateReport:
    """A graph that the target `auto` considered.

    Attributes:
        target: Target of the graph.
        engine: Engine that ran it.
        precision: Float type of the other operations than int8 ones.
        recipe: Recipe that placed its Q/DQ pairs; "float" if there are none.
        codes: Widths of their codes: "INT8", or "W4A8" for weights of 4 bits.
        single_ms: Time for one text at a time, in milliseconds.
        texts_per_second: Speed with many texts at once, on these texts.
        relative_time: Geometric mean of `single_ms` and the time for one of many texts, divided by
            the fastest candidate's.
        verdict: `chosen`; `rejected` if it was checked and is too far from float; `slower` if a
            faster one was chosen.
        reason: Why it was rejected, in words; empty otherwise.
    """

    target: str
    engine: str
    precision: str
    recipe: str
    codes: str
    single_ms: float
    texts_per_second: float
    relative_time: float
    verdict: Literal["chosen", "rejected", "slower"]
    reason: str = ""
