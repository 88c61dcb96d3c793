"""Compare recipes, smoothing and calibrators on a whole test file, in PyTorch.

    python benchmarks/recipes.py MODEL --test TEST.csv [--calibration TRAIN.csv]

MODEL is a checkpoint folder, a hub id, or `demo` for the packaged all-MiniLM-L6-v2. Without
`--calibration`, recipes are calibrated on built-in texts.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence

from calibration import calibrate
from qdqbert.calibration.reference.sited_model import quantizing
from qdqbert.graphs.targets import TARGETS
from qdqbert.graphs.targets.target import Plan
from qdqbert.quantization.numerics.ranges import Calibrator, Entropy, Max, Mse, Percentile
from qdqbert.quantization.recipes import WIDE_INPUTS, build_recipe
from qdqbert.quantization.spec import Recipe, Site, Smoothing, TensorSpec, resolve
from qdqbert.training.insert.sited import insert_quantizers_
from scoring import CALIBRATION_EXAMPLES, TestSet

FFN_ONLY = Smoothing(sites=("*.intermediate.dense._input_quantizer",), alpha=0.7)
EVERY_INPUT = Smoothing(sites=("*._input_quantizer",), alpha=0.7)
NORMS_ONLY = dataclasses.replace(WIDE_INPUTS, sources=("norm",), alphas=())


def with_smoothing(name: str, smoothing: Smoothing | None) -> Recipe:
    return dataclasses.replace(build_recipe(name), smoothing=smoothing)


def at_alpha(alpha: float) -> Smoothing:
    """Return SmoothQuant's formula with one alpha for all inputs."""
    return dataclasses.replace(WIDE_INPUTS, alpha=alpha, alphas=(), search=0.0)


def searched(search: float) -> Recipe:
    """Return the recipe `linear` with another share of the search."""
    return with_smoothing("linear", dataclasses.replace(WIDE_INPUTS, search=search))


CASES: tuple[tuple[str, Recipe, Calibrator], ...] = (
    ("linear", build_recipe("linear"), Max()),
    ("linear, alpha 0.5", with_smoothing("linear", at_alpha(0.5)), Percentile(99.999)),
    ("linear, alpha 0.7", with_smoothing("linear", at_alpha(0.7)), Percentile(99.999)),
    ("linear, alpha 0.7, 0.8 for GELU", searched(0.0), Percentile(99.999)),
    ("linear, least noise", searched(1.0), Percentile(99.999)),
    ("linear, only the FFN smoothed", with_smoothing("linear", FFN_ONLY), Max()),
    ("linear, every input smoothed", with_smoothing("linear", EVERY_INPUT), Max()),
    ("linear, only LayerNorms' outputs smoothed", with_smoothing("linear", NORMS_ONLY), Max()),
    ("linear, not smoothed", with_smoothing("linear", None), Max()),
    ("linear", build_recipe("linear"), Percentile(99.999)),
    ("linear", build_recipe("linear"), Mse()),
    ("linear", build_recipe("linear"), Entropy()),
    ("ffn", build_recipe("ffn"), Percentile(99.999)),
    ("linear+qk", build_recipe("linear+qk"), Percentile(99.999)),
    ("linear+matmul", build_recipe("linear+matmul"), Percentile(99.999)),
    ("full-smoothed", build_recipe("full-smoothed"), Max()),
    ("full-smoothed", build_recipe("full-smoothed"), Mse()),
    ("full", build_recipe("full"), Max()),
    ("full", build_recipe("full"), Percentile(99.999)),
    ("full, not smoothed", with_smoothing("full", None), Percentile(99.999)),
    ("full", build_recipe("full"), Mse()),
    ("full", build_recipe("full"), Entropy()),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--test", required=True)
    parser.add_argument("--calibration")
    parser.add_argument(
        "--only", default="", help="only cases with this in their name or calibrator"
    )
    arguments = parser.parse_args()
    test = TestSet(arguments.model, arguments.test, batch_size=32)
    print(f"float: {test.float.name} {test.float.value:.2f} on {test.encoded.texts} texts\n")
    titles = f"| recipe | calibrator | {test.float.titles()} |"
    print(titles, "|---" * (titles.count("|") - 1) + "|", sep="\n", flush=True)
    batches = test.encode(arguments.calibration, count=CALIBRATION_EXAMPLES).batches
    sited = insert_quantizers_(test.checkpoint.model, test.checkpoint.family)
    for name, recipe, calibrator in CASES:
        if arguments.only not in f"{name} {name_of(calibrator)}":
            continue
        specs = plan_specs(recipe, sited.sites)
        calibration = calibrate(
            sited,
            lambda inputs: test.body(**inputs),
            batches,
            sites=[s.name for s in sited.sites if s.kind == "activation" and specs[s.name]],
            calibrator=calibrator,
            smoothing=recipe.smoothing,
            clips_residuals=recipe.clips_residuals,
            rounded_weights=Plan(
                target=TARGETS["portable"], recipe=recipe, specs=specs
            ).rounded_weights,
        )
        nearest = dataclasses.replace(calibration, roundings={})
        ways = {
            "": calibration,
            ", weights rounded to nearest": nearest,
            ", biases not corrected either": dataclasses.replace(nearest, means={}),
        }
        for title, changed in ways.items():
            if title and ", alpha" not in name:
                continue
            with quantizing(sited, specs, changed):
                score = test.run(test.runner)
            print(f"| {name}{title} | {name_of(calibrator)} | {score.cells()} |", flush=True)


def name_of(calibrator: Calibrator) -> str:
    name = type(calibrator).__name__.lower()
    return f"{name} {calibrator.percentile}" if isinstance(calibrator, Percentile) else name


def plan_specs(recipe: Recipe, sites: Sequence[Site]) -> dict[str, TensorSpec | None]:
    """Return the specs of a recipe for CPU targets, by site name."""
    resolved = resolve(recipe.rules, sites)
    return {site.name: TARGETS["portable"].adapt(site, resolved[site.name]) for site in sites}


if __name__ == "__main__":
    main()
