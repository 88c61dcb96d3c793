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


_WRONG_KEYS = {
    "secret\n": "ends with a blank or a line end",
    "secret\r\n": "ends with a blank or a line end",
    "secret ": "ends with a blank or a line end",
    "\tsecret": "starts with a blank or a line end",
    "  ": "has only blanks",
    "\n": "has only blanks",
    "schl\u00fcssel": r"number 5 of 9",
    "se\ncret": r"number 3 of 7",
    "se\x00cret": r"number 3 of 7",
    "se\x7fcret": r"number 3 of 7",
    # As the system's bytes that are not UTF-8 reach Python.
    "secret\udcff": r"number 7 of 7",
}


@pytest.mark.parametrize("key", _WRONG_KEYS)
def test_a_key_that_no_client_can_send_is_refused_and_not_shown(monkeypatch, key) -> None:
    with pytest.raises(UserInputError, match=f"`api_key` .*{_WRONG_KEYS[key]}") as refused:
        qdqbert.serve(["x"], port=0, api_key=key)
    assert not key.strip() or key.strip() not in str(refused.value)
    if "\x00" in key:
        return  # No variable can have it.
    monkeypatch.setenv("QDQBERT_API_KEY", key)
    with pytest.raises(UserInputError, match=f"`QDQBERT_API_KEY` .*{_WRONG_KEYS[key]}"):
        qdqbert.serve(["x"], port=0)


def test_an_empty_key_is_refused_and_an_empty_variable_is_no_key(monkeypatch, caplog) -> None:
    with pytest.raises(UserInputError, match="`api_key` is empty, so that requests would need no"):
        qdqbert.serve(["x"], port=0, api_key="")
    monkeypatch.setenv("QDQBERT_API_KEY", "")
    with pytest.raises(CheckpointError):
        qdqbert.serve(["./missing"], port=0)
    assert caplog.messages == [
        "The environment variable QDQBERT_API_KEY is empty: requests need no key."
    ]
