r"""Compare calibrators for one recipe on a whole test file, in PyTorch and on engines.

    python benchmarks/calibrators.py CHECKPOINT --test F --calibration F [--recipe qdqbert] \
        [--engines pytorch onnxruntime openvino] [--max-length N]

Statistics are collected once, on 300 examples. Each calibrator chooses ranges from them, as in the
paper. If the recipe clips residuals, each calibrator is measured with and without clipping. Graphs
with clipping are those that `qdqbert quantize --target ENGINE` writes.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import tempfile
from pathlib import Path
from typing import Any

from qdqbert.calibration.bias_correction import MeanObserver
from qdqbert.calibration.calibrate import run_observed
from qdqbert.calibration.residual_clipping import ResidualErrorObserver, clip_residual_ranges
from qdqbert.calibration.smoothing import ChannelAmaxObserver, choose_pre_quant_scales
from qdqbert.calibration.statistics import CombinedObserver, HistogramObserver, choose_ranges
from qdqbert.graph.check import save_graph
from qdqbert.graph.export import example_inputs, export_sited
from qdqbert.insert.sited import insert_quantizers_, linear_weights, quantizing
from qdqbert.numerics.ranges import Calibrator, Entropy, Max, Mse, Percentile
from qdqbert.recipes import build_recipe
from qdqbert.targets import TARGETS
from qdqbert.targets.lowering import lower
from qdqbert.targets.target import make_plan
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
    parser.add_argument("--recipe", default="qdqbert")
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
    run = functools.partial(run_observed, sited, lambda inputs: test.body(**inputs), batches)
    sites = [site for site in sited.sites if site.kind == "activation"]
    names, scales = [site.name for site in sites], {}
    if recipe.smoothing is not None:
        channels = ChannelAmaxObserver([s.name for s in sites if recipe.smoothing.matches(s)])
        run(channels, {})
        alphas = {site.name: recipe.smoothing.alpha_of(site) for site in sites}
        scales = choose_pre_quant_scales(channels, linear_weights(sited), alphas=alphas)
    histograms, errors = HistogramObserver(names), ResidualErrorObserver(names)
    seen = MeanObserver(linear_weights(sited))
    run(CombinedObserver(histograms, errors, seen), scales)
    means = seen.means(scales)
    inputs = example_inputs(checkpoint.input_names, checkpoint.task)
    graph = export_sited(sited, test.body, inputs)
    arrays = {name: scale.numpy() for name, scale in scales.items()}
    clips = [False, True] if recipe.clips_residuals else [False]
    for (name, calibrator), clip in itertools.product(CALIBRATORS.items(), clips):
        name += ", clipped" if clip else ""
        if not any(part in name for part in arguments.only):
            continue
        ranges = choose_ranges(histograms.statistics, calibrator)
        ranges = clip_residual_ranges(ranges, errors.errors if clip else {})
        cells = []
        for engine in arguments.engines:
            target = TARGETS["portable" if engine == "pytorch" else engine]
            plan = make_plan(target, sited.sites, recipe=arguments.recipe, embeddings="int8")
            if engine == "pytorch":
                with quantizing(sited, plan.specs, ranges, scales, means=means):
                    cells.append(test.run(test.runner))
            else:
                model = lower(graph, plan, ranges, arrays, means=means)
                cells.append(on_engine(model, engine, test))
        print(f"| {name} | {' | '.join(map(str, cells))} |", flush=True)


def on_engine(model: Any, engine: Any, test: TestSet) -> Any:
    """Return the score of a graph on an engine."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        save_graph(model, path)
        return test.graph(engine, path)


if __name__ == "__main__":
    main()
