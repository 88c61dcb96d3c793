"""Quantize a float model and measure the result."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from qdqbert.artifact import (
    GENERATION,
    MODEL,
    QUANTIZATION,
    RANGES,
    REPORT,
    REPORT_PAGE,
    Artifact,
    is_artifact,
    size_bytes,
    writing,
)
from qdqbert.calibration.calibration import Calibration
from qdqbert.calibration.ranges_file import write_ranges
from qdqbert.checkpoint.card import CARD, read_card_data
from qdqbert.checkpoint.demo import DEMO_NAME
from qdqbert.checkpoint.sentence import write_sentence_head
from qdqbert.encoding import Batch
from qdqbert.errors import UserInputError
from qdqbert.evidence.lengths import TextLengths, text_lengths
from qdqbert.evidence.reports import QuantizeReport, json_ready
from qdqbert.evidence.saturation import Overflow, SaturationCheck
from qdqbert.files import write_bytes, write_json
from qdqbert.graph.check import save_graph
from qdqbert.graph.qdq import float_graph
from qdqbert.machine import cpu_features, cpu_name, usable_cores
from qdqbert.options import command_line
from qdqbert.progress import Progress
from qdqbert.reporting.model_card import Origin, model_card
from qdqbert.reporting.page import quantize_page
from qdqbert.targets import target_named
from qdqbert.targets.target import Plan, Target
from qdqbert.verbs.quantize.graphs import with_measurable_graph, write_graphs
from qdqbert.verbs.quantize.manifest import quantization_json
from qdqbert.verbs.quantize.measure import Evidence, Measurements, measure
from qdqbert.verbs.quantize.mixed_precision import meet_limits
from qdqbert.verbs.quantize.options import QuantizeOptions
from qdqbert.verbs.quantize.prepare import Inputs, choose_targets, prepare
from qdqbert.verbs.quantize.ranges import (
    RangeSource,
    open_earlier,
)
from qdqbert.verbs.quantize.source import ModelSource, SitedSource
from qdqbert.verbs.versions import versions

# With fewer calibration examples than this, the report warns.
_FEWEST_CALIBRATED = 16


def run(options: QuantizeOptions, progress: Progress) -> QuantizeReport:
    """Quantize a model, measure the result, and write the output folder.

    Raises:
        UserInputError: An argument or a file cannot be used. Nothing was written.
        CalibrationError: A site saw no usable value. Nothing was written.
        GraphError: A target cannot run its graph. Nothing was written.
    """
    _check_not_quantized(options)
    targets = choose_targets(options)
    earlier = open_earlier(options)
    output = output_of(options)
    # The demo replaces its own folder, but not one that was named without a model.
    overwrite = options.overwrite or (options.model is None and options.output is None)
    try:
        # Temporary graphs lie in the partial folder, which the next call removes if this one is
        # killed.
        with (
            writing(output, overwrite=overwrite) as folder,
            tempfile.TemporaryDirectory(dir=folder) as scratch,
        ):
            report = fill_folder(options, targets, earlier, folder, Path(scratch), progress)
            if not report.meets_limits:
                # The partial folder is removed.
                raise _LimitsMissedError(report)
    except _LimitsMissedError as missed:
        report = dataclasses.replace(missed.report, directory=None)
    if options.report is not None:
        _write_report(report, Path(options.report))
    return report


def output_of(options: QuantizeOptions) -> Path:
    """Return the output folder of a call."""
    return Path(options.output or f"qdqbert-{DEMO_NAME}")


class _LimitsMissedError(Exception):
    """A limit of the call is not met."""

    def __init__(self, report: QuantizeReport) -> None:
        super().__init__()
        self.report = report


def fill_folder(
    options: QuantizeOptions,
    targets: Sequence[Target],
    earlier: Artifact | None,
    folder: Path,
    scratch: Path,
    progress: Progress,
) -> QuantizeReport:
    """Quantize and measure a model, and fill the output folder.

    Args:
        options: Options of the call.
        targets: Targets of the call.
        earlier: Folder whose ranges are used, if there is one.
        folder: Folder to fill.
        scratch: Folder for temporary files.
        progress: Receives the stages.
    """
    ready = prepare(options, targets, earlier, scratch, progress)
    source, sited, calibration = ready.source, ready.sited, ready.calibration
    inputs, ranges, examples = ready.inputs, ready.ranges, ready.examples
    plans, units = meet_limits(ready.plans, sited, calibration, ready.baseline, options, progress)
    batches = inputs.calibration.batches
    overflows = find_overflows(sited, batches, calibration, plans, options, progress)
    with progress.stage("Exporting the graph"):
        graph = sited.graph()
    written = write_graphs(plans, graph, calibration, folder, source.max_length, progress)
    float_model = scratch / MODEL
    save_graph(float_graph(graph), float_model, temporary=True)
    evidence = Evidence(
        source=source,
        sited=sited,
        calibration=calibration,
        baseline=ready.baseline,
        float_model=float_model,
        max_length=inputs.max_length,
        ranges=ranges.kind,
        limits=options,
        units_in_float=units,
        overflows=overflows,
    )
    measurable = [with_measurable_graph(each, graph, calibration, scratch) for each in written]
    measured = measure(measurable, evidence, benchmark=options.benchmark, progress=progress)
    notices = [*source.notices, *ranges.notices, *examples.notices, *inputs.notices]
    notices += [*_built_in_notice(options, ranges), *saturation_notices(overflows)]
    notices += [notice for each in written for notice in each.notices]
    report = make_report(options, evidence, ranges, inputs, measured, notices)
    manifest = quantization_json(
        options,
        source,
        calibration,
        written,
        examples,
        inputs.task_options,
        max_length=inputs.max_length,
        weights_sha256=ranges.weights_sha256(graph),
        stored_calibration=ranges.manifest(options),
    )
    write_folder(folder, source, calibration, manifest, report)
    write_bytes(folder / CARD, model_card(report, origin_of(source, options)).encode())
    return report


def make_report(
    options: QuantizeOptions,
    evidence: Evidence,
    ranges: RangeSource,
    inputs: Inputs,
    measured: Measurements,
    notices: Sequence[str],
) -> QuantizeReport:
    """Return the report of a call."""
    count = calibrated_texts(ranges, inputs)
    return QuantizeReport(
        directory=str(output_of(options)),
        checkpoint=options.model or DEMO_NAME,
        task=evidence.source.task,
        calibration_texts=count,
        calibration_lengths=calibration_lengths(ranges, inputs),
        heldout_texts=inputs.heldout.texts,
        float_metrics=evidence.baseline.metrics(evidence.baseline.predictions),
        float_size_bytes=size_bytes(evidence.float_model),
        targets=measured.reports,
        cpu=cpu_name(),
        cpu_features=cpu_features(),
        cores=usable_cores(),
        versions=versions(),
        command=command_line("quantize", options),
        warnings=(*_sample_warnings(ranges, count), *measured.warnings),
        notices=tuple(dict.fromkeys([*notices, *measured.notices])),
    )


def find_overflows(
    sited: SitedSource,
    batches: Sequence[Batch],
    calibration: Calibration,
    plans: Sequence[Plan],
    options: QuantizeOptions,
    progress: Progress,
) -> dict[str, tuple[Overflow, ...]]:
    """Return which layers would saturate on a CPU without VNNI, by name of the target.

    Targets whose weights are exact on all CPUs, and those for GPUs, are left out.
    """
    if options.weights_for != "vnni":
        return {}
    found: dict[str, tuple[Overflow, ...]] = {}
    for plan in plans:
        if target_named(plan.target.name).adjacent_sum_limit is None:
            # The target is not for CPUs.
            continue
        chosen = calibration.for_recipe(plan.recipe)
        check = SaturationCheck(
            plan.specs, chosen.ranges, sited.weights(), chosen.scales, chosen.weight_amax
        )
        with progress.stage(f"Checking {plan.target.name} for saturation"):
            sited.check_saturation(check, batches[:: max(1, len(batches) // 8)])
        found[plan.target.name] = tuple(check.overflows)
    return found


def saturation_notices(overflows: Mapping[str, Sequence[Overflow]]) -> list[str]:
    """Say for each target where it would saturate on CPUs without VNNI."""
    notices = []
    for target, layers in overflows.items():
        worst = ", ".join(f"{each.site} ({each.percent:.3f} %)" for each in layers[:3])
        where = (
            f"in {len(layers)} linear layers, most in {worst}"
            if layers
            else "in no linear layer on this data"
        )
        notices.append(
            f"The {target} graph is encoded for CPUs with VNNI. On other CPUs int8 sums would "
            f"saturate {where}. With `weights_for='any'`, weights are exact everywhere."
        )
    return notices


def calibrated_texts(ranges: RangeSource, inputs: Inputs) -> int:
    """Return the number of texts that the ranges were taken from."""
    if ranges.earlier is not None:
        return int(ranges.earlier.quantization["calibration"]["examples"])
    return inputs.calibration.texts if ranges.known is None else len(ranges.known)


def calibration_lengths(ranges: RangeSource, inputs: Inputs) -> TextLengths | None:
    """Return the lengths of the texts of a new calibration."""
    if ranges.kind != "calibrated":
        return None
    encoded = inputs.calibration.features.encoded
    return text_lengths(encoded.lengths, truncated=encoded.truncated)


def write_folder(
    folder: Path,
    source: ModelSource,
    calibration: Calibration,
    manifest: Mapping[str, Any],
    report: QuantizeReport,
) -> None:
    """Write everything but the graphs."""
    source.config.save_pretrained(folder)
    if source.generation_config is not None:
        # `save_pretrained` refuses settings with which transformers only warns when it generates.
        source.generation_config.to_json_file(folder / GENERATION)
    source.tokenizer.save_pretrained(folder)
    if source.head is not None:
        write_sentence_head(source.head, folder, hidden=source.config.hidden_size)
    write_ranges(calibration, folder / RANGES)
    write_json(folder / QUANTIZATION, manifest)
    write_json(folder / REPORT, json_ready(report))
    write_bytes(folder / REPORT_PAGE, quantize_page(report).encode())


def origin_of(source: ModelSource, options: QuantizeOptions) -> Origin:
    """Return where a model comes from, for its model card."""
    # The config and the tokenizer of an .onnx file come with the card of the model.
    folder = options.tokenizer or str(Path(source.name).parent) if options.is_onnx else source.name
    is_local = options.is_onnx or Path(source.name).exists()
    return Origin(
        hub_id=None if is_local else source.name,
        card=read_card_data(folder),
        model_type=source.model_type,
        is_sentence_transformer=source.head is not None,
        eval_data=options.eval_data,
    )


def _write_report(report: QuantizeReport, path: Path) -> None:
    try:
        if path.suffix.lower() == ".html":
            write_bytes(path, quantize_page(report).encode())
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


def _built_in_notice(options: QuantizeOptions, ranges: RangeSource) -> list[str]:
    is_built_in = options.calibration_data is None and options.model is not None
    if ranges.known is not None or not is_built_in:
        return []
    return [
        "Calibrated on built-in English sentences. Pass texts of your own as `calibration_data` "
        "for ranges that fit them."
    ]


def _sample_warnings(ranges: RangeSource, count: int) -> list[str]:
    if ranges.known is not None or count >= _FEWEST_CALIBRATED:
        return []
    texts = "1 text" if count == 1 else f"{count} texts"
    return [
        f"The ranges were taken from {texts} only. Pass at least 100 typical examples as "
        "`calibration_data`."
    ]
