r"""Compare calibrators for one recipe on a whole test file, in PyTorch and on engines.

    python benchmarks/calibrators.py CHECKPOINT --test F --calibration F [--recipe full] \
        [--engines pytorch onnxruntime openvino] [--max-length N]

Statistics are collected once, on 300 examples. Each calibrator chooses ranges from them, as in the
paper, and weights are rounded for these ranges. If the recipe clips residuals, each calibrator is
measured with and without clipping. Graphs with clipping are those that `qdqbert quantize --target
ENGINE` writes.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from qdqbert.calibration.bias_correction import MeanObserver
from qdqbert.calibration.calibrate import as_tensors, run_observed
from qdqbert.calibration.calibration import CalibrationResult
from qdqbert.calibration.passes import CalibrationPlan, Run, range_pass
from qdqbert.calibration.reference.sited_model import SitedModel, linear_weights, quantizing
from qdqbert.calibration.residual_clipping import ResidualErrorObserver, clip_residual_ranges
from qdqbert.calibration.statistics import CombinedObserver, HistogramObserver, choose_ranges
from qdqbert.graphs.check import save_graph
from qdqbert.graphs.of_checkpoint import encoder_of
from qdqbert.graphs.targets import TARGETS
from qdqbert.graphs.targets.files import choices_of
from qdqbert.graphs.targets.lowering import lower
from qdqbert.graphs.targets.target import Plan, make_plan
from qdqbert.quantization.numerics.ranges import Calibrator, Entropy, Max, Mse, Percentile
from qdqbert.quantization.recipes import build_recipe
from qdqbert.training.insert.sited import insert_quantizers_
from scoring import CALIBRATION_EXAMPLES, TestSet

CALIBRATORS: dict[str, Calibrator] = {
    "max": Max(),
    "entropy": Entropy(),
    "mse": Mse(),
    **{f"percentile {share}": Percentile(share) for share in (99.9, 99.99, 99.999, 99.9999)},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("checkpoint")
    parser.add_argument("--test", required=True)
    parser.add_argument("--calibration", required=True)
    parser.add_argument("--recipe", default="full")
    parser.add_argument("--engines", nargs="+", default=["pytorch", "onnxruntime", "openvino"])
    parser.add_argument(
        "--only", nargs="+", default=[""], help="only calibrators with one of these in their name"
    )
    parser.add_argument("--max-length", type=int)
    arguments = parser.parse_args()
    test = TestSet(arguments.checkpoint, arguments.test, max_length=arguments.max_length)
    print(f"float: {test.float.name} {test.float.value:.2f}; in parentheses: changed predictions\n")
    print(f"| calibrator | {' | '.join(arguments.engines)} |")
    print("|---" * (1 + len(arguments.engines)) + "|", flush=True)
    checkpoint, recipe = test.checkpoint, build_recipe(arguments.recipe)
    sited = insert_quantizers_(checkpoint.model, checkpoint.family)
    batches = test.encode(arguments.calibration, count=CALIBRATION_EXAMPLES).batches
    inputs = as_tensors(batches)
    run = functools.partial(run_observed, sited, lambda each: test.body(**each), inputs)
    passes = plan_of(sited, smoothing=recipe.smoothing)
    names = [site.name for site in passes.sites]
    scales: Mapping[str, torch.Tensor] = {}
    if recipe.smoothing is not None:
        scales = range_pass(run, passes, CalibrationResult(), names=names).scales
    histograms, errors = HistogramObserver(names), ResidualErrorObserver(names)
    seen = MeanObserver(linear_weights(sited))
    run(CombinedObserver(histograms, errors, seen), scales)
    means = seen.means(scales)
    encoder = encoder_of(checkpoint)
    clips = [False, True] if recipe.clips_residuals else [False]
    for (name, calibrator), clip in itertools.product(CALIBRATORS.items(), clips):
        name += ", clipped" if clip else ""
        if not any(part in name for part in arguments.only):
            continue
        ranges = choose_ranges(histograms.statistics, calibrator)
        found = CalibrationResult(
            ranges=clip_residual_ranges(ranges, errors.errors if clip else {}),
            scales=scales,
            means=means,
        )
        plans = [
            make_plan(
                TARGETS["portable" if engine == "pytorch" else engine],
                sited.sites,
                recipe=arguments.recipe,
                embeddings="int8",
            )
            for engine in arguments.engines
        ]
        found = with_roundings(found, sited, plans, run)
        cells = []
        for engine, plan in zip(arguments.engines, plans, strict=True):
            if engine == "pytorch":
                with quantizing(sited, plan.specs, found):
                    cells.append(test.run(test.runner))
            else:
                model = lower(encoder, plan, choices_of(found, plan.specs))
                cells.append(on_engine(model, engine, test))
        print(f"| {name} | {' | '.join(map(str, cells))} |", flush=True)


def with_roundings(
    found: CalibrationResult, sited: SitedModel, plans: Sequence[Plan], run: Run
) -> CalibrationResult:
    """Add how the weights of all plans are rounded, which takes a pass for their inputs."""
    rounded = frozenset().union(*(each.rounded_weights for each in plans))
    plan = plan_of(sited, rounded_weights=rounded)
    # The first pass chooses ranges, which are known here.
    for rounding_pass in plan.passes(plan.names)[1:]:
        found = rounding_pass(run, plan, found)
    return found


def plan_of(sited: SitedModel, **settings: Any) -> CalibrationPlan:
    """Return a plan for all activations, whose ranges are chosen elsewhere."""
    return CalibrationPlan(
        sites=[site for site in sited.sites if site.kind == "activation"],
        all_sites=sited.sites,
        weights=linear_weights(sited),
        calibrator=Max(),
        **settings,
    )


def on_engine(model: Any, engine: Any, test: TestSet) -> Any:
    """Return the score of a graph on an engine."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        save_graph(model, path)
        return test.graph(engine, path)


if __name__ == "__main__":
    main()
