"""A target is a set of stated facts; the code that reads them is the same for all."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import numpy as np
import onnx_ir as ir
import torch
from numpy.typing import NDArray

from qdqbert.engines.runner import EngineName
from qdqbert.graph.qdq import QdqStyle, insert_qdq
from qdqbert.recipes import Embeddings, QuantizerOptions, build_recipe, stored_recipe
from qdqbert.spec import Range, Recipe, Site, TensorSpec, input_site_of, resolve

Rewrite = Callable[[ir.Model], ir.Model]
Check = Callable[[ir.Model], None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Target:
    """What one runtime wants.

    Attributes:
        name: The word for it on the command line.
        summary: One line for people.
        engines: Which engines can run the graph.
        recipe: Name of the recipe that measured best there.
        style: How Q/DQ pairs are written.
        zero_points: Where an activation's zero point may differ from the middle of its codes.
        adjacent_sum_limit: Limit for adjacent codes of a weight; see `TensorSpec`.
        dynamic: Whether scales of activations are taken from each tensor as it comes, at the
            inputs of linears; other activations stay in float.
        rewrites: Applied in order once the pairs are in.
        checks: What the finished graph has to pass; each raises `GraphError`.
        last_bits: Relative rounding of the float type between int8 operators.
        is_proxy: Whether `engines` only stand in for the runtime itself: they prove the graph's
            numbers and say nothing of its speed.
        calibration_cache: Name of the file of ranges that the runtime reads beside the graph, if
            any.
    """

    name: str
    summary: str
    engines: tuple[EngineName, ...]
    recipe: str
    style: QdqStyle = dataclasses.field(default_factory=QdqStyle)
    zero_points: Literal["everywhere", "linears", "nowhere"] = "everywhere"
    adjacent_sum_limit: int | None = None
    dynamic: bool = False
    rewrites: tuple[Rewrite, ...] = ()
    checks: tuple[Check, ...] = ()
    last_bits: float = 1e-6
    is_proxy: bool = False
    calibration_cache: str | None = None

    def adapt(self, site: Site, spec: TensorSpec | None) -> TensorSpec | None:
        """The nearest spec that the target can run at a site."""
        if spec is None:
            return None
        if self.dynamic and site.kind == "activation":
            if site.name != input_site_of(site.name):
                return None
            return TensorSpec(bits=spec.bits, signed=False, symmetric=False, dynamic=True)
        if not spec.symmetric and not self._takes_zero_point(site):
            return TensorSpec(bits=spec.bits, axis=spec.axis)
        if site.kind == "weight" and site.channel_axis == 0 and self.adjacent_sum_limit is not None:
            return dataclasses.replace(spec, adjacent_sum_limit=self.adjacent_sum_limit)
        return spec

    def _takes_zero_point(self, site: Site) -> bool:
        of_linear = site.kind == "activation" and site.name == input_site_of(site.name)
        return self.zero_points == "everywhere" or (self.zero_points == "linears" and of_linear)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """A target with the recipe that was chosen for it, resolved on the sites of a model.

    Attributes:
        target: Where the graph will run.
        recipe: Which sites are quantized.
        specs: How, by site name, as the target can run it; `None` is float.
        dedicated_pairs: See `QdqStyle`; asked for beyond what the target's style says.
    """

    target: Target
    recipe: Recipe
    specs: Mapping[str, TensorSpec | None]
    dedicated_pairs: bool = False

    @property
    def activations(self) -> frozenset[str]:
        """Names of the sites that need a calibrated range."""
        return frozenset(
            name
            for name, spec in self.specs.items()
            if spec is not None and not name.endswith("_weight_quantizer")
        )


def make_plan(
    target: Target,
    sites: Sequence[Site],
    *,
    recipe: str | None = None,
    embeddings: Embeddings,
    quantizer_options: QuantizerOptions | None = None,
    stored: Mapping[str, TensorSpec | None] | None = None,
    placement: str | None = None,
    dedicated_pairs: bool = False,
) -> Plan:
    """Resolves a recipe for a target.

    Args:
        target: Where the graph will run.
        sites: All sites of the model.
        recipe: Name of the recipe. If `None`: how the checkpoint's own quantizers are, or the
            target's default for a checkpoint that has none.
        embeddings: How embedding tables are stored.
        quantizer_options: What is changed of the recipe; `None` changes nothing.
        stored: How the checkpoint's own quantizers are, by site name.
        placement: Which recipe placed those, if one did: it says how they are calibrated.
        dedicated_pairs: Give each reader of an activation a Q/DQ pair of its own.

    Raises:
        UserInputError: The recipe is unknown.
        UnmatchedRuleError: A rule of it decides no site, or a switch's pattern finds none.
    """
    if stored is not None and recipe is None:
        built = stored_recipe(embeddings, placement)
        resolved = {**resolve(built.rules, sites), **stored}
    else:
        built = build_recipe(recipe or target.recipe, embeddings=embeddings)
        # Others of a run may have asked for quantizers on outputs.
        meant = [site for site in sites if built.outputs or not site.of_output]
        resolved = dict.fromkeys((site.name for site in sites), None) | resolve(built.rules, meant)
    if quantizer_options is not None:
        resolved = quantizer_options.apply(resolved, sites)
    return Plan(
        target=target,
        recipe=built,
        specs={site.name: target.adapt(site, resolved[site.name]) for site in sites},
        dedicated_pairs=dedicated_pairs,
    )


def lower(
    sited: ir.Model,
    plan: Plan,
    ranges: Mapping[str, Range],
    scales: Mapping[str, NDArray[np.float32]],
    weight_amax: Mapping[str, torch.Tensor] | None = None,
) -> ir.Model:
    """The graph that a target runs: Q/DQ pairs where the plan has specs, then its rewrites.

    Raises:
        GraphError: The target cannot run it.
    """
    style = plan.target.style
    if plan.dedicated_pairs:
        style = dataclasses.replace(style, dedicated_pairs=True)
    model = insert_qdq(
        sited, plan.specs, ranges, scales=scales, weight_amax=weight_amax, style=style
    )
    for rewrite in plan.target.rewrites:
        model = rewrite(model)
    for check in plan.target.checks:
        check(model)
    return model
