r"""Compare the latency of the native engine with OpenVINO, ONNX Runtime, NNCF and CTranslate2.

    python benchmarks/engines.py [--model demo] [--threads 2] [--rounds 9] [--kernel avx2]
    python benchmarks/engines.py --model base

MODEL is a checkpoint folder, a hub id, `demo` for the packaged all-MiniLM-L6-v2, or `base` for a
model of BERT-base's size with random weights. All ways start from this checkpoint, run in a process
each, and take turns. The table has the median latency for each shape in milliseconds, and the
geometric mean over all shapes of how many times faster the native engine is: medians of the ratios
of each round.

- "OpenVINO" is qdqbert's graph, and "NNCF" that of its TRANSFORMER preset. Both run in float32 and
  in bfloat16 between int8 operators. "float" is the checkpoint without quantization.
- "ONNX Runtime dynamic" is its `quantize_dynamic`, per channel.
- CTranslate2 is left out if it is not installed.

The second table has the share of the CPU's int8 rate that a batch of 8 texts of 128 tokens reaches
on one thread, and how much faster two threads are than one for one text of 128 tokens. The rate is
that of the faster of `torch._int_mm` and the kernel's tiles alone, with the same instruction set.
Two threads with a text each show what the machine itself allows.

Needs `pip install 'qdqbert[benchmarks]'`.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from qdqbert.common.machine import cpu_features, cpu_name, usable_cores
from qdqbert.engines.native.compiler import Library, compile_module
from qdqbert.engines.native.instruction_set import InstructionSet
from qdqbert.engines.native.instruction_sets import choose_set
from qdqbert.engines.native.ir import PTR, Module
from qdqbert.engines.native.kernels.amx_tiles import AmxTiles, amx_name
from qdqbert.engines.native.kernels.vector_tiles import dot_name
from qdqbert.engines.native.memory import zeros
from qdqbert.engines.native.runner import NativeRunner

SHAPES = "1x32,1x128,8x128,1x384,32x64"
NATIVE = "native"
VOCABULARY = 20_000
# oneDNN's names of the instruction sets of kernels.
ONEDNN_SETS = {
    "amx": "AVX512_CORE_AMX",
    "avx512-vnni": "AVX512_CORE_VNNI",
    "avx-vnni": "AVX2_VNNI",
    "avx2": "AVX2",
}
# Shapes of BERT-base's linear layers: rows, columns, depth.
PRODUCTS = ((1024, 768, 768), (1024, 3072, 768), (1024, 768, 3072))


def main() -> None:
    arguments = parse()
    if arguments.int_mm:
        print_torch_rate()
        return
    if arguments.worker:
        serve(json.loads(arguments.worker))
        return
    shapes = [
        (int(a), int(b)) for a, b in (each.split("x") for each in arguments.shapes.split(","))
    ]
    print(f"{cpu_name()}, {usable_cores()} cores, {' '.join(cpu_features())}\n")
    with tempfile.TemporaryDirectory() as root:
        ways = make_ways(arguments, Path(root))
        times = measure(ways, shapes, arguments)
        show(ways, shapes, times)
        show_rate(next(each for each in ways if each["name"] == NATIVE), arguments)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--model", default="demo")
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=0.5, help="length of a turn")
    parser.add_argument("--shapes", default=SHAPES)
    parser.add_argument("--kernel", help="instruction set of the native engine")
    parser.add_argument("--only", nargs="*", default=(), help="ways whose names contain a word")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--int-mm", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def make_ways(arguments: argparse.Namespace, root: Path) -> list[dict[str, Any]]:
    """Quantize the model with each tool, and return what a worker has to load."""
    import qdqbert
    from qdqbert.encoders.checkpoint.demo import demo_checkpoint
    from qdqbert.encoders.checkpoint.load import load_checkpoint
    from qdqbert.graphs.check import save_graph
    from qdqbert.graphs.of_checkpoint import encoder_of
    from qdqbert.graphs.writer import make_graph

    model = arguments.model
    if model == "demo":
        model = str(demo_checkpoint())
    elif model == "base":
        model = str(random_base(root))
    report = qdqbert.quantize(
        model, root / "ours", targets=("native", "openvino", "onnxruntime"), benchmark=False
    )
    ours = {target.target: root / "ours" / target.model for target in report.targets}
    save_graph(make_graph(encoder_of(load_checkpoint(model))), root / "float.onnx")
    dynamic, nncf = make_rivals(root)
    ways: list[dict[str, Any]] = [
        {"name": NATIVE, "engine": "native", "model": ours["native"], "kernel": arguments.kernel}
    ]
    for name, path in (
        ("OpenVINO", ours["openvino"]),
        ("NNCF", nncf),
        ("float", root / "float.onnx"),
    ):
        for precision in ("f32", "bf16"):
            way = {"name": f"{name}, {precision}", "engine": "openvino", "model": path}
            ways.append({**way, "precision": precision})
    ways += [
        {"name": "ONNX Runtime", "engine": "onnxruntime", "model": ours["onnxruntime"]},
        {"name": "ONNX Runtime dynamic", "engine": "onnxruntime", "model": dynamic},
    ]
    with contextlib.suppress(ImportError):
        from ctranslate2.converters import TransformersConverter

        folder = root / "ctranslate2"
        TransformersConverter(model).convert(str(folder), quantization="int8")
        ways.append({"name": "CTranslate2", "engine": "ctranslate2", "model": folder})
    wanted = (NATIVE, *arguments.only) if arguments.only else ("",)
    chosen = [each for each in ways if any(word in each["name"] for word in wanted)]
    return [{**each, "model": str(each["model"])} for each in chosen]


def make_rivals(root: Path) -> tuple[Path, Path]:
    """Quantize the float graph with ONNX Runtime's dynamic quantizer and with NNCF."""
    from other_quantizers import quantize_dynamic, quantize_nncf, without_value_info

    plain = without_value_info(root / "float.onnx", root / "plain.onnx")
    rng = np.random.default_rng(0)
    inputs = [feed(1, int(rng.integers(8, 128)), rng) for _ in range(32)]
    names = input_names(plain)
    inputs = [{name: each[name] for name in names} for each in inputs]
    dynamic, nncf = root / "dynamic.onnx", root / "nncf.xml"
    quantize_dynamic(plain, dynamic, inputs)
    quantize_nncf(plain, nncf, inputs)
    return dynamic, nncf


