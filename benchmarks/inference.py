r"""Compare ways to embed many texts of mixed length, in texts per second.

    python benchmarks/inference.py --texts texts.txt [--model demo] [--count 20000] [--threads 2]
    python benchmarks/inference.py --texts texts.txt --sweep [--count 4000]
    python benchmarks/inference.py --texts texts.txt --single
    python benchmarks/inference.py --texts texts.txt --memory [--count 20000]
    python benchmarks/inference.py --texts texts.txt --ray [--count 20000]
    python benchmarks/inference.py --texts texts.txt --files [--count 20000] [--only 'to jsonl']

`benchmarks/mixed_texts.py` writes such a file. MODEL is a sentence-transformers folder, a hub id,
or `demo` for the packaged all-MiniLM-L6-v2. Each way runs in a separate process, `--rounds` times
in turn; the table has medians. Loading and the first 64 texts are not timed.

- "file order" and "sorted": batches of 32 texts, tokenized and run one after another on all cores.
- "one stream": `encode` of `qdqbert.load`, but with one stream on all cores.
- "qdqbert": `encode` of `qdqbert.load`.
- "integration": `encode` of `qdqbert.integrations.sentence_transformers.load`.
- "sentence-transformers": `encode` with its default batch size, which sorts by length. bfloat16 is
  left out on CPUs without it.
- "CTranslate2": int8, sorted, batches of 4096 tokens. Left out if it is not installed.

`--sweep` varies one choice of the schedule at a time: tokens of a batch, rounding of lengths,
window, number of streams, and whether the threads of one stream on ONNX Runtime spin while they
wait. Texts per CPU second, which the comparison is based on, depend less on what else the machine
does.

`--single` compares `model([text])` with the engine's bare call. `--memory` runs the command
`qdqbert run` on `--count` texts and on ten times as many, and compares the peak memory of the two
processes. The larger output takes 8 kB per text, twice. `--ray` compares `qdqbert run` with
`qdqbert run --ray`, including the time in which workers load the model, without the start of Ray.
`--files` compares `qdqbert.run` for each format of input and output with calls of `encode` just
before and after it, all in this process, and shows the medians of the rounds' ratios. CPU time is
that of all threads. What the same call takes for 64 texts is not counted: loading, and the first
block.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import functools
import importlib.util
import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import qdqbert
from qdqbert.common.choices import EngineName
from qdqbert.common.machine import cpu_features, cpu_name, usable_cores
from qdqbert.data.tables.parquet import import_pyarrow
from qdqbert.data.tokenizing.encoding import feature_of
from qdqbert.loading import load as loading
from qdqbert.runtime.batches import stack

ENGINES: tuple[EngineName, ...] = ("onnxruntime", "openvino", "native")
WARM_UP = 64
# Formats of `--files`, each with a file of texts as the other side.
FILE_INPUTS = ("csv", "jsonl", "parquet")
FILE_OUTPUTS = ("npy", "parquet", "jsonl", "csv")
# Seconds, and CPU seconds of all threads.
Cost = tuple[float, float]
# Shapes of "model([text])": tokens, rounded down to whole words.
SINGLE_TOKENS = (8, 32, 128)
SWEEPS = {
    "tokens": (256, 384, 512, 1024, 2048, 4096, 8192),
    "multiple": (1, 4, 8, 16, 32),
    "window": (128, 512, 2048, 8192),
}
# Runs the command in the arguments after the first, and writes to the first what the kernel knows
# about the memory of the process. ru_maxrss would count the process that started it, too.
COMMAND = """
import pathlib, sys
from qdqbert.cli.app import main
try:
    main(sys.argv[2:])
finally:
    pathlib.Path(sys.argv[1]).write_text(pathlib.Path("/proc/self/status").read_text())
