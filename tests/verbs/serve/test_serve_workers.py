"""A server of several processes."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import qdqbert
from qdqbert.common.errors import UserInputError
from server_process import KEY, SECONDS, Server, running

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Processes share no port there.")

TEXTS = ["the cat sat", "rain", "she will be home before the night"]
AUTHORIZED = {"Authorization": f"Bearer {KEY}"}


def ask(connection: http.client.HTTPConnection, path: str, body: Any = None) -> bytes:
    """Return what a server answers; the connection stays open."""
    if body is None:
        connection.request("GET", path, headers=AUTHORIZED)
    else:
        headers = {"Content-Type": "application/json", **AUTHORIZED}
        connection.request("POST", path, json.dumps(body), headers)
    answer = connection.getresponse()
    content = answer.read()
    assert answer.status == 200, content
    return content


def workers_of(server: Server) -> list[int]:
    """Return the process ids of the workers."""
    process = server.process.pid
    return list(map(int, Path(f"/proc/{process}/task/{process}/children").read_text().split()))


def holder(connection: http.client.HTTPConnection, processes: list[int]) -> int:
    """Return the process that has the server's end of a connection of this machine."""
    ends = [f"0100007F:{connection.sock.getsockname()[1]:04X}", f":{connection.port:04X}"]
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()]
    (inode,) = (each[9] for each in lines if each[2] == ends[0] and each[1].endswith(ends[1]))
    (found,) = (each for each in processes if f"socket:[{inode}]" in open_files(each))
    return found


def open_files(process: int) -> set[str]:
    found = set()
    for each in Path(f"/proc/{process}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found.add(os.readlink(each))
    return found


def until(condition: Callable[[], bool]) -> None:
    """Wait for something that happens in another process."""
    end = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def is_running(process: int) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return " Z " not in Path(f"/proc/{process}/stat").read_text()
    return False


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="It lists processes in /proc.")
def test_workers_answer_as_one_server_and_are_replaced(quantized, tmp_path) -> None:
    folder = Path(shutil.copytree(quantized("sentence").directory, tmp_path / "model"))
    # `/embed` normalizes once more.
    expected = qdqbert.load(folder).encode(TEXTS)

    def check(connection: http.client.HTTPConnection) -> None:
        found = json.loads(ask(connection, "/embed", {"inputs": TEXTS}))
        np.testing.assert_allclose(found, expected, atol=1e-6)

    def count(connection: http.client.HTTPConnection) -> int:
        return json.loads(ask(connection, "/health"))["workers"]

    with running(str(folder), "--workers", "2") as server:
        first = workers_of(server)
        assert len(first) == 2
        if len(os.sched_getaffinity(0)) > 1:
            cpus = [os.sched_getaffinity(each) for each in first]
            assert not cpus[0] & cpus[1]
        for _ in range(10):
            # Each connection can be that of another process.
            with server.connect() as connection:
                check(connection)

        with server.connect() as kept:
            assert json.loads(ask(kept, "/health")) == {"status": "ok", "workers": 2}
            (killed,) = set(first) - {holder(kept, first)}
            # No process can replace the one that is killed while its model is away.
            away = folder.rename(tmp_path / "away")
            os.kill(killed, signal.SIGKILL)
            until(lambda: count(kept) == 1)
            check(kept)
            away.rename(folder)
            until(
                lambda: killed not in (now := workers_of(server)) and len(now) == count(kept) == 2
            )
            second = workers_of(server)
            assert set(first) - set(second) == {killed}

            # Counts of processes that died are kept.
            assert 'qdqbert_inputs_total{model="' in (text := ask(kept, "/metrics").decode())
            assert f"{11 * len(TEXTS)}.0" in text

        output, errors = server.stop()
        assert server.process.returncode == 0
        assert json.loads(output)["inputs"] == 11 * len(TEXTS)
        assert "ended with status -9. It is replaced." in errors
        assert "Fatal" not in errors
        assert not any(map(is_running, second))


@pytest.mark.slow
def test_what_was_accepted_is_answered_after_sigterm_and_nothing_else_is_accepted(
    quantized,
) -> None:
    def accepts(address: tuple[str, int]) -> bool:
        with contextlib.suppress(ConnectionRefusedError), socket.create_connection(address):
            return True
        return False

    with running(str(quantized("sentence").directory), "--workers", "2") as server:
        address = server.address
        body = json.dumps({"inputs": TEXTS}).encode()
        head = (
            "POST /embed HTTP/1.1\r\nHost: x\r\n"
            f"Authorization: Bearer {KEY}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        with socket.create_connection(address, timeout=SECONDS) as slow:
            slow.sendall(head.encode() + body[:5])
            with server.connect() as connection:
                ask(connection, "/health")
            server.process.send_signal(signal.SIGTERM)
            until(lambda: not accepts(address))
            assert server.process.poll() is None
            slow.sendall(body[5:])
            assert slow.recv(100).startswith(b"HTTP/1.1 200 ")
        server.process.communicate(timeout=SECONDS)
        assert server.process.returncode == 0


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="It lists processes in /proc.")
@pytest.mark.slow
def test_workers_end_with_their_parent(quantized) -> None:
    with running(str(quantized("sentence").directory), "--workers", "2") as server:
        workers = workers_of(server)
        assert all(map(is_running, workers))
        server.process.kill()
        until(lambda: not any(map(is_running, workers)))


def test_the_error_of_a_worker_is_that_of_the_server(tmp_path) -> None:
    with pytest.raises(UserInputError) as alone:
        qdqbert.serve([str(tmp_path)], port=0)
    with pytest.raises(type(alone.value)) as several:
        qdqbert.serve([str(tmp_path)], port=0, workers=2)
    assert str(several.value) == str(alone.value)


def test_windows_is_refused_by_name(monkeypatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(UserInputError, match="`workers=2` needs a system whose processes"):
        qdqbert.serve(["folder"], workers=2)
