"""Serve in several processes that share a port, each on cores of its own.

The first process loads the models alone, so that it compiles kernels and packs weights once. A
process that dies is replaced. The parent keeps the sockets of all processes open until the server
ends, so that connections that wait for one are not lost: the process that replaces it accepts them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import qdqbert.common.errors
from qdqbert.common.errors import QdqBertError
from qdqbert.common.files import temporary_folder, write_bytes
from qdqbert.common.machine import parts_of_cpus, usable_cores
from qdqbert.common.progress import Progress
from qdqbert.runtime.model import Model
from qdqbert.verbs.serve.options import ServeOptions
from qdqbert.verbs.serve.process import handling_signals

RUNNING = "running"
"""File in the shared folder with the number of processes that run."""

_LOGGER = logging.getLogger("qdqbert")
_MODULE = "qdqbert.verbs.serve.worker"
_LOOK_SECONDS = 0.1
# A process that dies while it starts is started again after 1 s, 2 s, and so on.
_LONGEST_PAUSE_SECONDS = 30.0
END_SECONDS = 5.0
"""How long processes may take to end after the time that accepted requests have."""


class ServedModel(NamedTuple):
    """Facts about a model that are printed when the server has started."""

    name: str
    task: str
    target: str
    engine: str

    @classmethod
    def every(cls, models: Mapping[str, Model]) -> list[ServedModel]:
        """Return the facts about each model."""
        return [cls(name, model.task, model.target, model.engine) for name, model in models.items()]


@contextlib.contextmanager
def run_workers(
    options: ServeOptions,
    listeners: Sequence[socket.socket],
    progress: Progress,
    announce: Callable[[list[ServedModel]], None],
) -> Iterator[Path]:
    """Serve until a signal comes, and yield the folder that the processes counted in.

    `listeners` has a bound socket for each process, and `announce` is called with the models when
    all processes accept connections.

    Raises:
        QdqBertError: The first process cannot start. It is the error of that process.
    """
    with temporary_folder() as folder:
        workers = _Workers(options, listeners, folder)
        with handling_signals(workers.stop_soon):
            try:
                models = workers.start(progress)
                if models is not None:
                    announce(models)
                    workers.replace_those_that_die()
            finally:
                workers.stop()
        yield folder


@dataclasses.dataclass(kw_only=True)
class _Worker:
    """A process, or the pause before the next one.

    Attributes:
        place: Number of its socket and of its CPUs.
        messages: File descriptor that it writes its message to.
        is_ready: Whether it accepts connections.
        failures: How many processes in a row died before they were ready.
        starts_at: Time to start the next one, monotonic.
    """

    place: int
    process: subprocess.Popen[bytes]
    messages: int
    is_ready: bool = False
    failures: int = 0
    starts_at: float | None = None

    def close(self) -> None:
        """Close what connects it with its process."""
        os.close(self.messages)
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()


class _Workers:
    """The processes of a server."""

    def __init__(
        self, options: ServeOptions, listeners: Sequence[socket.socket], folder: Path
    ) -> None:
        # A flag: a signal can come while this thread holds the lock of an event.
        self._is_stopping = False
        self._listeners, self._folder, self._seconds = listeners, folder, options.shutdown_seconds
        count = len(listeners)
        self._cpus = parts_of_cpus(count)
        threads = options.threads or max(1, usable_cores() // count)
        given = {each.name: getattr(options, each.name) for each in dataclasses.fields(options)}
        self._options = {**given, "threads": threads, "workers": 1, "api_key": options.key}
        self._workers: list[_Worker] = []
        self._count()

    def stop_soon(self) -> None:
        """Ask the other methods to return."""
        self._is_stopping = True

    def start(self, progress: Progress) -> list[ServedModel] | None:
        """Start all processes, and return what they serve; `None` if the server has to stop."""
        with progress.stage("Starting workers", len(self._cpus)) as advance:
            first = self._open(0)
            self._workers.append(first)
            found = self._message(first)
            if found is None:
                return None
            if "error" in found:
                kind = getattr(qdqbert.common.errors, found["kind"], QdqBertError)
                raise kind(found["error"], argument=found["argument"])
            advance()
            self._workers += map(self._open, range(1, len(self._cpus)))
            for worker in self._workers[1:]:
                if self._message(worker) is None:
                    return None
                advance()
        return [ServedModel(*each) for each in found["models"]]

    def replace_those_that_die(self) -> None:
        """Watch the processes until the server has to stop."""
        while not self._is_stopping:
            time.sleep(_LOOK_SECONDS)
            for place, worker in enumerate(self._workers):
                self._workers[place] = self._looked_at(worker)

    def stop(self) -> None:
        """End all processes, after they have answered the requests that they accepted."""
        # Otherwise the system would accept connections that no process answers.
        for listener in self._listeners:
            listener.close()
        running = [each for each in self._workers if each.starts_at is None]
        for worker in running:
            worker.process.terminate()
        end = time.monotonic() + self._seconds + END_SECONDS
        for worker in running:
            try:
                worker.process.wait(max(0.0, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                worker.process.kill()
                worker.process.wait()
            worker.close()

    def _looked_at(self, worker: _Worker) -> _Worker:
        """Return a worker, or the one that replaces it."""
        if worker.starts_at is not None:
            if time.monotonic() < worker.starts_at:
                return worker
            replacing = self._open(worker.place)
            replacing.failures = worker.failures
            return replacing
        if not worker.is_ready and select.select([worker.messages], [], [], 0)[0]:
            worker.is_ready = self._read(worker).get("models") is not None
            worker.failures = 0 if worker.is_ready else worker.failures
            self._count()
        if worker.process.poll() is not None:
            self._bury(worker)
        return worker

    def _bury(self, worker: _Worker) -> None:
        """Forget the process of a worker, and plan the next one."""
        from prometheus_client.multiprocess import mark_process_dead

        mark_process_dead(worker.process.pid, str(self._folder))  # type: ignore[no-untyped-call]
        worker.failures += not worker.is_ready
        pause = min(2.0**worker.failures - 1, _LONGEST_PAUSE_SECONDS)
        _LOGGER.warning(
            "Worker process %d ended with status %d. It is replaced%s.",
            worker.process.pid,
            worker.process.returncode,
            f" in {pause:.0f} s" if pause else "",
        )
        worker.close()
        worker.is_ready, worker.starts_at = False, time.monotonic() + pause
        self._count()

    def _open(self, place: int) -> _Worker:
        from qdqbert.serving.metrics import SHARED_VARIABLE

        reading, writing = os.pipe()
        listening = self._listeners[place].fileno()
        process = subprocess.Popen(
            [sys.executable, "-m", _MODULE],
            stdin=subprocess.PIPE,
            pass_fds=(listening, writing),
            env={**os.environ, SHARED_VARIABLE: str(self._folder)},
            # Ctrl-C reaches the parent alone, which lets the others answer what they accepted.
            start_new_session=True,
        )
        os.close(writing)
        request = {
            "options": self._options,
            "listener": listening,
            "messages": writing,
            "cpus": self._cpus[place],
            "folder": str(self._folder),
        }
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(json.dumps(request).encode() + b"\n")
            # It stays open: its end tells the process that the parent has died.
            process.stdin.flush()
        return _Worker(place=place, process=process, messages=reading)

    def _message(self, worker: _Worker) -> dict[str, Any] | None:
        """Wait for the message of a process that starts; `None` if the server has to stop."""
        while not self._is_stopping:
            if select.select([worker.messages], [], [], _LOOK_SECONDS)[0]:
                found = self._read(worker)
                worker.is_ready = "models" in found
                self._count()
                return found
        return None

    def _read(self, worker: _Worker) -> dict[str, Any]:
        """Read the message of a process."""
        parts = []
        while part := os.read(worker.messages, 65536):
            parts.append(part)
            if part.endswith(b"\n"):
                break
        if not parts:
            status = worker.process.wait()
            text = f"A worker process ended with status {status} while it started."
            return {"error": text, "kind": "QdqBertError", "argument": None}
        found: dict[str, Any] = json.loads(b"".join(parts))
        return found

    def _count(self) -> None:
        running = sum(each.is_ready for each in self._workers)
        write_bytes(self._folder / RUNNING, str(running).encode())