"""


def main() -> None:
    arguments = parse()
    if arguments.one:
        print(json.dumps(run_one(arguments)))
        return
    # An exit, unlike a signal, ends the process of the way that is being measured, too.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    print(f"{cpu_name()}, {usable_cores()} cores, {' '.join(cpu_features())}\n")
    with tempfile.TemporaryDirectory() as root:
        if not arguments.folder:
            arguments.folder = quantize(arguments.model, Path(root) / "int8")
        if arguments.sweep:
            sweep(arguments)
        elif arguments.single:
            compare_single(arguments)
        elif arguments.memory:
            compare_memory(arguments)
        elif arguments.ray:
            compare_ray(arguments)
        elif arguments.files:
            compare_files(arguments)
        else:
            compare(arguments, ways(arguments))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--texts", type=Path, required=True)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--folder", type=Path, help="the quantized model, if it exists")
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--engines", nargs="*", choices=ENGINES, default=ENGINES)
    parser.add_argument("--sweep", action="store_true")
    parser.add_argument("--single", action="store_true")
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--ray", action="store_true")
    parser.add_argument("--files", action="store_true")
    parser.add_argument("--only", nargs="*", default=(), help="ways whose names contain a word")
    parser.add_argument("--one", help="run this way only, in this process")
    parser.add_argument("--schedule", type=json.loads, default={})
    return parser.parse_args()


def quantize(model: str, folder: Path) -> Path:
    qdqbert.quantize(None if model == "demo" else model, folder, targets=ENGINES, benchmark=False)
    return folder


def compare(arguments: argparse.Namespace, names: Iterable[str]) -> None:
    results = measure(arguments, names)
    print(f"{arguments.count} texts, {arguments.threads} threads, {arguments.rounds} rounds\n")
    print("| way | texts/s | relative | texts per CPU second | relative | peak memory, MB |")
    print("|---|---|---|---|---|---|")
    units = ("seconds", "cpu_seconds")
    rates = {name: [rate_of(rounds, unit) for unit in units] for name, rounds in results.items()}
    first = next(iter(rates.values()))
    for name, found in rates.items():
        memory = max(each["peak_mb"] for each in results[name])
        shown = (f"{rate:.0f} | {rate / one:.3f}" for rate, one in zip(found, first, strict=True))
        print(f"| {name} | {' | '.join(shown)} | {memory:.0f} |", flush=True)


def measure(
    arguments: argparse.Namespace, names: Iterable[str]
) -> dict[str, list[dict[str, float]]]:
    """Run each way in a separate process, in turn, and return the results of its rounds."""
    chosen = [name for name in names if is_chosen(arguments, name)]
    results: dict[str, list[dict[str, float]]] = {name: [] for name in chosen}
    for _ in range(arguments.rounds):
        for name in chosen:
            found = in_process(arguments, name)
            results[name].append(found)
            print(f"{name}: {found['texts'] / found['seconds']:.0f} texts/s", file=sys.stderr)
    return results


def is_chosen(arguments: argparse.Namespace, name: str) -> bool:
    return not arguments.only or any(word in name for word in arguments.only)


def sweep(arguments: argparse.Namespace) -> None:
    print("| engine | choice | value | texts/s | texts per CPU second | relative to the default |")
    print("|---|---|---|---|---|---|")
    for engine in arguments.engines:
        choices = list(sweep_choices(engine, arguments.threads))
        runs: list[list[dict[str, float]]] = [[] for _ in choices]
        for _ in range(arguments.rounds):
            for (_, _, schedule), found in zip(choices, runs, strict=True):
                found.append(in_process(arguments, f"{engine}, qdqbert", schedule))
        default = rate_of(runs[0], "cpu_seconds")
        for (name, value, _), found in zip(choices, runs, strict=True):
            rates = [rate_of(found, each) for each in ("seconds", "cpu_seconds")]
            print(
                f"| {engine} | {name} | {value} | {rates[0]:.0f} | {rates[1]:.0f} | "
                f"{rates[1] / default:.2f} |",
                flush=True,
            )


def sweep_choices(engine: str, threads: int) -> Iterator[tuple[str, str, dict[str, int]]]:
    """Yield name, value and changes of each choice, the default first."""
    yield "default", "", {}
    for name, values in SWEEPS.items():
        for value in values:
            yield name, str(value), {name: value}
    for streams in sorted({1, threads}):
        yield "streams", str(streams), {"streams": streams}
    if engine == "onnxruntime":
        # Streams on one thread each have no threads that wait.
        for spinning in (1, 0):
            label = "on" if spinning else "off"
            yield "spinning, 1 stream", label, {"streams": 1, "spinning": spinning}


def rate_of(rounds: list[dict[str, float]], unit: str) -> float:
    return statistics.median(each["texts"] / each[unit] for each in rounds)


def in_process(
    arguments: argparse.Namespace, name: str, schedule: dict[str, int] | None = None
) -> dict[str, float]:
    command = [sys.executable, __file__, "--one", name, "--texts", arguments.texts]
    command += ["--model", arguments.model, "--folder", arguments.folder]
    command += ["--count", arguments.count, "--threads", arguments.threads]
    command += ["--engines", *arguments.engines]
    command += ["--schedule", json.dumps(schedule or {})]
    done = subprocess.run(
        [str(each) for each in command], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{name} failed:\n{done.stderr}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def run_one(arguments: argparse.Namespace) -> dict[str, float]:
    if arguments.one in ray_ways(arguments):
        return run_file(arguments)
    embed = ways(arguments)[arguments.one](arguments)
    texts = read_texts(arguments.texts, arguments.count)
    for _ in embed(iter(texts[:WARM_UP])):
        pass
    start, start_cpu = time.perf_counter(), time.process_time()
    count = sum(1 for _ in embed(iter(texts)))
    seconds, cpu = time.perf_counter() - start, time.process_time() - start_cpu
    assert count == len(texts)
    return {"texts": count, "seconds": seconds, "cpu_seconds": cpu, "peak_mb": peak_megabytes()}


def peak_megabytes(status: Path = Path("/proc/self/status")) -> float:
    """Return the peak memory of a process in MB, from the kernel's file about it."""
    # ru_maxrss also counts the process that started this one.
    return int(status.read_text(encoding="utf-8").split("VmHWM:")[1].split()[0]) / 1024


