"""Measure the latency of models."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from qdqbert.choices import EngineName, ProviderName
from qdqbert.extras import require_quantize
from qdqbert.progress import Progress, progress_of
from qdqbert.verbs.benchmark.options import BenchmarkOptions

if TYPE_CHECKING:
    from qdqbert.evidence.reports import BenchmarkReport


def benchmark(
    models: Sequence[str | Path],
    *,
    engines: Sequence[EngineName] = (),
    provider: ProviderName | None = None,
    batches: Sequence[int] = (1, 8),
    sequences: Sequence[int] = (32, 128),
    threads: int | None = None,
    rounds: int = 5,
    seconds: float = 0.5,
    progress: Progress | bool = False,
) -> BenchmarkReport:
    """Measure the latency of models, which take turns in separate processes.

    Args:
        models: Folders that `quantize` wrote, float checkpoints, .onnx files or OpenVINO .xml
            files. The others are compared with the first. Checkpoints are exported in float; the
            native engine runs them in INT8, as `load` does.
        engines: Engines to run them on. By default all installed engines that run the model. For
            the native engine, ONNX Runtime runs the float models, too.
        provider: Execution provider of ONNX Runtime; "cpu" by default. With it, only ONNX Runtime
            is measured.
        batches: Batch sizes.
        sequences: Lengths in tokens.
        threads: Number of threads of one inference. The engine's choice by default.
        rounds: Number of time slices for each model and shape. The models take turns, and the
            result is the median over the slices.
        seconds: Length of a time slice in seconds.
        progress: Show progress bars on stderr. A `Progress` object receives the stages instead.

    Returns:
        The latency of each model, engine and shape, and its ratio to the first model.

    Raises:
        UserInputError: An argument or a file cannot be used.

    Example:
        >>> report = qdqbert.benchmark(["./my-classifier", "./my-classifier-int8"], batches=[1, 8])
        >>> report.speedups
    """
    arguments = dict(locals())
    shown = progress_of(arguments.pop("progress"))
    require_quantize("`benchmark`")
    from qdqbert.verbs.benchmark.run import run

    return run(BenchmarkOptions(**arguments), shown)
