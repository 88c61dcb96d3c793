r"""Measure everything that needs an NVIDIA GPU, in less than 8 minutes.

    python benchmarks/gpu.py --output gpu.json         # on a machine with a GPU
    python benchmarks/gpu.py --device cpu --small      # check that the script works

PyTorch and transformers are enough. If `qdqbert` is not installed, it is imported from `src`.
Sections that need TensorRT or onnxruntime-gpu are skipped, with the reason, where those are not
installed.

Each section runs in a process of its own, with a time limit, and reports each row as soon as it is
measured. A section that fails, crashes or runs out of time does not affect the other sections. Exit
status: 0, or 1 if a correctness check failed or a section ended with an error.

Times are medians, in milliseconds. The matmuls of one row take turns, so that a slow period of the
machine affects all of them. Weights and inputs are random, which does not change the time.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import importlib
import importlib.util
import json
import math
import multiprocessing
import operator
import platform
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qdqbert.common.choices import TargetName

if importlib.util.find_spec("qdqbert") is None:
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

Row = dict[str, Any]

# Seconds that have to be left to start another section.
LEAST_SECONDS = 10
# Seconds for starting and ending processes, which the budget of the sections leaves free.
RESERVE_SECONDS = 15


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Sizes of what is measured.

    Attributes:
        device: Torch's name of the device.
        layers: Number of encoder layers.
        hidden: Width of the encoder; heads have 64 channels.
        vocabulary: Number of token embeddings.
        shapes: Pairs of batch size and sequence length; only the last for training and compiling.
        elements: Rows and columns of the tensors that are fake-quantized.
        rounds: How often each time is taken.
        backend: Backend of `torch.compile`.
    """

    device: str
    layers: int = 12
    hidden: int = 768
    vocabulary: int = 30522
    shapes: tuple[tuple[int, int], ...] = ((1, 128), (8, 128), (32, 128))
    elements: tuple[int, int] = (4096, 3072)
    rounds: int = 20
    backend: str = "inductor"


def small(device: str) -> Settings:
    """Return sizes with which a CPU ends within seconds."""
    return Settings(
        device=device,
        layers=1,
        hidden=64,
        vocabulary=100,
        shapes=((2, 16),),
        elements=(64, 48),
        rounds=2,
        backend="eager",
    )


class UnavailableError(Exception):
    """Raised by a section that this machine cannot run; the message is the reason."""


# Sections. Each yields rows; a row with `"passed": False` is a correctness check that failed.


def machine(settings: Settings) -> Iterator[Row]:
    import torch

    for package in ("torch", "transformers", "triton", "onnx", "onnxruntime", "tensorrt"):
        yield {"case": package, "value": version_of(package) or "not installed"}
    yield {"case": "Python", "value": platform.python_version()}
    yield {"case": "CPU", "value": cpu_name()}
    if settings.device == "cuda":
        if not torch.cuda.is_available():
            raise RuntimeError("PyTorch finds no CUDA device. Use `--device cpu` for a check.")
        found = torch.cuda.get_device_properties(0)
        yield {"case": "GPU", "value": found.name}
        yield {"case": "compute capability", "value": f"{found.major}.{found.minor}"}
        yield {"case": "GPU memory, GiB", "value": round(found.total_memory / 2**30, 1)}
        yield {"case": "CUDA", "value": torch.version.cuda}


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


def fake_quantize_compiled(settings: Settings) -> Iterator[Row]:
    """Count the values that compiled kernels, which may divide less exactly, round differently."""
    import torch

    from qdqbert.quantization.numerics import affine

    compiled = torch.compile(affine.fake_quantize, backend=settings.backend)
    x = awkward_values(settings.elements).to(settings.device)
    for symmetric in (True, False):
        spec, parameters = spec_and_parameters(x, symmetric, None)
        expected = affine.fake_quantize(x, parameters, spec)
        yield {
            "case": "float32, symmetric" if symmetric else "float32, affine",
            "elements": x.numel(),
            "values that differ": differing(compiled(x, parameters, spec), expected),
        }


