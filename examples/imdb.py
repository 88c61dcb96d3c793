"""Sentiment of IMDB reviews, from a pretrained encoder to an INT8 graph, each stage one call.

    python examples/imdb.py [--model M] [--train F] [--test F] [--output DIR] [--stages ...]

`fp32` fine-tunes MODEL on reviews, `qat` goes on with quantizers on every output (the recipe
`qordered`: 12 quantized tensors and 6 weights a layer) and follows the float model, `onnx` writes
the INT8 graph and scores all three on the test set; `--targets portable qordered` writes ONNX
Runtime's int8 CUDA graph beside it. Data: IMDB's folders of `pos` and `neg`, a
.csv or .tsv with `text` and `label`, or a name of the hub.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import qdqbert
from qdqbert.progress import Bars

STAGES = ("fp32", "qat", "onnx")


def main() -> None:
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
    parser.add_argument("--examples", type=int, default=1000, help="reviews to train on")
    parser.add_argument("--test-examples", type=int, default=200, help="reviews to score on")
    parser.add_argument("--epochs", type=float, default=1.0)
    options = parser.parse_args()
    fp32, qat, int8 = (options.output / name for name in ("fp32", "qat", "int8"))
    data = {
        "train_data": options.train,
        "eval_data": options.test,
        "max_train_examples": options.examples,
        "max_eval_examples": options.test_examples,
        "max_length": options.max_length,
        "task": "text-classification",
        "overwrite": True,
        "progress": Bars(),
    }
    if "fp32" in options.stages:
        report = qdqbert.train(options.model, fp32, epochs=options.epochs, **data)
        print(f"fp32: accuracy {report.after[0].value:.2f}")
    if "qat" in options.stages:
        report = qdqbert.train(
            fp32,
            qat,
            qat=True,
            recipe=options.recipe,
            distill_from=fp32,
            dropout="off",
            epochs=options.epochs,
            **data,
        )
        before, after = report.before[0].value, report.after[0].value
        print(f"qat: accuracy {before:.2f} calibrated, {after:.2f} trained")
    if "onnx" in options.stages:
        qdqbert.quantize(
            qat,
            int8,
            targets=tuple(options.targets),
            calibration_data=options.train,
            overwrite=True,
            progress=Bars(),
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
