"""Fill the folder that `quantize` writes: graphs, what is needed to use them, and the report."""

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx_ir as ir

from qdqbert.artifact import (
    MODEL,
    QUANTIZATION,
    RANGES,
    REPORT,
    REPORT_PAGE,
    VERIFICATION,
    Artifact,
    size_bytes,
)
from qdqbert.calibration.calibration import CalibrationResult
from qdqbert.calibration.ranges_file import write_ranges
from qdqbert.checkpoint.card import CARD, read_card_data
from qdqbert.checkpoint.cross_encoder import write_cross_encoder
from qdqbert.checkpoint.demo import DEMO_NAME
from qdqbert.checkpoint.sentence import write_sentence_head
from qdqbert.checkpoint.tokenizer import write_tokenizer
from qdqbert.evidence.lengths import TextLengths, text_lengths
from qdqbert.evidence.saturation import Overflow, SaturationCheck
from qdqbert.evidence.verification import VerificationRow, write_rows
from qdqbert.files import write_bytes, write_json
from qdqbert.graph.check import save_graph
from qdqbert.graph.qdq import float_graph
from qdqbert.machine import cpu_features, cpu_name, release_memory, usable_cores
from qdqbert.options import command_line
from qdqbert.progress import Progress
from qdqbert.reporting.model_card import Origin, example_call, model_card
from qdqbert.reporting.page import page
from qdqbert.reporting.quantize import QuantizeReport
from qdqbert.reporting.report import json_ready
from qdqbert.search.units import Unit
from qdqbert.targets import target_named
from qdqbert.targets.target import Plan
from qdqbert.verbs.quantize.graphs import WrittenGraph, with_measurable_graph, write_graphs
from qdqbert.verbs.quantize.manifest import quantization_json
from qdqbert.verbs.quantize.measure import Evidence, Measurements, measure, without_missed
from qdqbert.verbs.quantize.mixed_precision import meet_limits
from qdqbert.verbs.quantize.options import QuantizeOptions
from qdqbert.verbs.quantize.prepare import (
    Inputs,
    Ready,
    choose_targets,
    open_source,
    prepare,
)
from qdqbert.verbs.quantize.ranges import RangeSource
from qdqbert.verbs.quantize.source import ModelSource
from qdqbert.verbs.quantize.verification import make_rows
from qdqbert.verbs.versions import versions

# With fewer calibration examples than this, the report warns.
_FEWEST_CALIBRATED = 16


def fill_folder(
    options: QuantizeOptions,
    earlier: Artifact | None,
    folder: Path,
    scratch: Path,
    progress: Progress,
) -> QuantizeReport:
    """Quantize and measure a model, and fill the output folder.

    Args:
        options: Options of the call.
        earlier: Folder whose ranges are used, if there is one.
        folder: Folder to fill.
        scratch: Folder for temporary files.
        progress: Receives the stages.
    """
    source = open_source(options, scratch, progress)
    targets = choose_targets(options, source.task)
    ready = prepare(source, options, targets, earlier, progress, leaves_out=not options.targets)
    sited, calibration = ready.sited, ready.calibration
    plans, units = meet_limits(
        ready.plans, sited, calibration, ready.baseline, options.limits, progress
    )
    overflows = find_overflows(ready, plans, options, progress)
    with progress.stage("Writing the graph"):
        graph = sited.graph
    written = write_graphs(plans, sited, calibration, folder, progress)
    left = {str(plan.target.name): found for plan, found in zip(plans, units, strict=True)}
    evidence = make_evidence(
        options, ready, graph, scratch, units_in_float=left, overflows=overflows
    )
    gc.collect()
    release_memory()
    measurable = [with_measurable_graph(each, graph, calibration, scratch) for each in written]
    measured = measure(measurable, evidence, benchmark=options.benchmark, progress=progress)
    if not options.targets:
        written, measured = without_missed(written, measured, ready.ranges.kind)
    left_out = [f"Target {name} is left out. {why}" for name, why in ready.refused.items()]
    report = make_report(options, ready, evidence, measured, left_out)
    manifest = make_manifest(options, ready, written, ready.ranges.parameters_sha256(graph))
    write_folder(folder, ready.source, calibration, manifest)
    write_report(folder, report, origin_of(ready, options), evidence.rows)
    return report


def make_evidence(
    options: QuantizeOptions,
    ready: Ready,
    graph: ir.Model,
    scratch: Path,
    *,
    units_in_float: Mapping[str, Sequence[Unit]],
    overflows: Mapping[str, tuple[Overflow, ...]],
) -> Evidence:
    """Write the float graph, and return what graphs are compared with.

    Args:
        options: Options of the call.
        ready: The calibrated model.
        graph: Its float graph with a node at every site.
        scratch: Folder for the float graph.
        units_in_float: See `Evidence`.
        overflows: See `Evidence`.
    """
    float_model = scratch / MODEL
    save_graph(float_graph(graph), float_model, temporary=True)
    return Evidence(
        source=ready.source,
        sited=ready.sited,
        calibration=ready.calibration,
        baseline=ready.baseline,
        float_model=float_model,
        tokenizer=ready.inputs.tokenizer,
        max_length=ready.inputs.max_length,
        ranges=ready.ranges.kind,
        limits=options.limits,
        units_in_float=units_in_float,
        overflows=overflows,
        rows=make_rows(ready, float_model, options.verification_data),
    )


