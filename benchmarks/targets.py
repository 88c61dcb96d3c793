"""Evaluate the graphs of all targets on the engines that run them here, with one calibration.

    python benchmarks/targets.py CHECKPOINT --test FILE [--calibration FILE] [--targets T ...]

The script quantizes once, with each target's default recipe. It evaluates every graph on the whole
test file, and counts the predictions that differ from the float checkpoint's. Targets without an
engine are left out.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import cast

import qdqbert
from qdqbert.common.choices import EngineName
from qdqbert.graphs.targets import TARGETS
from scoring import TestSet

RUNNABLE = tuple(name for name, target in TARGETS.items() if target.engines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("checkpoint")
    parser.add_argument("--test", required=True)
    parser.add_argument("--calibration", help="default: built-in texts")
    parser.add_argument("--targets", nargs="+", default=list(RUNNABLE), choices=RUNNABLE)
    parser.add_argument("--recipe", help="recipe of all targets (default: that of each target)")
    parser.add_argument("--max-length", type=int)
    options = parser.parse_args()
    test = TestSet(options.checkpoint, options.test, max_length=options.max_length, batch_size=8)
    print(f"float: {test.float.name} {test.float.value:.2f}\n")
    titles = f"| target | recipe | engine | {test.float.titles()} |"
    print(titles, "|---" * (titles.count("|") - 1) + "|", sep="\n", flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "int8"
        report = qdqbert.quantize(
            test.model,
            folder,
            calibration_data=options.calibration,
            targets=tuple(options.targets),
            recipe=options.recipe,
            max_length=options.max_length,
            benchmark=False,
        )
        for each in report.targets:
            score = test.graph(cast(EngineName, each.engine), folder / each.model)
            print(
                f"| {each.target} | {each.recipe} | {each.engine} | {score.cells()} |", flush=True
            )


if __name__ == "__main__":
    main()
