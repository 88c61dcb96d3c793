"""Quantize a float model and measure the result."""

from __future__ import annotations

import dataclasses
import functools
import tempfile
from pathlib import Path

from qdqbert.common.errors import UserInputError, naming
from qdqbert.common.file_names import CARD
from qdqbert.common.files import json_bytes
from qdqbert.common.options.declared import command_line
from qdqbert.common.progress import Progress
from qdqbert.common.storage import Place, place_of, write_place
from qdqbert.encoders.checkpoint.demo import DEMO_NAME, demo_checkpoint
from qdqbert.evidence.checksums import write_checksums
from qdqbert.evidence.limits import check_limits_apply
from qdqbert.evidence.reporting.page import page
from qdqbert.evidence.reporting.quantize import QuantizeReport
from qdqbert.evidence.reporting.report import json_ready
from qdqbert.pipeline.auto.candidates import candidate_targets
from qdqbert.pipeline.auto.choice import write_fastest
from qdqbert.pipeline.every_target import write_every_target
from qdqbert.pipeline.examples import Data
from qdqbert.pipeline.folder import Output, write_report
from qdqbert.pipeline.measure import collect_evidence
from qdqbert.pipeline.plans import Scheme, choose_targets
from qdqbert.pipeline.prepare import prepare
from qdqbert.pipeline.ranges import open_earlier
from qdqbert.pipeline.source import ModelPath, open_source
from qdqbert.pipeline.vocabulary import keep_vocabulary, with_changed_texts
from qdqbert.runtime.artifact import Artifact, writing
from qdqbert.tasks.registry import TASKS
from qdqbert.verbs.quantize.options import QuantizeOptions


def run(options: QuantizeOptions, progress: Progress) -> QuantizeReport:
    """Quantize a model, measure the result, and write the output folder."""
    scheme = Scheme.of_call(options)
    earlier = open_earlier(scheme)
    try:
        # Temporary graphs lie in the partial folder, which the next call removes if this one is
        # killed.
        with writing(options.output_folder, overwrite=options.overwrites) as folder:
            with tempfile.TemporaryDirectory(dir=folder) as scratch:
                output = Output(
                    directory=options.output_folder,
                    folder=folder,
                    scratch=Path(scratch),
                    command=command_line("quantize", options),
                )
                report = _fill(options, scheme, earlier, output, progress)
            if not report.meets_limits:
                # The partial folder is removed.
                raise _LimitsMissedError(report)
            # A model card is meant to be edited.
            write_checksums(folder, leave_out={CARD})
    except _LimitsMissedError as missed:
        report = dataclasses.replace(missed.report, directory=None)
    if options.report is not None:
        _write_report(report, place_of(options.report))
    return report


def _fill(
    options: QuantizeOptions,
    scheme: Scheme,
    earlier: Artifact | None,
    output: Output,
    progress: Progress,
) -> QuantizeReport:
    """Fill the output folder, and return the report."""
    with naming("model"):
        path = demo_checkpoint() if options.model is None else options.model
    model = ModelPath.of_call(options, path, str(options.model or DEMO_NAME))
    check = functools.partial(_check_task, options)
    source = open_source(model, output.scratch, progress, check)
    keeps_some, whole = bool(options.keep_vocabulary or options.keep_scripts), source.tokenizer
    if keeps_some:
        source = keep_vocabulary(source, options.keep_vocabulary, options.keep_scripts, progress)
    scheme = scheme.of(source)
    weights_for = scheme.quantizers.weights_for
    ready = prepare(
        source,
        (
            candidate_targets(options.recipe, weights_for)
            if options.is_auto
            else choose_targets(options.targets, source.task.name, weights_for)
        ),
        scheme,
        Data.of_call(
            options,
            eval_data=options.eval_data,
            limits=options.limits,
            is_demo=options.model is None,
        ),
        options,
        progress,
        earlier=earlier,
        leaves_out=options.is_auto or not options.targets,
    )
    if keeps_some:
        ready = with_changed_texts(ready, whole)
    evidence = collect_evidence(
        ready, options.limits, options.verification_data, output.scratch, progress
    )
    if options.is_auto:
        report = write_fastest(evidence, output, progress)
    else:
        report = write_every_target(
            evidence, output, progress, benchmark=options.benchmark, leaves_out=not options.targets
        )
    if report.meets_limits:
        write_report(output.folder, report, evidence)
    return report


def _check_task(options: QuantizeOptions, task: str) -> None:
    """Refuse limits of other tasks, and the target `auto` for a task that `load` does not run."""
    check_limits_apply(options.limits, is_embedding=TASKS[task].is_embedding)
    if options.is_auto and TASKS[task].model is None:
        raise UserInputError(
            "`targets=['auto']` times a model as `load` runs it, and `load` does not run task "
            f"{task!r}. Pass other `targets`, such as 'portable'.",
            argument="targets",
        )


class _LimitsMissedError(Exception):
    """A limit of the call is not met."""

    def __init__(self, report: QuantizeReport) -> None:
        super().__init__()
        self.report = report


def _write_report(report: QuantizeReport, path: Place) -> None:
    try:
        is_page = path.suffix.lower() == ".html"
        write_place(path, page(report).encode() if is_page else json_bytes(json_ready(report)))
    except OSError as error:
        raise UserInputError(
            f"`report={str(path)!r}` cannot be written: {error.strerror or error}. Pass another "
            "file.",
            argument="report",
        ) from error