def int8_matmul(settings: Settings) -> Iterator[Row]:
    """Time `torch._int_mm` at the shapes of BERT's linear layers, and check its sums."""
    import torch

    width = settings.hidden
    layers = {"query": (width, width), "up": (width, 4 * width), "down": (4 * width, width)}
    layers["fused query, key, value"] = (width, 3 * width)
    # `torch._int_mm` needs more than 16 rows on CUDA.
    for tokens in [batch * sequence for batch, sequence in settings.shapes]:
        for name, (inner, outer) in layers.items():
            a = torch.randint(-127, 128, (tokens, inner), device=settings.device)
            b = torch.randint(-127, 128, (outer, inner), device=settings.device)
            a8, b8 = a.to(torch.int8), b.to(torch.int8).t()
            a16, b16 = a.to(torch.bfloat16), b.to(torch.bfloat16).t()
            a32, b32 = a.to(torch.float32), b.to(torch.float32).t()
            # Sums of integers below 2^53 are exact in float64.
            exact = a.to(torch.float64) @ b.to(torch.float64).t()
            calls: dict[str, Callable[[], Any]] = {
                "int8": functools.partial(torch._int_mm, a8, b8),
                "bfloat16": functools.partial(operator.matmul, a16, b16),
                "float32": functools.partial(operator.matmul, a32, b32),
            }
            if settings.device == "cuda":
                calls["TF32"] = functools.partial(
                    with_tf32, functools.partial(operator.matmul, a32, b32)
                )
            # A single call takes less time than waiting for the device does.
            times = alternate(calls, settings, repeats=50 if settings.device == "cuda" else 1)
            yield {
                "case": f"{name}, {tokens} x {inner} x {outer}",
                **{f"{kind} ms": each for kind, each in times.items()},
                "int8 speedup to bfloat16": times["bfloat16"] / times["int8"],
                "passed": bool((torch._int_mm(a8, b8).to(torch.float64) == exact).all()),
            }


def forward(settings: Settings) -> Iterator[Row]:
    yield from time_models(settings, training=False, compiled=False)


def forward_compiled(settings: Settings) -> Iterator[Row]:
    yield from time_models(settings, training=False, compiled=True)


def step(settings: Settings) -> Iterator[Row]:
    yield from time_models(settings, training=True, compiled=False)


def step_compiled(settings: Settings) -> Iterator[Row]:
    yield from time_models(settings, training=True, compiled=True)


def tensorrt(settings: Settings) -> Iterator[Row]:
    """Build the TensorRT engine of our graph, and time it."""
    need("tensorrt", "onnx", "onnxruntime", "onnxscript")
    from qdqbert.runtime.artifact import open_artifact
    from tensorrt_engines import build_engine, times_of

    with tempfile.TemporaryDirectory() as scratch:
        checkpoint = save_checkpoint(Path(scratch) / "checkpoint", settings)
        folder = quantize(checkpoint, Path(scratch) / "int8", "tensorrt")
        names = open_artifact(folder).input_names
        for shape in settings.shapes:
            shapes = dict.fromkeys(names, shape)
            plan = build_engine(folder / "model.onnx", shapes)
            times = times_of(plan, shapes, 5 * settings.rounds)
            yield {
                "case": f"{shape[0]} x {shape[1]}",
                "median ms": statistics.median(times),
                "best ms": min(times),
                "engine MB": len(plan) / 1e6,
            }


