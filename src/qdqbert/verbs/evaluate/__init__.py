"""Compute the metrics of a model on labeled data."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdqbert.common.extras import require
from qdqbert.common.progress import Progress
from qdqbert.pipeline.settings import check_data, check_model
from qdqbert.verbs.call import public
from qdqbert.verbs.evaluate.options import EvaluateOptions

if TYPE_CHECKING:
    from qdqbert.evidence.reporting.evaluate import EvaluateReport


@public(EvaluateOptions)
def evaluate(options: EvaluateOptions, progress: Progress) -> EvaluateReport:
    """Compute the metrics of a task for a quantized folder, a checkpoint or an ONNX model.

    Returns:
        The metrics, and the fidelity to the reference if one was given. A limit is met if it holds
        for the whole 95 % interval of what was measured; `limits` has the verdicts, and
        `meets_limits` tells whether all limits are met.

    Raises:
        UserInputError: An argument or a file cannot be used, or the model was calibrated on some
            of the examples.

    Example:
        >>> report = qdqbert.evaluate(
        ...     "./my-classifier-int8", "dev.csv", reference="./my-classifier"
        ... )
        >>> report.metrics
    """
    require("`evaluate`", "quantize")
    check_model(options.model, "model", takes_quantized=True)
    check_model(options.reference, "reference", takes_quantized=True)
    check_data(options)
    from qdqbert.verbs.evaluate.run import run

    return run(options, progress)
