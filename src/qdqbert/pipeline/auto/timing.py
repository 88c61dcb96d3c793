"""Load each candidate in a process of its own, and time it there."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from qdqbert.common.choices import EngineName
from qdqbert.evidence.processes import WorkerProcess, open_worker
from qdqbert.pipeline.auto.ranking import Sample


class FolderTimer:
    """Times a folder in a process. Made by `open_timers`; see `ranking.Timer`.

    Attributes:
        precision: Float type that the engine computes in between int8 operators.
    """

    def __init__(self, worker: WorkerProcess, precision: str) -> None:
        self._worker, self.precision = worker, precision

    def __call__(self, *, single: int, bulk: int) -> Sample:
        """Run the folder once; see `ranking.Timer`."""
        return Sample(**self._worker.ask({"single": single, "bulk": bulk}))


@contextlib.contextmanager
def open_timers(
    folders: Sequence[tuple[Path, EngineName]], features: Path
) -> Iterator[list[FolderTimer]]:
    """Start a process for each folder, and end them after the block."""
    with contextlib.ExitStack() as stack:
        timers = []
        for folder, engine in folders:
            what = f"`{folder.name}` on {engine}"
            worker = stack.enter_context(open_worker("qdqbert.pipeline.auto.worker", what))
            load = {"folder": str(folder), "engine": engine, "features": str(features)}
            timers.append(FolderTimer(worker, worker.ask(load)["precision"]))
        yield timers
