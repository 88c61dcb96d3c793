"""Quantize a float model and measure the result."""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path

from qdqbert.artifact import Artifact, is_artifact, writing
from qdqbert.checkpoint.card import CARD
from qdqbert.errors import UserInputError
from qdqbert.evidence.checksums import write_checksums
from qdqbert.files import write_bytes, write_json
from qdqbert.progress import Progress
from qdqbert.reporting.page import page
from qdqbert.reporting.quantize import QuantizeReport
from qdqbert.reporting.report import json_ready
from qdqbert.verbs.quantize.auto.run import fill_with_fastest
from qdqbert.verbs.quantize.folder import fill_folder
from qdqbert.verbs.quantize.options import QuantizeOptions
from qdqbert.verbs.quantize.ranges import open_earlier


def run(options: QuantizeOptions, progress: Progress) -> QuantizeReport:
    """Quantize a model, measure the result, and write the output folder.

    Raises:
        UserInputError: An argument or a file cannot be used. Nothing was written.
        CalibrationError: A site saw no usable value. Nothing was written.
        GraphError: A target cannot run its graph. Nothing was written.
    """
    _check_not_quantized(options)
    earlier = open_earlier(options)
    try:
        # Temporary graphs lie in the partial folder, which the next call removes if this one is
        # killed.
        with writing(options.output_folder, overwrite=options.overwrites) as folder:
            with tempfile.TemporaryDirectory(dir=folder) as scratch:
                report = _fill(options, earlier, folder, Path(scratch), progress)
            if not report.meets_limits:
                # The partial folder is removed.
                raise _LimitsMissedError(report)
            # A model card is meant to be edited.
            write_checksums(folder, leave_out={CARD})
    except _LimitsMissedError as missed:
        report = dataclasses.replace(missed.report, directory=None)
    if options.report is not None:
        _write_report(report, Path(options.report))
    return report


def _fill(
    options: QuantizeOptions,
    earlier: Artifact | None,
    folder: Path,
    scratch: Path,
    progress: Progress,
) -> QuantizeReport:
    if options.is_auto:
        return fill_with_fastest(options, earlier, folder, scratch, progress)
    return fill_folder(options, earlier, folder, scratch, progress)


class _LimitsMissedError(Exception):
    """A limit of the call is not met."""

    def __init__(self, report: QuantizeReport) -> None:
        super().__init__()
        self.report = report


def _write_report(report: QuantizeReport, path: Path) -> None:
    try:
        if path.suffix.lower() == ".html":
            write_bytes(path, page(report).encode())
        else:
            write_json(path, json_ready(report))
    except OSError as error:
        raise UserInputError(
            f"`report={str(path)!r}` cannot be written: {error.strerror}. Pass another file.",
            argument="report",
        ) from error


def _check_not_quantized(options: QuantizeOptions) -> None:
    if options.model is not None and is_artifact(Path(options.model)):
        raise UserInputError(
            f"`model={options.model!r}` is quantized already. Pass the float checkpoint that it "
            "was made from. To use its ranges again, pass the folder as `ranges_from`.",
            argument="model",
        )