def input_names(path: Path) -> list[str]:
    import onnx

    return [each.name for each in onnx.load(path, load_external_data=False).graph.input]


def random_base(root: Path) -> Path:
    """Write a checkpoint of BERT-base's size with random weights, and the demo's tokenizer."""
    import torch
    import transformers

    from qdqbert.encoders.checkpoint.demo import demo_checkpoint

    torch.manual_seed(0)
    path = root / "base"
    # CTranslate2's converter reads this setting, which transformers 5 no longer stores.
    config = transformers.BertConfig(position_embedding_type="absolute")
    transformers.BertModel(config).save_pretrained(path)
    transformers.AutoTokenizer.from_pretrained(demo_checkpoint()).save_pretrained(path)
    return path


def feed(batch: int, sequence: int, rng: np.random.Generator) -> dict[str, Any]:
    shape = (batch, sequence)
    return {
        "input_ids": rng.integers(1000, VOCABULARY, shape),
        "attention_mask": np.ones(shape, np.int64),
        "token_type_ids": np.zeros(shape, np.int64),
    }


def measure(
    ways: list[dict[str, Any]], shapes: list[tuple[int, int]], arguments: argparse.Namespace
) -> dict[tuple[str, tuple[int, int]], list[float]]:
    """Return the median milliseconds of each round, by way and shape."""
    times: dict[tuple[str, tuple[int, int]], list[float]] = {}
    with contextlib.ExitStack() as stack:
        workers = {
            each["name"]: stack.enter_context(worker({**each, "threads": arguments.threads}))
            for each in ways
        }
        for shape in shapes:
            for _ in range(arguments.rounds):
                for name, ask in workers.items():
                    found = ask({"shape": shape, "seconds": arguments.seconds})
                    times.setdefault((name, shape), []).append(found)
    return times


