"""Load each candidate in a process of its own, and time it there."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

from qdqbert.choices import EngineName
from qdqbert.evidence.processes import WorkerProcess, open_worker
from qdqbert.verbs.quantize.auto.halving import Sample


@dataclasses.dataclass(frozen=True, kw_only=True)
class TimedFolder:
    """A folder of `quantize`, on an engine.

    Attributes:
        folder: The folder.
        engine: The engine.
    """

    folder: Path
    engine: EngineName


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
def open_timers(folders: Sequence[TimedFolder], features: Path) -> Iterator[list[FolderTimer]]:
    """Start a process for each folder, and end them after the block.

    Args:
        folders: The folders.
        features: Inputs that are timed; see `worker.write_features`.

    Raises:
        QdqBertError: A folder cannot be loaded.
    """
    with contextlib.ExitStack() as stack:
        timers = []
        for each in folders:
            alone = stack.enter_context(contextlib.ExitStack())
            what = f"`{each.folder.name}` on {each.engine}"
            worker = alone.enter_context(open_worker("qdqbert.verbs.quantize.auto.worker", what))
            load = {
                "folder": str(each.folder),
                "engine": each.engine,
                "features": str(features),
            }
            timers.append(FolderTimer(worker, worker.ask(load)["precision"], alone))
        yield timers
