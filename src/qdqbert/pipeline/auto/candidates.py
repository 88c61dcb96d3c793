"""Which graphs the target `auto` considers."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from qdqbert.common.choices import ENGINE_NAMES, EngineName, RecipeName, WeightsFor
from qdqbert.engines.registry import is_installed
from qdqbert.graphs.targets import target_named
from qdqbert.graphs.targets.target import Plan, Target, runs_recipe
from qdqbert.pipeline.plans import for_cpus
from qdqbert.quantization.recipes import build_recipe

# `onnxruntime-dynamic` is left out, as a result of it depends on the other texts of its batch.
# The native engine computes attention in float, so that other recipes make it slower only.
_RECIPES: Mapping[str, tuple[RecipeName, ...]] = {
    "native": ("linear",),
    "native-dynamic": ("linear",),
    "openvino": ("linear", "linear+matmul"),
    "onnxruntime": ("linear", "linear+qk"),
    "float": (),
}


def candidate_targets(recipe: RecipeName | None, weights_for: WeightsFor | None) -> list[Target]:
    """Return a target for each candidate: with one engine, and with its recipe.

    Without a `recipe`, candidates have their own. All are for the same CPUs, as this does not
    change the speed.
    """
    found = []
    for name, own in _RECIPES.items():
        target = target_named(name)
        for engine in filter(is_installed, target.engines):
            alone = dataclasses.replace(for_cpus(target, weights_for), engines=(engine,))
            if target.quantizes == "nothing":
                found.append(alone)
                continue
            found += [
                dataclasses.replace(alone, recipe=each)
                for each in (own if recipe is None else (recipe,))
                if runs_recipe(target, build_recipe(each))
            ]
    return found


def missing_engines() -> list[EngineName]:
    """Return the engines that are no candidates, because they are not installed."""
    return [engine for engine in ENGINE_NAMES if not is_installed(engine)]


def distinct(plans: Sequence[Plan]) -> list[Plan]:
    """Return the plans without those that make the same graph for the same engine.

    The quantizers of a checkpoint replace any recipe, and options can disable what differs.
    """
    kept: list[Plan] = []
    for plan in plans:
        if not any(_makes_same_graph(plan, other) for other in kept):
            kept.append(plan)
    return kept


def _makes_same_graph(plan: Plan, other: Plan) -> bool:
    return (
        plan.target.name == other.target.name
        and plan.target.engines == other.target.engines
        and plan.specs == other.specs
        and plan.recipe.smoothing == other.recipe.smoothing
    )
