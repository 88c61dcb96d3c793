"""Quantize a float model to INT8 and measure the result."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdqbert.common.extras import require
from qdqbert.common.progress import Progress
from qdqbert.pipeline.settings import check_data, check_model
from qdqbert.runtime.artifact import check_output
from qdqbert.verbs.call import public
from qdqbert.verbs.quantize.options import QuantizeOptions

if TYPE_CHECKING:
    from qdqbert.evidence.reporting.quantize import QuantizeReport


@public(QuantizeOptions)
def quantize(options: QuantizeOptions, progress: Progress) -> QuantizeReport:
    """Quantize a checkpoint or an ONNX model to INT8, and measure the result.

    Writes a folder with one graph for each target, the tokenizer, the config, the ranges and a
    report. The folder is written completely or not at all.

    Limits such as `max_drop` are met by leaving the most sensitive linear layers in float. The
    reference is the float model. If a limit cannot be met by a model that computes at least a tenth
    in INT8, or there are too few examples to show it, no folder is written, and the report says
    why.

    Returns:
        What was written and measured: fidelity to the float model on held-out examples, agreement
        with PyTorch's fake quantization, size and latency. The same is in `report.json`
        and, for people, in `report.html`.

    Raises:
        UserInputError: An argument or a file cannot be used.
        SpecError: Options of the quantizers contradict each other, or a pattern matches nothing.
        CalibrationError: A site saw no usable value.
        GraphError: A graph does not have the expected form.

    Example:
        >>> report = qdqbert.quantize(
        ...     "./my-classifier",
        ...     "./my-classifier-int8",
        ...     calibration_data="train.csv",
        ...     targets=["onnxruntime", "openvino"],
        ... )
        >>> report.targets[0].fidelity.sqnr_db
    """
    require("`quantize`", "quantize")
    check_output(options.output_folder, overwrite=options.overwrites)
    check_model(
        options.model, "model", advice=" To use its ranges again, pass the folder as `ranges_from`."
    )
    check_data(options)
    from qdqbert.verbs.quantize.run import run

    return run(options, progress)
