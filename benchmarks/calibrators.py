r"""A recipe with every calibrator on a whole test file, in PyTorch and on engines.

    python benchmarks/calibrators.py CHECKPOINT --test F --calibration F [--recipe qdqbert] \
        [--engines pytorch onnxruntime openvino] [--max-length N]

Statistics are collected once, on 300 examples; each calibrator chooses its ranges from them, as in
the paper, and with `clips_sums` where the recipe has it. Graphs of the latter are those that
`qdqbert quantize --target ENGINE` writes.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import random
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qdqbert.calibration.session import watch
from qdqbert.calibration.statistics import Collector, Together, choose_ranges
from qdqbert.calibration.sums import SumCollector, clip_to_sums
from qdqbert.checkpoint.load import load_checkpoint
from qdqbert.engines.runner import open_runner
from qdqbert.graph.check import save_graph
from qdqbert.graph.export import GraphBody, example_inputs, export_sited
from qdqbert.insert.sited import insert_quantizers_, quantizing
from qdqbert.numerics.ranges import Calibrator, Entropy, Max, Mse, Percentile
from qdqbert.recipes import build_recipe
from qdqbert.targets import TARGETS
from qdqbert.targets.target import lower, make_plan
from qdqbert.tasks import TASKS
from qdqbert.tasks.data import Columns
from qdqbert.tasks.task import TaskOptions
from qdqbert.verbs.inference import TorchRunner, encode_examples, fidelity_of, rows_of

CALIBRATORS: tuple[Calibrator, ...] = (
    Max(),
    Entropy(),
    Mse(),
    Percentile(99.9),
    Percentile(99.99),
    Percentile(99.999),
    Percentile(99.9999),
)
SAMPLES = 300
OPTIONS = TaskOptions()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("checkpoint")
    parser.add_argument("--test", required=True)
    parser.add_argument("--calibration", required=True)
    parser.add_argument("--recipe", default="qdqbert")
    parser.add_argument("--engines", nargs="+", default=["pytorch", "onnxruntime", "openvino"])
    parser.add_argument("--only", default="", help="calibrators whose words have this")
    parser.add_argument("--max-length", type=int)
    arguments = parser.parse_args()
    checkpoint = load_checkpoint(arguments.checkpoint)
    task = TASKS[checkpoint.task]
    usual = arguments.max_length or task.max_length or checkpoint.max_length
    limit = min(usual, checkpoint.max_length)

    def encoded_of(path: str, count: int | None) -> Any:
        examples = list(task.read(path, columns=Columns(), max_examples=None).examples)
        if count is not None:
            examples = random.Random(0).sample(examples, count)
        return encode_examples(
            task,
            checkpoint.tokenizer,
            examples,
            input_names=checkpoint.input_names,
            max_length=limit,
            batch_size=16,
            options=OPTIONS,
        )

    calibration, test = encoded_of(arguments.calibration, SAMPLES), encoded_of(arguments.test, None)
    body = GraphBody.of(checkpoint)
    pytorch = TorchRunner(body, checkpoint.input_names)
    expected = rows_of(task, pytorch, test)

    def score(rows: Any) -> str:
        metric = task.metrics(rows, test.features, checkpoint.config.id2label, OPTIONS)[0]
        flips = fidelity_of(task, expected, rows, test.features, OPTIONS).flips_percent
        return f"{metric.value:.2f}" + ("" if flips is None else f" ({flips:.2f} %)")

    name = task.metrics(expected, test.features, checkpoint.config.id2label, OPTIONS)[0].name
    print(f"float: {name} {score(expected)}; in brackets: answers that differ from float\n")
    print(f"| calibrator | {' | '.join(arguments.engines)} |")
    print("|---" * (1 + len(arguments.engines)) + "|", flush=True)
    sited = insert_quantizers_(checkpoint.model, checkpoint.family)
    names = [site.name for site in sited.sites if site.kind == "activation"]
    collector, sums = Collector(names), SumCollector(names)
    watch(
        sited,
        lambda inputs: body(**inputs),
        [
            dataclasses.replace(
                batch, inputs={each: batch.inputs[each] for each in pytorch.input_names}
            )
            for batch in calibration.batches
        ],
        Together(collector, sums),
        {},
    )
    graph = export_sited(sited, body, example_inputs(checkpoint.input_names, checkpoint.task))
    clips = [False, True] if build_recipe(arguments.recipe).clips_sums else [False]
    for calibrator, clip in itertools.product(CALIBRATORS, clips):
        if arguments.only not in str(calibrator):
            continue
        ranges = choose_ranges(collector.statistics, calibrator)
        ranges = clip_to_sums(ranges, sums.errors if clip else {})
        cells = []
        for engine in arguments.engines:
            target = TARGETS["portable" if engine == "pytorch" else engine]
            plan = make_plan(target, sited.sites, recipe=arguments.recipe, embeddings="int8")
            if plan.recipe.smoothing is not None:
                raise SystemExit(f"{arguments.recipe} is smoothed: use benchmarks/recipes.py")
            if engine == "pytorch":
                with quantizing(sited, plan.specs, ranges):
                    cells.append(score(rows_of(task, pytorch, test)))
                continue
            cells.append(score(on_engine(graph, plan, ranges, engine, task, test)))
        name = f"{calibrator}{', sums clipped' if clip else ''}"
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


def on_engine(
    graph: Any, plan: Any, ranges: Mapping[str, Any], engine: Any, task: Any, test: Any
) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        save_graph(lower(graph, plan, ranges, {}), path)
        return rows_of(task, open_runner(engine, path), test)


if __name__ == "__main__":
    main()
