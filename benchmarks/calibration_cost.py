"""Measure what calibration takes: time next to the forward passes alone, and peak memory.

    python benchmarks/calibration_cost.py [--model MODEL] [--texts texts.txt] [--counts 300,1200]

Each run is a separate process that loads the checkpoint and calibrates it for the target
`portable`, as `quantize` does: smoothing, ranges, corrected biases and the rounding of weights.
The built-in texts are used without `--texts`. They are repeated, so that all runs have inputs of
the same lengths. "Forward" is the time of as many passes over the same batches that observe
nothing. All run on one thread, and seconds are those of its CPU time, which depend less on what
else the machine does. In the row "max, nearest codes", weights are rounded to the nearest codes,
which needs no second moments.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

CALIBRATORS = ("max, nearest codes", "max", "percentile", "mse", "entropy")


def main() -> None:
    arguments = parse()
    if arguments.one:
        measure(arguments, arguments.one[0], int(arguments.one[1]))
        return
    counts = [int(count) for count in arguments.counts.split(",")]
    first = counts[0]
    header = [f"{first} texts, CPU s", "forward, CPU s", "ratio", "peak, MB"]
    header += [f"peak with {count} texts, MB" for count in counts[1:]]
    print(f"| calibrator | {' | '.join(header)} |")
    print("|---" * (len(header) + 1) + "|")
    for calibrator in CALIBRATORS:
        runs = [run(arguments, calibrator, count) for count in counts]
        seconds, forward = runs[0]["seconds"], runs[0]["forward"]
        cells = [f"{seconds:.1f}", f"{forward:.1f}", f"{seconds / forward:.2f}"]
        cells += [f"{each['peak']:.0f}" for each in runs]
        print(f"| {calibrator} | {' | '.join(cells)} |", flush=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--model", default="demo", help="checkpoint (default: the packaged one)")
    parser.add_argument("--texts", help="one text per line (default: the built-in ones)")
    parser.add_argument("--counts", default="300,1200", help="numbers of calibration texts")
    parser.add_argument("--max-length", type=int, default=128)
    parser.add_argument(
        "--one", nargs=2, metavar=("CALIBRATOR", "COUNT"), help="measure in this process only"
    )
    return parser.parse_args()


def run(arguments: argparse.Namespace, calibrator: str, count: int) -> dict[str, float]:
    """Measure in a new process."""
    command = [sys.executable, __file__, "--model", arguments.model]
    command += ["--max-length", str(arguments.max_length), "--one", calibrator, str(count)]
    command += ["--texts", arguments.texts] if arguments.texts else []
    finished = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, float] = json.loads(finished.stdout.splitlines()[-1])
    return found


def measure(arguments: argparse.Namespace, calibrator: str, count: int) -> None:
    """Calibrate in this process, and print seconds and the peak memory in MB as JSON."""
    import torch

    from calibration import calibrate
    from qdqbert.calibration.calibrate import as_tensors, run_observed
    from qdqbert.calibration.statistics import CombinedObserver
    from qdqbert.encoders.checkpoint.demo import demo_checkpoint
    from qdqbert.encoders.checkpoint.load import load_checkpoint
    from qdqbert.encoders.checkpoint.tokenizer import runtime_tokenizer
    from qdqbert.encoders.task_kinds import TaskSettings
    from qdqbert.graphs.targets import TARGETS
    from qdqbert.graphs.targets.target import make_plan
    from qdqbert.pipeline.predictions import encode_examples
    from qdqbert.quantization.numerics.ranges import Entropy, Max, Mse, Percentile
    from qdqbert.quantization.recipes import PERCENTILE
    from qdqbert.tasks.registry import TASKS
    from qdqbert.tasks.task import Tokenization
    from qdqbert.training.body import GraphBody
    from qdqbert.training.insert.sited import insert_quantizers_

    rules = {"max": Max(), "percentile": Percentile(PERCENTILE), "mse": Mse(), "entropy": Entropy()}
    torch.set_num_threads(1)
    name, _, nearest = calibrator.partition(", ")
    is_demo = arguments.model == "demo"
    checkpoint = load_checkpoint(str(demo_checkpoint()) if is_demo else arguments.model)
    body = GraphBody.of(checkpoint)
    sited = insert_quantizers_(checkpoint.model, checkpoint.family)
    plan = make_plan(TARGETS["portable"], sited.sites, embeddings="int8")
    how = Tokenization(
        tokenizer=runtime_tokenizer(checkpoint.tokenizer),
        input_names=checkpoint.input_names,
        max_length=arguments.max_length,
        settings=TaskSettings(),
    )
    examples = texts(arguments.texts, count)
    encoded = encode_examples(TASKS[checkpoint.task].encode, examples, how, batch_size=8)

    def forward(inputs: Any) -> object:
        return body(**inputs)

    settings: dict[str, Any] = {"smoothing": plan.recipe.smoothing}
    passes = 2
    if not nearest:
        settings["rounded_weights"] = plan.rounded_weights
        passes = 3
    start = time.process_time()
    for _ in range(passes):
        run_observed(sited, forward, as_tensors(encoded.batches), CombinedObserver(), {})
    alone = time.process_time() - start
    start = time.process_time()
    calibrate(
        sited,
        forward,
        encoded.batches,
        sites=[site.name for site in sited.sites if site.name in plan.activations],
        calibrator=rules[name],
        **settings,
    )
    seconds = time.process_time() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"seconds": seconds, "forward": alone, "peak": peak}))


def texts(path: str | None, count: int) -> list[Any]:
    """Return as many texts, repeated where there are fewer."""
    from qdqbert.data import texts as resources
    from qdqbert.data.rows.data import Example

    found = list(resources.calibration_examples())
    if path is not None:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
        found = [Example(text=line) for line in lines]
    found = found[:300]
    return [found[index % len(found)] for index in range(count)]


if __name__ == "__main__":
    main()
