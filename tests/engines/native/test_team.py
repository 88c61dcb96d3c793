"""How a caller works with its threads. `test_runner` covers what they compute."""

from __future__ import annotations

import numpy as np
import pytest

from qdqbert.engines.native.records import JOB, MAILBOX, MODEL, THREAD
from qdqbert.engines.native.team import Team, give_way_address

_POSTED, _WAS_ASLEEP = (list(MAILBOX.fields).index(name) for name in ("posted", "was_asleep"))


def test_an_interrupted_caller_waits_for_its_workers() -> None:
    mailboxes, finished = {}, []

    def forward(*addresses: int) -> None:
        raise KeyboardInterrupt

    def post(address: int) -> None:
        # As the kernel does for a worker that sleeps.
        (mailbox,) = (each for each in team._mailboxes if each.ctypes.data == address)
        mailboxes[address] = mailbox
        mailbox[_POSTED] += 1
        mailbox[_WAS_ASLEEP] = 1

    functions = {
        "forward": forward,
        "post": post,
        "serve": lambda address: None,
        "finish": finished.append,
    }
    model, job, thread = (np.zeros(each.size // 8, np.int64) for each in (MODEL, JOB, THREAD))
    team = Team(functions, model, 3)
    with pytest.raises(KeyboardInterrupt):
        team.run([job] * 3, [thread] * 3)
    assert sorted(finished) == sorted(mailboxes)
    assert len(finished) == 2
    # Two workers that are not needed are not posted to.
    with pytest.raises(KeyboardInterrupt):
        team.run([job], [thread])
    assert len(finished) == 2
    team.close()


def test_another_thread_can_be_let_run() -> None:
    assert give_way_address() > 0
