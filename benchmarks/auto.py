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
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import qdqbert
from qdqbert.common.machine import cpu_features, cpu_name, usable_cores
from qdqbert.evidence.reports import CandidateReport
from qdqbert.pipeline.auto import choice
from qdqbert.pipeline.auto.choice import Candidate, Timed
from qdqbert.pipeline.auto.ranking import Sample, rank


def main() -> None:
    arguments = parse()
    print(f"{cpu_name()}, {usable_cores()} cores, {' '.join(cpu_features())}\n")
    exhaustive: list[dict[int, float]] = []
    # The candidates of the first ranking, by their positions in it.
    names: list[tuple[str, str, str]] = []
    seconds = 0.0
    time_candidates = choice.time_candidates

    def time_first(candidates: Sequence[Candidate], **options: Any) -> list[Timed]:
        if not names:
            plans = [each.plan for each in candidates]
            names.extend((x.target.name, x.target.engines[0], x.recipe.name) for x in plans)
        return time_candidates(candidates, **options)

    def rank_twice(timers: Sequence[Any], **options: Any) -> list[tuple[int, Sample]]:
        nonlocal seconds
        if exhaustive:
            return rank(timers, **options)
        ranked = rank(timers, **options)
        start = time.perf_counter()
        for _ in range(arguments.passes):
            exhaustive.append({index: sample.mean_ms for index, sample in rank(timers)})
        seconds = time.perf_counter() - start
        return ranked

    limits = {
        name: value
        for name in ("eval_data", "max_drop", "max_flips")
        if (value := getattr(arguments, name)) is not None
    }
    start = time.perf_counter()
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.object(choice, "rank", rank_twice),
        mock.patch.object(choice, "time_candidates", time_first),
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
    medians = {
        name: statistics.median(each[index] for each in exhaustive)
        for index, name in enumerate(names)
    }
    show(report.candidates, medians)
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
    candidates: Sequence[CandidateReport], measured: Mapping[tuple[str, str, str], float]
) -> None:
    """Print both times of each candidate, and how far the choice is from the best."""

    def exact(each: CandidateReport) -> float:
        return measured[each.target, each.engine, each.recipe]

    usable = [exact(each) for each in candidates if each.verdict != "rejected"]
    if not usable:
        print("All candidates were rejected.")
        return
    print("| target | engine | recipe | verdict | relative time | measured exhaustively |")
    print("|---|---|---|---|---|---|")
    for each in candidates:
        print(
            f"| {each.target} | {each.engine} | {each.recipe} | {each.verdict} | "
            f"{each.relative_time:.2f} | {exact(each) / min(usable):.2f} |"
        )
    [chosen] = [exact(each) for each in candidates if each.verdict == "chosen"]
    print(f"\nThe choice is {100 * (chosen / min(usable) - 1):.1f} % slower than the best.")


if __name__ == "__main__":
    main()
