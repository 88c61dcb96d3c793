r"""Measure the kernels for NVIDIA GPUs, and prove them there, in less than 8 minutes.

    pip install --target build/gpu-packages lazy-loader orjson    # if they are missing
    python benchmarks/gpu.py --output gpu.json         # on a machine with a GPU
    python benchmarks/gpu.py --device cpu --small      # check that the script works

PyTorch, Triton, transformers and sentence-transformers are enough, and the few small packages that
`import qdqbert` needs: those in `build/gpu-packages` are found. If `qdqbert` is not installed, it
is imported from `src`, and the tests' models from `tests`. On the CPU, kernels run in Triton's
interpreter.

Each section runs in a process of its own, with a time limit, and reports each row as soon as it is
measured. A section that fails, crashes or runs out of time does not affect the other sections. Exit
status: 0, or 1 if a correctness check failed or a section ended with an error.

Times are medians, in milliseconds. What is compared takes turns, so that a slow period of the
machine affects all of it. Weights and texts are random, which does not change the time.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import importlib
import importlib.util
import json
import math
import multiprocessing
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path += [str(ROOT / "tests"), str(ROOT / "build/gpu-packages")]
if importlib.util.find_spec("qdqbert") is None:
    sys.path.insert(0, str(ROOT / "src"))

Row = dict[str, Any]

# Seconds that have to be left to start another section.
LEAST_SECONDS = 10
# Seconds for starting and ending processes, which the budget of the sections leaves free.
RESERVE_SECONDS = 15


@dataclasses.dataclass(frozen=True, kw_only=True)
class Size:
    """Size of an encoder.

    Attributes:
        layers: Number of layers.
        hidden: Width of the states.
        heads: Number of heads.
        inner: Width of the feed-forward part.
    """

    layers: int
    hidden: int
    heads: int
    inner: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """What is measured.

    Attributes:
        device: Torch's name of the device.
        sizes: Encoders by name.
        shapes: Pairs of batch size and sequence length.
        tokens: Numbers of rows of products.
        texts: Number of texts of mixed lengths.
        elements: Rows and columns of the tensors that are fake-quantized.
        rounds: How often each time is taken.
        repeats: Launches of a kernel in one measurement.
    """

    device: str
    sizes: Mapping[str, Size] = dataclasses.field(
        default_factory=lambda: {
            "MiniLM": Size(layers=6, hidden=384, heads=12, inner=1536),
            "base": Size(layers=12, hidden=768, heads=12, inner=3072),
            "large": Size(layers=24, hidden=1024, heads=16, inner=4096),
        }
    )
    shapes: tuple[tuple[int, int], ...] = ((1, 32), (1, 128), (8, 128), (32, 128), (32, 512))
    tokens: tuple[int, ...] = (16, 64, 256, 1024, 4096, 16384)
    texts: int = 2200
    elements: tuple[int, int] = (4096, 3072)
    rounds: int = 15
    repeats: int = 20

    @property
    def is_gpu(self) -> bool:
        """Whether the device is a GPU, not the CPU."""
        return self.device == "cuda"


def small(device: str) -> Settings:
    """Return sizes with which Triton's interpreter ends within a minute."""
    return Settings(
        device=device,
        sizes={"tiny": Size(layers=1, hidden=64, heads=2, inner=96)},
        shapes=((2, 5),),
        tokens=(17,),
        texts=3,
        elements=(64, 48),
        rounds=1,
        repeats=1,
    )


class UnavailableError(Exception):
    """Raised by a section that this machine cannot run; the message is the reason."""


# Sections. Each yields rows; a row with `"passed": False` is a correctness check that failed.


def machine(settings: Settings) -> Iterator[Row]:
    import torch

    for package in ("torch", "triton", "transformers", "sentence_transformers"):
        yield {"case": package, "value": version_of(package) or "not installed"}
    yield {"case": "Python", "value": platform.python_version()}
    yield {"case": "CPU", "value": cpu_name()}
    if settings.is_gpu:
        if not torch.cuda.is_available():
            raise RuntimeError("PyTorch finds no CUDA device. Use `--device cpu` for a check.")
        found = torch.cuda.get_device_properties(0)
        yield {"case": "GPU", "value": found.name}
        yield {"case": "compute capability", "value": f"{found.major}.{found.minor}"}
        yield {"case": "GPU memory, GiB", "value": round(found.total_memory / 2**30, 1)}
        yield {"case": "second-level cache, MiB", "value": found.L2_cache_size / 2**20}
        yield {"case": "multiprocessors", "value": found.multi_processor_count}
        yield {"case": "CUDA", "value": torch.version.cuda}


