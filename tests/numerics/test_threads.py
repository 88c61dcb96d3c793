from __future__ import annotations

import pytest
import torch

from qdqbert.numerics.threads import one_torch_thread


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