def read_texts(path: Path, count: int) -> list[str]:
    texts = path.read_text(encoding="utf-8").splitlines()
    return [texts[index % len(texts)] for index in range(count)]


Embed = Callable[[Iterator[str]], Iterator[Any]]


def ways(arguments: argparse.Namespace) -> dict[str, Callable[[argparse.Namespace], Embed]]:
    """Return how each way is opened, by name."""
    found: dict[str, Callable[[argparse.Namespace], Embed]] = {}
    for engine in arguments.engines:
        for name, is_sorted in (("file order", False), ("sorted", True)):
            found[f"{engine}, {name}"] = bare(engine, is_sorted=is_sorted)
        found[f"{engine}, one stream"] = ours(engine, streams=1)
        found[f"{engine}, qdqbert"] = ours(engine)
        if importlib.util.find_spec("sentence_transformers"):
            found[f"{engine}, integration"] = integration(engine)
    if importlib.util.find_spec("sentence_transformers"):
        found["sentence-transformers, float32"] = sentence_transformers("float32")
        if {"avx512_bf16", "amx_bf16", "bf16"} & set(cpu_features()):
            found["sentence-transformers, bfloat16"] = sentence_transformers("bfloat16")
    if importlib.util.find_spec("ctranslate2"):
        found["CTranslate2, int8"] = ctranslate2
    return found


def ours(engine: Any, *, streams: int | None = None) -> Callable[[argparse.Namespace], Embed]:
    def start(arguments: argparse.Namespace) -> Embed:
        schedule = loading._SCHEDULES[engine]
        changes = dict(arguments.schedule)
        plan = {name: changes.pop(name) for name in ("tokens", "multiple") if name in changes}
        given = changes.pop("streams", streams)
        if "spinning" in changes:
            set_spinning(changes.pop("spinning"))
        loading._SCHEDULES[engine] = dataclasses.replace(
            schedule, plan=dataclasses.replace(schedule.plan, **plan), **changes
        )
        model = qdqbert.load(arguments.folder, engine=engine, threads=arguments.threads)
        if given is not None:
            model._loaded.runners.streams = given
        return lambda texts: model.stream(model.job(), texts)

    return start


def set_spinning(is_on: int) -> None:
    """Let the threads of new sessions of ONNX Runtime spin while they wait, or not."""
    import onnxruntime

    make = onnxruntime.SessionOptions

    def options() -> Any:
        made = make()
        made.add_session_config_entry("session.intra_op.allow_spinning", str(is_on))
        return made

    onnxruntime.SessionOptions = options


def bare(engine: Any, *, is_sorted: bool) -> Callable[[argparse.Namespace], Embed]:
    def start(arguments: argparse.Namespace) -> Embed:
        model = qdqbert.load(arguments.folder, engine=engine, threads=arguments.threads)
        runner, tokenizer = model._loaded.runners.single, model._loaded.tokenizer

        def embed(texts: Iterator[str]) -> Iterator[Any]:
            listed = list(texts)
            if is_sorted:
                listed.sort(key=len, reverse=True)
            for first in range(0, len(listed), 32):
                encodings = tokenizer.encode_batch(listed[first : first + 32])
                features = [feature_of(each, runner.input_names) for each in encodings]
                longest = max(len(each.ids) for each in encodings)
                outputs = runner.run(stack(features, tokenizer.padding, longest))
                yield from outputs["sentence_embedding"]

        return embed

    return start


