"""Measure the loss that each kind of quantizer causes, in PyTorch.

    python benchmarks/sensitivity.py CHECKPOINT --test FILE --calibration FILE [--recipe full]

The recipe is calibrated once. The whole test file is then evaluated with all quantizers, and with
each kind of quantizer left in float.
"""

from __future__ import annotations

import argparse

from calibration import calibrate
from qdqbert.calibration.reference.sited_model import quantizing
from qdqbert.graphs.targets import TARGETS
from qdqbert.graphs.targets.target import make_plan
from qdqbert.quantization.numerics.ranges import Mse
from qdqbert.quantization.spec import Site, input_site_of
from qdqbert.training.insert.sited import insert_quantizers_
from scoring import CALIBRATION_EXAMPLES, TestSet


def kinds_of(site: Site) -> list[str]:
    """Return the kinds that a site belongs to."""
    if "embeddings" in site.name:
        return ["embedding tables"]
    if site.kind == "weight":
        return ["weights"]
    if site.name == input_site_of(site.name):
        return [f"inputs of linear layers: {site.source}"]
    kind = site.name.rpartition(".")[2].removesuffix("_input_quantizer")
    return [kind, "both inputs of adds"] if kind.startswith("add_") else [kind]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("checkpoint")
    parser.add_argument("--test", required=True)
    parser.add_argument("--calibration")
    parser.add_argument("--recipe", default="full")
    parser.add_argument("--max-length", type=int)
    options = parser.parse_args()
    test = TestSet(options.checkpoint, options.test, max_length=options.max_length)
    sited = insert_quantizers_(test.checkpoint.model, test.checkpoint.family)
    plan = make_plan(TARGETS["portable"], sited.sites, recipe=options.recipe, embeddings="int8")
    calibration = calibrate(
        sited,
        lambda inputs: test.body(**inputs),
        test.encode(options.calibration, count=CALIBRATION_EXAMPLES).batches,
        sites=plan.activations,
        calibrator=Mse(),
        smoothing=plan.recipe.smoothing,
        clips_residuals=plan.recipe.clips_residuals,
        rounded_weights=plan.rounded_weights,
    )
    titles = f"| in float | {test.float.titles()} |"
    print(titles, "|---" * (titles.count("|") - 1) + "|", sep="\n", flush=True)
    kinds = {site.name: kinds_of(site) for site in sited.sites if plan.specs[site.name]}
    known = dict.fromkeys(kind for each in kinds.values() for kind in each)
    for left in [None, *sorted(known)]:
        specs = {n: None if left in kinds.get(n, ()) else s for n, s in plan.specs.items()}
        with quantizing(sited, specs, calibration):
            score = test.run(test.runner)
        print(f"| {left or 'nothing'} | {score.cells()} |", flush=True)


if __name__ == "__main__":
    main()