def correctness(settings: Settings) -> Iterator[Row]:
    """Compare small models of all families with float64."""
    from cuda_models import SHAPES

    cases = [(settings, name, precision) for name in SHAPES for precision in ("float16", "int8")]
    yield from at_once(compared_case, cases if settings.is_gpu else cases[:1])


def compared_case(case: tuple[Settings, str, str]) -> Row:
    """Compare a small model with float64."""
    import encoder_reference
    import native_models
    from cuda_models import SHAPES

    settings, name, precision = case
    is_float = precision == "float16"
    chosen = dataclasses.replace(SHAPES[name], floats=is_float, dynamic=not is_float)
    batch = native_models.random_batch((5, 70, 1, 9) if settings.is_gpu else (5, 1, 9))
    wanted = encoder_reference.run_encoder(native_models.random_model(chosen), batch)
    found = runner_of(native_models.packed_model(chosen), device_of(settings)).run(batch)
    ratio = min(sqnr_db(found[each], wanted[each]) for each in found)
    return {
        "case": f"{name}, {precision}",
        "dB": ratio,
        "passed": ratio >= (55.0 if is_float else 30.0),
    }


def at_once(call: Callable[[Any], Any], cases: list[Any]) -> Iterator[Any]:
    """Yield results in order, of forked processes, as most of the time is that of a compiler.

    The GPU must not have been used before in this process.
    """
    context = multiprocessing.get_context("fork")
    with context.Pool(min(8, os.cpu_count() or 1, len(cases))) as pool:
        yield from pool.imap(call, cases)


def bits(settings: Settings) -> Iterator[Row]:
    """Compare results of texts alone, in a batch and in another order, bit for bit."""
    import numpy as np

    for name, size in settings.sizes.items():
        with checkpoint_of(size) as folder:
            runner = runner_of(packed_file(folder, "int8", settings), device_of(settings))
        rng = np.random.default_rng(0)
        longest = 512 if settings.is_gpu else 9
        lengths = [int(each) for each in rng.integers(1, longest, 40 if settings.is_gpu else 3)]
        batch = batch_of(lengths)
        together = runner.run(batch)["sentence_embedding"]
        backwards = runner.run({each: value[::-1] for each, value in batch.items()})
        alone = [
            runner.run({each: value[i : i + 1, :length] for each, value in batch.items()})
            for i, length in enumerate(lengths)
        ]
        each_alone = np.concatenate([each["sentence_embedding"] for each in alone])
        yield {
            "case": name,
            "texts": len(lengths),
            "alone": bool((each_alone == together).all()),
            "backwards": bool((backwards["sentence_embedding"][::-1] == together).all()),
            "finite": bool(np.isfinite(together).all()),
            "passed": bool(
                (each_alone == together).all()
                and (backwards["sentence_embedding"][::-1] == together).all()
                and np.isfinite(together).all()
            ),
        }


def run_small_models() -> None:
    """Run small models on the GPU, for the section `sanitizer`."""
    import native_models
    from cuda_models import SHAPES

    for name in ("bert", "modern"):
        for is_float in (False, True):
            shape = dataclasses.replace(SHAPES[name], floats=is_float, dynamic=not is_float)
            runner = runner_of(
                native_models.packed_model(shape), device_of(Settings(device="cuda"))
            )
            runner.run(native_models.random_batch((5, 70)))


def sanitizer(settings: Settings) -> Iterator[Row]:
    """Look for wrong addresses and races."""
    places = [*Path("/usr/local").glob("cuda*/bin"), *map(Path, os.get_exec_path())]
    found = (each / "compute-sanitizer" for each in places)
    program = next((each for each in found if each.is_file()), None)
    if program is None or not settings.is_gpu:
        raise UnavailableError("there is no compute-sanitizer")
    code = "import gpu; gpu.run_small_models()"
    for tool in ("memcheck", "racecheck"):
        done = subprocess.run(
            [
                *(str(program), "--tool", tool, "--error-exitcode", "9"),
                *("--target-processes", "all", sys.executable, "-c", code),
            ],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=False,
        )
        summary = [line for line in done.stdout.splitlines() if "SUMMARY" in line]
        yield {"case": tool, "summary": " ".join(summary)[-80:], "passed": done.returncode == 0}


