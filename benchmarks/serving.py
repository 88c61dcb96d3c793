r"""Measure the server under load: throughput next to `run`, latency, wrong answers, memory.

    python benchmarks/serving.py FOLDER --texts texts.txt [--connections 1000] [--requests 10000]

FOLDER is what `quantize` wrote for an embedder with the target `native`, whose results have the
same bits in any batch. `mixed_texts.py` writes texts of mixed length.

- Saturation: each connection sends its next request as soon as it has the answer to the last one.
  Every answer is compared with that of `load`, bit by bit.
- The rate of `run` on the same texts is for all cores of the machine. The clients share these
  cores with the server. "Left for the server" is the rate of `run`, times the share of the CPU time
  that the clients do not take.
- Half load: requests come at half of that rate, at random times. Latency is that of a request on an
  idle server, with one connection, and under this load.
- Memory is the resident set of the server after a tenth of the requests, and at the end.

Needs `pip install 'qdqbert[benchmarks]'`.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import os
import random
import re
import resource
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

import qdqbert
from qdqbert.common.machine import cpu_features, cpu_name, usable_cores

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]

LONGEST = 600
"""Characters of the longest text that is sent."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder")
    parser.add_argument("--texts", required=True)
    parser.add_argument("--connections", type=int, default=1000)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--texts-per-request", type=int, default=1)
    parser.add_argument("--limit", type=int, default=5000, help="number of different texts")
    parser.add_argument("--half-seconds", type=float, default=20.0)
    parser.add_argument("--workers", type=int, default=1, help="processes of the server")
    arguments = parser.parse_args()
    print(f"{cpu_name()}, {usable_cores()} cores, {' '.join(cpu_features())}\n", flush=True)
    lines = Path(arguments.texts).read_text(encoding="utf-8").splitlines()
    # The server refuses texts that would be cut.
    texts = [each for each in lines if len(each) <= LONGEST][: arguments.limit]
    rate = rate_of_run(arguments.folder, texts)
    expected = [
        base64.b64encode(each.tobytes()).decode() for each in embed(arguments.folder, texts)
    ]
    with server(arguments.folder, arguments.workers) as (port, process):
        size = arguments.texts_per_request
        client = Client(port, Path(arguments.folder).resolve().name, texts, expected, size)
        alone = asyncio.run(client.one_by_one(200))
        before = client_seconds()
        found = asyncio.run(client.saturate(arguments.connections, arguments.requests, process))
        share = (client_seconds() - before) / (found["seconds"] * usable_cores())
        half = asyncio.run(client.at_rate(found["rate"] / 2, arguments.half_seconds))
    served = found["rate"] * size
    left = rate * (1 - share)
    rows = [
        ("`run`, texts/s", f"{rate:.0f}"),
        (
            f"server, {arguments.connections} connections, {size} texts a request, texts/s",
            f"{served:.0f}",
        ),
        ("share of the CPU that the clients take", f"{share:.2f}"),
        ("server / what is left of `run`", f"{served / left:.2f}"),
        ("wrong or lost answers", f"{client.wrong} of {client.asked}"),
        ("one request alone, median, p99, ms", quantiles(alone)),
        ("at half of the load, median, p99, ms", quantiles(half)),
        (
            f"memory after {arguments.requests // 10} and {arguments.requests} requests, MB",
            f"{found['early'] / 1e6:.0f}, {found['late'] / 1e6:.0f}",
        ),
    ]
    print("| what | |\n|---|---|")
    for name, value in rows:
        print(f"| {name} | {value} |")


def quantiles(milliseconds: list[float]) -> str:
    last = statistics.quantiles(milliseconds, n=100)[98]
    return f"{statistics.median(milliseconds):.1f}, {last:.1f}"


def client_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def embed(folder: str, texts: list[str]) -> list[Any]:
    with qdqbert.load(folder, engine="native") as model:
        return list(model.encode(texts))