def qordered(settings: Settings) -> Iterator[Row]:
    """Run the graph of int8 CUDA operators in ONNX Runtime, time it and compare its outputs."""
    need("onnx", "onnxruntime", "onnxscript")
    import onnxruntime
    import torch
    import transformers

    provider = "CUDAExecutionProvider"
    if provider not in onnxruntime.get_available_providers():
        raise UnavailableError(
            f"the installed onnxruntime {onnxruntime.__version__} has no {provider}"
        )
    with tempfile.TemporaryDirectory() as scratch:
        checkpoint = save_checkpoint(Path(scratch) / "checkpoint", settings)
        folder = quantize(checkpoint, Path(scratch) / "int8", "qordered")
        path = next(iter(sorted(folder.rglob("model.onnx"))))
        session = onnxruntime.InferenceSession(str(path), providers=[provider])
        if session.get_providers()[0] != provider:
            raise RuntimeError(f"onnxruntime could not start its {provider}")
        model = transformers.AutoModelForSequenceClassification.from_pretrained(checkpoint)
        for batch, sequence in settings.shapes:
            ids = random_ids(settings, batch, sequence).cpu()
            known = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
            known["token_type_ids"] = torch.zeros_like(ids)
            given = {each.name: known[each.name].numpy() for each in session.get_inputs()}
            with torch.no_grad():
                expected = model.eval()(**known).logits
            found = torch.from_numpy(session.run(None, given)[0])
            ratio = sqnr_db(found, expected)
            times = alternate({"run": functools.partial(session.run, None, given)}, settings)
            yield {
                "case": f"{batch} x {sequence}",
                "median ms": times["run"],
                "SQNR to float, dB": ratio,
                # Far below what quantization loses: wrong operators give about 0 dB.
                "passed": ratio > 3,
            }


# Section and its limit in seconds, in the order in which they run.
SECTIONS: dict[str, tuple[Callable[[Settings], Iterator[Row]], int]] = {
    "machine": (machine, 30),
    "fake_quantize": (fake_quantize, 60),
    "fake_quantize_compiled": (fake_quantize_compiled, 40),
    "int8_matmul": (int8_matmul, 40),
    "forward": (forward, 60),
    "step": (step, 60),
    "forward_compiled": (forward_compiled, 90),
    "step_compiled": (step_compiled, 120),
    "tensorrt": (tensorrt, 180),
    "qordered": (qordered, 120),
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


def with_tf32(call: Callable[[], Any]) -> Any:
    import torch

    torch.set_float32_matmul_precision("high")
    try:
        return call()
    finally:
        torch.set_float32_matmul_precision("highest")


def alternate(
    calls: dict[str, Callable[[], Any]], settings: Settings, *, repeats: int = 1
) -> dict[str, float]:
    """Return the median time of each call, in milliseconds; the calls take turns.

    Args:
        calls: Calls by name.
        settings: Device and number of rounds.
        repeats: Number of calls in a row, whose mean is one measurement.
    """
    for call in calls.values():
        timed(call, settings, repeats)
        timed(call, settings, repeats)
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(settings.rounds):
        for name, call in calls.items():
            times[name].append(timed(call, settings, repeats))
    return {name: statistics.median(each) for name, each in times.items()}


def timed(call: Callable[[], Any], settings: Settings, repeats: int) -> float:
    import torch

    def wait() -> None:
        if settings.device == "cuda":
            torch.cuda.synchronize()

    wait()
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    wait()
    return (time.perf_counter() - start) * 1e3 / repeats


def bert_shape(settings: Settings) -> dict[str, int]:
    return {
        "vocab_size": settings.vocabulary,
        "hidden_size": settings.hidden,
        "num_attention_heads": settings.hidden // 64,
        "intermediate_size": 4 * settings.hidden,
        "num_hidden_layers": settings.layers,
    }


def random_ids(settings: Settings, batch: int, sequence: int) -> Any:
    import torch

    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(5, settings.vocabulary, (batch, sequence), generator=generator)
    return ids.to(settings.device)


def time_models(settings: Settings, *, training: bool, compiled: bool) -> Iterator[Row]:
    """Time a forward pass or a training step of BERT with and without quantizers."""
    import torch
    import transformers

    import qdqbert

    torch.manual_seed(0)
    shape = bert_shape(settings)
    quantized = qdqbert.QDQBertModel(qdqbert.QDQBertConfig(**shape), add_pooling_layer=False)
    quantized.to(settings.device)
    qdqbert.calibrate(quantized, [{"input_ids": random_ids(settings, 2, 16)}])
    count = sum(isinstance(each, qdqbert.TensorQuantizer) for each in quantized.modules())
    plain = transformers.BertModel(transformers.BertConfig(**shape), add_pooling_layer=False)
    plain.to(settings.device)
    shapes = settings.shapes[-1:] if training or compiled else settings.shapes
    for batch, sequence in shapes:
        ids = random_ids(settings, batch, sequence)
        float_ms = math.nan
        for name, model, precision in (
            ("float32", plain, "float32"),
            ("TF32", plain, "TF32"),
            ("bfloat16", plain, "bfloat16"),
            (f"fake-quantized float32, {count} quantizers", quantized, "float32"),
            (f"fake-quantized bfloat16, {count} quantizers", quantized, "bfloat16"),
        ):
            if precision == "TF32" and settings.device != "cuda":
                continue
            before = allocated_mib(settings)
            call = make_call(model, ids, precision, settings, training=training, compiled=compiled)
            start = time.perf_counter()
            call()
            first_s = time.perf_counter() - start
            median = alternate({"call": call}, settings)["call"]
            float_ms = median if name == "float32" else float_ms
            row = {"case": f"{batch} x {sequence}, {name}", "median ms": median}
            row |= {"time to float32": median / float_ms, "first call s": first_s}
            if settings.device == "cuda":
                row["memory MiB"] = torch.cuda.max_memory_allocated() / 2**20 - before
            yield row


def allocated_mib(settings: Settings) -> float:
    """Return the GPU memory that tensors use, and start to look for its peak."""
    import torch

    if settings.device != "cuda":
        return 0.0
    torch.cuda.reset_peak_memory_stats()
    return float(torch.cuda.memory_allocated() / 2**20)


def make_call(
    model: Any, ids: Any, precision: str, settings: Settings, *, training: bool, compiled: bool
) -> Callable[[], None]:
    """Return a forward pass, or a step of forward, loss, backward and AdamW."""
    import torch

    model.train(training)
    run = torch.compile(model, backend=settings.backend) if compiled else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6) if training else None

    def call() -> None:
        half = torch.autocast(settings.device, torch.bfloat16, enabled=precision == "bfloat16")
        with half, torch.set_grad_enabled(training):
            loss = run(input_ids=ids).last_hidden_state.float().square().mean()
        if optimizer is not None:
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    return (lambda: with_tf32(call)) if precision == "TF32" else call


