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
from qdqbert.engines.runner import is_installed
from qdqbert.targets import TARGETS

RUNNABLE = tuple(name for name, target in TARGETS.items() if target.engines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("checkpoint")
    parser.add_argument("--test", required=True)
    parser.add_argument("--calibration", required=True)
    parser.add_argument("--targets", nargs="+", default=list(RUNNABLE), choices=RUNNABLE)
    parser.add_argument("--recipe", help="one recipe for all, instead of each target's own")
    parser.add_argument("--max-length", type=int)
    parser.add_argument("--batch-size", type=int, default=8)
    options = parser.parse_args()
    metric = qdqbert.evaluate(
        options.checkpoint, options.test, max_length=options.max_length
    ).metrics[0]
    print(f"float: {metric.name} {metric.value:.2f}\n")
    print("| target | recipe | engine | INT8 | flips % | SQNR dB |")
    print("|---|---|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "int8"
        qdqbert.quantize(
            options.checkpoint,
            folder,
            calibration_data=options.calibration,
            targets=tuple(options.targets),
            recipe=options.recipe,
            max_length=options.max_length,
            benchmark=False,
        )
        for name in options.targets:
            for engine in TARGETS[name].engines:
                if is_installed(engine):
                    print(row_of(options, folder, name, engine), flush=True)


def row_of(options: argparse.Namespace, folder: Path, name: str, engine: str) -> str:
    report = qdqbert.evaluate(
        folder,
        options.test,
        engine=engine,  # type: ignore[arg-type]
        target=name,
        reference=options.checkpoint,
        batch_size=options.batch_size,
    )
    assert report.fidelity is not None
    flips = report.fidelity.flips_percent
    cells = [
        name,
        options.recipe or TARGETS[name].recipe,
        engine,
        f"{report.metrics[0].value:.2f}",
        "" if flips is None else f"{flips:.2f}",
        f"{report.fidelity.sqnr_db:.1f}",
    ]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
