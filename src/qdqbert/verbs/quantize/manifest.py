"""Content of `quantization.json`: how the graphs of a folder were made."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from qdqbert.artifact import QUANTIZATION_FORMAT
from qdqbert.checkpoint.demo import DEMO_NAME
from qdqbert.numerics.affine import parameters_of
from qdqbert.options import command_line
from qdqbert.tasks.data import digest_examples, fingerprint
from qdqbert.verbs.quantize.options import QuantizeOptions
from qdqbert.verbs.quantize.ranges import effective_quantizer_options
from qdqbert.verbs.versions import versions

if TYPE_CHECKING:
    from qdqbert.calibration.calibration import CalibrationResult
    from qdqbert.targets.target import Plan
    from qdqbert.task_kinds import TaskSettings
    from qdqbert.verbs.quantize.examples import ChosenExamples
    from qdqbert.verbs.quantize.graphs import WrittenGraph
    from qdqbert.verbs.quantize.source import ModelSource


def quantization_json(
    options: QuantizeOptions,
    source: ModelSource,
    calibration: CalibrationResult,
    written: Sequence[WrittenGraph],
    examples: ChosenExamples,
    task_options: TaskSettings,
    *,
    max_length: int,
    parameters_sha256: str,
    stored_calibration: Mapping[str, Any] | None,
    earlier: Mapping[str, Any],
    choice: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the content of `quantization.json`.

    Args:
        options: Options of the call.
        source: The float model.
        calibration: Ranges of the call.
        written: One graph for each target.
        examples: Examples of the call.
        task_options: Settings of the task.
        max_length: Longest input in tokens.
        parameters_sha256: See `graphs.digest_parameters`.
        stored_calibration: Where the ranges came from, if not from `examples`.
        earlier: Content of the file in the folder whose ranges are used; empty if there is none.
        choice: Engine that was chosen, and the CPU that it was chosen on. `None` if all targets of
            the call were written.
    """
    unsmoothed = calibration.without_smoothing
    return {
        "format": QUANTIZATION_FORMAT,
        "command": command_line("quantize", options),
        "seed": options.calibration.seed,
        "checkpoint": {
            "name": str(options.model or DEMO_NAME),
            "task": source.task,
            "model_type": source.model_type,
            "parameters_sha256": parameters_sha256,
            "sentence_head": source.head and dataclasses.asdict(source.head),
            "placement": None if source.stored is None else source.stored.recipe,
        },
        "max_length": max_length,
        "inputs": list(source.input_names),
        "outputs": list(source.output_names),
        "embeddings": options.quantizers.embeddings,
        "quantizer_options": effective_quantizer_options(options).to_dict(),
        "task_options": dataclasses.asdict(task_options),
        **_inputs_json(source, examples, earlier),
        "calibration": stored_calibration or _calibration_json(options, examples.calibration),
        "targets": {
            each.plan.target.name: {
                "model": each.name,
                "engines": list(each.plan.target.engines),
                "is_proxy": each.plan.target.is_proxy,
                "recipe": _recipe_json(each.plan),
                "rewrites": list(each.plan.target.rewrites),
                "sites": _sites_json(each.plan, calibration),
            }
            for each in written
        },
        **({} if choice is None else {"choice": choice}),
        "ranges": _ranges_json(calibration),
        "pre_quant_scales": sorted(calibration.scales),
        **({} if unsmoothed is None else {"plain_ranges": _ranges_json(unsmoothed)}),
        "versions": versions(),
    }


def _inputs_json(
    source: ModelSource, examples: ChosenExamples, earlier: Mapping[str, Any]
) -> dict[str, Any]:
    """Return facts about the inputs of the model that the examples show, and its config does not.

    For a model that answers questions, it is whether "no answer" is a possible answer. For a
    classifier, it is whether it takes pairs of texts. Built-in sentences do not say it.
    """
    if source.task == "question-answering":
        found = (*examples.calibration, *examples.heldout)
        return {"unanswerable": any(example.is_impossible for example in found)}
    takes_pairs = examples.takes_pairs
    if takes_pairs is None:
        takes_pairs = earlier.get("takes_pairs")
    if source.task != "text-classification" or takes_pairs is None:
        return {}
    return {"takes_pairs": takes_pairs}


def _ranges_json(calibration: CalibrationResult) -> dict[str, Any]:
    return {name: dataclasses.asdict(chosen) for name, chosen in calibration.ranges.items()}


def _calibration_json(options: QuantizeOptions, examples: Sequence[Any]) -> dict[str, Any]:
    quantizer_options = effective_quantizer_options(options)
    return {
        "calibrator": quantizer_options.calibrator,
        "percentile": quantizer_options.percentile,
        "data": str(options.calibration_data or "built-in"),
        "examples": len(examples),
        "examples_sha256": digest_examples(examples),
        "fingerprints": sorted({fingerprint(example) for example in examples}),
    }


def _recipe_json(plan: Plan) -> Mapping[str, Any]:
    recipe = plan.recipe
    return {
        "name": recipe.name,
        "rules": [
            {
                "site": rule.site,
                "spec": None if rule.spec is None else dataclasses.asdict(rule.spec),
            }
            for rule in recipe.rules
        ],
        "smoothing": recipe.smoothing and dataclasses.asdict(recipe.smoothing),
    }


def _sites_json(plan: Plan, calibration: CalibrationResult) -> Mapping[str, Any]:
    """Describe each quantized site. Scales of weights are in the graph."""
    sites: dict[str, Any] = {}
    ranges = calibration.for_recipe(plan.recipe).ranges
    for name, spec in plan.specs.items():
        if spec is None:
            continue
        sites[name] = {"spec": str(spec)}
        if name in ranges and not spec.dynamic:
            parameters = parameters_of(ranges[name], spec)
            sites[name] |= {
                "scale": float(parameters.scale),
                "zero_point": int(parameters.zero_point),
            }
    return sites
