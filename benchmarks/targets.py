"""One calibration, every target: accuracy of each graph on each engine that runs it here.

    python benchmarks/targets.py CHECKPOINT --test FILE --calibration FILE [--targets T ...]

Quantizes once, from one ranges file, with each target's default recipe, then evaluates every graph
on the whole test set and compares it with the float checkpoint, answer by answer. `qordered` is
left out: no engine here has its CUDA operators.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import qdqbert
from qdqbert.checkpoint.load import load_checkpoint
from qdqbert.engines.runner import open_runner
from qdqbert.graph.export import GraphBody
from qdqbert.targets import TARGETS
from qdqbert.tasks import TASKS
from qdqbert.tasks.data import Columns
from qdqbert.tasks.task import TaskOptions
from qdqbert.verbs.inference import TorchRunner, encode_examples, fidelity_of, rows_of

RUNNABLE = tuple(name for name, target in TARGETS.items() if target.engines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("checkpoint")
    parser.add_argument("--test", required=True)
    parser.add_argument("--calibration", required=True)
    parser.add_argument("--targets", nargs="+", default=list(RUNNABLE), choices=RUNNABLE)
    parser.add_argument("--recipe", help="one recipe for all, instead of each target's own")
    parser.add_argument("--max-length", type=int)
    options = parser.parse_args()
    checkpoint = load_checkpoint(options.checkpoint)
    task, settings = TASKS[checkpoint.task], TaskOptions()
    limit = options.max_length or task.max_length or checkpoint.max_length
    test = encode_examples(
        task,
        checkpoint.tokenizer,
        task.read(options.test, columns=Columns(), max_examples=None).examples,
        input_names=checkpoint.input_names,
        max_length=min(limit, checkpoint.max_length),
        batch_size=8,
        options=settings,
    )
    id2label = checkpoint.config.id2label
    expected = rows_of(task, TorchRunner(GraphBody.of(checkpoint), checkpoint.input_names), test)
    metric = task.metrics(expected, test.features, id2label, settings)[0]
    print(f"float: {metric.name} {metric.value:.2f}\n")
    print("| target | recipe | engine | INT8 | flips % | SQNR dB |")
    print("|---|---|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "int8"
        report = qdqbert.quantize(
            options.checkpoint,
            folder,
            calibration_data=options.calibration,
            targets=tuple(options.targets),
            recipe=options.recipe,
            max_length=options.max_length,
            benchmark=False,
        )
        for each in report.targets:
            made = rows_of(task, open_runner(each.engine, folder / each.model), test)
            metric = task.metrics(made, test.features, id2label, settings)[0]
            nearness = fidelity_of(task, expected, made, test.features, settings)
            flips = "" if nearness.flips_percent is None else f"{nearness.flips_percent:.2f}"
            print(
                f"| {each.target} | {each.recipe} | {each.engine} | {metric.value:.2f} "
                f"| {flips} | {nearness.sqnr_db:.1f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
