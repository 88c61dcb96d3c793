"""`quantization.json`: how a graph was made, in full."""

from __future__ import annotations

import dataclasses
import hashlib
import platform
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import onnx_ir as ir

from qdqbert.artifact import read_training
from qdqbert.calibration.calibration import Calibration
from qdqbert.checkpoint.demo import DEMO_NAME
from qdqbert.models.configuration import recipe_of
from qdqbert.numerics.affine import parameters_of
from qdqbert.targets.target import Plan
from qdqbert.tasks.data import digest_examples, fingerprint
from qdqbert.verbs.doors import Door
from qdqbert.verbs.options import QuantizeOptions

_VERSIONED = (
    *("qdqbert", "torch", "transformers", "accelerate"),
    *("onnx", "onnx-ir", "onnxruntime", "openvino"),
)


def quantization_json(
    options: QuantizeOptions,
    door: Door,
    calibration: Calibration,
    models: Mapping[str, str],
    plans: Sequence[Plan],
    used: Sequence[Any],
    *,
    max_length: int,
    weights_sha256: str,
    source: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """The content of `quantization.json`.

    Args:
        options: What was asked for.
        door: What was quantized.
        calibration: What was chosen.
        models: Path of each target's graph in the folder.
        plans: One a target.
        used: The calibration examples.
        max_length: Longest input in tokens.
        weights_sha256: See `digest_weights`.
        source: Where ranges came from, if they were not taken from `used`.
    """
    return {
        "format": "qdqbert-quantization/1",
        "command": options.command(),
        "seed": options.seed,
        "checkpoint": {
            "name": options.model or DEMO_NAME,
            "task": door.task,
            "model_type": door.model_type,
            "weights_sha256": weights_sha256,
            "sentence_head": door.head and dataclasses.asdict(door.head),
            "placement": recipe_of(door.config),
        },
        "max_length": max_length,
        "inputs": list(door.input_names),
        "outputs": list(door.output_names),
        "embeddings": options.embeddings,
        "switches": options.recipe_switches.to_dict(),
        "task_options": dataclasses.asdict(options.task_options),
        "calibration": _calibration_json(options, used) if source is None else source,
        "targets": {
            plan.target.name: {
                "model": models[plan.target.name],
                "recipe": _recipe_json(plan),
                "rewrites": list(plan.target.rewrites),
                "sites": _sites_json(plan, calibration),
            }
            for plan in plans
        },
        "ranges": _ranges(calibration),
        "pre_quant_scales": sorted(calibration.scales),
        **(
            {}
            if calibration.without_smoothing is None
            else {"plain_ranges": _ranges(calibration.without_smoothing)}
        ),
        "versions": versions(),
    }


def _ranges(calibration: Calibration) -> dict[str, Any]:
    return {name: dataclasses.asdict(chosen) for name, chosen in calibration.ranges.items()}


def _calibration_json(options: QuantizeOptions, used: Sequence[Any]) -> dict[str, Any]:
    return {
        "calibrator": options.calibrator_used,
        "percentile": options.percentile_used,
        "data": options.calibration_data or "built-in",
        "examples": len(used),
        "examples_sha256": digest_examples(used),
        "fingerprints": sorted({fingerprint(example) for example in used}),
    }


def trained_source(options: QuantizeOptions) -> dict[str, Any]:
    """Of ranges that came with the checkpoint: what it was calibrated on, if it says so."""
    trained = read_training(Path(options.model or "")).get("calibration", {})
    known = list(trained.get("fingerprints", ()))
    return {"calibrator": "stored", "examples": len(known), "fingerprints": known}


def digest_weights(graph: ir.Model) -> str:
    """SHA-256 of all constants of a float graph, by name: whether ranges fit a model."""
    digest = hashlib.sha256()
    for name, value in sorted(graph.graph.initializers.items()):
        digest.update(name.encode())
        if value.const_value is not None:
            digest.update(value.const_value.tobytes())
    return digest.hexdigest()


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


def _sites_json(plan: Plan, calibration: Calibration) -> Mapping[str, Any]:
    """What each quantized site became; weights' scales are in the graph."""
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


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that decide numbers."""
    found = {"python": platform.python_version()}
    for package in _VERSIONED:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found
