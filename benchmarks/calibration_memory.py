"""Measure the peak memory of each calibrator for different numbers of examples.

    python benchmarks/calibration_memory.py [--model MODEL] [--counts 64,1024] [--max-length 128]

Each run is a separate process that loads the checkpoint, calibrates all 20 sites of each layer,
chooses ranges, and rounds the weights of linear layers. The texts are repeated, so that all runs
have inputs of the same lengths.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys

CALIBRATORS = ("max", "percentile", "mse", "entropy")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="demo", help="checkpoint (default: the packaged one)")
    parser.add_argument("--counts", default="64,1024", help="numbers of calibration examples")
    parser.add_argument("--max-length", type=int, default=128)
    parser.add_argument(
        "--one", nargs=2, metavar=("CALIBRATOR", "COUNT"), help="measure this process only"
    )
    arguments = parser.parse_args()
    if arguments.one:
        run_one(arguments.model, arguments.one[0], int(arguments.one[1]), arguments.max_length)
        return
    counts = [int(count) for count in arguments.counts.split(",")]
    print(
        "| calibrator | " + " | ".join(f"{count} examples, MB" for count in counts) + " | ratio |"
    )
    print("|---|" + "---|" * (len(counts) + 1))
    for calibrator in CALIBRATORS:
        peaks = [peak_mb(arguments, calibrator, count) for count in counts]
        cells = " | ".join(f"{peak:.0f}" for peak in peaks)
        print(f"| {calibrator} | {cells} | {peaks[-1] / peaks[0]:.3f} |", flush=True)


def peak_mb(arguments: argparse.Namespace, calibrator: str, count: int) -> float:
    """Return the peak memory of one run, in MB, measured in a new process."""
    command = [sys.executable, __file__, "--model", arguments.model]
    command += ["--max-length", str(arguments.max_length), "--one", calibrator, str(count)]
    finished = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(finished.stdout.split()[-1])


def run_one(model: str, calibrator: str, count: int, max_length: int) -> None:
    """Calibrate in this process, and print its peak memory in MB."""
    from calibration import calibrate
    from qdqbert import resources
    from qdqbert.checkpoint.demo import demo_checkpoint
    from qdqbert.checkpoint.load import load_checkpoint
    from qdqbert.graph.export import GraphBody
    from qdqbert.insert.sited import insert_quantizers_
    from qdqbert.numerics.ranges import Entropy, Max, Mse, Percentile
    from qdqbert.recipes import PERCENTILE, WIDE_INPUTS
    from qdqbert.targets import TARGETS
    from qdqbert.targets.target import make_plan
    from qdqbert.tasks import TASKS
    from qdqbert.tasks.task import TaskOptions
    from qdqbert.verbs.inference import encode_examples

    rules = {"max": Max(), "percentile": Percentile(PERCENTILE), "mse": Mse(), "entropy": Entropy()}
    checkpoint = load_checkpoint(str(demo_checkpoint()) if model == "demo" else model)
    body = GraphBody.of(checkpoint)
    sited = insert_quantizers_(checkpoint.model, checkpoint.family)
    plan = make_plan(TARGETS["portable"], sited.sites, embeddings="int8")
    texts = resources.calibration_examples()[:64] * (count // 64)
    encoded = encode_examples(
        TASKS[checkpoint.task],
        checkpoint.tokenizer,
        texts,
        input_names=checkpoint.input_names,
        max_length=max_length,
        batch_size=8,
        options=TaskOptions(),
    )
    calibrate(
        sited,
        lambda inputs: body(**inputs),
        encoded.batches,
        sites=[site.name for site in sited.sites if site.kind == "activation"],
        calibrator=rules[calibrator],
        smoothing=WIDE_INPUTS,
        rounded_weights=plan.rounded_weights,
    )
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


if __name__ == "__main__":
    main()