def save_checkpoint(folder: Path, settings: Settings) -> Path:
    """Save a BERT with random weights, a head for 64 classes, and a tokenizer."""
    import tokenizers
    import torch
    import transformers

    torch.manual_seed(0)
    config = transformers.BertConfig(**bert_shape(settings), num_labels=64)
    transformers.BertForSequenceClassification(config).save_pretrained(folder)
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    letters = "abcdefghijklmnopqrstuvwxyz"
    pieces = [*special, *letters, *(f"##{letter}" for letter in letters)]
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    inner = tokenizers.Tokenizer(tokenizers.models.WordPiece(vocabulary, unk_token="[UNK]"))
    inner.normalizer = tokenizers.normalizers.BertNormalizer()
    inner.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    inner.post_processor = tokenizers.processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    names = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, **dict(zip(names, special, strict=True))
    ).save_pretrained(folder)
    return folder


def quantize(checkpoint: Path, folder: Path, target: TargetName) -> Path:
    import qdqbert

    qdqbert.quantize(
        str(checkpoint),
        folder,
        task="text-classification",
        targets=(target,),
        calibration=qdqbert.Calibration(samples=16),
        max_length=128,
        benchmark=False,
    )
    return folder


def sqnr_db(found: Any, expected: Any) -> float:
    noise = (found.double() - expected.double()).square().sum()
    return float(10 * (expected.double().square().sum() / noise).log10())


# Running the sections.


def run_section(name: str, settings: Settings, results: Connection) -> None:
    """Send the rows of a section, then its status and a reason, from a process of its own."""
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
    if options.output is not None:
        options.output.write_text(json.dumps(result, indent=2))
    sys.exit(int(any(each["status"] in ("failed", "error") for each in sections)))


if __name__ == "__main__":
    main()