def tiles(settings: Settings) -> Iterator[Row]:
    """Find the fastest tile of each product, for `engines/cuda/tiles.py`."""
    import torch

    from qdqbert.engines.cuda.program import linear_launch
    from qdqbert.engines.cuda.tiles import Tile, tile_of

    candidates = [
        Tile(rows=rows, columns=columns, step=step, warps=warps, stages=stages)
        for rows, columns, step, warps, stages in (
            *((16, 64, 128, 4, 4), (16, 128, 128, 4, 4), (32, 64, 128, 4, 4)),
            *((64, 64, 128, 4, 4), (64, 128, 128, 4, 3), (64, 128, 64, 4, 4)),
            *((64, 256, 128, 4, 3), (64, 256, 128, 8, 3), (128, 64, 128, 4, 4)),
            *((128, 128, 128, 4, 3), (128, 128, 128, 8, 3), (128, 128, 128, 8, 4)),
            *((128, 128, 64, 4, 5), (128, 256, 64, 8, 4), (128, 256, 128, 8, 3)),
            (256, 128, 128, 8, 3),
        )
    ][:: 1 if settings.is_gpu else 8]
    # Triton keeps what it compiled.
    pairs = [(settings, tile, activation) for tile in candidates for activation in ("gelu", None)]
    for _ in at_once(compile_tile, pairs):
        pass
    device = device_of(settings)
    for tokens in settings.tokens:
        for name, columns, depth, activation in products_of(settings):
            layer, codes, scales, out = product_of(tokens, columns, depth, device)
            count = torch.tensor([tokens], dtype=torch.int32, device=codes.device)
            own = tile_of(device.capability, tokens, activation=activation, gated=False)
            calls = {}
            for tile in dict.fromkeys((own, *candidates)):
                launch = linear_launch(
                    layer, codes, out, count=count, scales=scales, tile=tile, activation=activation
                )
                if fits(launch):
                    calls[tile] = launch
            times = alternate(calls, settings)
            best = min(times, key=times.__getitem__)
            yield {
                "case": f"{name}, {tokens} x {depth} x {columns}",
                "best": f"{best.rows} x {best.columns} x {best.step}, {best.warps}, {best.stages}",
                "ms": times[best],
                "own ms": times[own],
                "T/s": 2 * tokens * columns * depth / times[best] / 1e9,
            }


def compile_tile(case: tuple[Settings, Any, str | None]) -> None:
    import torch

    from qdqbert.engines.cuda.program import linear_launch

    settings, tile, activation = case
    layer, codes, scales, out = product_of(16, 64, 64, device_of(settings))
    count = torch.tensor([16], dtype=torch.int32, device=codes.device)
    fits(
        linear_launch(
            layer, codes, out, count=count, scales=scales, tile=tile, activation=activation
        )
    )


def fits(launch: Callable[[], Any]) -> bool:
    """Run a kernel. Returns whether the GPU has the shared memory for it."""
    try:
        launch()
    except Exception as error:
        if "out of resource" not in str(error):
            raise
        return False
    return True


