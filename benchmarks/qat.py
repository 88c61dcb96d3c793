r"""Measure QAT with distillation, from a float checkpoint to INT8 graphs, for several seeds.

    python benchmarks/qat.py CHECKPOINT --task T --train-data F --eval-data F [--seeds 0 1 2] \
        [--learning-rate X] [--epochs N] [--alpha A] ...

For each seed, the script trains with `qat=True` and `distill_from=CHECKPOINT`, quantizes for ONNX
Runtime and OpenVINO with the trained ranges, and evaluates the trained checkpoint in PyTorch and
both graphs. `--engines` selects some of these. The table has the main metric of each and, in
parentheses, the share of predictions that differ from the float checkpoint's. The last row is the
mean over seeds. The model of the last step is used, not the one with the best score.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

import qdqbert
from scoring import Score, TestSet, mean_of

ENGINES = ("pytorch", "onnxruntime", "openvino")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("checkpoint")
    for name in ("--task", "--train-data", "--eval-data"):
        parser.add_argument(name, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--learning-rate", type=float, default=1e-4)
    parser.add_argument("--epochs", type=float, default=0.3)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--max-length", type=int)
    parser.add_argument("--alpha", type=float, default=1.0, help="`distill_alpha` of `train`")
    parser.add_argument("--temperature", type=float, default=2.0)
    parser.add_argument(
        "--hidden", type=float, default=0.0, help="weight of the loss of hidden states"
    )
    parser.add_argument("--dropout", default="off")
    parser.add_argument("--ranges", default="fixed", help="`qat_ranges` of `train`")
    parser.add_argument("--recipe", default="full")
    parser.add_argument("--calibrator", default="mse")
    parser.add_argument("--percentile", type=float, default=99.99)
    parser.add_argument("--engines", nargs="+", default=ENGINES, choices=ENGINES)
    parser.add_argument("--keep", type=Path, help="folder for the trained checkpoints")
    options = parser.parse_args()
    test = TestSet(options.checkpoint, options.eval_data, max_length=options.max_length)
    print(f"float: {test.float.name} {test.float.value:.2f}", flush=True)
    print(f"| seed | {' | '.join(options.engines)} |", flush=True)
    print(f"|---|{'---|' * len(options.engines)}", flush=True)
    rows = [measure(seed, options, test) for seed in options.seeds]
    print(f"| mean | {cells([mean_of(column) for column in zip(*rows, strict=True)])} |")


def cells(row: Sequence[Score]) -> str:
    return " | ".join(map(str, row))


def measure(seed: int, options: argparse.Namespace, test: TestSet) -> list[Score]:
    """Train and quantize with one seed, print the row, and return its scores."""
    with tempfile.TemporaryDirectory() as scratch:
        trained, graphs = Path(scratch) / "trained", Path(scratch) / "int8"
        percentile = options.percentile if options.calibrator == "percentile" else None
        qdqbert.train(
            test.model,
            trained,
            train_data=options.train_data,
            task=options.task,
            qat=True,
            recipe=options.recipe,
            calibration=qdqbert.Calibration(calibrator=options.calibrator, percentile=percentile),
            qat_ranges=options.ranges,
            distillation=qdqbert.Distillation(
                teacher=test.model,
                alpha=options.alpha,
                temperature=options.temperature,
                hidden=options.hidden,
            ),
            optimization=qdqbert.Optimization(
                learning_rate=options.learning_rate,
                epochs=options.epochs,
                batch_size=options.batch_size,
                dropout=options.dropout,
                seed=seed,
            ),
            max_length=options.max_length,
        )
        report = qdqbert.quantize(
            trained,
            graphs,
            task=options.task,
            calibration_data=options.train_data,
            max_length=options.max_length,
            targets=tuple(engine for engine in options.engines if engine != "pytorch"),
            benchmark=False,
        )
        paths = {each.engine: graphs / each.model for each in report.targets}
        row = [
            test.trained(trained) if engine == "pytorch" else test.graph(engine, paths[engine])
            for engine in options.engines
        ]
        if options.keep is not None:
            options.keep.mkdir(parents=True, exist_ok=True)
            shutil.copytree(trained, options.keep / f"seed-{seed}", dirs_exist_ok=True)
    print(f"| {seed} | {cells(row)} |", flush=True)
    return row


if __name__ == "__main__":
    main()
