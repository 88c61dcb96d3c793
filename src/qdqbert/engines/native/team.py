"""Threads that run one forward pass together."""

from __future__ import annotations

import ctypes
import os
import queue
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbert.engines.native.memory import address, zeros
from qdqbert.engines.native.records import FUNCTIONS, MAILBOX, THREAD

# Each item wakes the worker once. Unlike a semaphore, a finalizer may use it: the garbage collector
# can call one while the same thread is about to wait.
Wake = queue.SimpleQueue[None]

# About 100 us: a caller that asks again soon finds its workers awake.
_PATIENCE = 2500

_MODEL, _JOB, _THREAD, _FUNCTION = (
    MAILBOX.index(name) for name in ("model", "job", "thread", "function")
)
_POSTED, _DONE, _WAS_ASLEEP = (MAILBOX.index(name) for name in ("posted", "done", "was_asleep"))
_PASSES = THREAD.index("passes")


def sleep_address() -> int:
    """Return the address of a C function that sleeps for some microseconds.

    On Windows it only lets another thread run.
    """
    library: Any = ctypes.CDLL(None) if os.name == "posix" else ctypes.WinDLL("kernel32")  # type: ignore[attr-defined,unused-ignore]
    function = library.usleep if os.name == "posix" else library.SwitchToThread
    return int(ctypes.cast(function, ctypes.c_void_p).value or 0)


class Team:
    """A calling thread and its workers. One caller at a time.

    A process that is forked starts its own workers. It must not be forked during a call.
    """

    def __init__(
        self, functions: Mapping[str, Callable[..., None]], model: NDArray[np.int64], threads: int
    ) -> None:
        """Start the workers: one less than the threads, as the caller is one."""
        self.threads = threads
        self.sleep = sleep_address()
        self._functions = functions
        self._model = model
        self._start()

    def _start(self) -> None:
        self._process = os.getpid()
        self._mailboxes: list[NDArray[np.int64]] = []
        self._awake: list[Wake] = []
        for _ in range(self.threads - 1):
            self._start_worker()
        self._finalizer = weakref.finalize(
            self, _end, self._functions, tuple(self._mailboxes), tuple(self._awake)
        )

    def run(
        self,
        jobs: Sequence[NDArray[np.int64]],
        records: Sequence[NDArray[np.int64]],
        *,
        model: NDArray[np.int64] | None = None,
        function: str = "forward",
    ) -> None:
        """Run a forward pass, or another one of `FUNCTIONS`.

        Args:
            jobs: A record for each thread that takes part, of the kind that the function reads; the
                first is the caller's.
            records: Their `THREAD` records.
            model: A `MODEL` record of some layers; the whole model by default.
            function: Name of the function.
        """
        model = self._model if model is None else model
        if self._process != os.getpid():
            # A fork copies no threads but the one that calls it.
            self._finalizer.detach()
            self._start()
        run, number = self._functions[function], FUNCTIONS.index(function)
        workers = list(zip(self._mailboxes, self._awake, jobs[1:], records[1:], strict=False))
        posted = [int(mailbox[_POSTED]) for mailbox, *_ in workers]
        passes = int(records[0][_PASSES])

        def run_rest() -> None:
            """Post the jobs that are not posted yet, and wake their workers again."""
            for before, (mailbox, awake, job, record) in zip(posted, workers, strict=True):
                if mailbox[_POSTED] == before:
                    mailbox[_MODEL], mailbox[_JOB] = address(model), address(job)
                    mailbox[_THREAD], mailbox[_FUNCTION] = address(record), number
                    _post(self._functions, mailbox, awake)
                elif mailbox[_WAS_ASLEEP]:
                    # Once too often does no harm.
                    awake.put(None)
            if records[0][_PASSES] == passes:
                run(address(model), address(jobs[0]), address(records[0]))

        try:
            run_rest()
        except BaseException:
            # Ctrl+C can come between any two lines. Threads that share texts wait for each other,
            # so that all of them have to run to the end.
            run_rest()
            raise
        finally:
            # Workers may not use buffers of the next job.
            for mailbox, *_ in workers:
                self._functions["finish"](address(mailbox))

    def close(self) -> None:
        """End the workers."""
        self._finalizer()

    def _start_worker(self) -> None:
        mailbox = zeros(MAILBOX.size // 8, np.int64)
        mailbox[:] = MAILBOX.make(patience=_PATIENCE, model=self._model, sleep=self.sleep)
        awake: Wake = queue.SimpleQueue()
        self._mailboxes.append(mailbox)
        self._awake.append(awake)
        threading.Thread(
            target=_work,
            args=(self._functions["serve"], mailbox, awake),
            name="qdqbert-native",
            daemon=True,
        ).start()


def _work(serve: Callable[..., None], mailbox: NDArray[np.int64], awake: Wake) -> None:
    """Serve a mailbox until it gets no job; sleep while nothing is posted."""
    while True:
        serve(mailbox.ctypes.data)
        if mailbox[_POSTED] != mailbox[_DONE] and not mailbox[_JOB]:
            return
        awake.get()


def _post(
    functions: Mapping[str, Callable[..., None]], mailbox: NDArray[np.int64], awake: Wake
) -> None:
    functions["post"](address(mailbox))
    if mailbox[_WAS_ASLEEP]:
        awake.put(None)


def _end(
    functions: Mapping[str, Callable[..., None]],
    mailboxes: Sequence[NDArray[np.int64]],
    awake: Sequence[Wake],
) -> None:
    for mailbox, wake in zip(mailboxes, awake, strict=True):
        mailbox[_JOB] = 0
        _post(functions, mailbox, wake)
