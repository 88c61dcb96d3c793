"""Describe a target as data, and resolve a recipe for it.

Targets with symmetric codes still run affine inputs of linear layers: biases absorb the zero points
(decision 12).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Literal

from qdqbert.common.choices import RECIPE_NAMES, Embeddings, EngineName, TargetName
from qdqbert.common.errors import UserInputError
from qdqbert.quantization.recipes import (
    FLOAT_RECIPE,
    TOKENS,
    QuantizerOptions,
    build_recipe,
    stored_recipe,
)
from qdqbert.quantization.spec import (
    QdqStyle,
    Recipe,
    Site,
    SiteGroup,
    TensorSpec,
    input_site_of,
    is_linear_input,
    is_weight,
    linear_sites,
    matmul_sites,
    residual_sites,
)

# Names of the files that targets have, by their content: an ONNX graph, or the packed weights of
# the native engine.
FileName = Literal["model.onnx", "model.safetensors"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Target:
    """A runtime that graphs are written for.

    This is data only. `qdqbert.graphs.targets.lowering` has the code that writes and checks graphs.

    Attributes:
        name: Name of the target, unique.
        summary: One line that describes it.
        engines: Engines that can run its graph.
        qdq_engines: Engines that measure the Q/DQ pairs of the graph where no engine can run the
            graph itself; see `measured_plan`.
        recipe: Default recipe: the one that measured best on this target.
        vnni_recipe: Default recipe of weights for CPUs with VNNI, if it is another one.
        required_groups: Groups of sites that a recipe has to place.
        refused_groups: Groups of sites that a recipe must not place.
        quantizes: Which activations and weights of encoder layers it quantizes: any that a recipe
            places, any as long as all linear layers are among them, or nothing, whatever the
            recipe. Nothing includes embedding tables.
        style: How graphs are written.
        zero_points: Where the zero point of an activation may differ from the middle of its codes:
            at every site, at the inputs of linear layers only, or nowhere.
        unsigned: Whether activations may have unsigned codes with zero point 0 at every site.
            Otherwise these become signed codes for the same range, except where `zero_points`
            allows zero points.
        adjacent_sum_limit: Limit on the sum of two adjacent weight codes; see `TensorSpec`.
        dynamic: Whether the ranges of activations are computed from each tensor at run time, at the
            inputs of linear layers. Other activations then stay in float.
        per_row: Whether each token has its own range then, instead of the whole tensor. Codes are
            symmetric then.
        spreads: Whether inputs of linear layers are multiplied by a Hadamard matrix before they are
            quantized.
        follows_tensorrt_rules: Whether the graph has to pass `check_tensorrt_rules`.
        last_bits: Relative rounding error of the float type between int8 operators.
        agreement_db: SQNR to PyTorch's fake quantization that each layer should have, dB. It is
            lower if more is computed in int8 than a recipe quantizes.
        is_proxy: Whether `engines` run the graph in place of the real runtime. They prove the
            numbers of the graph, and their latency means nothing.
        file: Name of its file.
    """

    name: TargetName
    summary: str
    engines: tuple[EngineName, ...]
    qdq_engines: tuple[EngineName, ...] = ()
    recipe: str
    vnni_recipe: str | None = None
    required_groups: tuple[SiteGroup, ...] = ()
    refused_groups: tuple[SiteGroup, ...] = ()
    quantizes: Literal["any_sites", "all_linear_layers", "nothing"] = "any_sites"
    style: QdqStyle = dataclasses.field(default_factory=QdqStyle)
    zero_points: Literal["everywhere", "linear_inputs", "nowhere"] = "everywhere"
    unsigned: bool = True
    adjacent_sum_limit: int | None = None
    dynamic: bool = False
    per_row: bool = False
    spreads: bool = False
    follows_tensorrt_rules: bool = False
    last_bits: float = 1e-6
    agreement_db: float = 40.0
    is_proxy: bool = False
    file: FileName = "model.onnx"

    def adapt(self, site: Site, spec: TensorSpec | None) -> TensorSpec | None:
        """Return the spec nearest to `spec` that the target can run at a site."""
        if spec is None:
            return None
        matrix = site.hadamard if self.spreads else None
        if self.dynamic and site.kind == "activation":
            if not is_linear_input(site.name):
                return None
            if self.per_row:
                return dataclasses.replace(TOKENS, bits=spec.bits, hadamard=matrix)
            return TensorSpec(bits=spec.bits, signed=False, symmetric=False, dynamic=True)
        is_refused = not (self.unsigned or spec.signed) or not spec.symmetric
        if is_refused and not self._takes_zero_point(site):
            return TensorSpec(bits=spec.bits, axis=spec.axis)
        if site.kind == "weight" and site.channel_axis == 0 and self.adjacent_sum_limit is not None:
            return dataclasses.replace(
                spec, adjacent_sum_limit=self.adjacent_sum_limit, hadamard=matrix
            )
        return spec

    def _takes_zero_point(self, site: Site) -> bool:
        return self.zero_points == "everywhere" or (
            self.zero_points == "linear_inputs" and is_linear_input(site.name)
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """A target and a recipe, resolved for the sites of one model.

    Attributes:
        specs: Spec of every site by name, as the target can run it; `None` is float.
        dedicated_pairs: Whether to give each reader of an activation its own Q/DQ pair, even where
            the target's style does not.
        units_in_float: Linear layers and sites that are left in float to meet limits.
    """

    target: Target
    recipe: Recipe
    specs: Mapping[str, TensorSpec | None]
    dedicated_pairs: bool = False
    units_in_float: tuple[str, ...] = ()

    @property
    def activations(self) -> frozenset[str]:
        """Names of the sites that need a calibrated range."""
        return frozenset(
            name for name, spec in self.specs.items() if spec is not None and not is_weight(name)
        )

    @property
    def codes(self) -> str:
        """The widths of the codes: "INT8", or "W4A8" for weights of 4 bits."""
        weights, inputs = (
            sorted(
                {
                    spec.bits
                    for name, spec in self.specs.items()
                    # Tables have scales along their other axis.
                    if spec is not None and is_weight(name) == of_weights and spec.axis != 1
                }
            )
            for of_weights in (True, False)
        )
        if {*weights, *inputs} <= {8}:
            return "INT8"
        return "".join(
            f"{kind}{'-'.join(str(each) for each in dict.fromkeys((bits[0], bits[-1])))}"
            for kind, bits in (("W", weights), ("A", inputs))
            if bits
        )

    @property
    def rounded_weights(self) -> frozenset[tuple[str, TensorSpec]]:
        """Sites and specs of the weights that are rounded by the moments of their inputs.

        They are the weights of linear layers whose inputs are quantized too.
        """
        return frozenset(
            (name, spec)
            for name, spec in self.specs.items()
            if spec is not None
            and is_weight(name)
            and self.specs.get(input_site_of(name)) is not None
        )


# Sites of a layer, as recipes see them: of two linear layers, a matmul and an add.
_EXAMPLES: tuple[Site, ...] = (
    *linear_sites("encoder.layer.0.attention.self.query", "norm"),
    *linear_sites("encoder.layer.0.output.dense", "activation"),
    *matmul_sites("encoder.layer.0.attention.self").values(),
    *residual_sites("encoder.layer.0.output"),
)


def recipe_for(target: Target, name: str | None, embeddings: Embeddings) -> Recipe:
    """Return the recipe with a name, the target's default one, or the float recipe.

    Raises:
        UserInputError: No recipe has that name.
    """
    if target.quantizes == "nothing":
        return FLOAT_RECIPE
    return build_recipe(name or target.recipe, embeddings=embeddings)


def runs_recipe(target: Target, recipe: Recipe) -> bool:
    """Return whether a target can run the graphs of a recipe."""
    groups = set(recipe.groups)
    if not groups.issuperset(target.required_groups) or groups & set(target.refused_groups):
        return False
    specs = {
        site.name: next((rule.spec for rule in recipe.rules if rule.matches(site)), None)
        for site in _EXAMPLES
    }
    # A recipe that places nothing leaves these sites to a checkpoint's own quantizers.
    return not any(specs.values()) or _misfit(target, _EXAMPLES, specs) is None


def check_recipe(target: Target, recipe: Recipe) -> None:
    """Refuse a recipe that a target cannot run.

    Raises:
        UserInputError: The target cannot run it. The message lists the recipes that it can run.
    """
    if not runs_recipe(target, recipe):
        others = ", ".join(name for name in RECIPE_NAMES if runs_recipe(target, build_recipe(name)))
        raise UserInputError(
            f"Target {target.name!r} cannot run recipe {recipe.name!r} ({recipe.summary}). Choose "
            f"another `recipe`: {others}.",
            argument="recipe",
        )


def _check_specs(
    target: Target, sites: Sequence[Site], specs: Mapping[str, TensorSpec | None]
) -> None:
    """Refuse specs that a target cannot run, from patterns or from a checkpoint's quantizers.

    Raises:
        UserInputError: The target cannot run them. The message names a site.
    """
    misfit = _misfit(target, sites, specs)
    if misfit is not None:
        raise UserInputError(
            f"Target {target.name!r} runs all linear layers in int8, and {misfit}. Pass "
            f"`recipe={target.recipe!r}` without `aprec` and patterns, or other `targets`.",
            argument="targets",
        )


def _misfit(
    target: Target, sites: Sequence[Site], specs: Mapping[str, TensorSpec | None]
) -> str | None:
    """Return the reason why a target cannot run the specs; `None` if it can."""
    if target.quantizes != "all_linear_layers":
        return None
    for site in sites:
        spec, is_linear = specs[site.name], is_linear_input(site.name) or is_weight(site.name)
        if site.group == "layer" and is_linear and spec is None:
            return f"{site.name!r} is in float"
        if spec is not None and not is_weight(site.name) and spec.bits != 8:
            return f"{site.name!r} has {spec.bits} bits"
    return None


def measured_plan(plan: Plan) -> Plan:
    """Return the plan of the graph to measure.

    That is the plan itself if an engine can run its graph. Otherwise the new plan has the same Q/DQ
    pairs, and none of the target's operators and checks. `Target.qdq_engines` can run that graph.
    They show the results of the quantized model, but not its speed.
    """
    if plan.target.engines:
        return plan
    target = dataclasses.replace(
        plan.target,
        engines=plan.target.qdq_engines,
        style=QdqStyle(),
        follows_tensorrt_rules=False,
        is_proxy=True,
    )
    return dataclasses.replace(plan, target=target)


def make_plan(
    target: Target,
    sites: Sequence[Site],
    *,
    recipe: str | None = None,
    embeddings: Embeddings,
    quantizer_options: QuantizerOptions | None = None,
    stored: Mapping[str, TensorSpec | None] | None = None,
    placed_by: str | None = None,
    dedicated_pairs: bool = False,
) -> Plan:
    """Resolve a recipe for a target.

    Args:
        target: The target of the graph.
        sites: All sites of the model.
        recipe: Name of the recipe. `None` takes the checkpoint's own quantizers, or the target's
            default recipe if the checkpoint has none.
        embeddings: How embedding tables are stored.
        quantizer_options: Changes to the recipe; `None` changes nothing.
        stored: Specs of the checkpoint's own quantizers, by site name.
        placed_by: Name of the recipe that placed the checkpoint's own quantizers, if known. It
            decides how they are calibrated.
        dedicated_pairs: Give each reader of an activation its own Q/DQ pair.

    Raises:
        UserInputError: The recipe is unknown, or the target cannot run it or the options.
        UnmatchedRuleError: A rule of the recipe matches no site, or a pattern of the quantizer
            options matches no quantizer.
    """
    built = recipe_for(target, recipe, embeddings)
    kept: Mapping[str, TensorSpec | None] = {}
    if target.quantizes == "nothing":
        return Plan(target=target, recipe=built, specs={site.name: None for site in sites})
    if stored is not None and recipe is None:
        built, kept = stored_recipe(embeddings, placed_by), stored
    if target.spreads:
        # Spread channels have comparable ranges.
        built = dataclasses.replace(built, smoothing=None)
    check_recipe(target, built)
    resolved = {**built.resolve(sites), **kept}
    if quantizer_options is not None:
        resolved = quantizer_options.apply(resolved, sites)
    _check_specs(target, sites, resolved)
    return Plan(
        target=target,
        recipe=built,
        specs={site.name: target.adapt(site, resolved[site.name]) for site in sites},
        dedicated_pairs=dedicated_pairs,
    )
