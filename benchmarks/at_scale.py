"""Run one large file, many small ones and partitions, and show rows per second and memory.

    python benchmarks/at_scale.py [--model demo] [--rows 200000] [--small 10000] [--partitions 200]
        [--rounds 1]
    python benchmarks/at_scale.py --ray
    python benchmarks/at_scale.py --memory [--rows 300000]

MODEL is a folder that `qdqbert quantize` wrote, a float checkpoint, or `demo` for the packaged
all-MiniLM-L6-v2. The rows are short texts with a number, in one .parquet file, in files of a few
rows, and in folders of partitions; the output is a folder. Each way is a process of its own. "loop"
is one call of `load().encode` on the same texts in memory. The memory is the largest of all
processes of a way together, without pages that they share counted twice. With `--rounds` the ways
take turns, and the table has medians: rates, and ratios to the loop and the large file of a round.

`--ray` runs the same on a cluster of two nodes with a CPU each, both on this machine. It shows what
the cluster costs, not what it gains. The time is that of the report, without the start of Ray.

`--memory` compares the peak memory of `qdqbert run` on `--rows` rows and on three times as many,
for each format of output. The model is not run: its vectors are random numbers, so that what is
measured is reading and writing. Below 100,000 rows memory grows with them: a row group of Parquet
and a file of a folder have so many.
Needs `pip install 'qdqbert[benchmarks,parquet,ray]'`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
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

import qdqbert
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

# Runs the command in the arguments after the first with a model that computes nothing, and writes
# to the first what the kernel knows about the memory of the process.
_COMMAND = """
import pathlib, sys
import numpy as np
from qdqbert.cli.app import main
from qdqbert.engines.native.runner import NativeRunner

vectors = np.random.default_rng(0).standard_normal((40_000, 384)).astype(np.float32)

def run(self, inputs, wanted=None):
    ids = inputs["input_ids"]
    start = int(ids[:, 1:4].sum()) * 7919 % (len(vectors) - len(ids))
    return {"sentence_embedding": vectors[start : start + len(ids)].copy()}

NativeRunner.run = run
try:
    main(sys.argv[2:])
finally:
    pathlib.Path(sys.argv[1]).write_text(pathlib.Path("/proc/self/status").read_text())
"""
# Names of outputs of `--memory`.
_OUTPUTS = ("out.npy", "out.parquet", "out.jsonl", "out.csv", "out/")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="demo")
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--small", type=int, default=10_000, help="number of small files")
    parser.add_argument("--partitions", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--ray", action="store_true")
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--outputs", nargs="*", default=_OUTPUTS, help="names for --memory")
    arguments = parser.parse_args()
    model = str(demo_checkpoint()) if arguments.model == "demo" else arguments.model
    if arguments.memory:
        compare_memory(model, arguments)
        return
    with tempfile.TemporaryDirectory() as folder:
        inputs = write_inputs(Path(folder), arguments)
        print(f"{cpu_name()}, {usable_cores()} cores; {arguments.rows} rows\n")
        with cluster() if arguments.ray else nothing() as more:
            commands = {"loop": [sys.executable, "-c", _LOOP, model, str(inputs["one file"])]}
            for name, path in inputs.items():
                words = ["run", model, "-i", str(path), "-o", f"{folder}/out-{path.name}/"]
                words += ["--json", "--overwrite", *more]
                commands[name] = [sys.executable, "-m", "qdqbert", *words]
            compare(commands, arguments)


def compare(commands: dict[str, list[str]], arguments: argparse.Namespace) -> None:
    """Run commands in turn, and print the medians of their rates."""
    rates: dict[str, list[float]] = {name: [] for name in commands}
    memory = dict.fromkeys(commands, 0.0)
    for _ in range(arguments.rounds):
        for name, command in commands.items():
            report, largest = measure(command)
            assert report["rows"] == arguments.rows
            rates[name].append(report["rows"] / report["seconds"])
            memory[name] = max(memory[name], largest)
            print(f"{name}: {rates[name][-1]:,.0f} rows/s", file=sys.stderr)
    print("| input | rows/s | of the loop | of one file | largest memory, MB |")
    print("|---|---|---|---|---|")
    for name, found in rates.items():
        loop, one = (ratio(found, rates[other]) for other in ("loop", "one file"))
        middle = statistics.median(found)
        print(f"| {name} | {middle:,.0f} | {loop:.2f} | {one:.2f} | {memory[name]:,.0f} |")


def ratio(rates: list[float], others: list[float]) -> float:
    """Return the median of the rounds' ratios."""
    return statistics.median(a / b for a, b in zip(rates, others, strict=True))


def compare_memory(model: str, arguments: argparse.Namespace) -> None:
    # A float checkpoint is compared with its INT8 once, which needs the real model.
    qdqbert.load(model, engine="native").close()
    few, many = arguments.rows, 3 * arguments.rows
    print(f"{cpu_name()}, {usable_cores()} cores\n")
    print(f"| output | {few:,} rows: peak memory, MB | {many:,} rows | ratio |")
    print("|---|---|---|---|", flush=True)
    for output in arguments.outputs:
        peaks = [peak_of_run(model, count, output) for count in (few, many)]
        print(
            f"| {output} | {peaks[0]:.0f} | {peaks[1]:.0f} | {peaks[1] / peaks[0]:.2f} |",
            flush=True,
        )


def peak_of_run(model: str, count: int, output: str) -> float:
    """Return the peak memory in MB of a run that computes nothing."""
    with tempfile.TemporaryDirectory() as folder:
        source, status = Path(folder) / "one.parquet", Path(folder) / "status"
        pq.write_table(rows_of(count), source, row_group_size=10_000)
        words = ["run", model, "-i", str(source), "-o", f"{folder}/{output}", "--json"]
        command = [sys.executable, "-c", _COMMAND, str(status), *words, "--engine", "native"]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        assert json.loads(done.stdout)["rows"] == count
        # In kB of 1,024 bytes.
        peak = status.read_text(encoding="utf-8").split("VmHWM:")[1].split()[0]
        return int(peak) * 1024 / 1e6


def write_inputs(folder: Path, arguments: argparse.Namespace) -> dict[str, Path]:
    """Write the same rows in three ways."""
    table = rows_of(arguments.rows)
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


def rows_of(count: int) -> Any:
    """Return short texts, with a number beside each."""
    examples = resources.calibration_examples()
    found = [" ".join(str(each.text).split()[:12]) for each in examples]
    texts = [f"{found[index % len(found)]} {index}" for index in range(count)]
    return pa.table({"id": range(count), "text": texts})


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