def sentence_transformers(dtype: str) -> Callable[[argparse.Namespace], Embed]:
    def start(arguments: argparse.Namespace) -> Embed:
        import torch
        from sentence_transformers import SentenceTransformer

        from qdqbert.encoders.checkpoint.demo import demo_checkpoint

        torch.set_num_threads(arguments.threads)
        path = demo_checkpoint() if arguments.model == "demo" else arguments.model
        model = SentenceTransformer(
            str(path), device="cpu", model_kwargs={"dtype": getattr(torch, dtype)}
        )
        return lambda texts: iter(model.encode(list(texts), convert_to_tensor=True))

    return start


def integration(engine: Any) -> Callable[[argparse.Namespace], Embed]:
    def start(arguments: argparse.Namespace) -> Embed:
        from qdqbert.integrations.sentence_transformers import load

        model: Any = load(arguments.folder, engine=engine, threads=arguments.threads)
        return lambda texts: iter(model.encode(list(texts)))

    return start


def ctranslate2(arguments: argparse.Namespace) -> Embed:
    import ctranslate2 as library
    from ctranslate2.converters import TransformersConverter

    from qdqbert.encoders.checkpoint.demo import demo_checkpoint

    path = demo_checkpoint() if arguments.model == "demo" else arguments.model
    folder = Path(tempfile.mkdtemp()) / "ctranslate2"
    TransformersConverter(str(path)).convert(str(folder), quantization="int8")
    encoder = library.Encoder(
        str(folder), compute_type="int8", inter_threads=arguments.threads, intra_threads=1
    )
    tokenizer = qdqbert.load(arguments.folder, engine="onnxruntime")._loaded.tokenizer

    def embed(texts: Iterator[str]) -> Iterator[Any]:
        encodings = tokenizer.encode_batch(list(texts))
        encodings.sort(key=lambda each: -len(each.ids))
        first = 0
        while first < len(encodings):
            rows = max(1, 4096 // len(encodings[first].ids))
            ids = [each.ids for each in encodings[first : first + rows]]
            states = np.array(encoder.forward_batch(ids).last_hidden_state)
            for row, own in zip(states, ids, strict=True):
                vector = row[: len(own)].mean(axis=0)
                yield vector / np.linalg.norm(vector)
            first += rows

    return embed


def compare_single(arguments: argparse.Namespace) -> None:
    """Time a call with one text, next to the engine's bare call on the same ids, in turn."""
    print("| engine | tokens | model([text]), ms | bare call, ms | ratio |")
    print("|---|---|---|---|---|")
    for engine in arguments.engines:
        model = qdqbert.load(arguments.folder, engine=engine, threads=arguments.threads)
        runner, tokenizer = model._loaded.runners.single, model._loaded.tokenizer
        words = " ".join(read_texts(arguments.texts, 500)).split()
        for tokens in SINGLE_TOKENS:
            count = next(
                n
                for n in range(tokens, 0, -1)
                if len(tokenizer.encode(" ".join(words[:n])).ids) <= tokens
            )
            text = " ".join(words[:count])
            feature = feature_of(tokenizer.encode(text), runner.input_names)
            length = len(feature["input_ids"])
            inputs = stack([feature], tokenizer.padding, length)
            whole, alone = in_turn(
                functools.partial(model.encode, [text]), functools.partial(runner.run, inputs)
            )
            ratio = statistics.median(a / b for a, b in zip(whole, alone, strict=True))
            medians = [statistics.median(each) * 1e3 for each in (whole, alone)]
            print(f"| {engine} | {length} | {medians[0]:.2f} | {medians[1]:.2f} | {ratio:.2f} |")
        model.close()


def write_texts(arguments: argparse.Namespace, count: int, path: Path) -> Path:
    """Write a number of texts to a file, one per line, repeating them as often as needed."""
    texts = itertools.cycle(arguments.texts.read_text(encoding="utf-8").splitlines())
    with path.open("w", encoding="utf-8") as file:
        file.writelines(f"{text}\n" for text in itertools.islice(texts, count))
    return path


def compare_memory(arguments: argparse.Namespace) -> None:
    print("| engine | texts | seconds | peak memory, MB | relative to the first |")
    print("|---|---|---|---|---|")
    for engine in arguments.engines:
        peaks = []
        for count in (arguments.count, 10 * arguments.count):
            seconds, peak = run_command(arguments, engine, count)
            peaks.append(peak)
            print(
                f"| {engine} | {count} | {seconds:.0f} | {peak:.0f} | {peak / peaks[0]:.2f} |",
                flush=True,
            )


def run_command(arguments: argparse.Namespace, engine: str, count: int) -> tuple[float, float]:
    """Return the seconds and the peak memory in MB of `qdqbert run`, with loading."""
    with tempfile.TemporaryDirectory() as root:
        status = Path(root) / "status"
        words = ["run", arguments.folder, "--engine", engine, "--threads", arguments.threads]
        words += ["--input", write_texts(arguments, count, Path(root) / "texts.txt")]
        words += ["--output", Path(root) / "embeddings.jsonl", "--json"]
        start = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-c", COMMAND, str(status), *map(str, words)],
            capture_output=True,
            text=True,
            check=False,
        )
        seconds = time.perf_counter() - start
        if done.returncode:
            raise SystemExit(f"qdqbert run failed:\n{done.stderr}")
        assert json.loads(done.stdout)["rows"] == count
        return seconds, peak_megabytes(status)


