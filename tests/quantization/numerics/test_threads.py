from __future__ import annotations

import threading

import pytest
import torch

from qdqbert.quantization.numerics.threads import (
    map_on_threads,
    one_torch_thread,
    usable_torch_threads,
)


def test_the_number_of_threads_comes_back_after_an_error() -> None:
    before = torch.get_num_threads()

    def fail() -> None:
        with one_torch_thread():
            assert torch.get_num_threads() == 1
            raise KeyError("gone")

    torch.set_num_threads(3)
    try:
        with pytest.raises(KeyError, match="gone"):
            fail()
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(("usable", "used"), [(2, 2), (8, 3)])
def test_torch_uses_the_cores_of_the_process(monkeypatch, usable, used) -> None:
    before = torch.get_num_threads()
    monkeypatch.setattr("qdqbert.quantization.numerics.threads.usable_cores", lambda: usable)
    torch.set_num_threads(3)
    try:
        with usable_torch_threads():
            assert torch.get_num_threads() == used
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def test_calls_run_at_once_on_one_torch_thread_each() -> None:
    before = torch.get_num_threads()
    # Each call waits for the other one.
    both = threading.Barrier(2, timeout=60)

    def call(item: int) -> tuple[int, int, bool, bool]:
        both.wait()
        threads = torch.get_num_threads()
        return item, threads, torch.is_grad_enabled(), torch.is_inference_mode_enabled()

    torch.set_num_threads(2)
    try:
        with torch.no_grad():
            assert list(map_on_threads(call, range(4))) == [(i, 1, False, False) for i in range(4)]
        with torch.inference_mode():
            assert list(map_on_threads(call, range(2))) == [(i, 1, False, True) for i in range(2)]
        assert list(map_on_threads(call, range(2))) == [(i, 1, True, False) for i in range(2)]
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_the_error_of_a_call_is_raised() -> None:
    before = torch.get_num_threads()
    with pytest.raises(ZeroDivisionError):
        list(map_on_threads(lambda item: 1 / item, [1, 0]))
    assert torch.get_num_threads() == before
