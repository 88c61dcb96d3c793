"""Measure the latency of models."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdqbert.common.progress import Progress
from qdqbert.pipeline.settings import check_model
from qdqbert.verbs.benchmark.options import BenchmarkOptions
from qdqbert.verbs.call import public

if TYPE_CHECKING:
    from qdqbert.evidence.reporting.benchmark import BenchmarkReport


@public(BenchmarkOptions)
def benchmark(options: BenchmarkOptions, progress: Progress) -> BenchmarkReport:
    """Measure the latency of models, which take turns in separate processes.

    Returns:
        The latency of each model, engine and shape, and its ratio to the first model, or of
        one model to its first engine.

    Raises:
        UserInputError: An argument or a file cannot be used.

    Example:
        >>> report = qdqbert.benchmark(["./my-classifier", "./my-classifier-int8"], batches=[1, 8])
        >>> report.speedups
    """
    for each in options.models:
        check_model(each, "models", takes_quantized=True)
    from qdqbert.verbs.benchmark.run import run

    return run(options, progress)
