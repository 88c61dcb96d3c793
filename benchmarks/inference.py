r"""Compare ways to embed many texts of mixed length, in texts per second.

    python benchmarks/inference.py --texts texts.txt [--model demo] [--count 20000] [--threads 2]
    python benchmarks/inference.py --texts texts.txt --sweep [--count 4000]
    python benchmarks/inference.py --texts texts.txt --single

`benchmarks/mixed_texts.py` writes such a file. MODEL is a sentence-transformers folder, a hub id,
or `demo` for the packaged all-MiniLM-L6-v2. Each way runs in a separate process, `--rounds` times
in turn; the table has medians. Loading and the first 64 texts are not timed.

- "file order" and "sorted": batches of 32 texts, tokenized and run one after another on all cores.
- "one stream": `encode` of `qdqbert.load`, but with one stream on all cores.
- "qdqbert": `encode` of `qdqbert.load`.
- "sentence-transformers": `encode` with its default batch size, which sorts by length. bfloat16 is
  left out on CPUs without it.
- "CTranslate2": int8, sorted, batches of 4096 tokens. Left out if it is not installed.

`--sweep` varies one choice of the schedule at a time. Texts per CPU second, which the comparison
is based on, depend less on what else the machine does. `--single` compares `model([text])` with the
engine's bare call.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import importlib.util
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import qdqbert
from qdqbert.inference import load as loading
from qdqbert.inference.batches import stack
from qdqbert.inference.model import feature_of
from qdqbert.machine import cpu_features, cpu_name, usable_cores

ENGINES = ("onnxruntime", "openvino")
WARM_UP = 64
# Shapes of "model([text])": tokens, rounded down to whole words.
SINGLE_TOKENS = (8, 32, 128)
SWEEPS = {
    "tokens": (512, 1024, 2048, 4096, 8192, 16384),
    "multiple": (1, 4, 8, 16, 32),
    "window": (128, 512, 2048, 8192),
}


def main() -> None:
    arguments = parse()
    if arguments.one:
        print(json.dumps(run_one(arguments)))
        return
    print(f"{cpu_name()}, {usable_cores()} cores, {' '.join(cpu_features())}\n")
    with tempfile.TemporaryDirectory() as root:
        if not arguments.folder:
            arguments.folder = quantize(arguments.model, Path(root) / "int8")
        if arguments.sweep:
            sweep(arguments)
        elif arguments.single:
            compare_single(arguments)
        else:
            compare(arguments)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--texts", type=Path, required=True)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--folder", type=Path, help="the quantized model, if it exists")
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--sweep", action="store_true")
    parser.add_argument("--single", action="store_true")
    parser.add_argument("--only", nargs="*", default=(), help="ways whose names contain a word")
    parser.add_argument("--one", help="run this way only, in this process")
    parser.add_argument("--schedule", type=json.loads, default={})
    return parser.parse_args()


def quantize(model: str, folder: Path) -> Path:
    qdqbert.quantize(None if model == "demo" else model, folder, targets=ENGINES, benchmark=False)
    return folder


def compare(arguments: argparse.Namespace) -> None:
    names = [
        name
        for name in ways(arguments)
        if not arguments.only or any(word in name for word in arguments.only)
    ]
    results: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    for _ in range(arguments.rounds):
        for name in names:
            results[name].append(in_process(arguments, name))
    print(f"{arguments.count} texts, {arguments.threads} threads, {arguments.rounds} rounds\n")
    print("| way | texts/s | relative to the first | peak memory, MB |")
    print("|---|---|---|---|")
    rates = {name: rate_of(rounds, "seconds") for name, rounds in results.items()}
    first = next(iter(rates.values()))
    for name, rate in rates.items():
        memory = max(each["peak_mb"] for each in results[name])
        print(f"| {name} | {rate:.0f} | {rate / first:.2f} | {memory:.0f} |", flush=True)


def sweep(arguments: argparse.Namespace) -> None:
    print("| engine | choice | value | texts/s | texts per CPU second | relative to the default |")
    print("|---|---|---|---|---|---|")
    for engine in ENGINES:
        runs: dict[tuple[str, int], list[dict[str, float]]] = {("default", 0): []}
        runs |= {(name, value): [] for name, values in SWEEPS.items() for value in values}
        for _ in range(arguments.rounds):
            for (name, value), found in runs.items():
                schedule = {name: value} if value else {}
                found.append(in_process(arguments, f"{engine}, qdqbert", schedule))
        default = rate_of(runs["default", 0], "cpu_seconds")
        for (name, value), found in runs.items():
            rates = [rate_of(found, each) for each in ("seconds", "cpu_seconds")]
            print(
                f"| {engine} | {name} | {value} | {rates[0]:.0f} | {rates[1]:.0f} | "
                f"{rates[1] / default:.2f} |",
                flush=True,
            )


def rate_of(rounds: list[dict[str, float]], unit: str) -> float:
    return statistics.median(each["texts"] / each[unit] for each in rounds)


def in_process(
    arguments: argparse.Namespace, name: str, schedule: dict[str, int] | None = None
) -> dict[str, float]:
    command = [sys.executable, __file__, "--one", name, "--texts", arguments.texts]
    command += ["--model", arguments.model, "--folder", arguments.folder]
    command += ["--count", arguments.count, "--threads", arguments.threads]
    command += ["--schedule", json.dumps(schedule or {})]
    done = subprocess.run(
        [str(each) for each in command], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{name} failed:\n{done.stderr}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def run_one(arguments: argparse.Namespace) -> dict[str, float]:
    embed = ways(arguments)[arguments.one](arguments)
    texts = read_texts(arguments.texts, arguments.count)
    for _ in embed(iter(texts[:WARM_UP])):
        pass
    start, start_cpu = time.perf_counter(), time.process_time()
    count = sum(1 for _ in embed(iter(texts)))
    seconds, cpu = time.perf_counter() - start, time.process_time() - start_cpu
    assert count == len(texts)
    return {"texts": count, "seconds": seconds, "cpu_seconds": cpu, "peak_mb": peak_megabytes()}


def peak_megabytes() -> float:
    # ru_maxrss also counts the process that started this one.
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def read_texts(path: Path, count: int) -> list[str]:
    texts = path.read_text(encoding="utf-8").splitlines()
    return [texts[index % len(texts)] for index in range(count)]


Embed = Callable[[Iterator[str]], Iterator[Any]]


def ways(arguments: argparse.Namespace) -> dict[str, Callable[[argparse.Namespace], Embed]]:
    """Return how each way is opened, by name."""
    found: dict[str, Callable[[argparse.Namespace], Embed]] = {}
    for engine in ENGINES:
        for name, is_sorted in (("file order", False), ("sorted", True)):
            found[f"{engine}, {name}"] = bare(engine, is_sorted=is_sorted)
        found[f"{engine}, one stream"] = ours(engine, streams=1)
        found[f"{engine}, qdqbert"] = ours(engine)
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
        loading._SCHEDULES[engine] = dataclasses.replace(
            schedule, plan=dataclasses.replace(schedule.plan, **plan), **changes
        )
        model = qdqbert.load(arguments.folder, engine=engine, threads=arguments.threads)
        if streams is not None:
            model._loaded.runners.streams = streams
        return lambda texts: model.stream(model.job(), texts)

    return start


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

        from qdqbert.checkpoint.demo import demo_checkpoint

        torch.set_num_threads(arguments.threads)
        path = demo_checkpoint() if arguments.model == "demo" else arguments.model
        model = SentenceTransformer(
            str(path), device="cpu", model_kwargs={"dtype": getattr(torch, dtype)}
        )
        return lambda texts: iter(model.encode(list(texts), convert_to_tensor=True))

    return start


def ctranslate2(arguments: argparse.Namespace) -> Embed:
    import ctranslate2 as library
    from ctranslate2.converters import TransformersConverter

    from qdqbert.checkpoint.demo import demo_checkpoint

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
    for engine in ENGINES:
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
