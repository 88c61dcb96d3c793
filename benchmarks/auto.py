r"""Compare the choice of `quantize --target auto` with the best of an exhaustive measurement.

    python benchmarks/auto.py --model MODEL --texts texts.txt [--eval-data dev.csv --max-drop 0.5]

The call runs as usual. Before the candidates that it has timed are closed, all of them take turns
on all texts of the last round, `--passes` times. The table has the medians of these passes, also
for candidates that the call times again. A candidate that leaves layers in float to meet a limit
was measured before it did. The last line says how much slower the choice is than the fastest
candidate that was not rejected.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import qdqbert
from qdqbert.evidence.reports import CandidateReport
from qdqbert.machine import cpu_features, cpu_name, usable_cores
from qdqbert.pipeline.auto import choice
from qdqbert.pipeline.auto.halving import Standing, rank


def main() -> None:
    arguments = parse()
    print(f"{cpu_name()}, {usable_cores()} cores, {' '.join(cpu_features())}\n")
    exhaustive: list[dict[int, float]] = []
    # Positions of the candidates in the first ranking, in the order of the report.
    order: list[int] = []
    seconds = 0.0

    def rank_twice(timers: Sequence[Any], **options: Any) -> list[Standing]:
        nonlocal seconds
        if exhaustive:
            # The finalists were rejected, and the others are timed again in their order.
            left = order[-len(timers) :]
            standings = rank(timers, **options)
            order[-len(timers) :] = [left[each.index] for each in standings]
            return standings
        # The candidates that fall behind stay open.
        standings = rank(timers, advance=options["advance"])
        order.extend(each.index for each in standings)
        start = time.perf_counter()
        for _ in range(arguments.passes):
            found = rank(timers, finalists=len(timers))
            exhaustive.append({each.index: each.relative_time for each in found})
        seconds = time.perf_counter() - start
        return standings

    limits = {
        name: value
        for name in ("eval_data", "max_drop", "max_flips")
        if (value := getattr(arguments, name)) is not None
    }
    start = time.perf_counter()
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.object(choice, "rank", rank_twice),
    ):
        report = qdqbert.quantize(
            arguments.model,
            Path(folder) / "auto",
            targets=["auto"],
            calibration_data=arguments.texts,
            progress=True,
            **limits,
        )
    seconds = time.perf_counter() - start - seconds
    show(report.candidates, order, exhaustive)
    print(f"\n`quantize` took {seconds:.0f} s. {report.reason}")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--texts", required=True)
    parser.add_argument("--eval-data")
    parser.add_argument("--max-drop", type=float)
    parser.add_argument("--max-flips", type=float)
    parser.add_argument("--passes", type=int, default=5)
    return parser.parse_args()


def show(
    candidates: Sequence[CandidateReport],
    order: Sequence[int],
    exhaustive: Sequence[dict[int, float]],
) -> None:
    """Print both times of each candidate, and how far the choice is from the best."""
    measured = {
        index: statistics.median(each[index] for each in exhaustive) for index in exhaustive[0]
    }
    usable = [
        measured[index]
        for index, each in zip(order, candidates, strict=True)
        if each.verdict != "rejected"
    ]
    if not usable:
        print("All candidates were rejected.")
        return
    print("| target | engine | recipe | verdict | relative time | measured exhaustively |")
    print("|---|---|---|---|---|---|")
    for index, each in zip(order, candidates, strict=True):
        exact = measured[index] / min(usable)
        print(
            f"| {each.target} | {each.engine} | {each.recipe} | {each.verdict} | "
            f"{each.relative_time:.2f} | {exact:.2f} |"
        )
    choice = next(
        measured[index]
        for index, each in zip(order, candidates, strict=True)
        if each.verdict == "chosen"
    )
    slower = 100 * (choice / min(usable) - 1)
    print(f"\nThe choice is {slower:.1f} % slower than the best.")


if __name__ == "__main__":
    main()
