r"""Run INT8 graphs on an NVIDIA GPU by ONNX Runtime: `portable` and, of int8 operators, `qordered`.

    pip download --no-deps -d build onnxruntime-gpu
    python benchmarks/gpu_graphs.py prepare build/gpu-graphs --wheel build/onnxruntime_gpu-*.whl
    python benchmarks/gpu_graphs.py run build/gpu-graphs          # on a machine with a GPU

`prepare` quantizes the packaged all-MiniLM-L6-v2, keeps what float makes of some texts, and divides
the wheel into parts of 52 MB, as it is too large for some ways to copy files. `run` needs PyTorch,
whose CUDA libraries ONNX Runtime takes. It joins the parts, unpacks them, and reports for each
graph whether it runs, its SQNR to float, and the median time of a batch. With `--keep FOLDER`,
parts are kept in a folder of that machine, so that they can be copied one after another: `run`
names what is missing, and ends with 0.

Exit status of `run`: 1 if a graph does not run, or is less than 15 dB from float.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import shutil
import statistics
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path += [str(ROOT / "build/gpu-packages")]
if importlib.util.find_spec("qdqbert") is None:
    sys.path.insert(0, str(ROOT / "src"))

TARGETS: tuple[Any, ...] = ("portable", "qordered")
PART_BYTES = 52 * 10**6
ROWS, TOKENS, ROUNDS, LEAST_DB = 32, 64, 20, 15


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("action", choices=("prepare", "run"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--wheel", type=Path, help="of onnxruntime-gpu, for `prepare`")
    parser.add_argument("--keep", type=Path, help="where parts that were copied are kept")
    parser.add_argument("--provider", default="cuda", help="'cpu' checks that the script works")
    arguments = parser.parse_args()
    if arguments.action == "run":
        return run(arguments.folder, arguments.keep or arguments.folder, arguments.provider)
    if not arguments.wheel:
        parser.error("--wheel is missing")
    prepare(arguments.folder, arguments.wheel)
    return 0


def prepare(folder: Path, wheel: Path) -> None:
    """Write graphs, inputs with what float makes of them, and the parts of a wheel."""
    from safetensors.numpy import save_file

    import qdqbert
    from qdqbert.encoders.checkpoint.demo import demo_checkpoint
    from qdqbert.engines.registry import open_runner

    folder.mkdir(parents=True, exist_ok=True)
    qdqbert.quantize(
        demo_checkpoint(), folder / "model", targets=["float", *TARGETS], overwrite=True
    )
    settings = json.loads((folder / "model/quantization.json").read_text())["targets"]
    ids = np.random.default_rng(0).integers(1000, 30_000, (ROWS, TOKENS))
    inputs = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
    inputs["token_type_ids"] = np.zeros_like(ids)
    runner = open_runner("onnxruntime", folder / "model" / settings["float"]["model"])
    used = {name: inputs[name] for name in runner.input_names}
    for file, arrays in (("inputs", used), ("float", runner.run(used))):
        save_file(dict(arrays), folder / f"{file}.safetensors")
    data = wheel.read_bytes()
    starts = range(0, len(data), PART_BYTES)
    for number, start in enumerate(starts, 1):
        part = folder / f"wheel-{number}-of-{len(starts)}"
        part.write_bytes(data[start : start + PART_BYTES])


def run(folder: Path, keep: Path, provider: str) -> int:
    """Report each graph. Returns the exit status."""
    keep.mkdir(parents=True, exist_ok=True)
    for part in folder.glob("wheel-*"):
        if part.parent != keep:
            shutil.copyfile(part, keep / part.name)
    found = sorted(keep.glob("wheel-*"))
    count = int(found[0].name.rpartition("-")[2]) if found else 0
    names = {f"wheel-{number}-of-{count}" for number in range(1, count + 1)}
    missing = sorted(names - {each.name for each in found})
    if not found or missing:
        print(f"Copy the other parts, too: {', '.join(missing) or 'all of them'}.")
        return 0
    unpack(sorted(found, key=lambda each: int(each.name.split("-")[1])), keep / "packages")
    sys.path.insert(0, str(keep / "packages"))
    import torch  # noqa: F401  # ONNX Runtime finds CUDA's libraries in its package.

    failed = False
    for target in TARGETS:
        try:
            failed |= report(folder, target, provider)
        except Exception as error:
            print(f"{target}: {type(error).__name__}: {str(error)[:400]}", flush=True)
            failed = True
    return int(failed)


def unpack(parts: list[Path], folder: Path) -> None:
    """Unpack a wheel, given its parts in order."""
    wheel = folder.parent / "joined.whl"
    with wheel.open("wb") as file:
        for part in parts:
            file.write(part.read_bytes())
    zipfile.ZipFile(wheel).extractall(folder)


def report(folder: Path, target: str, provider: str) -> bool:
    """Print how a graph runs. Returns whether it is too far from float."""
    import onnxruntime
    from safetensors.numpy import load_file

    if provider != "cpu":
        onnxruntime.preload_dlls()
    from qdqbert.engines.registry import open_runner

    settings = json.loads((folder / "model/quantization.json").read_text())["targets"]
    file = folder / "model" / settings[target]["model"]
    runner = open_runner("onnxruntime", file, provider=provider)
    stored, wanted = (load_file(folder / f"{each}.safetensors") for each in ("inputs", "float"))
    inputs = {name: stored[name] for name in runner.input_names}
    outputs = runner.run(inputs)
    name = runner.output_names[-1]
    signal, noise = wanted[name].astype(np.float64), outputs[name] - wanted[name]
    decibels = 10 * np.log10((signal**2).sum() / (noise**2).sum())
    times = []
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        runner.run(inputs)
        times.append(time.perf_counter() - begin)
    print(
        f"{target}: {decibels:.1f} dB from float, {1e3 * statistics.median(times):.2f} ms for "
        f"{ROWS} x {TOKENS}, ONNX Runtime {onnxruntime.__version__}, {provider}",
        flush=True,
    )
    return not decibels >= LEAST_DB


if __name__ == "__main__":
    sys.exit(main())