def products(settings: Settings) -> Iterator[Row]:
    """Compare a linear layer in INT8, with rotation and rounding, with one of torch in float16."""
    import torch

    from qdqbert.engines.cuda.program import linear_launch, rows_launch
    from qdqbert.engines.cuda.tiles import tile_of
    from qdqbert.engines.cuda.weights import spread_of
    from qdqbert.quantization.hadamard import hadamard_of

    device = device_of(settings)
    ratios: dict[int, list[float]] = {}
    for tokens in settings.tokens:
        for name, columns, depth, activation in products_of(settings):
            layer, codes, scales, out = product_of(tokens, columns, depth, device)
            count = torch.tensor([tokens], dtype=torch.int32, device=codes.device)
            rows = torch.randn(tokens, depth, device=codes.device).half()
            rounding = rows_launch(
                rows,
                spread_of(depth, hadamard_of(depth), codes.device),
                count=count,
                codes=codes,
                scales=scales,
                multiplier=layer.multiplier,
            )
            tile = tile_of(device.capability, tokens, activation=activation, gated=False)
            product = linear_launch(
                layer, codes, out, count=count, scales=scales, tile=tile, activation=activation
            )
            weight = layer.weights.half()
            bias = layer.bias.half()

            def in_float(rows: Any = rows, weight: Any = weight, bias: Any = bias) -> Any:
                return torch.nn.functional.linear(rows, weight, bias)

            def activated(call: Callable[[], Any] = in_float) -> Any:
                return torch.nn.functional.gelu(call())

            def in_int8(rounding: Any = rounding, product: Any = product) -> None:
                rounding()
                product()

            wanted = activated if activation else in_float
            times = alternate({"float16": wanted, "int8": in_int8, "product": product}, settings)
            ratio = times["float16"] / times["int8"]
            if "MiniLM" not in name:
                ratios.setdefault(tokens, []).append(ratio)
            yield {
                "case": f"{name}, {tokens} x {depth} x {columns}",
                **{f"{each} ms": value for each, value in times.items()},
                "speedup": ratio,
                "T/s": 2 * tokens * columns * depth / times["product"] / 1e9,
            }
    for tokens, each in ratios.items():
        yield {
            "case": f"base and large, {tokens} tokens",
            "speedup": statistics.geometric_mean(each),
        }


def forward(settings: Settings) -> Iterator[Row]:
    """Time forward passes, with inputs and outputs in the memory of the machine."""
    need("sentence_transformers")
    import torch

    for name, size in settings.sizes.items():
        with checkpoint_of(size) as folder:
            device = device_of(settings)
            runners = {
                precision: runner_of(packed_file(folder, precision, settings), device)
                for precision in ("int8", "float16")
            }
            theirs = sentence_transformer(folder, settings)
        for batch, sequence in settings.shapes:
            inputs = batch_of([sequence] * batch)
            features = {each: torch.from_numpy(value) for each, value in inputs.items()}

            def rival(features: Any = features, model: Any = theirs) -> Any:
                moved = {each: value.to(settings.device) for each, value in features.items()}
                with torch.inference_mode():
                    return model(moved)["sentence_embedding"].cpu()

            calls: dict[str, Callable[[], Any]] = {
                "int8": functools.partial(runners["int8"].run, inputs, ["sentence_embedding"]),
                "float16": functools.partial(
                    runners["float16"].run, inputs, ["sentence_embedding"]
                ),
                "sentence-transformers": rival,
            }
            times = alternate(calls, settings, graphs=False)
            yield {
                "case": f"{name}, {batch} x {sequence}",
                **{f"{each} ms": value for each, value in times.items()},
                "to float16": times["float16"] / times["int8"],
                "to sentence-transformers": times["sentence-transformers"] / times["int8"],
            }


def forward_compiled(settings: Settings) -> Iterator[Row]:
    """Time `torch.compile(mode="reduce-overhead")` on the body in float16, at one shape."""
    import torch

    if not settings.is_gpu:
        raise UnavailableError("it takes minutes on a CPU")
    torch.set_float32_matmul_precision("high")
    for name in ("MiniLM", "base"):
        with checkpoint_of(settings.sizes[name]) as folder:
            runner = runner_of(packed_file(folder, "int8", settings), device_of(settings))
            body = sentence_transformer(folder, settings)[0].auto_model
        compiled = torch.compile(body, mode="reduce-overhead")
        for batch, sequence in ((1, 32), (32, 128)):
            inputs = batch_of([sequence] * batch)
            features = {each: torch.from_numpy(value) for each, value in inputs.items()}

            def rival(features: Any = features, model: Any = compiled) -> Any:
                moved = {each: value.cuda() for each, value in features.items()}
                with torch.inference_mode():
                    states = model(**moved).last_hidden_state
                    return states.mean(1).float().cpu()

            times = alternate(
                {
                    "int8": functools.partial(runner.run, inputs, ["sentence_embedding"]),
                    "compiled float16": rival,
                },
                settings,
                graphs=False,
            )
            yield {
                "case": f"{name}, {batch} x {sequence}",
                **{f"{each} ms": value for each, value in times.items()},
                "speedup": times["compiled float16"] / times["int8"],
            }


