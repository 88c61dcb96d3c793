"""Targets of a call, and the plan of each."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from qdqbert.common.choices import ENGINE_NAMES, RecipeName, TargetChoice, WeightsFor
from qdqbert.common.errors import UserInputError
from qdqbert.common.options.calibration import Calibration
from qdqbert.common.options.quantizers import Quantizers
from qdqbert.engines.registry import is_installed
from qdqbert.graphs.targets import target_named
from qdqbert.graphs.targets.files import check_encoder
from qdqbert.graphs.targets.target import Plan, Target, make_plan, recipe_for
from qdqbert.pipeline.calls import CalibratingCall
from qdqbert.pipeline.settings import changes_of, quantizer_options_of
from qdqbert.pipeline.source import Source, StoredQuantizers
from qdqbert.quantization.recipes import QuantizerOptions
from qdqbert.quantization.spec import Site, SiteGroup, TensorSpec
from qdqbert.tasks.registry import TASKS


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scheme:
    """How a call quantizes and calibrates, for whatever target.

    Attributes:
        recipe: Name of the recipe, if the call names one.
        quantizers: Changes to the quantizers of the recipe.
        calibration: How ranges are found.
    """

    recipe: RecipeName | None = None
    quantizers: Quantizers = Quantizers()
    calibration: Calibration = Calibration()

    @classmethod
    def of_call(cls, call: CalibratingCall) -> Scheme:
        """Return the scheme of a call."""
        return cls(recipe=call.recipe, quantizers=call.quantizers, calibration=call.calibration)

    @property
    def quantizer_options(self) -> QuantizerOptions:
        """The quantizer options, with the calibrator in use."""
        return quantizer_options_of(self.quantizers, self.calibration, usual="percentile")

    @property
    def changes(self) -> list[str]:
        """Names of the options that change bits or places of quantizers, or their ranges."""
        given = changes_of(self.quantizers)
        return [name for name in given if name not in ("weights_for", "embeddings")]

    def of(self, source: Source) -> Scheme:
        """Return the scheme for a model: where it says nothing, as its quantizers were trained."""
        stored = None if self.recipe is not None else source.stored
        trained, given = QuantizerOptions() if stored is None else stored.options, self.quantizers
        quantizers = dataclasses.replace(
            given,
            weights_for=given.weights_for or trained.weights_for or "any",
            embeddings=given.embeddings or trained.embeddings or "int8",
        )
        return dataclasses.replace(self, quantizers=quantizers)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plans:
    """Plans of a call.

    Attributes:
        groups: Groups of sites that the recipes place.
        made: One plan for each target that runs the model, at least one.
        refused: Why the other targets do not, by name of the target.
    """

    groups: frozenset[SiteGroup]
    made: tuple[Plan, ...]
    refused: dict[str, str]


def choose_targets(
    names: Sequence[TargetChoice], task: str, weights_for: WeightsFor | None = None
) -> list[Target]:
    """Return the targets of a call, as they are for the CPUs that weights are encoded for.

    Args:
        names: The names that the call gives. Without any, there is a target for each engine that is
            installed, so that `load` can take the fastest.
        task: Task of the model. If `load` does not run it, any runtime may.
        weights_for: These CPUs; `None` for any.
    """
    if not names and TASKS[task].model is None:
        names = ["portable"]
    chosen = names or [name for name in ENGINE_NAMES if is_installed(name)]
    return [for_cpus(target_named(name), weights_for) for name in dict.fromkeys(chosen)]


def for_cpus(target: Target, weights_for: WeightsFor | None) -> Target:
    """Return a target as it is for the CPUs that weights are encoded for; `None` for any."""
    if weights_for == "vnni":
        recipe = target.vnni_recipe or target.recipe
        return dataclasses.replace(target, adjacent_sum_limit=None, recipe=recipe)
    return target


def _kept(
    stored: StoredQuantizers, sites: Sequence[Site], quantizers: Quantizers
) -> dict[str, TensorSpec | None]:
    """Return the specs of a checkpoint's own quantizers, without what the call changes."""
    kept = dict(stored.specs)
    if quantizers.embeddings != (stored.options.embeddings or "int8"):
        for site in sites:
            if site.group == "table":
                kept.pop(site.name, None)
    if quantizers.weights_for == "vnni":
        return {
            name: spec and dataclasses.replace(spec, adjacent_sum_limit=None)
            for name, spec in kept.items()
        }
    return kept


def make_plans(
    source: Source, targets: Sequence[Target], scheme: Scheme, *, leaves_out: bool = False
) -> Plans:
    """Resolve the recipe of each target on the sites of a model.

    With `leaves_out`, targets that do not run the model are left out, as long as one does.

    Raises:
        UserInputError: A target cannot run the recipe or the model.
        UnmatchedRuleError: A rule of a recipe or a pattern matches no site.
    """
    stored, embeddings = source.stored, scheme.quantizers.embeddings or "int8"
    recipes = [recipe_for(each, scheme.recipe, embeddings) for each in targets]
    groups = frozenset(group for recipe in recipes for group in recipe.groups)
    sites = source.sites(groups)
    plans: list[Plan] = []
    refused: dict[str, UserInputError] = {}
    for target in targets:
        try:
            plan = make_plan(
                target,
                sites,
                recipe=scheme.recipe,
                embeddings=embeddings,
                # Without changes, quantizers of a checkpoint keep their own bits.
                quantizer_options=scheme.quantizer_options if scheme.changes else None,
                stored=None if stored is None else _kept(stored, sites, scheme.quantizers),
                placed_by=None if stored is None else stored.recipe,
                dedicated_pairs=scheme.quantizers.dedicated_qdq_pairs,
            )
            check_encoder(target, source.encoder)
        except UserInputError as error:
            if not leaves_out:
                raise
            refused[target.name] = error
        else:
            plans.append(plan)
    if not plans:
        raise next(iter(refused.values()))
    reasons = {name: str(error) for name, error in refused.items()}
    return Plans(groups=groups, made=tuple(plans), refused=reasons)
