"""Run QDQBERT's SQuAD workflow, from a pretrained encoder to INT8 graphs, one call per stage.

    python examples/squad.py [--model M] [--train F] [--eval F] [--output DIR] \
        [--stages fp32 ptq qat onnx benchmark] [--float-checkpoint DIR]

Stages:

* `fp32` fine-tunes the model. `--float-checkpoint` names a fine-tuned model to use instead.
* `ptq` quantizes it with calibrated ranges.
* `qat` trains with 20 quantizers per layer, with the float model as the teacher.
* `onnx` writes INT8 graphs with the trained ranges, and evaluates them.
* `benchmark` measures the latency of float and INT8.

Data is a .json file of SQuAD, v1.1 or v2.0, or a data set of the hub.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import qdqbert

STAGES = ("fp32", "ptq", "qat", "onnx", "benchmark")
TARGETS = ("onnxruntime", "openvino")


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="google-bert/bert-base-uncased")
    parser.add_argument("--float-checkpoint", type=Path)
    parser.add_argument("--train", default="hub:rajpurkar/squad@train")
    parser.add_argument("--eval", default="hub:rajpurkar/squad@validation")
    parser.add_argument("--output", type=Path, default=Path("squad"))
    parser.add_argument("--stages", nargs="+", choices=STAGES, default=STAGES)
    parser.add_argument("--max-length", type=int, default=384)
    parser.add_argument("--doc-stride", type=int, default=128)
    parser.add_argument("--epochs", type=float, default=2.0)
    parser.add_argument("--qat-epochs", type=float, default=0.2)
    parser.add_argument("--learning-rate", type=float, default=3e-5)
    parser.add_argument("--qat-learning-rate", type=float, default=1e-4)
    parser.add_argument("--train-examples", type=int)
    parser.add_argument("--eval-examples", type=int)
    return parser.parse_args()


def main() -> None:
    """Run the stages."""
    options = parse_arguments()
    fp32 = options.float_checkpoint or options.output / "fp32"
    ptq, qat, int8 = (options.output / name for name in ("ptq", "qat", "int8"))
    shared = {
        "task": "question-answering",
        "max_length": options.max_length,
        "task_options": qdqbert.TaskOptions(doc_stride=options.doc_stride),
        "overwrite": True,
        "progress": True,
    }
    data = {
        "train_data": options.train,
        "eval_data": options.eval,
        "max_train_examples": options.train_examples,
        "max_eval_examples": options.eval_examples,
    }
    # The training data can be calibrated on, but INT8 is compared with float on other data.
    graphs = {
        "calibration_data": options.train,
        "eval_data": options.eval,
        "targets": TARGETS,
        "benchmark": False,
    }
    if "fp32" in options.stages and options.float_checkpoint is None:
        qdqbert.train(
            options.model,
            fp32,
            optimization=qdqbert.Optimization(
                epochs=options.epochs, learning_rate=options.learning_rate
            ),
            **data,
            **shared,
        )
    score("fp32", fp32, options)
    if "ptq" in options.stages:
        qdqbert.quantize(fp32, ptq, **graphs, **shared)
        score("ptq", ptq, options)
    if "qat" in options.stages:
        qdqbert.train(
            fp32,
            qat,
            qat=True,
            distillation=qdqbert.Distillation(teacher=fp32),
            optimization=qdqbert.Optimization(
                epochs=options.qat_epochs, learning_rate=options.qat_learning_rate, dropout="off"
            ),
            **data,
            **shared,
        )
        score("qat", qat, options)
    if "onnx" in options.stages:
        qdqbert.quantize(qat, int8, **graphs, **shared)
        score("qat, INT8 graph", int8, options)
    if "benchmark" in options.stages:
        timed = qdqbert.benchmark([str(fp32), str(ptq), str(int8)], sequences=[128, 384])
        for timing, speedup in zip(timed.timings, timed.speedups, strict=True):
            shape = f"{timing.batch} x {timing.sequence}"
            print(f"{timing.name} on {timing.engine}, {shape}: {speedup:.2f} x")


def score(name: str, folder: Path, options: argparse.Namespace) -> None:
    """Evaluate a model, and print its metrics."""
    report = qdqbert.evaluate(
        folder,
        options.eval,
        task="question-answering",
        max_length=options.max_length,
        max_examples=options.eval_examples,
        task_options=qdqbert.TaskOptions(doc_stride=options.doc_stride),
        output=options.output / "predictions" / name.replace(", ", "-").replace(" ", "-"),
        progress=True,
    )
    values = ", ".join(f"{each.name} {each.value:.2f}" for each in report.metrics)
    print(f"{name} on {report.engine}: {values}")


if __name__ == "__main__":
    main()
