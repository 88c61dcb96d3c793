"""Measure what each part of a model costs if it is quantized."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdqbert.common.extras import require
from qdqbert.common.progress import Progress
from qdqbert.pipeline.settings import check_data, check_model
from qdqbert.verbs.analyze.options import AnalyzeOptions
from qdqbert.verbs.call import public

if TYPE_CHECKING:
    from qdqbert.evidence.reporting.analyze import AnalyzeReport


@public(AnalyzeOptions)
def analyze(options: AnalyzeOptions, progress: Progress) -> AnalyzeReport:
    """Measure what each layer, linear layer or site costs if it is quantized.

    Each unit is quantized by itself first. Then the most costly units are left in float, one after
    another. Everything is computed with fake quantization, without an engine. Nothing is written.

    Returns:
        The cost of each unit: SQNR, changed predictions, and the loss of the metric.

    Raises:
        UserInputError: An argument or a file cannot be used.
        SpecError: Options of the quantizers contradict each other, or a pattern matches nothing.
        CalibrationError: A site saw no usable value.

    Example:
        >>> report = qdqbert.analyze("./my-classifier", calibration_data="train.csv")
        >>> report.units[0].name
    """
    require("`analyze`", "quantize")
    check_model(options.model, "model")
    check_data(options)
    from qdqbert.verbs.analyze.run import run

    return run(options, progress)