def mixed(settings: Settings) -> Iterator[Row]:
    """Time `load().encode` on texts of mixed lengths."""
    need("sentence_transformers")
    import numpy as np

    rng = np.random.default_rng(0)
    lengths = np.minimum(rng.lognormal(3.5, 0.8, settings.texts).astype(int) + 1, 400)
    lengths = lengths if settings.is_gpu else np.minimum(lengths, 5)
    texts = [" ".join(f"w{each}" for each in rng.integers(0, 5000, n)) for n in lengths]
    for name, size in settings.sizes.items():
        with checkpoint_of(size) as folder:
            theirs = sentence_transformer(folder, settings)
            models = {
                precision: load(folder, precision, settings) for precision in ("int8", "float16")
            }
            calls: dict[str, Callable[[], Any]] = {
                each: functools.partial(model.encode, texts) for each, model in models.items()
            }
            calls["sentence-transformers"] = functools.partial(theirs.encode, texts, batch_size=64)
            times = alternate(calls, settings, graphs=False, rounds=min(settings.rounds, 5))
            found, wanted = models["float16"].encode(texts), theirs.encode(texts)
            yield {
                "case": f"{name}, {len(texts)} texts",
                **{f"{each} ms": value for each, value in times.items()},
                "to sentence-transformers": times["sentence-transformers"] / times["int8"],
                "float16 dB": (ratio := sqnr_db(found, wanted)),
                "int8 dB": sqnr_db(models["int8"].encode(texts), wanted),
                "passed": ratio > 40,
            }
            for model in models.values():
                model.close()


def chunks(settings: Settings) -> Iterator[Row]:
    """Time batches of many tokens, by the number of tokens that run together."""
    import torch

    from qdqbert.engines.cuda.runner import CudaRunner

    device, texts = device_of(settings), 128 if settings.is_gpu else 2
    inputs = batch_of([128 if settings.is_gpu else 5] * texts)
    for name, size in settings.sizes.items():
        with checkpoint_of(size) as folder:
            packed = packed_file(folder, "int8", settings)
        calls = {}
        for tokens in (None, 1024, 2048, 4096, 8192):
            runner = CudaRunner(packed, torch.device(device.name), device.capability, tokens=tokens)
            calls[tokens] = functools.partial(runner.run, inputs, ["sentence_embedding"])
        times = alternate(calls, settings, graphs=False)
        named = {f"{tokens or 'own'} ms": value for tokens, value in times.items()}
        yield {"case": f"{name}, {texts} texts", **named}


def memory(settings: Settings) -> Iterator[Row]:
    """Report the memory of a model, and whether it grows."""
    import torch

    if not settings.is_gpu:
        raise UnavailableError("it is of a GPU")
    for name, size in settings.sizes.items():
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        with checkpoint_of(size) as folder:
            runner = runner_of(packed_file(folder, "int8", settings), device_of(settings))
        weights = torch.cuda.memory_allocated() - before
        batches = [batch_of([n] * b) for b, n in ((1, 8), (8, 32), (40, 128), (80, 300))]
        for batch in batches:
            runner.run(batch)
        warm = torch.cuda.memory_allocated()
        for batch in batches * 12:
            runner.run(batch)
        grown = torch.cuda.memory_allocated() - warm
        yield {
            "case": name,
            "weights MiB": weights / 2**20,
            "peak MiB": torch.cuda.max_memory_allocated() / 2**20,
            "growth bytes": grown,
            "passed": grown == 0,
        }


def fake_quantize(settings: Settings) -> Iterator[Row]:
    """Compare values and gradients of fake quantization with those of the CPU, bit for bit."""
    import torch

    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        x = awkward_values(settings.elements).to(dtype)
        for symmetric in (True, False):
            for axis in (None, 0, 1):
                kind = "symmetric" if symmetric else "affine"
                where = "per tensor" if axis is None else f"per channel, axis {axis}"
                expected = quantized_with_gradient(x, symmetric, axis)
                found = quantized_with_gradient(x.to(settings.device), symmetric, axis)
                different = [differing(a, b) for a, b in zip(found, expected, strict=True)]
                yield {
                    "case": f"{str(dtype).removeprefix('torch.')}, {kind}, {where}",
                    "elements": x.numel(),
                    "values that differ": different[0],
                    "gradients that differ": different[1],
                    "passed": different == [0, 0],
                }


