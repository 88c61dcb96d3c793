r"""Measure QAT with distillation, from a float checkpoint to INT8 graphs, for several seeds.

    python benchmarks/qat.py CHECKPOINT --task T --train-data F --eval-data F [--seeds 0 1 2] \
        [--learning-rate X] [--epochs N] [--alpha A] [--bits 8 4 3 2] ...

For each seed, the script trains with `qat=True` and `distill_from=CHECKPOINT`, quantizes for ONNX
Runtime and OpenVINO with the trained ranges, and evaluates the trained checkpoint in PyTorch and
both graphs. `--engines` selects some of these. The table has the main metric of each and, in
parentheses, the share of predictions that differ from the float checkpoint's. The last row is the
mean over seeds. The model of the last step is used, not the one with the best score.

With `--bits`, weights of linear layers have each of these numbers of bits in turn, and rows without
training come before: graphs that `quantize` makes of the float checkpoint, calibrated on as many
examples that are drawn by the same seeds, with the recipe and calibrator of the training, and with
those that `quantize` chooses itself. Then comes a table of medians and ranges.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import qdqbert
from qdqbert.common.choices import ENGINE_NAMES
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
    parser.add_argument("--bits", type=int, nargs="+", help="bits of the weights")
    parser.add_argument("--max-train-examples", type=int)
    parser.add_argument("--weights-for", default="any")
    parser.add_argument("--embeddings", default="int8")
    options = parser.parse_args()
    test = TestSet(options.checkpoint, options.eval_data, max_length=options.max_length)
    print(f"float: {test.float.name} {test.float.value:.2f}", flush=True)
    if options.bits is None:
        titles, rows = options.engines, []
        print(f"| seed | {' | '.join(titles)} |\n|---|{'---|' * len(titles)}", flush=True)
        for seed in options.seeds:
            rows.append(measure(seed, options, test))
            print(f"| {seed} | {cells(rows[-1])} |", flush=True)
        print(f"| mean | {cells([mean_of(column) for column in zip(*rows, strict=True)])} |")
        return
    options.engines = ["onnxruntime"]
    medians = []
    print("| bits | how | seed | score | SQNR dB |\n|---|---|---|---|---|", flush=True)
    for bits in options.bits:
        medians.append(f"| {bits} |")
        for how, function in HOW.items():
            scores = []
            for seed in options.seeds:
                [score] = function(seed, options, test, bits=bits)
                print(f"| {bits} | {how} | {seed} | {score} | {score.sqnr_db:.1f} |", flush=True)
                scores.append(score)
            medians[-1] += f" {spread(scores)} |"
    print(f"\n| bits | {' | '.join(HOW)} |\n|---|{'---|' * len(HOW)}")
    print("\n".join(medians))


def cells(row: Sequence[Score]) -> str:
    return " | ".join(map(str, row))


def spread(scores: Sequence[Score]) -> str:
    """Return the median of a metric with its range, and the median of the changed predictions."""
    values = [score.value for score in scores]
    changed = [score.changed for score in scores if score.changed is not None]
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})" + (
        f", {statistics.median(changed):.1f} % changed" if changed else ""
    )


def measure(seed: int, options: argparse.Namespace, test: TestSet, bits: int = 8) -> list[Score]:
    """Train and quantize with one seed, and return the scores of the engines."""
    with tempfile.TemporaryDirectory() as scratch:
        trained = Path(scratch) / "trained"
        qdqbert.train(
            test.model,
            trained,
            train_data=options.train_data,
            max_train_examples=options.max_train_examples,
            task=options.task,
            qat=True,
            recipe=options.recipe,
            calibration=calibration_of(options),
            quantizers=qdqbert.Quantizers(
                wprec=bits, weights_for=options.weights_for, embeddings=options.embeddings
            ),
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
        scores = graphs_of(trained, Path(scratch) / "int8", options, test)
        if "pytorch" in options.engines:
            scores["pytorch"] = test.trained(trained)
        if options.keep is not None:
            kept = options.keep / f"bits-{bits}-seed-{seed}"
            shutil.copytree(trained, kept, dirs_exist_ok=True)
    return [scores[engine] for engine in options.engines]


def with_settings_of_training(
    seed: int, options: argparse.Namespace, test: TestSet, bits: int
) -> list[Score]:
    """Quantize the float checkpoint with the recipe and calibrator of the training."""
    return calibrated(
        options, test, bits, recipe=options.recipe, calibration=calibration_of(options, seed=seed)
    )


def with_own_settings(
    seed: int, options: argparse.Namespace, test: TestSet, bits: int
) -> list[Score]:
    """Quantize the float checkpoint with the recipe and calibrator of `quantize`."""
    return calibrated(options, test, bits, calibration=qdqbert.Calibration(seed=seed))


def calibrated(
    options: argparse.Namespace, test: TestSet, bits: int, **settings: Any
) -> list[Score]:
    quantizers = qdqbert.Quantizers(
        wprec=bits, weights_for=options.weights_for, embeddings=options.embeddings
    )
    with tempfile.TemporaryDirectory() as scratch:
        graphs = Path(scratch) / "int8"
        scores = graphs_of(test.model, graphs, options, test, quantizers=quantizers, **settings)
    return [scores[engine] for engine in options.engines]


def graphs_of(
    model: str | Path, folder: Path, options: argparse.Namespace, test: TestSet, **settings: Any
) -> dict[str, Score]:
    """Quantize a checkpoint for the engines, and return the scores of the graphs."""
    report = qdqbert.quantize(
        model,
        folder,
        task=options.task,
        calibration_data=options.train_data,
        max_length=options.max_length,
        targets=tuple(engine for engine in options.engines if engine != "pytorch"),
        benchmark=False,
        **settings,
    )
    paths = {each.engine: folder / each.model for each in report.targets}
    return {name: test.graph(name, paths[name]) for name in ENGINE_NAMES if name in paths}


def calibration_of(options: argparse.Namespace, **changes: Any) -> qdqbert.Calibration:
    """Return how the training calibrates."""
    percentile = options.percentile if options.calibrator == "percentile" else None
    return qdqbert.Calibration(calibrator=options.calibrator, percentile=percentile, **changes)


HOW = {
    "PTQ": with_settings_of_training,
    "PTQ, defaults of `quantize`": with_own_settings,
    "QAT": measure,
}


if __name__ == "__main__":
    main()