def ray_ways(arguments: argparse.Namespace) -> dict[str, tuple[int, int]]:
    """Return the number of workers, 0 without Ray, and the threads of each, by name."""
    threads = arguments.threads
    found = {"run": (0, threads), "run, 1 thread": (0, 1)}
    for workers, each in ((1, threads), (1, 1), (2, 1)):
        found[f"run --ray, {workers} x {each} threads"] = (workers, each)
    return {f"{engine}, {name}": way for engine in arguments.engines for name, way in found.items()}


def compare_ray(arguments: argparse.Namespace) -> None:
    if importlib.util.find_spec("ray") is None:
        raise SystemExit("Ray is not installed: pip install 'qdqbert[ray]'")
    results = measure(arguments, ray_ways(arguments))
    print(f"{arguments.count} texts, {arguments.rounds} rounds; N x M: N workers of M threads\n")
    print("| way | seconds | texts/s | speed relative to run | relative to 1 x 1 |")
    print("|---|---|---|---|---|")
    rates = {name: rate_of(rounds, "seconds") for name, rounds in results.items()}
    for name, rate in rates.items():
        engine, _, way = name.partition(", ")
        bases = (f"{engine}, run", f"{engine}, run --ray, 1 x 1 threads")
        whole, single = (f"{rate / rates[each]:.2f}" if each in rates else "" for each in bases)
        single = single if "--ray" in way else ""
        print(f"| {name} | {arguments.count / rate:.1f} | {rate:.0f} | {whole} | {single} |")


def run_file(arguments: argparse.Namespace) -> dict[str, float]:
    """Run a file, on Ray if the way says so, and return the wall time of the call."""
    workers, threads = ray_ways(arguments)[arguments.one]
    engine: Any = arguments.one.partition(",")[0]
    with tempfile.TemporaryDirectory() as root:
        texts = write_texts(arguments, arguments.count, Path(root) / "texts.txt")
        if workers:
            os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
            import ray

            ray.init(
                address="local",
                num_cpus=workers * threads,
                include_dashboard=False,
                configure_logging=False,
                log_to_driver=False,
            )
        start = time.perf_counter()
        report = qdqbert.run(
            arguments.folder,
            texts,
            Path(root) / "embeddings.npy",
            engine=engine,
            threads=threads,
            ray="auto" if workers else None,
        )
        seconds = time.perf_counter() - start
        if workers:
            ray.shutdown()
    assert report.rows == arguments.count
    return {"texts": report.rows, "seconds": seconds}