def rate_of_run(folder: str, texts: list[str]) -> float:
    """Return the texts per second of `run`, the best of three."""
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch, "texts.jsonl")
        path.write_text("\n".join(json.dumps({"text": each}) for each in texts), encoding="utf-8")
        return max(
            qdqbert.run(
                folder, path, Path(scratch, "out.npy"), engine="native", overwrite=True
            ).rows_per_second
            for _ in range(3)
        )


@contextmanager
def server(folder: str, workers: int = 1) -> Iterator[tuple[int, psutil.Process]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "qdqbert", "serve", folder, "--engine", "native"]
    options = ["--port", str(port), "--max-queued", "100000", "--workers", str(workers)]
    started = subprocess.Popen([*command, *options], stderr=subprocess.DEVNULL)
    try:
        while True:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/health") as answer:
                    # Connections stay with the process that accepted them.
                    if json.loads(answer.read()).get("workers", 1) == workers:
                        break
            except OSError:
                pass
            time.sleep(0.1)
        yield port, psutil.Process(started.pid)
    finally:
        os.kill(started.pid, signal.SIGTERM)
        started.wait()


class Client:
    """Sends requests with some texts each, and compares the answers."""

    def __init__(
        self, port: int, name: str, texts: list[str], expected: list[str], size: int
    ) -> None:
        self._port = port
        starts = range(0, len(texts) - size + 1, size)
        self._expected = [[each.encode() for each in expected[i : i + size]] for i in starts]
        self._requests = [self._request(name, texts[i : i + size]) for i in starts]
        self._random = random.Random(0)
        self.asked = self.wrong = 0

    @staticmethod
    def _request(name: str, texts: list[str]) -> bytes:
        body = json.dumps({"input": texts, "model": name, "encoding_format": "base64"}).encode()
        head = "POST /v1/embeddings HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        return head.encode() + f"Content-Length: {len(body)}\r\n\r\n".encode() + body

    async def _ask(self, streams: Streams) -> None:
        reader, writer = streams
        index = self._random.randrange(len(self._requests))
        self.asked += 1
        writer.write(self._requests[index])
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        body = await reader.readexactly(length)
        found = re.findall(rb'"embedding":"([^"]*)"', body)
        self.wrong += found != self._expected[index]

    async def _open(self) -> Streams:
        return await asyncio.open_connection("127.0.0.1", self._port)

    async def one_by_one(self, count: int) -> list[float]:
        """Return the latencies of requests on an idle server, in milliseconds."""
        streams = await self._open()
        found = []
        for _ in range(count):
            start = time.perf_counter()
            await self._ask(streams)
            found.append((time.perf_counter() - start) * 1e3)
        return found

    async def saturate(
        self, connections: int, requests: int, process: psutil.Process
    ) -> dict[str, float]:
        """Send requests as fast as they are answered, and measure time and memory."""
        left = requests
        memory: dict[str, float] = {}

        async def work() -> None:
            nonlocal left
            streams = await self._open()
            while left > 0:
                left -= 1
                await self._ask(streams)
                if "early" not in memory and left <= requests - requests // 10:
                    memory["early"] = process.memory_info().rss

        start = time.perf_counter()
        await asyncio.gather(*(work() for _ in range(connections)))
        seconds = time.perf_counter() - start
        memory["late"] = process.memory_info().rss
        return {**memory, "seconds": seconds, "rate": requests / seconds}

    async def at_rate(self, rate: float, seconds: float) -> list[float]:
        """Send requests at random times, and return the latencies in milliseconds."""
        free = [await self._open() for _ in range(64)]
        found: list[float] = []

        async def ask(due: float) -> None:
            streams = free.pop() if free else await self._open()
            await self._ask(streams)
            found.append((time.perf_counter() - due) * 1e3)
            free.append(streams)

        tasks = []
        due = start = time.perf_counter()
        while due < start + seconds:
            due += self._random.expovariate(rate)
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            tasks.append(asyncio.ensure_future(ask(due)))
        await asyncio.gather(*tasks)
        return found


if __name__ == "__main__":
    main()