# Section and its limit in seconds, in the order in which they run.
SECTIONS: dict[str, tuple[Callable[[Settings], Iterator[Row]], int]] = {
    "machine": (machine, 30),
    "correctness": (correctness, 90),
    "bits": (bits, 60),
    "products": (products, 60),
    "forward": (forward, 90),
    "mixed": (mixed, 90),
    "tiles": (tiles, 120),
    "chunks": (chunks, 60),
    "memory": (memory, 40),
    "sanitizer": (sanitizer, 90),
    "forward_compiled": (forward_compiled, 90),
    "fake_quantize": (fake_quantize, 40),
}


# What the sections are made of.


def version_of(package: str) -> str | None:
    if importlib.util.find_spec(package) is None:
        return None
    return str(getattr(importlib.import_module(package), "__version__", "unknown"))


def cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return f"{len(names)} x {names[0]}" if names else platform.processor()


def need(*packages: str) -> None:
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise UnavailableError(f"{package} is not installed")


def device_of(settings: Settings) -> Any:
    """Return the GPU; for the CPU, one that Triton's interpreter is."""
    from qdqbert.engines.cuda.device import Device, find_device

    if settings.is_gpu:
        return find_device("cuda")
    return Device(name="cpu", card="Triton's interpreter", capability=80)


def runner_of(packed: Any, device: Any) -> Any:
    from qdqbert.engines.cuda.device import open_on

    return open_on(device, packed)


def packed_file(folder: Path, precision: str, settings: Settings) -> Any:
    """Return the packed model of a checkpoint."""
    from qdqbert.engines.native.storage import load_packed
    from qdqbert.loading.load import open_folder
    from qdqbert.loading.options import LoadOptions

    options = LoadOptions(precision="int8" if precision == "int8" else "float", check=False)
    artifact = open_folder(folder, options, device_of(settings))
    return load_packed(artifact.model_for("native"))


def load(folder: Path, precision: str, settings: Settings) -> Any:
    import qdqbert
    from qdqbert.loading import device_choice

    if not settings.is_gpu:
        vars(device_choice)["find_device"] = lambda name: device_of(settings)
    options: dict[str, Any] = {"device": "cuda", "precision": precision, "check": False}
    return qdqbert.load(folder, **options)


def sentence_transformer(folder: Path, settings: Settings) -> Any:
    import sentence_transformers
    import torch

    kind = torch.float16 if settings.is_gpu else torch.float32
    return sentence_transformers.SentenceTransformer(
        str(folder), device=settings.device, model_kwargs={"dtype": kind}
    )


def batch_of(lengths: list[int]) -> dict[str, Any]:
    """Return random texts of some lengths."""
    import numpy as np

    mask = (np.arange(max(lengths)) < np.array(lengths)[:, None]).astype(np.int64)
    ids = np.random.default_rng(0).integers(5, 5000, mask.shape) * mask
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}


