"""Fill the folder that `quantize` writes: graphs, what is needed to use them, and the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx_ir as ir

from qdqbert.artifact import (
    GENERATION,
    MODEL,
    QUANTIZATION,
    RANGES,
    REPORT,
    Artifact,
    size_bytes,
)
from qdqbert.calibration.calibration import Calibration
from qdqbert.calibration.ranges_file import write_ranges
from qdqbert.checkpoint.demo import DEMO_NAME
from qdqbert.checkpoint.sentence import write_sentence_head
from qdqbert.evidence.reports import QuantizeReport, json_ready
from qdqbert.evidence.saturation import SaturationCheck
from qdqbert.files import write_json
from qdqbert.graph.check import save_graph
from qdqbert.graph.qdq import float_graph
from qdqbert.machine import cpu_features, cpu_name, usable_cores
from qdqbert.progress import Progress
from qdqbert.search.units import Unit
from qdqbert.targets import target_named
from qdqbert.targets.target import Plan, Target
from qdqbert.verbs.quantize.graphs import WrittenGraph, with_measurable_graph, write_graphs
from qdqbert.verbs.quantize.manifest import quantization_json
from qdqbert.verbs.quantize.measure import Evidence, Measurements, measure
from qdqbert.verbs.quantize.mixed_precision import meet_limits
from qdqbert.verbs.quantize.options import QuantizeOptions
from qdqbert.verbs.quantize.prepare import Inputs, Ready, prepare
from qdqbert.verbs.quantize.ranges import (
    RangeSource,
)
from qdqbert.verbs.quantize.source import ModelSource

# With fewer calibration examples than this, the report warns.
_FEWEST_CALIBRATED = 16


def output_of(options: QuantizeOptions) -> Path:
    """Return the output folder of a call."""
    return Path(options.output or f"qdqbert-{DEMO_NAME}")


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
    sited, calibration = ready.sited, ready.calibration
    plans, units = meet_limits(ready.plans, sited, calibration, ready.baseline, options, progress)
    saturation = check_saturation(ready, plans, options, progress)
    with progress.stage("Exporting the graph"):
        graph = sited.graph()
    longest = ready.source.max_length
    written = write_graphs(plans, graph, calibration, folder, longest, progress)
    left = {str(plan.target.name): found for plan, found in zip(plans, units, strict=True)}
    evidence = make_evidence(options, ready, graph, scratch, units_in_float=left)
    measurable = [with_measurable_graph(each, graph, calibration, scratch) for each in written]
    measured = measure(measurable, evidence, benchmark=options.benchmark, progress=progress)
    notices = [*saturation, *(notice for each in written for notice in each.notices)]
    report = make_report(options, ready, evidence, measured, notices)
    manifest = make_manifest(options, ready, written, ready.ranges.weights_sha256(graph))
    write_folder(folder, ready.source, calibration, manifest)
    write_report(folder, report)
    return report


def make_evidence(
    options: QuantizeOptions,
    ready: Ready,
    graph: ir.Model,
    scratch: Path,
    *,
    units_in_float: Mapping[str, Sequence[Unit]],
) -> Evidence:
    """Write the float graph, and return what graphs are compared with.

    Args:
        options: Options of the call.
        ready: The calibrated model.
        graph: Its float graph with a node at every site.
        scratch: Folder for the float graph.
        units_in_float: See `Evidence`.
    """
    float_model = scratch / MODEL
    save_graph(float_graph(graph), float_model, temporary=True)
    return Evidence(
        source=ready.source,
        sited=ready.sited,
        calibration=ready.calibration,
        baseline=ready.baseline,
        float_model=float_model,
        max_length=ready.inputs.max_length,
        ranges=ready.ranges.kind,
        limits=options,
        units_in_float=units_in_float,
    )


def make_manifest(
    options: QuantizeOptions,
    ready: Ready,
    written: Sequence[WrittenGraph],
    weights_sha256: str,
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
        weights_sha256=weights_sha256,
        stored_calibration=ready.ranges.manifest(options),
        choice=choice,
    )


def make_report(
    options: QuantizeOptions,
    ready: Ready,
    evidence: Evidence,
    measured: Measurements,
    notices: Sequence[str],
) -> QuantizeReport:
    """Return the report of a call."""
    source, ranges, inputs = ready.source, ready.ranges, ready.inputs
    count = calibrated_texts(ranges, inputs)
    first = [*source.notices, *ranges.notices, *ready.examples.notices, *inputs.notices]
    first += _built_in_notice(options, ranges)
    return QuantizeReport(
        directory=str(output_of(options)),
        checkpoint=options.model or DEMO_NAME,
        task=source.task,
        calibration_texts=count,
        heldout_texts=inputs.heldout.texts,
        float_size_bytes=size_bytes(evidence.float_model),
        targets=measured.reports,
        cpu=cpu_name(),
        cpu_features=cpu_features(),
        cores=usable_cores(),
        warnings=(*_sample_warnings(ranges, count), *measured.warnings),
        notices=tuple(dict.fromkeys([*first, *notices, *measured.notices])),
    )


def check_saturation(
    ready: Ready, plans: Sequence[Plan], options: QuantizeOptions, progress: Progress
) -> list[str]:
    """Report which layers would saturate on a CPU without VNNI, if weights use all 8 bits."""
    if options.weights_for != "vnni":
        return []
    notices = []
    batches = ready.inputs.calibration.batches
    for plan in plans:
        if target_named(plan.target.name).adjacent_sum_limit is None:
            # The target is not for CPUs.
            continue
        chosen = ready.calibration.for_recipe(plan.recipe)
        check = SaturationCheck(
            plan.specs, chosen.ranges, ready.sited.weights(), chosen.scales, chosen.weight_amax
        )
        with progress.stage(f"Checking {plan.target.name} for saturation"):
            ready.sited.check_saturation(check, batches[:: max(1, len(batches) // 8)])
        worst = ", ".join(f"{each.site} ({each.percent:.3f} %)" for each in check.overflows[:3])
        found = (
            f"in {len(check.overflows)} linear layers, most in {worst}"
            if check.overflows
            else "in no linear layer on this data"
        )
        notices.append(
            f"The {plan.target.name} graph is encoded for CPUs with VNNI. On other CPUs int8 sums "
            f"would saturate {found}. With `weights_for='any'`, weights are exact everywhere."
        )
    return notices


def calibrated_texts(ranges: RangeSource, inputs: Inputs) -> int:
    """Return the number of texts that the ranges were taken from."""
    if ranges.earlier is not None:
        return int(ranges.earlier.quantization["calibration"]["examples"])
    return inputs.calibration.texts if ranges.known is None else len(ranges.known)


def write_folder(
    folder: Path,
    source: ModelSource,
    calibration: Calibration,
    manifest: Mapping[str, Any],
) -> None:
    """Write everything but the graphs and the report."""
    source.config.save_pretrained(folder)
    if source.generation_config is not None:
        # `save_pretrained` refuses settings with which transformers only warns when it generates.
        source.generation_config.to_json_file(folder / GENERATION)
    source.tokenizer.save_pretrained(folder)
    if source.head is not None:
        write_sentence_head(source.head, folder, hidden=source.config.hidden_size)
    write_ranges(calibration, folder / RANGES)
    write_json(folder / QUANTIZATION, manifest)


def write_report(folder: Path, report: QuantizeReport) -> None:
    """Write the report of a call to its folder."""
    write_json(folder / REPORT, json_ready(report))


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
