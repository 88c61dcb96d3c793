"""Repair objects in a process that was forked: a fork copies no thread but the one that calls it.

Threads of the parent are missing in the child, and locks that they held stay locked.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from collections.abc import Callable
from typing import TypeVar

_T = TypeVar("_T")


def repair_in_child(owner: _T, repair: Callable[[_T], None]) -> None:
    """Repair an object, as long as it lives, in each process that is forked from this one.

    `repair` is called in the child with the object, before anything else runs there.
    """
    known = weakref.ref(owner)

    def run() -> None:
        alive = known()
        if alive is not None:
            repair(alive)

    # Windows has no forks.
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=run)


def keep_forever(value: object) -> None:
    """Keep an object that must not be destroyed in this process.

    Its destructor would wait for threads that exist in the parent only: ONNX Runtime's for ever,
    and OpenVINO's ends the process.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))
