"""Times graphs on engines: side by side, in turns, so that a noisy machine is noisy to all.

Every candidate is loaded in a process of its own. In each round each candidate runs for a slice
of time while the others wait; the median of a slice is one sample. Ratios are taken round by
round, so a machine that slows down for a second slows both sides of them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from qdqbert.choices import EngineName
from qdqbert.engines.runner import check_engine
from qdqbert.errors import QdqBertError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Candidate:
    """A graph on an engine.

    Attributes:
        name: For tables; unique among the candidates of a call.
        engine: What runs it.
        model: The .onnx file.
        vocab_size: Token ids are drawn below it.
        choices: How many texts an input row holds, for multiple choice.
        provider: Which of ONNX Runtime's execution providers, if another than its CPU's.
    """

    name: str
    engine: EngineName
    model: Path
    vocab_size: int
    choices: int | None = None
    provider: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Timing:
    """How long one candidate took at one shape.

    Attributes:
        name: Of the candidate.
        engine: That ran it.
        batch: Texts at once.
        sequence: Tokens a text.
        median_ms: Median over rounds of the median of a round.
        rounds_ms: Median of each round, in order; the same index was measured side by side.
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
    """Median over rounds of how many times faster one is."""
    return statistics.median(a / b for a, b in zip(slower.rounds_ms, faster.rounds_ms, strict=True))


def time_candidates(
    candidates: Sequence[Candidate],
    shapes: Sequence[tuple[int, int]],
    *,
    threads: int | None = None,
    rounds: int = 5,
    seconds: float = 0.5,
    advance: Callable[[], None] = lambda: None,
) -> list[Timing]:
    """Times every candidate at every shape.

    Args:
        candidates: What to time against each other.
        shapes: `(batch, sequence)` pairs.
        threads: Threads of one inference; each engine's own choice if `None`.
        rounds: Slices a candidate and shape.
        seconds: Length of a slice; at least three inferences are made.
        advance: Called after each slice: `len(candidates) * len(shapes) * rounds` times.

    Returns:
        A timing for each candidate and shape, shapes outermost.

    Raises:
        MissingExtraError: An engine is not installed.
        QdqBertError: A worker process failed; carries the last line that it wrote.
    """
    for candidate in candidates:
        check_engine(candidate.engine)
    with contextlib.ExitStack() as stack:
        workers = [stack.enter_context(_worker(each, threads)) for each in candidates]
        timings = []
        for batch, sequence in shapes:
            samples: list[list[float]] = [[] for _ in candidates]
            for _ in range(rounds):
                for worker, sample in zip(workers, samples, strict=True):
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
                    precision=worker.precision,
                )
                for candidate, worker, sample in zip(candidates, workers, samples, strict=True)
            ]
        return timings


class _Worker:
    """The other end of a worker process."""

    def __init__(self, process: subprocess.Popen[str], candidate: Candidate) -> None:
        self._process = process
        self._candidate = candidate
        self.precision = ""

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Sends a request and waits for its answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            assert self._process.stderr is not None
            said = self._process.stderr.read().strip().split("\n")[-1]
            raise QdqBertError(
                f"Timing `{self._candidate.model}` on {self._candidate.engine} failed: {said}"
            )
        answer: dict[str, Any] = json.loads(line)
        return answer


@contextlib.contextmanager
def _worker(candidate: Candidate, threads: int | None) -> Iterator[_Worker]:
    process = subprocess.Popen(
        [sys.executable, "-m", "qdqbert.evidence.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        worker = _Worker(process, candidate)
        load = {
            "engine": candidate.engine,
            "model": str(candidate.model),
            "threads": threads,
            "vocab_size": candidate.vocab_size,
            "choices": candidate.choices,
            "provider": candidate.provider,
        }
        worker.precision = worker.ask(load)["precision"]
        yield worker
    finally:
        process.kill()
        process.communicate()
