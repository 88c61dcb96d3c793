"""Content of `quantization.json`: how the graphs of a folder were made."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from qdqbert.calibration.calibration import CalibrationResult
from qdqbert.data.rows.data import digest_examples, fingerprint
from qdqbert.encoders.task_kinds import TASK_KINDS
from qdqbert.graphs.targets.target import Plan
from qdqbert.pipeline.graphs import WrittenGraph
from qdqbert.pipeline.prepare import Ready
from qdqbert.pipeline.versions import versions
from qdqbert.quantization.numerics.affine import parameters_of
from qdqbert.runtime.artifact import QUANTIZATION_FORMAT


def quantization_json(
    ready: Ready, written: Sequence[WrittenGraph], command: str, choice: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return the content of `quantization.json`.

    `choice` is the engine that was chosen, and its CPU; `None` if all targets of the call were
    written.
    """
    source, calibration, scheme = ready.source, ready.calibration, ready.scheme
    kind = TASK_KINDS[source.task.name]
    unsmoothed = calibration.without_smoothing
    return {
        "format": QUANTIZATION_FORMAT,
        "command": command,
        "seed": ready.data.seed,
        "checkpoint": {
            "name": source.model.shown,
            "task": source.task.name,
            "model_type": source.model_type,
            "parameters_sha256": ready.sited.parameters_sha256,
            "sentence_head": source.head and dataclasses.asdict(source.head),
            "placement": None if source.stored is None else source.stored.recipe,
        },
        "max_length": ready.inputs.max_length,
        "inputs": list(source.input_names),
        "outputs": list(source.output_names),
        **({"classes": len(source.config.id2label)} if kind.counts_classes else {}),
        "embeddings": scheme.quantizers.embeddings,
        "quantizer_options": scheme.quantizer_options.to_dict(),
        "task_options": dataclasses.asdict(ready.inputs.task_options),
        **_inputs_json(ready),
        "calibration": _calibration_json(ready),
        "targets": {each.plan.target.name: _target_json(each, calibration) for each in written},
        **({} if choice is None else {"choice": choice}),
        "ranges": _ranges_json(calibration),
        "pre_quant_scales": sorted(calibration.scales),
        **({} if unsmoothed is None else {"plain_ranges": _ranges_json(unsmoothed)}),
        **(
            {}
            if ready.embedding_ranges is None
            else {"embedding_ranges": ready.embedding_ranges.to_json()}
        ),
        "versions": versions(),
    }


def _inputs_json(ready: Ready) -> dict[str, Any]:
    """Return facts about the inputs of the model that the examples show, and its config does not.

    For a model that answers questions, it is whether "no answer" is a possible answer. For a
    classifier, it is whether it takes pairs of texts. Built-in sentences do not say it.
    """
    examples, earlier = ready.examples, ready.ranges.earlier
    if ready.source.task.name == "question-answering":
        found = (*examples.calibration, *examples.heldout)
        return {"unanswerable": any(example.is_impossible for example in found)}
    takes_pairs = examples.takes_pairs
    if takes_pairs is None and earlier is not None:
        takes_pairs = earlier.takes_pairs
    if ready.source.task.name != "text-classification" or takes_pairs is None:
        return {}
    return {"takes_pairs": takes_pairs}


def _ranges_json(calibration: CalibrationResult) -> dict[str, Any]:
    return {name: dataclasses.asdict(chosen) for name, chosen in calibration.ranges.items()}


def _calibration_json(ready: Ready) -> dict[str, Any]:
    """Say what the ranges were taken from."""
    ranges, examples = ready.ranges, ready.examples.calibration
    if ranges.earlier is not None:
        given = str(ready.scheme.calibration.ranges_from)
        return {**ranges.earlier.calibration, "ranges_from": given}
    if ranges.kind == "stored":
        known = list(ranges.known or ())
        return {"calibrator": "stored", "examples": len(known), "fingerprints": known}
    options = ready.scheme.quantizer_options
    return {
        "calibrator": options.calibrator,
        "percentile": options.percentile,
        "data": ready.data.name,
        "examples": len(examples),
        "examples_sha256": digest_examples(examples),
        "fingerprints": sorted({fingerprint(example) for example in examples}),
    }


def _target_json(written: WrittenGraph, calibration: CalibrationResult) -> dict[str, Any]:
    target, recipe = written.plan.target, written.plan.recipe
    return {
        "model": written.name,
        "engines": list(target.engines),
        "is_proxy": target.is_proxy,
        "recipe": {
            "name": recipe.name,
            "rules": [
                {"site": each.site, "spec": each.spec and dataclasses.asdict(each.spec)}
                for each in recipe.rules
            ],
            "smoothing": recipe.smoothing and dataclasses.asdict(recipe.smoothing),
        },
        "style": dataclasses.asdict(target.style),
        "sites": _sites_json(written.plan, calibration),
    }


def _sites_json(plan: Plan, calibration: CalibrationResult) -> dict[str, Any]:
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
