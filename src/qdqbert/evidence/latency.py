"""Time graphs on engines alternately, so that noise of the machine affects all of them.

Every candidate is loaded in its own process. In each round each candidate runs for a slice of time
while the others wait. The median of a slice is one sample. Ratios are computed round by round, so
that a machine that slows down for a second slows both sides of a ratio.
"""

from __future__ import annotations

import contextlib
import dataclasses
import statistics
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from qdqbert.engines.cuda.device import Device
from qdqbert.engines.registry import check_engine
from qdqbert.evidence.processes import WorkerProcess, open_worker

_WORKER = "qdqbert.evidence.worker"

ROUNDS = 3
"""Slices of each candidate and shape in reports that have latency among other things."""
_SHAPES = ((1, 32), (8, 128))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Candidate:
    """A graph on an engine.

    Attributes:
        name: Name for tables, unique among the candidates of a call.
        choices: Number of texts in one input, for multiple choice.
        provider: Execution provider of ONNX Runtime; the CPU provider if `None`.
        device: The GPU that runs the graph of the native engine; `None` for the CPU.
    """

    name: str
    engine: str
    model: Path
    choices: int | None = None
    provider: str | None = None
    device: Device | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Timing:
    """Latency of one candidate at one shape.

    Attributes:
        name: Name of the candidate.
        engine: Engine that ran it.
        batch: Number of texts in one inference.
        sequence: Number of tokens of each text.
        median_ms: Median over rounds of the median of a round, milliseconds.
        rounds_ms: Median of each round in order, milliseconds. The rounds of all candidates were
            measured alternately.
        precision: Float type between int8 operators.
    """

    name: str
    engine: str
    batch: int
    sequence: int
    median_ms: float
    rounds_ms: tuple[float, ...]
    precision: str


def speedup(slower: Timing, faster: Timing) -> float:
    """Return the median over rounds of the ratio of two latencies."""
    return statistics.median(a / b for a, b in zip(slower.rounds_ms, faster.rounds_ms, strict=True))


def usual_shapes(longest: int) -> list[tuple[int, int]]:
    """Return the `(batch, sequence)` of such reports, for a model of so many tokens at most."""
    return list(dict.fromkeys((batch, min(sequence, longest)) for batch, sequence in _SHAPES))


def time_candidates(
    candidates: Sequence[Candidate],
    shapes: Sequence[tuple[int, int]],
    *,
    threads: int | None = None,
    rounds: int = 5,
    seconds: float = 0.5,
    advance: Callable[[], None] = lambda: None,
) -> list[Timing]:
    """Time every candidate at every shape.

    Args:
        candidates: The graphs and engines to compare.
        shapes: `(batch, sequence)` pairs.
        threads: Number of threads of one inference; each engine's own choice if `None`.
        rounds: Number of slices for each candidate and shape.
        seconds: Length of a slice. It makes at least three inferences.
        advance: Called after each slice: `len(candidates) * len(shapes) * rounds` times.

    Returns:
        A timing for each shape and candidate, in this order.

    Raises:
        MissingExtraError: An engine is not installed.
        QdqBertError: A worker process failed. The message has the last line that it wrote.
    """
    for candidate in candidates:
        if candidate.device is None:
            check_engine(candidate.engine)
    with contextlib.ExitStack() as stack:
        workers = [stack.enter_context(_worker(each, threads)) for each in candidates]
        timings = []
        for batch, sequence in shapes:
            samples: list[list[float]] = [[] for _ in candidates]
            for _ in range(rounds):
                for (worker, _), sample in zip(workers, samples, strict=True):
                    request = {"batch": batch, "sequence": sequence, "seconds": seconds}
                    sample.append(statistics.median(worker.ask(request)["times_ms"]))
                    advance()
            timings += [
                Timing(
                    name=candidate.name,
                    engine=candidate.engine,
                    batch=batch,
                    sequence=sequence,
                    median_ms=statistics.median(sample),
                    rounds_ms=tuple(sample),
                    precision=precision,
                )
                for candidate, (_, precision), sample in zip(
                    candidates, workers, samples, strict=True
                )
            ]
        return timings


@contextlib.contextmanager
def _worker(candidate: Candidate, threads: int | None) -> Iterator[tuple[WorkerProcess, str]]:
    """Yield a process that has loaded a candidate, and its float type."""
    what = f"`{candidate.model}` on {candidate.engine}"
    with open_worker(_WORKER, what) as worker:
        load = dataclasses.asdict(candidate) | {"model": str(candidate.model), "threads": threads}
        yield worker, worker.ask(load)["precision"]
