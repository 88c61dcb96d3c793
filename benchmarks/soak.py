r"""Soak the server: memory, `/health` and wrong answers while texts of every kind arrive.

    python benchmarks/soak.py FOLDER [--seconds 200]

FOLDER is what `quantize` wrote for an embedder with the target `native`, whose results have the
same bits in any batch. Texts are random words, of 5 to 512 tokens. At the same time

- four connections ask for a text each, one after the other;
- one asks for 512 texts at once, and again two seconds after each answer;
- a text of 1.9 MB is sent each second, and cut;
- one asks for `/health` every 50 ms.

Every answer is compared with that of `load`, bit by bit. The exit status is 1 if an answer was
wrong, if memory grew by more than 50 MB after the first minute, or if `/health` took 0.5 s.

Needs `pip install 'qdqbert[benchmarks]'`.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import random
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import psutil

from qdqbert.common.machine import cpu_features, cpu_name, usable_cores
from serving import embed, server

WORDS = [
    *("the", "night", "book", "cat", "of", "a", "movie", "was", "good", "and", "bad", "to"),
    *("see", "it", "in", "that", "one", "when", "you", "play"),
]
WARM_SECONDS = 60.0
MOST_GROWTH = 50e6
MOST_HEALTH = 0.5


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder")
    parser.add_argument("--seconds", type=float, default=200.0)
    arguments = parser.parse_args()
    if arguments.seconds <= WARM_SECONDS:
        parser.error(f"--seconds must be over {WARM_SECONDS:g}, the time after which memory counts")
    print(f"{cpu_name()}, {usable_cores()} cores, {' '.join(cpu_features())}\n", flush=True)
    chosen = random.Random(0)
    texts = [make_text(chosen, chosen.randint(5, 512)) for _ in range(1024)]
    texts.append(make_text(chosen, 700_000)[:1_900_000])
    expected = [
        base64.b64encode(each.tobytes()).decode() for each in embed(arguments.folder, texts)
    ]
    with server(arguments.folder) as (port, process):
        soak = Soak(port, Path(arguments.folder).resolve().name, texts, expected)
        asyncio.run(soak.run(arguments.seconds, process))
    growth = soak.memory["end"] - soak.memory["warm"]
    worst = max(soak.health)
    print("| what | |\n|---|---|")
    print(f"| texts answered | {soak.answered} |")
    print(f"| texts of 1.9 MB | {soak.long} |")
    print(f"| wrong or lost answers | {soak.wrong} |")
    print(f"| worst `/health` of {len(soak.health)}, ms | {worst * 1e3:.0f} |")
    print(
        f"| memory after {WARM_SECONDS:g} s and at the end, MB "
        f"| {soak.memory['warm'] / 1e6:.0f}, {soak.memory['end'] / 1e6:.0f} |"
    )
    return int(soak.wrong > 0 or growth > MOST_GROWTH or worst >= MOST_HEALTH)


def make_text(chosen: random.Random, words: int) -> str:
    return " ".join(chosen.choices(WORDS, k=words))


class Soak:
    """Sends requests of each kind until the time is over, and keeps what is seen."""

    def __init__(self, port: int, name: str, texts: list[str], expected: list[str]) -> None:
        self._url = f"http://127.0.0.1:{port}"
        self._name = name
        self._texts = texts
        self._expected = expected
        self._random = random.Random(1)
        self.answered = self.long = self.wrong = 0
        self.health: list[float] = []
        self.memory: dict[str, float] = {}

    async def run(self, seconds: float, process: psutil.Process) -> None:
        """Send requests, and measure the memory of the server."""
        start = time.perf_counter()
        self._end = start + seconds
        async with httpx.AsyncClient(base_url=self._url, timeout=120.0) as client:
            await asyncio.gather(
                *(self._singles(client) for _ in range(4)),
                self._bursts(client),
                self._longs(client),
                self._healths(client),
                self._memory(start, process),
            )
        self.memory["end"] = process.memory_info().rss

    def _running(self) -> bool:
        return time.perf_counter() < self._end

    async def _ask(self, client: httpx.AsyncClient, indices: list[int]) -> None:
        body: dict[str, Any] = {
            "input": [self._texts[i] for i in indices],
            "model": self._name,
            "encoding_format": "base64",
        }
        response = await client.post("/v1/embeddings", json=body)
        if response.status_code != 200:
            self.wrong += len(indices)
            return
        found = [each["embedding"] for each in response.json()["data"]]
        wanted = [self._expected[i] for i in indices]
        self.answered += len(found)
        self.wrong += sum(a != b for a, b in zip(found, wanted, strict=True))

    async def _singles(self, client: httpx.AsyncClient) -> None:
        while self._running():
            await self._ask(client, [self._random.randrange(1024)])

    async def _bursts(self, client: httpx.AsyncClient) -> None:
        while self._running():
            await self._ask(client, self._random.choices(range(1024), k=512))
            await asyncio.sleep(2)

    async def _longs(self, client: httpx.AsyncClient) -> None:
        async with asyncio.TaskGroup() as group:
            while self._running():
                group.create_task(self._ask(client, [1024]))
                self.long += 1
                await asyncio.sleep(1)

    async def _healths(self, client: httpx.AsyncClient) -> None:
        while self._running():
            start = time.perf_counter()
            (await client.get("/health")).raise_for_status()
            self.health.append(time.perf_counter() - start)
            await asyncio.sleep(0.05)

    async def _memory(self, start: float, process: psutil.Process) -> None:
        await asyncio.sleep(start + WARM_SECONDS - time.perf_counter())
        self.memory["warm"] = process.memory_info().rss


if __name__ == "__main__":
    sys.exit(main())
