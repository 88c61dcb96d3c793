"""A server of several processes."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import qdqbert
from qdqbert.common.errors import UserInputError

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Processes share no port there.")

TEXTS = ["the cat sat", "rain", "she will be home before the night"]
_SECONDS = 30


class Server:
    """A server in a process of its own."""

    def __init__(self, process: subprocess.Popen[str], address: str) -> None:
        self.process, self.address = process, address

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(self.address + path, timeout=_SECONDS) as answer:
            return answer.read().decode()

    def embed(self, texts: list[str]) -> list[list[float]]:
        request = urllib.request.Request(
            f"{self.address}/embed",
            json.dumps({"inputs": texts}).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=_SECONDS) as answer:
            return json.loads(answer.read())

    def workers(self) -> list[int]:
        """Return the process ids of the workers."""
        folder = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return list(map(int, folder.read_text().split()))


def until(condition: Callable[[], bool]) -> None:
    """Wait for something that happens in another process."""
    end = time.monotonic() + _SECONDS
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def is_running(process: int) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return " Z " not in Path(f"/proc/{process}/stat").read_text()
    return False


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[Server]:
    words = [str(folder), "--port", "0", "--workers", "2", "--json"]
    process = subprocess.Popen(
        [sys.executable, "-m", "qdqbert", "serve", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        lines = []
        for line in process.stderr:
            lines.append(line)
            if found := re.search(r"Listening on (http://\S+)\.", line):
                yield Server(process, found[1])
                break
        else:
            raise AssertionError("".join(lines))
    finally:
        process.kill()
        process.communicate()


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="It lists processes in /proc.")
def test_workers_answer_as_one_server_and_are_replaced(quantized) -> None:
    folder = quantized("sentence").directory
    # `/embed` normalizes once more.
    expected = qdqbert.load(folder).encode(TEXTS)
    with serving(folder) as server:
        assert json.loads(server.get("/health")) == {"status": "ok", "workers": 2}
        first = server.workers()
        assert len(first) == 2
        if len(os.sched_getaffinity(0)) > 1:
            cpus = [os.sched_getaffinity(each) for each in first]
            assert not cpus[0] & cpus[1]
        for _ in range(10):
            np.testing.assert_allclose(server.embed(TEXTS), expected, atol=1e-6)

        os.kill(first[0], signal.SIGKILL)
        until(lambda: json.loads(server.get("/health"))["workers"] == 1)
        np.testing.assert_allclose(server.embed(TEXTS), expected, atol=1e-6)
        until(lambda: json.loads(server.get("/health"))["workers"] == 2)
        second = server.workers()
        assert first[1] in second
        assert first[0] not in second

        # Counts of processes that died are kept.
        assert 'qdqbert_inputs_total{model="' in (text := server.get("/metrics"))
        assert f"{11 * len(TEXTS)}.0" in text
        server.process.send_signal(signal.SIGTERM)
        output, errors = server.process.communicate(timeout=_SECONDS)
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

    with serving(quantized("sentence").directory) as server:
        host, _, port = server.address.removeprefix("http://").partition(":")
        address = (host, int(port))
        body = json.dumps({"inputs": TEXTS}).encode()
        head = f"POST /embed HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        with socket.create_connection(address, timeout=_SECONDS) as slow:
            slow.sendall(head.encode() + body[:5])
            server.get("/health")
            server.process.send_signal(signal.SIGTERM)
            until(lambda: not accepts(address))
            assert server.process.poll() is None
            slow.sendall(body[5:])
            assert slow.recv(100).startswith(b"HTTP/1.1 200 ")
        server.process.communicate(timeout=_SECONDS)
        assert server.process.returncode == 0


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="It lists processes in /proc.")
@pytest.mark.slow
def test_workers_end_with_their_parent(quantized) -> None:
    with serving(quantized("sentence").directory) as server:
        workers = server.workers()
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
