"""What `serve` refuses before it listens. `tests/serving` has what it answers."""

from __future__ import annotations

import socket

import pytest

import qdqbert
from qdqbert.errors import CheckpointError, UserInputError


def test_what_cannot_be_served_is_refused(quantized, tmp_path) -> None:
    folder = str(quantized("sentence").directory)
    with pytest.raises(UserInputError, match="2 folders are called"):
        qdqbert.serve([folder, folder], port=0)
    with pytest.raises(CheckpointError):
        qdqbert.serve([str(tmp_path)], port=0)
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(UserInputError, match=r"Cannot listen on .* Pass another port"),
    ):
        qdqbert.serve([folder], port=taken.getsockname()[1])
    # An address of the network that documents use, which no machine has.
    with pytest.raises(UserInputError, match=r"Pass an address of this machine as `host`"):
        qdqbert.serve([folder], host="192.0.2.1", port=0)
    with pytest.raises(UserInputError, match="`models` is missing"):
        qdqbert.serve([])
    # More would be refused by the system, some after they have started.
    with pytest.raises(UserInputError, match="`workers` must be at least 1 and at most 256"):
        qdqbert.serve([folder], port=0, workers=257)


def test_an_empty_key_is_refused_because_it_would_protect_nothing() -> None:
    with pytest.raises(UserInputError, match="`api_key=''` is empty"):
        qdqbert.serve(["x"], port=0, api_key="")
