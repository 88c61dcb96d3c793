"""Run code on one thread of torch, or on several threads of Python."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

from qdqbert.common.machine import usable_cores

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


@contextlib.contextmanager
def usable_torch_threads() -> Iterator[None]:
    """Run torch on no more threads than cores that the process may use, within the context.

    torch counts the cores of the machine, also where a container has a share of them only.
    """
    with _torch_threads(min(torch.get_num_threads(), usable_cores())):
        yield


@contextlib.contextmanager
def one_torch_thread() -> Iterator[None]:
    """Run torch on one thread within the context."""
    with _torch_threads(1):
        yield


@contextlib.contextmanager
def _torch_threads(wanted: int) -> Iterator[None]:
    count = torch.get_num_threads()
    torch.set_num_threads(wanted)
    try:
        yield
    finally:
        torch.set_num_threads(count)


def map_on_threads(
    function: Callable[[_Item], _Result], items: Iterable[_Item]
) -> Iterator[_Result]:
    """Yield `function(item)` for each item, in order, from as many threads as torch has.

    Each call runs torch on one thread. This is faster than one call after the other if a call is
    made of many small operations, and results do not depend on the number of threads.
    """
    inference, gradients = torch.is_inference_mode_enabled(), torch.is_grad_enabled()

    def call(item: _Item) -> _Result:
        with torch.inference_mode(inference), torch.set_grad_enabled(gradients):
            return function(item)

    count = torch.get_num_threads()
    # New threads begin with the number of threads that torch was last set to.
    with one_torch_thread(), ThreadPoolExecutor(count) as threads:
        yield from threads.map(call, items)