class checkpoint_of(tempfile.TemporaryDirectory):  # type: ignore[type-arg]  # noqa: N801
    """A folder with an embedder of a size, with random weights; removed at the end."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self._size = size

    def __enter__(self) -> Path:
        folder = Path(super().__enter__())
        save_checkpoint(folder, self._size)
        return folder


def save_checkpoint(folder: Path, size: Size) -> None:
    """Save an embedder with random weights, and a tokenizer whose tokens are words."""
    import tokenizers
    import torch
    import transformers

    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=5005,
        hidden_size=size.hidden,
        num_attention_heads=size.heads,
        intermediate_size=size.inner,
        num_hidden_layers=size.layers,
    )
    transformers.BertModel(config).save_pretrained(folder)
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    words = {each: i for i, each in enumerate([*special, *(f"w{n}" for n in range(5000))])}
    inner = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    inner.post_processor = tokenizers.processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    names = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, model_max_length=512, **dict(zip(names, special, strict=True))
    ).save_pretrained(folder)
    kinds = "sentence_transformers.models"
    modules = [
        {"idx": 0, "name": "0", "path": "", "type": f"{kinds}.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": f"{kinds}.Pooling"},
    ]
    pooling = {"word_embedding_dimension": size.hidden, "pooling_mode_mean_tokens": True}
    (folder / "1_Pooling").mkdir()
    for name, value in (("modules.json", modules), ("1_Pooling/config.json", pooling)):
        (folder / name).write_text(json.dumps(value))


def products_of(settings: Settings) -> list[tuple[str, int, int, str | None]]:
    """Return the linear layers of all sizes: name, columns, channels and activation."""
    found: list[tuple[str, int, int, str | None]] = []
    for name, size in settings.sizes.items():
        found += [
            (f"{name} up", size.inner, size.hidden, "gelu"),
            (f"{name} down", size.hidden, size.inner, None),
            (f"{name} queries, keys, values", 3 * size.hidden, size.hidden, None),
        ]
    return found


def product_of(tokens: int, columns: int, depth: int, device: Any) -> tuple[Any, Any, Any, Any]:
    """Return a random linear layer, codes with their scales, and room for the result."""
    import torch

    from qdqbert.engines.cuda.weights import Linear

    place = device.name
    layer = Linear(
        weights=torch.randint(-127, 128, (columns, depth), device=place, dtype=torch.int8),
        factors=torch.full((columns,), 1e-3, device=place),
        bias=torch.zeros(columns, device=place),
        multiplier=torch.ones(depth, device=place),
        columns=columns,
    )
    codes = torch.randint(-127, 128, (tokens, depth), device=place, dtype=torch.int8)
    scales = torch.full((tokens,), 1e-3, device=place)
    return layer, codes, scales, torch.empty(tokens, columns, device=place, dtype=torch.float16)


def awkward_values(shape: tuple[int, int]) -> Any:
    """Return values of all magnitudes, with ties, zeros, denormals and values out of range."""
    import torch

    generator = torch.Generator().manual_seed(0)
    x = torch.randn(shape, generator=generator) * torch.logspace(-3, 1, shape[1])
    halves = torch.arange(x[0].numel()) - x[0].numel() / 2 + 0.5
    # Row 0 consists of ties for a step of 1 / 64.
    x[0], x[1], x[2] = halves / 64, 0.0, 1e-40
    x[3] *= 1000
    return x


def spec_and_parameters(x: Any, symmetric: bool, axis: int | None) -> tuple[Any, Any]:
    """Return an 8-bit spec, and scales that some values of `x` exceed."""
    import torch

    from qdqbert.quantization.numerics import affine
    from qdqbert.quantization.spec import TensorSpec

    spec = TensorSpec(signed=symmetric, symmetric=symmetric, narrow=symmetric, axis=axis)
    factors = torch.linspace(1, 4, 1 if axis is None else x.shape[axis]).to(x.device)
    factors = factors.squeeze() if axis is None else factors
    # With a factor of 1 a step is 1 / 64.
    high = 127 / 64 * factors
    if symmetric:
        return spec, affine.symmetric_parameters(high, spec)
    return spec, affine.affine_parameters(-128 / 64 * factors, high, spec)


def quantized_with_gradient(x: Any, symmetric: bool, axis: int | None) -> tuple[Any, Any]:
    """Return `x` after fake quantization, and the gradient of the sum of its squares."""
    import torch

    from qdqbert.quantization.numerics import affine

    spec, parameters = spec_and_parameters(x, symmetric, axis)
    x = x.detach().requires_grad_()
    result = affine.fake_quantize(x, parameters, spec)
    (gradient,) = torch.autograd.grad(result.float().square().sum(), x)
    return result.detach(), gradient


def differing(found: Any, expected: Any) -> int:
    """Return the number of elements that differ, of tensors of the same dtype."""
    if found.dtype != expected.dtype:
        return int(expected.numel())
    # `-0.0 == 0.0` is accepted.
    return int((found.cpu() != expected.cpu()).sum())


def alternate(
    calls: Mapping[Any, Callable[[], Any]],
    settings: Settings,
    *,
    graphs: bool = True,
    rounds: int | None = None,
) -> dict[Any, float]:
    """Return the median time of each call, in milliseconds; the calls take turns.

    Args:
        calls: Calls by name.
        settings: Device, number of rounds and of launches.
        graphs: Whether launches are captured, so that Python's time does not count.
        rounds: Another number of rounds.
    """
    ready = {name: captured(call, settings) if graphs else call for name, call in calls.items()}
    for call in ready.values():
        timed(call, settings)
        timed(call, settings)
    times: dict[Any, list[float]] = {name: [] for name in calls}
    for _ in range(rounds or settings.rounds):
        for name, call in ready.items():
            times[name].append(timed(call, settings))
    count = settings.repeats if graphs else 1
    return {name: statistics.median(each) / count for name, each in times.items()}


def captured(call: Callable[[], Any], settings: Settings) -> Callable[[], Any]:
    """Return what repeats a call, as a captured graph on a GPU."""
    import torch

    def repeat() -> None:
        for _ in range(settings.repeats):
            call()

    if not settings.is_gpu:
        return repeat
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        repeat()
    return graph.replay


def timed(call: Callable[[], Any], settings: Settings) -> float:
    import torch

    def wait() -> None:
        if settings.is_gpu:
            torch.cuda.synchronize()

    wait()
    start = time.perf_counter()
    call()
    wait()
    return (time.perf_counter() - start) * 1e3


def sqnr_db(found: Any, expected: Any) -> float:
    import numpy as np

    found, expected = (np.asarray(each, np.float64) for each in (found, expected))
    noise = ((found - expected) ** 2).sum()
    return float(10 * math.log10((expected**2).sum() / noise)) if noise else math.inf


# Running the sections.


def run_section(name: str, settings: Settings, results: Connection) -> None:
    """Send the rows of a section, then its status and a reason, from a process of its own."""
    # What a section starts ends with it.
    os.setsid()
    try:
        for row in SECTIONS[name][0](settings):
            results.send(row)
    except UnavailableError as reason:
        results.send(("skipped", str(reason)))
    except Exception as error:
        traceback.print_exc()
        results.send(("error", f"{type(error).__name__}: {error}"))
    else:
        results.send(("ok", ""))


def collect(name: str, settings: Settings, seconds: float) -> dict[str, Any]:
    """Run a section for at most that many seconds, and return its status and rows."""
    context = multiprocessing.get_context("forkserver")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=run_section, args=(name, settings, sender))
    start = time.monotonic()
    process.start()
    sender.close()
    rows: list[Row] = []
    status, reason = "skipped", f"out of time: stopped after {seconds:.0f} s"
    while receiver.poll(max(0.0, start + seconds - time.monotonic())):
        try:
            message = receiver.recv()
        except EOFError:
            process.join()
            status, reason = "error", f"the process ended with exit code {process.exitcode}"
            break
        if isinstance(message, tuple):
            status, reason = message
            break
        rows.append(message)
    process.join(1)
    assert process.pid
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.join()
    if any(row.get("passed") is False for row in rows):
        status, reason = "failed", "a correctness check failed"
    spent = round(time.monotonic() - start, 1)
    return {"name": name, "status": status, "reason": reason, "seconds": spent, "rows": rows}


def show(section: dict[str, Any]) -> None:
    """Print a section as a table with a column for each value."""
    reason = f": {section['reason']}" if section["reason"] else ""
    print(f"\n{section['name']}: {section['status']}{reason} ({section['seconds']} s)")
    columns = list(dict.fromkeys(name for row in section["rows"] for name in row))
    cells = [columns, *([cell(row.get(name, "")) for name in columns] for row in section["rows"])]
    widths = [max(len(each[i]) for each in cells) for i in range(len(columns))]
    for each in cells if columns else []:
        padded = [text.ljust(width) for text, width in zip(each, widths, strict=True)]
        print(f"  {'  '.join(padded)}".rstrip())
    sys.stdout.flush()


def cell(value: Any) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--small", action="store_true", help="tiny sizes, to check the script")
    parser.add_argument("--output", type=Path, help="write the results to this JSON file")
    parser.add_argument("--minutes", type=float, default=8.0, help="time limit (default: 8)")
    parser.add_argument("--sections", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    options = parser.parse_args()
    settings = small(options.device) if options.small else Settings(device=options.device)
    if not settings.is_gpu:
        os.environ["TRITON_INTERPRET"] = "1"
    multiprocessing.get_context("forkserver").set_forkserver_preload(["torch", "transformers"])
    deadline = time.monotonic() + 60 * options.minutes - RESERVE_SECONDS
    sections: list[dict[str, Any]] = []
    for name in options.sections:
        left = deadline - time.monotonic()
        if left < LEAST_SECONDS:
            found = {"status": "skipped", "reason": "out of time", "seconds": 0.0, "rows": []}
            section = {"name": name, **found}
        else:
            section = collect(name, settings, min(left, SECTIONS[name][1]))
        sections.append(section)
        show(section)
        result = {"settings": dataclasses.asdict(settings), "sections": sections}
        # After each section, as the machine can be taken away.
        if options.output is not None:
            options.output.write_text(json.dumps(result, indent=2))
    sys.exit(int(any(each["status"] in ("failed", "error") for each in sections)))


if __name__ == "__main__":
    main()
