"""Quantize a float model and measure the result."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import Any

import numpy as np

from qdqbert.artifact import (
    GENERATION,
    MODEL,
    QUANTIZATION,
    RANGES,
    REPORT,
    is_artifact,
    read_training,
    size_bytes,
    writing,
)
from qdqbert.calibration.calibration import Calibration
from qdqbert.calibration.ranges_file import write_ranges
from qdqbert.checkpoint.demo import DEMO_NAME, demo_checkpoint
from qdqbert.checkpoint.sentence import write_sentence_head
from qdqbert.encoding import Batch
from qdqbert.errors import CheckpointError, UserInputError, naming
from qdqbert.evidence.reports import QuantizeReport, json_ready
from qdqbert.evidence.saturation import SaturationCheck
from qdqbert.files import write_json
from qdqbert.graph.check import save_graph
from qdqbert.graph.qdq import float_graph
from qdqbert.machine import cpu_features, cpu_name, usable_cores
from qdqbert.models.loading import load_model
from qdqbert.progress import Progress
from qdqbert.recipes import build_recipe
from qdqbert.spec import Site, SiteGroup
from qdqbert.targets import target_named
from qdqbert.targets.files import check_model, limits_models
from qdqbert.targets.target import Plan, Target, make_plan
from qdqbert.tasks import task_for
from qdqbert.tasks.task import Predictions, TaskOptions
from qdqbert.verbs.inference import EncodedExamples, encode_examples, predict
from qdqbert.verbs.quantize.examples import ChosenExamples, choose_examples
from qdqbert.verbs.quantize.graphs import with_measurable_graph, write_graphs
from qdqbert.verbs.quantize.manifest import quantization_json
from qdqbert.verbs.quantize.measure import Evidence, Measurements, measure
from qdqbert.verbs.quantize.options import QuantizeOptions
from qdqbert.verbs.quantize.ranges import (
    RangeSource,
    choose_range_source,
    effective_quantizer_options,
    find_calibration,
    open_earlier,
)
from qdqbert.verbs.quantize.source import ModelSource, SitedSource
from qdqbert.verbs.quantize.source.checkpoint import CheckpointSource
from qdqbert.verbs.quantize.source.onnx import OnnxSource
from qdqbert.verbs.settings import input_length, task_options_of

# With fewer calibration examples than this, the report warns.
_FEWEST_CALIBRATED = 16


@dataclasses.dataclass(frozen=True, kw_only=True)
class Inputs:
    """Examples of a call as inputs of the model.

    Attributes:
        calibration: Examples that ranges are taken from. If nothing is calibrated, the held-out
            ones.
        heldout: Other examples, to compare INT8 with float on.
        max_length: Longest input in tokens.
        task_options: Settings of the task.
        notices: Messages for the user.
    """

    calibration: EncodedExamples
    heldout: EncodedExamples
    max_length: int
    task_options: TaskOptions
    notices: tuple[str, ...]


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
    output = Path(options.output or f"qdqbert-{DEMO_NAME}")
    # The demo replaces its own folder, but not one that was named without a model.
    overwrite = options.overwrite or (options.model is None and options.output is None)
    # Temporary graphs lie in the partial folder, which the next call removes if this one is killed.
    with (
        writing(output, overwrite=overwrite) as folder,
        tempfile.TemporaryDirectory(dir=folder) as scratch,
    ):
        source = open_source(options, Path(scratch), progress)
        ranges = choose_range_source(source, options, earlier)
        examples = choose_examples(
            task_for(source.task, source.config), options, known=ranges.known
        )
        groups = site_groups(options, targets)
        plans = make_plans(source, source.sites(groups), targets, options)
        inputs = encode_inputs(source, examples, options)
        float_predictions = run_float(source, inputs.heldout, progress)
        sited = open_sites(source, groups, targets, progress)
        batches = inputs.calibration.batches
        calibration = find_calibration(ranges, source, sited, batches, plans, options, progress)
        check_finite(source, float_predictions)
        saturation = check_saturation(sited, batches, calibration, plans, options, progress)
        with progress.stage("Exporting the graph"):
            graph = sited.graph()
        written = write_graphs(plans, graph, calibration, folder, source.max_length, progress)
        float_model = Path(scratch) / MODEL
        save_graph(float_graph(graph), float_model, temporary=True)
        evidence = Evidence(
            source=source,
            sited=sited,
            calibration=calibration,
            heldout=inputs.heldout,
            float_predictions=float_predictions,
            float_model=float_model,
            max_length=inputs.max_length,
            options=inputs.task_options,
            ranges=ranges.kind,
        )
        measurable = [with_measurable_graph(each, graph, calibration, scratch) for each in written]
        measured = measure(measurable, evidence, benchmark=options.benchmark, progress=progress)
        notices = [*source.notices, *ranges.notices, *examples.notices, *inputs.notices]
        notices += [*_built_in_notice(options, ranges), *saturation]
        notices += [notice for each in written for notice in each.notices]
        report = make_report(options, output, evidence, ranges, inputs, measured, notices)
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
    return report


def make_report(
    options: QuantizeOptions,
    output: Path,
    evidence: Evidence,
    ranges: RangeSource,
    inputs: Inputs,
    measured: Measurements,
    notices: Sequence[str],
) -> QuantizeReport:
    """Return the report of a call."""
    count = calibrated_texts(ranges, inputs)
    return QuantizeReport(
        directory=str(output),
        checkpoint=options.model or DEMO_NAME,
        task=evidence.source.task,
        calibration_texts=count,
        heldout_texts=inputs.heldout.texts,
        float_size_bytes=size_bytes(evidence.float_model),
        targets=measured.reports,
        cpu=cpu_name(),
        cpu_features=cpu_features(),
        cores=usable_cores(),
        warnings=(*_sample_warnings(ranges, count), *measured.warnings),
        notices=tuple(dict.fromkeys([*notices, *measured.notices])),
    )


def choose_targets(options: QuantizeOptions) -> list[Target]:
    """Return the targets of a call, as they are for the CPUs that weights are encoded for."""
    default = ("onnxruntime", "openvino", "native") if options.model is None else ("portable",)
    targets = [target_named(name) for name in dict.fromkeys(options.targets or default)]
    if options.weights_for == "vnni":
        return [dataclasses.replace(target, adjacent_sum_limit=None) for target in targets]
    return targets


def open_source(options: QuantizeOptions, scratch: Path, progress: Progress) -> ModelSource:
    """Load the checkpoint, or read the .onnx file.

    Raises:
        UserInputError: It cannot be used.
    """
    if options.is_onnx:
        with progress.stage("Reading the graph"), naming("model"):
            source: ModelSource = OnnxSource(
                Path(options.model or ""),
                task=options.task,
                tokenizer=options.tokenizer,
                input_names=options.input_names or {},
                output_names=options.output_names or {},
                scratch=scratch,
            )
    else:
        with progress.stage("Loading the checkpoint"), naming("model"):
            name = str(demo_checkpoint()) if options.model is None else options.model
            source = CheckpointSource(load_model(name, task=options.task, pooling=options.pooling))
    check_tokenizer(source)
    return source


def check_tokenizer(source: ModelSource) -> None:
    """Refuse a tokenizer that cannot be stored in `tokenizer.json`, which running the folder needs.

    transformers converts most tokenizers that have only a vocabulary. Others run Python code.

    Raises:
        CheckpointError: It is one of these.
    """
    if not getattr(source.tokenizer, "is_fast", False):
        raise CheckpointError(
            f"The tokenizer of {source.name!r}, {type(source.tokenizer).__name__}, exists only in "
            "Python, and cannot be written to tokenizer.json. Save the checkpoint with a fast "
            "tokenizer."
        )


def encode_inputs(
    source: ModelSource, examples: ChosenExamples, options: QuantizeOptions
) -> Inputs:
    """Tokenize the examples of a call, at the length and with the settings that apply."""
    trained = read_training(Path(options.model)) if options.model is not None else {}
    task = task_for(source.task, source.config)
    max_length, notices = input_length(
        options.max_length, trained.get("max_length") or task.max_length, source.max_length
    )
    task_options = task_options_of(options, trained.get("task_options", {}))

    def encoded(chosen: Sequence[Any], what: str) -> EncodedExamples:
        result = encode_examples(
            task,
            source.tokenizer,
            chosen,
            input_names=source.input_names,
            max_length=max_length,
            batch_size=options.batch_size,
            options=task_options,
        )
        notices.extend(f"In the {what} data: {notice}" for notice in result.features.notices)
        return result

    heldout = encoded(examples.heldout, "held-out")
    used = examples.calibration
    return Inputs(
        calibration=encoded(used, "calibration") if used else heldout,
        heldout=heldout,
        max_length=max_length,
        task_options=task_options,
        notices=tuple(notices),
    )


def run_float(source: ModelSource, heldout: EncodedExamples, progress: Progress) -> Predictions:
    """Return the predictions of the float model."""
    with progress.stage("Running the float model", len(heldout.batches)) as advance:
        return predict(task_for(source.task, source.config), source.runner(), heldout, advance)


def site_groups(options: QuantizeOptions, targets: Sequence[Target]) -> set[SiteGroup]:
    """Return the groups of sites that the recipes of a call place."""
    names = {options.recipe or target.recipe for target in targets}
    return {group for name in names for group in build_recipe(name).groups}


def make_plans(
    source: ModelSource,
    sites: Sequence[Site],
    targets: Sequence[Target],
    options: QuantizeOptions,
) -> list[Plan]:
    """Resolve the recipe of each target on the sites of the model.

    Raises:
        UserInputError: A target cannot run the recipe.
        UnmatchedRuleError: A rule of a recipe or a pattern matches no site.
    """
    changes = options.quantizer_changes()
    stored = source.stored
    return [
        make_plan(
            target,
            sites,
            recipe=options.recipe,
            embeddings=options.embeddings,
            # Without changes, quantizers of a checkpoint keep their own bits.
            quantizer_options=effective_quantizer_options(options) if changes else None,
            stored=None if stored is None else stored.specs,
            placed_by=None if stored is None else stored.recipe,
            dedicated_pairs=options.dedicated_qdq_pairs,
        )
        for target in targets
    ]


def open_sites(
    source: ModelSource, groups: Set[SiteGroup], targets: Sequence[Target], progress: Progress
) -> SitedSource:
    """Return the model with its sites, if all targets run it.

    Raises:
        UserInputError: A target does not run the model, which only its graph shows.
    """
    sited = source.with_sites(groups)
    limited = [target for target in targets if limits_models(target)]
    if limited:
        with progress.stage("Exporting the graph"):
            graph = sited.graph()
        for target in limited:
            check_model(target, graph, source.max_length)
    return sited


def check_finite(source: ModelSource, predictions: Predictions) -> None:
    """Refuse a float model whose outputs are not finite.

    Calibration looks at quantized sites only, and so does not see a head that stays in float.

    Raises:
        CheckpointError: There is a NaN or infinite value.
    """
    if not all(np.isfinite(prediction).all() for prediction in predictions):
        raise CheckpointError(
            f"The float model {source.name!r} returns NaN or infinite values. Check its weights."
        )


def check_saturation(
    sited: SitedSource,
    batches: Sequence[Batch],
    calibration: Calibration,
    plans: Sequence[Plan],
    options: QuantizeOptions,
    progress: Progress,
) -> list[str]:
    """Report which layers would saturate on a CPU without VNNI, if weights use all 8 bits."""
    if options.weights_for != "vnni":
        return []
    notices = []
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
