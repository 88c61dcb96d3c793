"""Fill the folder that `quantize` writes: what is needed to use the graphs, and the report."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from qdqbert.calibration.ranges_file import write_ranges
from qdqbert.common.file_names import CARD
from qdqbert.common.files import write_bytes, write_json
from qdqbert.common.machine import cpu_features, cpu_name, usable_cores
from qdqbert.common.storage import Place
from qdqbert.data.tokenizing.pair_template import FILE as PAIR_TEMPLATE
from qdqbert.encoders.checkpoint.calls import finder_of
from qdqbert.encoders.checkpoint.card import read_card_data
from qdqbert.encoders.checkpoint.configuration import config_of_graph
from qdqbert.encoders.checkpoint.gliner import LABELS_FOLDER
from qdqbert.encoders.checkpoint.sentence import SentenceHead
from qdqbert.encoders.checkpoint.tokenizer import write_tokenizer
from qdqbert.evidence.lengths import TextLengths, text_lengths
from qdqbert.evidence.reporting.model_card import Origin, example_call, model_card
from qdqbert.evidence.reporting.page import page
from qdqbert.evidence.reporting.quantize import QuantizeReport
from qdqbert.evidence.reporting.report import json_ready
from qdqbert.evidence.reports import TargetReport
from qdqbert.evidence.verification import write_rows
from qdqbert.graphs.targets.target import Target
from qdqbert.pipeline.graphs import WrittenGraph
from qdqbert.pipeline.manifest import quantization_json
from qdqbert.pipeline.measure import Evidence
from qdqbert.pipeline.messages import (
    engine_notices,
    fidelity_warnings,
    report_notices,
    sample_warnings,
    saturation_notice,
    share_warnings,
)
from qdqbert.pipeline.prepare import Ready
from qdqbert.pipeline.versions import versions
from qdqbert.runtime.artifact import (
    QUANTIZATION,
    RANGES,
    REPORT,
    REPORT_PAGE,
    TRAINING,
    TRAINING_FORMAT,
    VERIFICATION,
    size_bytes,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Output:
    """Where a call writes.

    Attributes:
        directory: The output folder.
        folder: Folder that is filled, and becomes the output folder at the end.
        scratch: Folder for temporary files, on the same disk.
        command: Command line that is equivalent to the call.
    """

    directory: Place
    folder: Path
    scratch: Path
    command: str


def write_model(
    folder: Path,
    ready: Ready,
    written: Sequence[WrittenGraph],
    command: str,
    choice: Mapping[str, Any] | None = None,
) -> None:
    """Write everything but the graphs and the report; see `quantization_json`."""
    source = ready.source
    config_of_graph(source.config).save_pretrained(folder)
    write_tokenizer(source.tokenizer, folder, max_length=ready.inputs.max_length)
    if source.pair_template is not None:
        write_json(folder / PAIR_TEMPLATE, source.pair_template.content())
    for each in filter(None, (source.head, source.cross_encoder)):
        each.write(folder, hidden=source.config.hidden_size, find=finder_of(source.name))
    if source.labels is not None:
        shutil.copytree(source.labels, folder / LABELS_FOLDER)
    write_ranges(ready.calibration, folder / RANGES)
    write_json(folder / QUANTIZATION, quantization_json(ready, written, command, choice))
    if source.training:
        write_json(folder / TRAINING, {"format": TRAINING_FORMAT, **source.training})


def make_report(
    evidence: Evidence,
    reports: Sequence[TargetReport],
    output: Output,
    *,
    targets: Sequence[Target] = (),
    notices: Sequence[str] = (),
) -> QuantizeReport:
    """Return the report of a call.

    The report names the engines of `targets` that are not installed.
    """
    ready, source = evidence.ready, evidence.ready.source
    count = calibrated_texts(ready)
    every = [*ready.notices]
    every += [
        saturation_notice(each.target, each.overflows)
        for each in reports
        if each.overflows is not None
    ]
    every += notices
    every += [notice for target in targets for notice in engine_notices(target)]
    every += [notice for each in reports for notice in report_notices(each)]
    warnings = [] if ready.ranges.known is not None else sample_warnings(count)
    warnings += [text for each in reports for text in fidelity_warnings(each, ready.ranges.kind)]
    warnings += [text for each in reports for text in share_warnings(each)]
    return QuantizeReport(
        directory=str(output.directory),
        checkpoint=source.model.shown,
        task=source.task.name,
        calibration_texts=count,
        calibration_lengths=calibration_lengths(ready),
        heldout_texts=ready.inputs.heldout.texts,
        float_metrics=ready.baseline.metrics,
        float_size_bytes=size_bytes(evidence.float_model),
        targets=tuple(reports),
        cpu=cpu_name(),
        cpu_features=cpu_features(),
        cores=usable_cores(),
        versions=versions(),
        command=output.command,
        warnings=tuple(warnings),
        notices=tuple(dict.fromkeys(every)),
        call=example_call(source.task.name, origin_of(ready)),
    )


def write_report(folder: Path, report: QuantizeReport, evidence: Evidence) -> None:
    """Write the report to a folder, as JSON, page and model card, and the rows of `verify`."""
    if evidence.rows:
        write_rows(evidence.rows, folder / VERIFICATION)
    write_json(folder / REPORT, json_ready(report))
    write_bytes(folder / REPORT_PAGE, page(report).encode())
    write_bytes(folder / CARD, model_card(report, origin_of(evidence.ready)).encode())


def calibrated_texts(ready: Ready) -> int:
    """Return the number of texts that the ranges were taken from."""
    ranges = ready.ranges
    if ranges.earlier is not None:
        return int(ranges.earlier.calibration["examples"])
    return ready.inputs.calibration.texts if ranges.known is None else len(ranges.known)


def calibration_lengths(ready: Ready) -> TextLengths | None:
    """Return the lengths of the texts of a new calibration."""
    if ready.ranges.kind != "calibrated":
        return None
    encoded = ready.inputs.calibration.features.encoded
    return text_lengths(encoded.lengths, truncated=encoded.truncated)


def origin_of(ready: Ready) -> Origin:
    """Return where a model comes from, for its model card."""
    source = ready.source
    is_onnx = source.graph is not None
    # The config and the tokenizer of an .onnx file come with the card of the model.
    beside = source.model.onnx.tokenizer_path or str(Path(source.name).parent)
    return Origin(
        hub_id=None if is_onnx or Path(source.name).exists() else source.name,
        card=read_card_data(beside if is_onnx else source.name),
        model_type=source.model_type,
        is_sentence_transformer=isinstance(source.head, SentenceHead),
        # The model may have been trained on the data to calibrate on.
        eval_data=None if ready.examples.is_split else ready.examples.labeled_data,
        labels=tuple(name for _, name in sorted(source.config.id2label.items())),
        is_regression=source.config.problem_type == "regression",
        takes_pairs=bool(ready.examples.takes_pairs),
        mask_token=source.tokenizer.mask_token,
    )
