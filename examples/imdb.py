"""Classify IMDB's reviews, from a pretrained encoder to an INT8 graph, one call per stage.

    python examples/imdb.py [--model M] [--train F] [--test F] [--output DIR] [--stages ...]

Stages:

* `fp32` fine-tunes the model on reviews.
* `qat` trains it with quantizers on every output (recipe `qordered`: 12 tensors and 6 weights per
  layer), with the float model as the teacher.
* `onnx` writes the INT8 graph, and evaluates all three models on the test set. `--targets portable
  qordered` also writes ONNX Runtime's int8 CUDA graph.

Data is IMDB's folder with `pos` and `neg`, a .csv or .tsv file with `text` and `label`, or a data
set of the hub.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import qdqbert

STAGES = ("fp32", "qat", "onnx")


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="google-bert/bert-base-uncased")
    parser.add_argument("--train", default="hub:stanfordnlp/imdb@train")
    parser.add_argument("--test", default="hub:stanfordnlp/imdb@test")
    parser.add_argument("--output", type=Path, default=Path("imdb"))
    parser.add_argument("--stages", nargs="+", choices=STAGES, default=STAGES)
    parser.add_argument("--recipe", default="qordered")
    parser.add_argument("--targets", nargs="+", default=["portable"])
    parser.add_argument("--max-length", type=int, default=128)
    parser.add_argument("--examples", type=int, default=1000, help="number of reviews to train on")
    parser.add_argument(
        "--test-examples", type=int, default=200, help="number of reviews to evaluate on"
    )
    parser.add_argument("--epochs", type=float, default=1.0)
    return parser.parse_args()


def main() -> None:
    """Run the stages."""
    options = parse_arguments()
    fp32, qat, int8 = (options.output / name for name in ("fp32", "qat", "int8"))
    data = {
        "train_data": options.train,
        "eval_data": options.test,
        "max_train_examples": options.examples,
        "max_eval_examples": options.test_examples,
        "max_length": options.max_length,
        "task": "text-classification",
        "overwrite": True,
        "progress": True,
    }
    if "fp32" in options.stages:
        report = qdqbert.train(
            options.model, fp32, optimization=qdqbert.Optimization(epochs=options.epochs), **data
        )
        print(f"fp32: accuracy {report.after[0].value:.2f}")
    if "qat" in options.stages:
        report = qdqbert.train(
            fp32,
            qat,
            qat=True,
            recipe=options.recipe,
            distillation=qdqbert.Distillation(teacher=fp32),
            optimization=qdqbert.Optimization(dropout="off", epochs=options.epochs),
            **data,
        )
        before, after = report.before[0].value, report.after[0].value
        print(f"qat: accuracy {before:.2f} calibrated, {after:.2f} trained")
    if "onnx" in options.stages:
        qdqbert.quantize(
            qat,
            int8,
            targets=options.targets,
            calibration_data=options.train,
            overwrite=True,
            progress=True,
        )
        for name, folder in (("fp32", fp32), ("qat", qat), ("onnx", int8)):
            score = qdqbert.evaluate(
                folder,
                options.test,
                max_examples=options.test_examples,
                max_length=options.max_length,
            )
            print(f"{name} on {score.engine}: accuracy {score.metrics[0].value:.2f}")


if __name__ == "__main__":
    main()
