"""One graph on one engine, loaded for single inputs on all cores, or for many on one core each."""

from __future__ import annotations

import threading
from collections.abc import Callable

from qdqbert.common.errors import ModelClosedError
from qdqbert.common.forks import keep_forever, repair_in_child
from qdqbert.engines.runner import Runner

OpenRunner = Callable[[int, int], Runner]
"""Loads the graph for a number of threads for each inference, and a number of streams."""


class Runners:
    """Loads a graph when it is first needed, and keeps it. A forked process loads its own.

    A single text is fastest on all cores. Many texts are fastest in one stream for each core,
    because no core waits for another.

    Attributes:
        streams: Number of inferences that run at the same time in `many`.
    """

    def __init__(self, open_runner: OpenRunner, *, threads: int, streams: int) -> None:
        """Load nothing yet.

        `threads` is their number in all, which the `streams` for many inputs share.
        """
        self.streams = streams
        self._open = open_runner
        self._threads = threads
        self._lock = threading.Lock()
        self._is_closed = False
        self._single: Runner | None = None
        self._many: Runner | None = None
        repair_in_child(self, Runners._leave_to_parent)

    @property
    def single(self) -> Runner:
        """The graph with all threads for one inference."""
        with self._lock:
            self._check()
            if self._single is None:
                self._single = self._open(self._threads, 1)
                if self.streams == 1:
                    self._many = self._single
            return self._single

    @property
    def many(self) -> Runner:
        """The graph with `streams` inferences at the same time."""
        with self._lock:
            self._check()
            if self._many is None:
                self._many = self._open(max(1, self._threads // self.streams), self.streams)
                if self.streams == 1:
                    self._single = self._many
            return self._many

    def close(self) -> None:
        """Release the loaded graphs."""
        with self._lock:
            self._is_closed = True
            self._single = self._many = None

    def _check(self) -> None:
        if self._is_closed:
            raise ModelClosedError("The model was closed. Load it again.")

    def _leave_to_parent(self) -> None:
        """Load the graphs again when needed: engines have threads, which a fork does not copy."""
        for runner in (self._single, self._many):
            if runner is not None:
                keep_forever(runner)
        self._lock = threading.Lock()
        self._single = self._many = None