def make_manifest(
    options: QuantizeOptions,
    ready: Ready,
    written: Sequence[WrittenGraph],
    parameters_sha256: str,
    choice: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the content of `quantization.json`; see `quantization_json`."""
    return quantization_json(
        options,
        ready.source,
        ready.calibration,
        written,
        ready.examples,
        ready.inputs.task_options,
        max_length=ready.inputs.max_length,
        parameters_sha256=parameters_sha256,
        stored_calibration=ready.ranges.manifest(options),
        earlier={} if ready.ranges.earlier is None else ready.ranges.earlier.quantization,
        choice=choice,
    )


def make_report(
    options: QuantizeOptions,
    ready: Ready,
    evidence: Evidence,
    measured: Measurements,
    notices: Sequence[str] = (),
) -> QuantizeReport:
    """Return the report of a call."""
    source, ranges, inputs = ready.source, ready.ranges, ready.inputs
    count = calibrated_texts(ranges, inputs)
    first = [*source.notices, *ranges.notices, *ready.examples.notices, *inputs.notices]
    # The target `auto` measures only some of its candidates.
    measured_targets = {each.target for each in measured.reports}
    overflows = {
        target: found for target, found in evidence.overflows.items() if target in measured_targets
    }
    first += saturation_notices(overflows)
    return QuantizeReport(
        directory=str(options.output_folder),
        checkpoint=str(options.model or DEMO_NAME),
        task=source.task,
        calibration_texts=count,
        calibration_lengths=calibration_lengths(ranges, inputs),
        heldout_texts=inputs.heldout.texts,
        float_metrics=evidence.baseline.metrics,
        float_size_bytes=size_bytes(evidence.float_model),
        targets=measured.reports,
        cpu=cpu_name(),
        cpu_features=cpu_features(),
        cores=usable_cores(),
        versions=versions(),
        command=command_line("quantize", options),
        warnings=(*_sample_warnings(ranges, count), *measured.warnings),
        notices=tuple(dict.fromkeys([*first, *notices, *measured.notices])),
        call=example_call(source.task, origin_of(ready, options)),
    )


def find_overflows(
    ready: Ready, plans: Sequence[Plan], options: QuantizeOptions, progress: Progress
) -> dict[str, tuple[Overflow, ...]]:
    """Return which layers would saturate on a CPU without VNNI, by name of the target.

    Targets whose weights are exact on all CPUs, and those for GPUs, are left out.
    """
    if options.quantizers.weights_for != "vnni":
        return {}
    found: dict[str, tuple[Overflow, ...]] = {}
    batches = ready.inputs.calibration.batches
    for plan in plans:
        if target_named(plan.target.name).adjacent_sum_limit is None:
            # The target is not for CPUs.
            continue
        chosen = ready.calibration.for_recipe(plan.recipe)
        check = SaturationCheck(
            plan.specs,
            chosen.ranges,
            ready.sited.weights(),
            chosen.scales,
            chosen.weight_amax,
            chosen.roundings,
        )
        with progress.stage(f"Checking {plan.target.name} for saturation"):
            ready.sited.check_saturation(check, batches[:: max(1, len(batches) // 8)])
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
    calibration: CalibrationResult,
    manifest: Mapping[str, Any],
) -> None:
    """Write everything but the graphs and the report."""
    source.config.save_pretrained(folder)
    write_tokenizer(source.tokenizer, folder, max_length=manifest["max_length"])
    if source.head is not None:
        write_sentence_head(source.head, folder, hidden=source.config.hidden_size)
    if source.cross_encoder is not None:
        write_cross_encoder(source.cross_encoder, folder)
    write_ranges(calibration, folder / RANGES)
    write_json(folder / QUANTIZATION, manifest)


def write_report(
    folder: Path, report: QuantizeReport, origin: Origin, rows: Sequence[VerificationRow]
) -> None:
    """Write the report of a call to its folder, as JSON, as a page, and as a model card.

    Args:
        folder: The folder.
        report: The report.
        origin: Where the model comes from.
        rows: Rows that `verify` runs again.
    """
    if rows:
        write_rows(rows, folder / VERIFICATION)
    write_json(folder / REPORT, json_ready(report))
    write_bytes(folder / REPORT_PAGE, page(report).encode())
    write_bytes(folder / CARD, model_card(report, origin).encode())


def origin_of(ready: Ready, options: QuantizeOptions) -> Origin:
    """Return where a model comes from, for its model card."""
    source = ready.source
    # The config and the tokenizer of an .onnx file come with the card of the model.
    folder = (
        options.onnx.tokenizer or str(Path(source.name).parent) if options.is_onnx else source.name
    )
    is_local = options.is_onnx or Path(source.name).exists()
    return Origin(
        hub_id=None if is_local else source.name,
        card=read_card_data(folder),
        model_type=source.model_type,
        is_sentence_transformer=source.head is not None,
        eval_data=ready.examples.labeled_data,
        labels=tuple(name for _, name in sorted(source.config.id2label.items())),
        takes_pairs=bool(ready.examples.takes_pairs),
        mask_token=source.tokenizer.mask_token,
    )


def _sample_warnings(ranges: RangeSource, count: int) -> list[str]:
    if ranges.known is not None or count >= _FEWEST_CALIBRATED:
        return []
    texts = "1 text" if count == 1 else f"{count} texts"
    return [
        f"The ranges were taken from {texts} only. Pass at least 100 typical examples as "
        "`calibration_data`."
    ]
