"""Measure the share of the memory bandwidth that short texts reach on a large model.

    python benchmarks/bandwidth.py [--layers 28] [--threads 2] [--rounds 30]

All weights of a model are read for a text, however short it is. The model has Qwen3-0.6B's shape,
random weights, and the vocabulary of the packaged all-MiniLM-L6-v2. The bandwidth is that of
threads that each read their part of an array of the size of the weights, by C's `memchr` for a byte
that is not there. Reading and passes take turns: times are medians, and shares medians of the
ratios of neighbouring turns.

Needs `pip install 'qdqbert[benchmarks]'`.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from large_embedders import QWEN3, save_model
from qdqbert.common.machine import cpu_features, cpu_name, usable_cores
from qdqbert.encoders.heads import EMBEDDING
from qdqbert.engines.native.runner import NativeRunner
from qdqbert.engines.native.schema import LINEARS
from qdqbert.engines.native.storage import load_packed

LENGTHS = (16, 64)
VOCABULARY = 30_522


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--layers", type=int, default=QWEN3["num_hidden_layers"])
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--rounds", type=int, default=30)
    arguments = parser.parse_args()
    print(f"{cpu_name()}, {usable_cores()} cores, {' '.join(cpu_features())}")
    with tempfile.TemporaryDirectory() as root:
        path = packed_model(Path(root), arguments.layers)
        layers = load_packed(path).settings["layers"]
        size = sum(
            each[part]["depth"] * each[part]["columns"] for each in layers for part in LINEARS
        )
        runners = {count: NativeRunner(path, threads=count) for count in {1, arguments.threads}}
        print(f"{size / 1e6:.0f} MB of weights, {arguments.rounds} rounds\n")
        print("| threads | tokens | pass, ms | GB/s | of memory, GB/s | share |")
        print("|---|---|---|---|---|---|")
        for threads, runner in sorted(runners.items()):
            read = reader(size, threads)
            for tokens in LENGTHS:
                run = one_pass(runner, tokens)
                pairs = [(seconds(run), seconds(read)) for _ in range(arguments.rounds + 1)][1:]
                took, whole = (statistics.median(each) for each in zip(*pairs, strict=True))
                share = statistics.median(reading / passing for passing, reading in pairs)
                rates = f"{size / took / 1e9:.1f} | {size / whole / 1e9:.1f}"
                print(f"| {threads} | {tokens} | {1000 * took:.1f} | {rates} | {share:.0%} |")


def packed_model(root: Path, layers: int) -> Path:
    """Return the file of a packed model with random weights."""
    import qdqbert

    config = {**QWEN3, "vocab_size": VOCABULARY, "num_hidden_layers": layers}
    save_model(config, "lasttoken", root / "model")
    os.environ["QDQBERT_CACHE"] = str(root / "cache")
    qdqbert.load(root / "model", check=False).close()
    [path] = (root / "cache").glob("models/*/model.safetensors")
    return path


def one_pass(runner: NativeRunner, tokens: int) -> Callable[[], Any]:
    """Return a function that runs a text."""
    ids = np.random.default_rng(0).integers(0, VOCABULARY, (1, tokens))
    inputs = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
    return lambda: runner.run(inputs, (EMBEDDING,))


def reader(size: int, threads: int) -> Callable[[], Any]:
    """Return a function in which threads read an array of some bytes."""
    array = np.ones(size, np.uint8)
    find: Any = ctypes.CDLL(None).memchr
    find.argtypes, find.restype = (ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t), ctypes.c_void_p
    pool, share = ThreadPoolExecutor(threads), size // threads
    starts = [array.ctypes.data + index * share for index in range(threads)]

    def read() -> None:
        assert array[-1]
        for found in [pool.submit(find, start, 0, share) for start in starts]:
            found.result()

    return read


def seconds(call: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


if __name__ == "__main__":
    main()