@contextlib.contextmanager
def worker(
    way: dict[str, Any], *, script: str = __file__
) -> Iterator[Callable[[dict[str, Any]], float]]:
    """Start a process that runs one way, and return a function that asks it for a time."""
    command = [sys.executable, script, "--worker", json.dumps(way)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    stdin, stdout = process.stdin, process.stdout

    def ask(request: dict[str, Any]) -> float:
        stdin.write(json.dumps(request) + "\n")
        stdin.flush()
        line = stdout.readline()
        if not line:
            raise SystemExit(f"{way['name']} failed.")
        return float(json.loads(line))

    try:
        yield ask
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def workers(
    names: Sequence[str], *, script: str, **given: Any
) -> Iterator[dict[str, Callable[[dict[str, Any]], float]]]:
    """Start a process for each way; see `worker`. All ways get what is `given`."""
    with contextlib.ExitStack() as stack:
        yield {
            name: stack.enter_context(worker({"name": name, **given}, script=script))
            for name in names
        }


def serve(way: dict[str, Any]) -> None:
    """Answer requests from stdin with the median milliseconds of a turn."""
    run = open_way(way)
    rng = np.random.default_rng(0)
    for line in sys.stdin:
        request = json.loads(line)
        batch, sequence = request["shape"]
        inputs = feed(batch, sequence, rng)
        run(inputs)
        found: list[float] = []
        until = time.perf_counter() + request["seconds"]
        while len(found) < 3 or time.perf_counter() < until:
            start = time.perf_counter()
            run(inputs)
            found.append((time.perf_counter() - start) * 1e3)
        print(statistics.median(found), flush=True)


def open_way(way: dict[str, Any]) -> Callable[[dict[str, Any]], object]:
    if way["engine"] == "ctranslate2":
        import ctranslate2

        encoder = ctranslate2.Encoder(
            way["model"], compute_type="int8", inter_threads=1, intra_threads=way["threads"]
        )
        return lambda inputs: encoder.forward_batch(inputs["input_ids"].tolist())
    from qdqbert.engines.registry import open_runner

    options = {name: way[name] for name in ("kernel", "precision") if way.get(name)}
    runner = open_runner(way["engine"], Path(way["model"]), threads=way["threads"], **options)
    return lambda inputs: runner.run({name: inputs[name] for name in runner.input_names})


def show(
    ways: list[dict[str, Any]],
    shapes: list[tuple[int, int]],
    times: dict[tuple[str, tuple[int, int]], list[float]],
) -> None:
    names = [f"{batch} x {sequence}" for batch, sequence in shapes]
    print(f"| way | {' | '.join(names)} | native is faster, geometric mean |")
    print("|---" * (len(shapes) + 2) + "|")
    for way in ways:
        name = way["name"]
        cells = [f"{statistics.median(times[name, shape]):.2f}" for shape in shapes]
        ratios = [
            statistics.median(
                a / b for a, b in zip(times[name, shape], times[NATIVE, shape], strict=True)
            )
            for shape in shapes
        ]
        print(f"| {name} | {' | '.join(cells)} | {statistics.geometric_mean(ratios):.2f} |")


def show_rate(way: dict[str, Any], arguments: argparse.Namespace) -> None:
    """Print the share of the int8 rate, and what a second thread gains."""
    rng = np.random.default_rng(0)
    one = NativeRunner(Path(way["model"]), threads=1, kernel=arguments.kernel)
    settings = one._program.settings
    hidden, inner, layers = settings["hidden"], settings["inner"], len(settings["layers"])
    inputs = feed(8, 128, rng)
    seconds = best(lambda: one.run(inputs), 20)
    rate = 1024 * layers * (4 * hidden * hidden + 2 * hidden * inner) / seconds
    tiles, torchs = tile_rate(choose_set(one.kernel)), torch_rate(one.kernel)
    print("\n| linear layers, 8 x 128, one thread | Tera-multiplications per second |")
    print("|---|---|")
    print(f"| native, whole model | {rate / 1e12:.3f} |")
    print(f"| tiles alone ({one.kernel}) | {tiles / 1e12:.3f} |")
    print(f"| torch._int_mm | {torchs / 1e12:.3f} |")
    print(f"\nShare of the int8 rate: {rate / max(tiles, torchs):.2f}.")
    two = NativeRunner(Path(way["model"]), threads=2, kernel=arguments.kernel)
    other = NativeRunner(Path(way["model"]), threads=1, kernel=arguments.kernel)
    inputs = feed(1, 128, rng)
    shared, apart = [], []
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for _ in range(arguments.rounds):
            alone = best(lambda: one.run(inputs), 20)
            shared.append(alone / best(lambda: two.run(inputs), 20))
            both = best(lambda: list(pool.map(lambda each: each.run(inputs), (one, other))), 20)
            apart.append(2 * alone / both)
    print(f"Two threads against one, 1 x 128: {statistics.median(shared):.2f}.")
    print(f"Two threads with a text of 128 tokens each: {statistics.median(apart):.2f}.")


def best(call: Callable[[], object], count: int) -> float:
    found = math.inf
    for _ in range(count):
        start = time.perf_counter()
        call()
        found = min(found, time.perf_counter() - start)
    return found


def tile_rate(isa: InstructionSet) -> float:
    """Return the multiplications per second of tiles whose operands stay in cache."""
    is_amx = isa.tiles == AmxTiles()
    rows, columns = (32, 32) if is_amx else (isa.rows[0], isa.vectors[0] * isa.lanes)
    depth, repeats = 768, 20_000
    module = Module('"prefer-vector-width"="512"')
    isa.tiles.emit(module, isa)
    name = amx_name(2, 2) if is_amx else dot_name(isa.rows[0], isa.vectors[0])
    with module.function("repeat", codes=PTR, weights=PTR, sums=PTR, start=PTR) as f:
        isa.tiles.begin(f)
        with f.loop(0, repeats):
            panel, stride = 16 * depth, 4 * columns
            operands = (f.codes, depth, f.weights, panel, f.sums, stride, depth // 4)
            # No weights of a later tile are brought nearer.
            rest = {"lines": 0} if is_amx else {"ahead_step": 0}
            f.call(name, *operands, start=f.start, ahead=f.weights, **rest)
        isa.tiles.end(f)
    run = Library(compile_module(module, isa), isa).function("repeat")
    arrays = (
        zeros((rows, depth), np.uint8),
        zeros(columns * depth, np.int8),
        zeros((rows, columns), np.int32),
        zeros(columns, np.int32),
    )
    seconds = best(lambda: run(*(each.ctypes.data for each in arrays)), 10)
    return rows * columns * depth * repeats / seconds


def torch_rate(kernel: str) -> float:
    """Return the multiplications per second of `torch._int_mm` on one thread.

    Args:
        kernel: The instruction set that it uses, too. oneDNN reads it once in a process.
    """
    command = [sys.executable, __file__, "--int-mm"]
    environment = os.environ | {"ONEDNN_MAX_CPU_ISA": ONEDNN_SETS.get(kernel, "DEFAULT")}
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return float(found.stdout)


def print_torch_rate() -> None:
    import torch

    torch.set_num_threads(1)
    rates = []
    for rows, columns, depth in PRODUCTS:
        one = torch.randint(-128, 127, (rows, depth), dtype=torch.int8)
        other = torch.randint(-128, 127, (depth, columns), dtype=torch.int8)
        seconds = best(lambda a=one, b=other: torch._int_mm(a, b), 10)  # type: ignore[misc]
        rates.append(rows * columns * depth / seconds)
    print(max(rates))


if __name__ == "__main__":
    main()