def compare_files(arguments: argparse.Namespace) -> None:
    """Run each pair of formats between two calls of `encode`, and compare the three."""
    pairs = [("txt", each) for each in FILE_OUTPUTS] + [(each, "npy") for each in FILE_INPUTS]
    texts = read_texts(arguments.texts, arguments.count)
    print(f"{len(texts)} texts, {arguments.threads} threads, {arguments.rounds} rounds\n")
    print("| way | texts/s | of `encode` | texts per CPU second | of `encode` |")
    print("|---|---|---|---|---|", flush=True)
    for engine in arguments.engines:
        options: Any = {"engine": engine, "threads": arguments.threads}
        calls = {
            name: functools.partial(run_formats, arguments.folder, one, other, options)
            for one, other in pairs
            if is_chosen(arguments, name := f"{engine}, {one} to {other}")
        }
        if not calls:
            raise SystemExit(f"No way has one of {arguments.only} in its name.")
        show_files(calls, functools.partial(encode_texts, arguments.folder, options), arguments)


def show_files(
    calls: Mapping[str, Callable[[list[str]], Cost]],
    loop: Callable[[list[str]], Cost],
    arguments: argparse.Namespace,
) -> None:
    """Run calls in turn, each between two runs of a loop, and print rates and ratios."""
    texts = read_texts(arguments.texts, arguments.count)
    rates: dict[str, list[Any]] = {name: [] for name in ("encode", *calls)}
    ratios: dict[str, list[Any]] = {name: [] for name in calls}
    for _ in range(arguments.rounds):
        before = cost_of(loop, texts)
        for name, call in calls.items():
            own, after = cost_of(call, texts), cost_of(loop, texts)
            ratios[name].append((before + after) / 2 / own)
            rates[name].append(len(texts) / own)
            rates["encode"].append(len(texts) / after)
            print(f"{name}: {ratios[name][-1].round(3)}", file=sys.stderr)
            before = after
    for name, found in rates.items():
        wall, cpu = np.median(found, axis=0)
        of_wall, of_cpu = np.median(ratios[name], axis=0) if name in ratios else (1, 1)
        print(f"| {name} | {wall:.0f} | {of_wall:.3f} | {cpu:.0f} | {of_cpu:.3f} |", flush=True)


def cost_of(call: Callable[[list[str]], Cost], texts: list[str]) -> Any:
    """Return the seconds and the CPU seconds of a call, without what it takes for a few texts."""
    few, all_of_them = call(texts[:WARM_UP]), call(texts)
    return np.subtract(all_of_them, few)


def encode_texts(folder: Path, options: Any, texts: list[str]) -> Cost:
    """Return the seconds and the CPU seconds of loading and one call of `encode`."""
    start, cpu = time.perf_counter(), time.process_time()
    with qdqbert.load(folder, **options) as model:
        model.encode(texts)
    return time.perf_counter() - start, time.process_time() - cpu


def run_formats(folder: Path, given: str, wanted: str, options: Any, texts: list[str]) -> Cost:
    """Return the seconds and the CPU seconds of `qdqbert.run` from one format to another."""
    with tempfile.TemporaryDirectory() as root:
        source, output = Path(root) / f"texts.{given}", Path(root) / f"vectors.{wanted}"
        write_rows(source, texts)
        start, cpu = time.perf_counter(), time.process_time()
        report = qdqbert.run(folder, source, output, **options)
        cost = time.perf_counter() - start, time.process_time() - cpu
    assert report.rows == len(texts)
    return cost


def write_rows(path: Path, texts: list[str]) -> None:
    """Write texts as rows, with a number beside each where the format has columns."""
    if path.suffix == ".parquet":
        pyarrow = import_pyarrow()
        columns = {"id": range(len(texts)), "text": texts}
        pyarrow.parquet.write_table(pyarrow.table(columns), path)
        return
    with path.open("w", encoding="utf-8", newline="") as file:
        if path.suffix == ".csv":
            csv.writer(file).writerows([("id", "text"), *enumerate(texts)])
        elif path.suffix == ".jsonl":
            file.writelines(
                f"{json.dumps({'id': index, 'text': text})}\n" for index, text in enumerate(texts)
            )
        else:
            file.writelines(f"{text}\n" for text in texts)


def in_turn(*calls: Callable[[], Any], rounds: int = 30) -> list[list[float]]:
    """Return the median seconds of each call in each round; the calls take turns."""
    medians: list[list[float]] = [[] for _ in calls]
    for _ in range(rounds):
        for call, found in zip(calls, medians, strict=True):
            times = []
            for _ in range(20):
                start = time.perf_counter()
                call()
                times.append(time.perf_counter() - start)
            found.append(statistics.median(times))
    return medians


if __name__ == "__main__":
    main()
