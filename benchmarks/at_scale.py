"""Run one large file, many small ones and partitions, and show rows per second and memory.

    python benchmarks/at_scale.py [--model demo] [--rows 200000] [--small 10000] [--partitions 200]
    python benchmarks/at_scale.py --ray

MODEL is a folder that `qdqbert quantize` wrote, a float checkpoint, or `demo` for the packaged
all-MiniLM-L6-v2. The rows are short texts with a number, in one .parquet file, in files of a few
rows, and in folders of partitions; the output is a folder. Each way is a process of its own. "loop"
is one call of `load().encode` on the same texts in memory. The memory is the largest of all
processes of a way together, without pages that they share counted twice.

`--ray` runs the same on a cluster of two nodes with a CPU each, both on this machine. It shows what
the cluster costs, not what it gains. The time is that of the report, without the start of Ray.
Needs `pip install 'qdqbert[benchmarks,parquet,ray]'`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from qdqbert.common.machine import cpu_name, usable_cores
from qdqbert.data import texts as resources
from qdqbert.encoders.checkpoint.demo import demo_checkpoint

_LOOP = """
import json, sys, time
import pyarrow.parquet as pq
import qdqbert

model, path = sys.argv[1:]
texts = pq.read_table(path).column("text").to_pylist()
with qdqbert.load(model) as loaded:
    loaded.encode(texts[:64])
    start = time.monotonic()
    loaded.encode(texts)
    seconds = time.monotonic() - start
print(json.dumps({"rows": len(texts), "seconds": seconds}))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="demo")
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--small", type=int, default=10_000, help="number of small files")
    parser.add_argument("--partitions", type=int, default=200)
    parser.add_argument("--ray", action="store_true")
    arguments = parser.parse_args()
    model = str(demo_checkpoint()) if arguments.model == "demo" else arguments.model
    with tempfile.TemporaryDirectory() as folder:
        inputs = write_inputs(Path(folder), arguments)
        print(f"{cpu_name()}, {usable_cores()} cores; {arguments.rows} rows\n")
        print("| input | rows/s | of the loop | largest memory, MB |")
        print("|---|---|---|---|", flush=True)
        one = str(inputs["one file"])
        loop, memory = measure([sys.executable, "-c", _LOOP, model, one])
        per_second = loop["rows"] / loop["seconds"]
        show("loop", per_second, 1.0, memory)
        with cluster() if arguments.ray else nothing() as more:
            for name, path in inputs.items():
                output = f"{folder}/out-{path.name}/"
                words = ["run", model, "-i", str(path), "-o", output, "--json", *more]
                report, memory = measure([sys.executable, "-m", "qdqbert", *words])
                assert report["rows"] == arguments.rows
                rate = report["rows_per_second"]
                show(f"{name}{', Ray' if more else ''}", rate, rate / per_second, memory)


def show(name: str, rate: float, ratio: float, memory: float) -> None:
    print(f"| {name} | {rate:,.0f} | {ratio:.2f} | {memory:,.0f} |", flush=True)


def write_inputs(folder: Path, arguments: argparse.Namespace) -> dict[str, Path]:
    """Write the same rows in three ways."""
    examples = resources.calibration_examples()
    found = [" ".join(str(each.text).split()[:12]) for each in examples]
    texts = [f"{found[index % len(found)]} {index}" for index in range(arguments.rows)]
    table = pa.table({"id": range(arguments.rows), "text": texts})
    one = folder / "one.parquet"
    pq.write_table(table, one, row_group_size=10_000)
    small, parts = folder / "small", folder / "parts"
    small.mkdir()
    for index, piece in enumerate(pieces(table, arguments.small)):
        pq.write_table(piece, small / f"{index:06d}.parquet")
    for index, piece in enumerate(pieces(table, arguments.partitions)):
        (parts / f"day={index:06d}").mkdir(parents=True)
        pq.write_table(piece, parts / f"day={index:06d}" / "0.parquet")
    return {
        "one file": one,
        f"{arguments.small:,} files": small,
        f"{arguments.partitions} partitions": parts,
    }


def pieces(table: Any, count: int) -> Iterator[Any]:
    """Yield a table in pieces of about the same size."""
    for index in range(count):
        start, stop = (table.num_rows * each // count for each in (index, index + 1))
        yield table.slice(start, stop - start)


def measure(command: Sequence[str]) -> tuple[dict[str, Any], float]:
    """Return what a command prints as JSON, and the largest memory in MB.

    With Ray, this process has started the nodes, and their memory counts, too.
    """
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=dict(os.environ))
    largest = 0.0
    done = threading.Event()

    def watch() -> None:
        nonlocal largest
        while not done.is_set():
            largest = max(largest, memory_of(psutil.Process()))
            time.sleep(0.5)

    watcher = threading.Thread(target=watch)
    own = memory_of(psutil.Process(), recursive=False)
    watcher.start()
    output, _ = process.communicate()
    done.set()
    watcher.join()
    if process.returncode:
        raise SystemExit(f"{command} ended with status {process.returncode}")
    return json.loads(output), largest - own


def memory_of(process: psutil.Process, *, recursive: bool = True) -> float:
    """Return the proportional memory of a process, and of those that it started, in MB."""
    total = 0.0
    for each in [process, *(process.children(recursive=True) if recursive else [])]:
        try:
            total += each.memory_full_info().pss / 1e6
        except (psutil.NoSuchProcess, psutil.ZombieProcess):
            continue
    return total


@contextmanager
def nothing() -> Iterator[list[str]]:
    yield []


@contextmanager
def cluster() -> Iterator[list[str]]:
    """Start two nodes with a CPU each, and yield the options that use them."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    try:
        made.add_node(num_cpus=1)
        made.wait_for_nodes()
        yield ["--ray", made.address]
    finally:
        made.shutdown()


if __name__ == "__main__":
    main()
