"""Load each candidate in a process of its own, and time it there."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from qdqbert.common.choices import EngineName
from qdqbert.evidence.processes import WorkerProcess, open_worker
from qdqbert.pipeline.auto.halving import Sample


class FolderTimer:
    """Times a folder in a process. Made by `open_timers`; see `halving.Timer`.

    Attributes:
        precision: Float type that the engine computes in between int8 operators.
    """

    def __init__(self, worker: WorkerProcess, precision: str, end: contextlib.ExitStack) -> None:
        """Keep the process."""
        self._worker, self._end = worker, end
        self.precision = precision

    def __call__(self, *, single: int, bulk: int) -> Sample:
        """Run the folder once; see `halving.Timer`."""
        return Sample(**self._worker.ask({"single": single, "bulk": bulk}))

    def close(self) -> None:
        """End the process."""
        self._end.close()


@contextlib.contextmanager
def open_timers(
    folders: Sequence[tuple[Path, EngineName]], features: Path
) -> Iterator[list[FolderTimer]]:
    """Start a process for each folder, and end them after the block.

    Raises:
        QdqBertError: A folder cannot be loaded.
    """
    with contextlib.ExitStack() as stack:
        timers = []
        for folder, engine in folders:
            alone = stack.enter_context(contextlib.ExitStack())
            what = f"`{folder.name}` on {engine}"
            worker = alone.enter_context(open_worker("qdqbert.pipeline.auto.worker", what))
            load = {"folder": str(folder), "engine": engine, "features": str(features)}
            timers.append(FolderTimer(worker, worker.ask(load)["precision"], alone))
        yield timers
