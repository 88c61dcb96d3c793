"""Reports that the public functions return. They can be printed as tables or as JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

from qdqbert.evidence.batch_invariance import BatchInvariance
from qdqbert.evidence.fidelity import Fidelity
from qdqbert.evidence.latency import Timing
from qdqbert.evidence.lengths import TextLengths
from qdqbert.evidence.limits import LimitCheck, MetricDifference
from qdqbert.evidence.lowering import LayerFidelity, LoweringCheck
from qdqbert.evidence.saturation import Overflow
from qdqbert.files import json_values
from qdqbert.tasks.task import Metric

# Largest difference between the ratio of two medians and the median of ratios, as a share. Above
# it, one of them is wrong.
_MOST_VARIATION = 0.15


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
    def varied(self) -> bool:
        """Whether the rounds differed so much that `speedup` is not the ratio of the medians."""
        return abs(self.speedup * self.int8_ms / self.float_ms - 1) > _MOST_VARIATION


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
class ChangedExample:
    """An example whose prediction changed.

    Attributes:
        text: Its text or texts, shortened.
        before: Prediction of the float model.
        after: Prediction of the quantized model.
    """

    text: str
    before: str
    after: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class TargetReport:
    """Measurements of one graph on one engine.

    Attributes:
        target: Target of the graph.
        engine: Engine that ran it.
        recipe: Recipe that placed its Q/DQ pairs.
        units_in_float: Linear layers and sites that were left in float to meet the limits.
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
    """

    target: str
    engine: str
    recipe: str
    units_in_float: tuple[str, ...]
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class CandidateReport:
    """A graph that the target `auto` considered.

    Attributes:
        target: Target of the graph.
        engine: Engine that ran it.
        precision: Float type of the other operations than int8 ones.
        recipe: Recipe that placed its Q/DQ pairs; "float" if there are none.
        single_ms: Time for one text at a time, in milliseconds, on the texts of the last round that
            it took part in.
        texts_per_second: Speed with many texts at once, on these texts.
        relative_time: Geometric mean of the times for one text and for many, divided by the fastest
            candidate's. Both are from the same round, unless this candidate was timed again after
            all faster ones were rejected.
        verdict: `chosen`; `rejected` if it was checked and is too far from float; `slower` if it
            was not checked, because a faster one was chosen.
        reason: Why it was rejected, in words; empty otherwise.
    """

    target: str
    engine: str
    precision: str
    recipe: str
    single_ms: float
    texts_per_second: float
    relative_time: float
    verdict: Literal["chosen", "rejected", "slower"]
    reason: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class QuantizeReport:
    """Result of `quantize`.

    Attributes:
        directory: The output folder; `None` if a limit is not met, as nothing is written then.
        checkpoint: The model that was quantized.
        task: Its task.
        calibration_texts: Number of texts that ranges were taken from.
        calibration_lengths: Their lengths; `None` if the ranges are from an earlier calibration.
        heldout_texts: Number of other texts, on which fidelity was measured.
        float_metrics: Metrics of the float model, if the texts have labels.
        float_size_bytes: Size of the float graph.
        targets: One report for each target and engine. With the target `auto`, the chosen
            candidate's report, or all of them if none was chosen.
        cpu: Name of the CPU that all measurements are from.
        cpu_features: Its features that matter for INT8, under Linux' names.
        cores: Number of its cores that were used.
        versions: Versions of Python and of the packages that determine numbers, by name.
        command: Command line that is equivalent to the call.
        warnings: Results that make the model doubtful or useless.
        notices: Other messages for the user.
        candidates: Candidates of the target `auto`, the fastest one first.
        reason: Why it chose that one, in words; `None` for other targets.
        call: An example of a call of the model, in Python; `None` if `load` does not run it.
    """

    directory: str | None
    checkpoint: str
    task: str
    calibration_texts: int
    calibration_lengths: TextLengths | None
    heldout_texts: int
    float_metrics: tuple[Metric, ...]
    float_size_bytes: int
    targets: tuple[TargetReport, ...]
    cpu: str
    cpu_features: tuple[str, ...]
    cores: int
    versions: Mapping[str, str]
    command: str
    warnings: tuple[str, ...]
    notices: tuple[str, ...]
    candidates: tuple[CandidateReport, ...] = ()
    reason: str | None = None
    call: str | None = None

    @property
    def meets_limits(self) -> bool:
        """Whether every graph meets all limits of the call on every engine.

        With the target `auto`, whether one could be chosen.
        """
        if self.candidates:
            return any(each.verdict == "chosen" for each in self.candidates)
        checks = (check for each in self.targets for check in each.limits)
        return all(each.verdict == "met" for each in checks)


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluateReport:
    """Result of `evaluate`.

    Attributes:
        model: The model.
        task: Its task.
        engine: Engine that ran it; `pytorch` for a checkpoint.
        target: Target of the graph; `None` for a checkpoint or an .onnx file.
        reference: The checkpoint or .onnx file that the model is compared with, if any.
        data: The data file.
        examples: Number of examples.
        metrics: Metrics of the task.
        reference_metrics: Metrics of the reference.
        differences: Metrics of the model minus the reference's.
        fidelity: How close the model is to the reference, on the same examples.
        limits: Check of each limit of the call.
        leaked_examples: Number of examples that the model was calibrated on.
        cpu: Name of the CPU.
        cpu_features: Its features that matter for INT8, under Linux' names.
        cores: Number of its cores that were used.
        versions: Versions of Python and of the packages that determine numbers, by name.
        command: Command line that is equivalent to the call.
        notices: Messages for the user.
        directory: The output folder; `None` if nothing was written.
        files: Names of the files in it.
    """

    model: str
    task: str
    engine: str
    target: str | None
    reference: str | None
    data: str
    examples: int
    metrics: tuple[Metric, ...]
    reference_metrics: tuple[Metric, ...]
    differences: tuple[MetricDifference, ...]
    fidelity: Fidelity | None
    limits: tuple[LimitCheck, ...]
    leaked_examples: int
    cpu: str
    cpu_features: tuple[str, ...]
    cores: int
    versions: Mapping[str, str]
    command: str
    notices: tuple[str, ...]
    directory: str | None = None
    files: tuple[str, ...] = ()

    @property
    def meets_limits(self) -> bool:
        """Whether all limits of the call are met."""
        return all(each.verdict == "met" for each in self.limits)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cost:
    """The cost of quantization, on the examples of a call.

    Attributes:
        sqnr_db: SQNR of the output, in dB; infinite if it is equal.
        flips_percent: Share of decisions that differ from the float model's, in percent. `None` for
            tasks without decisions.
        drop: Loss of the main metric, in its unit. `None` without labels.
    """

    sqnr_db: float
    flips_percent: float | None
    drop: float | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class UnitReport:
    """The cost of a layer, of a linear layer or of a site.

    Attributes:
        name: Its name.
        sites: Its sites.
        share_percent: Its share of all int8 multiplications, in percent.
        alone: The cost if nothing else is quantized.
        left: The cost that is left if this unit and all units before it stay in float.
    """

    name: str
    sites: tuple[str, ...]
    share_percent: float
    alone: Cost
    left: Cost


@dataclasses.dataclass(frozen=True, kw_only=True)
class AnalyzeReport:
    """Result of `analyze`.

    Attributes:
        model: The float model.
        task: Its task.
        target: Target whose quantizers were analyzed.
        recipe: Recipe that placed them.
        metric: Name of the main metric; `None` without labels.
        examples: Number of measured examples.
        whole: The cost of quantizing everything.
        units: The units, the most costly one first.
        notices: Messages for the user.
    """

    model: str
    task: str
    target: str
    recipe: str
    metric: str | None
    examples: int
    whole: Cost
    units: tuple[UnitReport, ...]
    notices: tuple[str, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class BenchmarkReport:
    """Result of `benchmark`.

    Attributes:
        timings: One for each shape, model and engine, ordered by shape first.
        speedups: How many times faster each timing is than the first model's, on the same
            engine and at the same shape.
        threads: Number of threads of one inference; `None` if each engine chose.
        notices: Messages for the user.
    """

    timings: tuple[Timing, ...]
    speedups: tuple[float, ...]
    threads: int | None
    notices: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainReport:
    """Result of `train`.

    Attributes:
        directory: The output folder.
        checkpoint: The model that was trained.
        task: Its task.
        training_examples: Number of training examples.
        evaluation_examples: Number of evaluation examples.
        quantizers: Number of enabled quantizers; 0 in float training.
        steps: Number of updates of the weights.
        resumed_at: Step from which the run was resumed, if it was.
        before: Metrics before training. With QAT, the calibrated model's.
        after: Metrics of the model that was written.
        notices: Messages for the user.
    """

    directory: str
    checkpoint: str
    task: str
    training_examples: int
    evaluation_examples: int
    quantizers: int
    steps: int
    resumed_at: int | None
    before: tuple[Metric, ...]
    after: tuple[Metric, ...]
    notices: tuple[str, ...]


Report = AnalyzeReport | QuantizeReport | EvaluateReport | BenchmarkReport | TrainReport


def json_ready(report: Report) -> dict[str, Any]:
    """Return a report as plain values, with `None` for NaN and infinities."""
    ready: dict[str, Any] = json_values(dataclasses.asdict(report))
    return ready
