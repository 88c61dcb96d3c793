"""What `serve` refuses before it listens. `tests/serving` has what it answers."""

from __future__ import annotations

import socket

import pytest

import qdqbert
from qdqbert.common.errors import CheckpointError, UserInputError
from qdqbert.engines.cuda.device import Device
from qdqbert.loading.device_choice import Place
from qdqbert.verbs.serve import run as module


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
    with pytest.raises(UserInputError, match="`models` is missing"):
        qdqbert.serve([])
    # More would be refused by the system, some after they have started.
    with pytest.raises(UserInputError, match="`workers` must be at least 1 and at most 256"):
        qdqbert.serve([folder], port=0, workers=257)


@pytest.mark.parametrize(
    ("device", "card", "workers", "count"),
    [
        (None, None, None, 8),
        ("auto", None, None, 8),
        ("auto", None, 3, 3),
        ("auto", "A100", None, 1),
        ("cuda", "A100", None, 1),
        # They look for it themselves.
        ("cuda", "none of this process", 2, 2),
    ],
)
def test_a_gpu_has_one_worker_and_the_cpu_one_for_some_cores(
    monkeypatch, device, card, workers, count
) -> None:
    def choose_place(name):
        assert card != "none of this process"
        found = card and name and Device(name="cuda:0", card=card, capability=80)
        return Place(device=found or None)

    class BoundError(Exception):
        pass

    def bound(options, found):
        raise BoundError(options.device, found)

    monkeypatch.setattr(module, "choose_place", choose_place)
    monkeypatch.setattr(module, "usable_cores", lambda: 64)
    monkeypatch.setattr(module, "_bound", bound)
    with pytest.raises(BoundError) as caught:
        qdqbert.serve(["folder"], device=device, workers=workers, port=0)
    assert caught.value.args == (device if card or workers else None, count)


_OF_THIS_MACHINE = "Pass an address of this machine as `host`"


@pytest.mark.parametrize(
    ("host", "message"),
    [
        # Addresses of the networks that documents use, which no machine has.
        ("192.0.2.1", _OF_THIS_MACHINE),
        ("2001:db8::1", _OF_THIS_MACHINE),
        ("name.invalid", _OF_THIS_MACHINE),
        # Names that no DNS can have.
        ("a..b", _OF_THIS_MACHINE),
        (64 * "a", _OF_THIS_MACHINE),
        ("a\0b", _OF_THIS_MACHINE),
        ("fe80::1", r"Pass the interface, too, such as fe80::1%eth0"),
        ("", "`host` is empty"),
        (" ", "`host` is empty"),
    ],
)
def test_a_host_that_is_not_this_machine_is_refused_by_name(host, message) -> None:
    with pytest.raises(UserInputError, match=message) as refused:
        qdqbert.serve(["./missing"], host=host, port=0)
    assert refused.value.argument == "host"


@pytest.mark.parametrize("first", ["2001:db8::1", "::1"])
def test_a_name_with_addresses_of_version_6_only_is_this_machine_if_one_is(
    monkeypatch, first
) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("This machine has no IPv6.")
    found = [
        (socket.AF_INET6, socket.SOCK_STREAM, 6, "", (each, 0, 0, 0)) for each in (first, "::1")
    ]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **options: found)
    # The address is bound before models are opened.
    with pytest.raises(CheckpointError):
        qdqbert.serve(["./missing"], host="six", port=0)


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
