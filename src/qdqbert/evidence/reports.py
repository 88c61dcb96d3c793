"""What the verbs return: plain records, which are printed as tables or as JSON."""

from __future__ import annotations

import dataclasses
from typing import Any

from qdqbert.evidence.fidelity import Fidelity
from qdqbert.evidence.latency import Timing
from qdqbert.evidence.lowering import LoweringCheck
from qdqbert.files import json_values
from qdqbert.tasks.task import Metric


@dataclasses.dataclass(frozen=True, kw_only=True)
class LatencyReport:
    """INT8 beside float at one shape.

    Attributes:
        batch: Texts at once.
        sequence: Tokens a text.
        float_ms: Median of the float graph on the same engine.
        int8_ms: Median of the INT8 graph.
        speedup: Median over rounds of their ratio.
    """

    batch: int
    sequence: int
    float_ms: float
    int8_ms: float
    speedup: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class TargetReport:
    """What was measured of one target's graph on one engine.

    Attributes:
        target: What the graph was made for.
        engine: What ran it.
        recipe: Which recipe placed its Q/DQ pairs.
        model: The .onnx file, relative to the folder.
        fidelity: To the float checkpoint, on held-out texts.
        lowering: To the fake-quantized PyTorch model.
        size_bytes: Of the graph.
        size_ratio: To the float graph.
        latency: Of this graph and of the float one, by shape, side by side.
    """

    target: str
    engine: str
    recipe: str
    model: str
    fidelity: Fidelity
    lowering: LoweringCheck
    size_bytes: int
    size_ratio: float
    latency: tuple[LatencyReport, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class QuantizeReport:
    """What `quantize` did and measured.

    Attributes:
        directory: The folder that it wrote.
        checkpoint: What was quantized.
        task: What it is for.
        calibration_texts: Texts that ranges were taken from.
        heldout_texts: Other texts that fidelity was measured on.
        float_size_bytes: Of the float graph.
        targets: One report for each target and engine.
        warnings: Results that make the model doubtful or useless.
        notices: Other messages for the user.
    """

    directory: str
    checkpoint: str
    task: str
    calibration_texts: int
    heldout_texts: int
    float_size_bytes: int
    targets: tuple[TargetReport, ...]
    warnings: tuple[str, ...]
    notices: tuple[str, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluateReport:
    """How well a model does its task.

    Attributes:
        model: What was evaluated.
        task: Its task.
        engine: What ran it; `pytorch` for a float checkpoint.
        target: What the graph was made for; `None` for a checkpoint or an .onnx file.
        reference: The checkpoint or .onnx file that it is compared with, if one was named.
        data: The file.
        examples: Rows of the file.
        metrics: The task's metrics.
        reference_metrics: The same of the reference.
        fidelity: To the reference checkpoint on the same texts, if one was named.
        leaked_examples: How many of them ranges were taken from.
        notices: What a user should know.
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
    fidelity: Fidelity | None
    leaked_examples: int
    notices: tuple[str, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class BenchmarkReport:
    """Latencies that were measured in turns.

    Attributes:
        timings: One for each shape, model and engine, shapes outermost.
        speedups: For each timing, how many times faster it is than the first model on its
            engine at its shape.
        threads: Threads of one inference; `None` if each engine chose.
    """

    timings: tuple[Timing, ...]
    speedups: tuple[float, ...]
    threads: int | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainReport:
    """What `train` did.

    Attributes:
        directory: The folder that it wrote.
        checkpoint: What was trained.
        task: What for.
        training_examples: How many it was trained on.
        evaluation_examples: How many others it was evaluated on.
        quantizers: How many quantizers were on; 0 in float training.
        steps: Updates of the weights.
        resumed_at: The step that it went on from, if it was resumed.
        before: Metrics before training; of QAT: of the calibrated model.
        after: Metrics of the model that was written.
        notices: What a user should know.
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class TensorRTTiming:
    """Latency of a TensorRT engine at one shape.

    Attributes:
        batch: Batch size.
        sequence: Length in tokens.
        median_ms: Median over all runs, in milliseconds, with inputs and outputs on the GPU.
        best_ms: The fastest run, in milliseconds.
        runs: Number of runs.
    """

    batch: int
    sequence: int
    median_ms: float
    best_ms: float
    runs: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class TensorRTReport:
    """Result of `build_tensorrt`.

    Attributes:
        engine: The file.
        size_bytes: Size of the file; `None` if nothing was built.
        model_size_bytes: Size of the graph.
        tensorrt: Version of TensorRT; `None` if it is not installed and none was named.
        gpu: Name of the GPU; `None` if nothing was built.
        trtexec: Command line that does the same.
        timings: One for each shape.
    """

    engine: str
    size_bytes: int | None
    model_size_bytes: int
    tensorrt: str | None
    gpu: str | None
    trtexec: str
    timings: tuple[TensorRTTiming, ...]


Report = QuantizeReport | EvaluateReport | BenchmarkReport | TrainReport | TensorRTReport


def json_ready(report: Report) -> dict[str, Any]:
    """Return a report as plain values, with `None` for NaN and infinities."""
    ready: dict[str, Any] = json_values(dataclasses.asdict(report))
    return ready
