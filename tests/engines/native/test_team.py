"""How a caller works with its threads. `test_runner` covers what they compute."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

from qdqbert.engines.native.records import JOB, MAILBOX, MODEL, THREAD
from qdqbert.engines.native.team import Team, sleep_address

_POSTED, _WAS_ASLEEP = (list(MAILBOX.fields).index(name) for name in ("posted", "was_asleep"))


class Kernels:
    """Functions that do what the kernels do to records, in Python, and can be interrupted."""

    def __init__(self) -> None:
        self.team: Team | None = None
        self.mailboxes: list[int] = []
        self.passes: list[int] = []
        self.finished: list[int] = []
        # What raises KeyboardInterrupt, before or after it is done.
        self.interrupts: dict[str, str] = {}

    def functions(self) -> dict[str, Any]:
        return {
            "forward": lambda *addresses: self._run("forward", *addresses),
            "post": lambda address: self._run("post", address),
            "serve": lambda address: None,
            "finish": self.finished.append,
        }

    def _run(self, name: str, *addresses: int) -> None:
        when = self.interrupts.get(name)
        if when == "before":
            del self.interrupts[name]
            raise KeyboardInterrupt
        getattr(self, f"_{name}")(*addresses)
        if when == "after":
            del self.interrupts[name]
            raise KeyboardInterrupt

    def _post(self, address: int) -> None:
        (mailbox,) = (each for each in self.team._mailboxes if each.ctypes.data == address)
        self.mailboxes.append(address)
        mailbox[_POSTED] += 1
        mailbox[_WAS_ASLEEP] = 1

    def _forward(self, model: int, job: int, thread: int) -> None:
        self.passes.append(thread)
        passes = ctypes.cast(thread + THREAD.offset("passes"), ctypes.POINTER(ctypes.c_int64))
        passes[0] += 1


def start(threads: int) -> tuple[Kernels, Team]:
    kernels = Kernels()
    model = np.zeros(MODEL.size // 8, np.int64)
    kernels.team = Team(kernels.functions(), model, threads)
    return kernels, kernels.team


def records(threads: int) -> tuple[list[Any], list[Any]]:
    return tuple(
        [np.zeros(each.size // 8, np.int64) for _ in range(threads)] for each in (JOB, THREAD)
    )


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("name", ["post", "forward"])
def test_an_interrupted_caller_runs_everything_once(name, when) -> None:
    kernels, team = start(3)
    kernels.interrupts = {name: when}
    jobs, threads = records(3)
    with pytest.raises(KeyboardInterrupt):
        team.run(jobs, threads)
    assert len(set(kernels.mailboxes)) == len(kernels.mailboxes) == 2
    assert kernels.passes == [threads[0].ctypes.data]
    assert sorted(kernels.finished) == sorted(kernels.mailboxes)
    kernels.interrupts = {}
    team.close()


def test_workers_that_are_not_needed_are_left_alone() -> None:
    kernels, team = start(3)
    jobs, threads = records(1)
    team.run(jobs, threads)
    assert len(kernels.passes) == 1
    assert kernels.mailboxes == kernels.finished == []
    team.close()


def test_a_thread_can_sleep() -> None:
    assert sleep_address() > 0
