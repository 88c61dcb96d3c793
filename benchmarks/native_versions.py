"""Compare two versions of the native engine: time, bits, and the time outside of kernels.

    git worktree add /tmp/old COMMIT
    python benchmarks/native_versions.py /tmp/old/src [NEW_SRC] [--model base] [--shapes 1x32]

Each version packs the same random model and runs it in a process of its own. The processes take
turns. A turn is the median CPU time of one call; with several threads, its wall-clock time. The
table has the ratio of the old time to the new one, as the median over the rounds and the range of
its middle half. So it means something on a machine with other work, too.

"same bits" says whether the outputs are equal. "outside" is the time of a call that is not spent in
kernels, in milliseconds.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

# Hidden size, heads, inner size, layers.
MODELS = {
    "minilm": (384, 12, 1536, 6),
    "base": (768, 12, 3072, 12),
    "small": (64, 2, 128, 2),
}
SHAPES = "1x8,1x32,1x128,8x128,1x384,32x64"
VOCABULARY, LIMIT = 1000, 512


def main() -> None:
    arguments = parse()
    if arguments.worker:
        serve(arguments)
        return
    print(
        f"{arguments.model}, {arguments.threads} threads, {arguments.kernel or 'fastest kernel'}\n"
    )
    print("| shape | old ms | new ms | old / new | same bits | outside, old | outside, new |")
    print("|---" * 7 + "|")
    with contextlib.ExitStack() as stack:
        kinds = arguments.dynamic and not arguments.static_old, arguments.dynamic
        old, new = (
            stack.enter_context(worker(source, arguments, dynamic=dynamic))
            for source, dynamic in zip((arguments.old, arguments.new), kinds, strict=True)
        )
        for shape in arguments.shapes.split(","):
            turns = [(old(shape), new(shape)) for _ in range(arguments.rounds)]
            print(row(shape, turns), flush=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("old", type=Path, help="folder with the old version of `qdqbert`")
    here = Path(__file__).resolve().parent.parent / "src"
    parser.add_argument("new", type=Path, nargs="?", default=here)
    parser.add_argument("--model", choices=MODELS, default="minilm")
    parser.add_argument(
        "--dynamic",
        action="store_true",
        help="scales of each token, and spread channels if the version has them",
    )
    parser.add_argument(
        "--static-old", action="store_true", help="static scales in the old version all the same"
    )
    parser.add_argument(
        "--pooling",
        choices=("none", "mean", "first"),
        default="none",
        help="the output is one row for each text: the mean, or the first token; or all rows",
    )
    parser.add_argument("--shapes", default=SHAPES)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--kernel", help="instruction set")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=0.3, help="length of a turn")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def row(shape: str, turns: list[tuple[dict[str, Any], dict[str, Any]]]) -> str:
    ratios = [old["time"] / new["time"] for old, new in turns]
    low, _, high = statistics.quantiles(ratios, n=4)
    times, outside = (
        [statistics.median(turn[i][name] for turn in turns) for i in (0, 1)]
        for name in ("time", "outside")
    )
    are_equal = len({each["bits"] for turn in turns for each in turn}) == 1
    cells = (
        *(f"{each:.3f}" for each in times),
        f"{statistics.median(ratios):.3f} ({low:.3f} to {high:.3f})",
        "yes" if are_equal else "NO",
        *(f"{each:.3f}" for each in outside),
    )
    return f"| {shape} | {' | '.join(cells)} |"


@contextlib.contextmanager
def worker(
    source: Path, arguments: argparse.Namespace, *, dynamic: bool
) -> Iterator[Callable[[str], dict[str, Any]]]:
    """Start a process with a version, and return a function that measures a shape."""
    options = [str(source), "--model", arguments.model, "--threads", str(arguments.threads)]
    options += ["--dynamic"] * dynamic + ["--pooling", arguments.pooling]
    options += ["--kernel", arguments.kernel] * (arguments.kernel is not None)
    command = [sys.executable, __file__, *options, "--seconds", str(arguments.seconds), "--worker"]
    # The folder of this script comes first on the path, and an installed version last.
    environment = os.environ | {"PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    )
    assert process.stdin is not None
    assert process.stdout is not None
    stdin, stdout = process.stdin, process.stdout

    def measure(shape: str) -> dict[str, Any]:
        stdin.write(f"{shape}\n")
        stdin.flush()
        line = stdout.readline()
        if not line:
            raise SystemExit(f"The version in {source} failed.")
        found: dict[str, Any] = json.loads(line)
        return found

    try:
        yield measure
    finally:
        process.kill()
        process.wait()


def serve(arguments: argparse.Namespace) -> None:
    """Answer each shape from stdin with a time, the time outside of kernels, and a digest."""
    from qdqbert.engines.native.packed import pack_model
    from qdqbert.engines.native.runner import NativeRunner
    from qdqbert.engines.native.storage import save_packed

    clock = time.process_time if arguments.threads == 1 else time.perf_counter
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        model = random_model(*MODELS[arguments.model], arguments)
        save_packed(pack_model(model), path)
        del model
        runner = NativeRunner(path, threads=arguments.threads, kernel=arguments.kernel)
    functions = runner._program.functions
    plain, inside = dict(functions), [0.0]

    def timed(function: Callable[..., None]) -> Callable[..., None]:
        def call(*values: Any) -> None:
            start = clock()
            function(*values)
            inside[0] += clock() - start

        return call

    # Workers have `serve`, and only the calling thread is measured.
    watched = {name: timed(each) for name, each in plain.items() if name != "serve"}
    for line in sys.stdin:
        batch, length = (int(each) for each in line.split("x"))
        rng = np.random.default_rng(0)
        inputs = {
            "input_ids": rng.integers(0, VOCABULARY, (batch, length)),
            "attention_mask": np.ones((batch, length), np.int64),
            "token_type_ids": np.zeros((batch, length), np.int64),
        }
        found = runner.run(inputs)
        bits = hashlib.sha256(b"".join(each.tobytes() for each in found.values())).hexdigest()
        times = repeated(lambda each=inputs: runner.run(each), clock, arguments.seconds)  # type: ignore[misc]
        functions.update(watched)
        outside = []
        for _ in range(max(5, len(times) // 10)):
            inside[0] = 0.0
            start = clock()
            runner.run(inputs)
            outside.append(clock() - start - inside[0])
        functions.update(plain)
        print(
            json.dumps(
                {
                    "time": 1e3 * statistics.median(times),
                    "outside": 1e3 * statistics.median(outside),
                    "bits": bits,
                }
            ),
            flush=True,
        )


def repeated(call: Callable[[], object], clock: Callable[[], float], seconds: float) -> list[float]:
    """Return the times of calls."""
    found: list[float] = []
    until = time.perf_counter() + seconds
    while len(found) < 3 or time.perf_counter() < until:
        start = clock()
        call()
        found.append(clock() - start)
    return found


def random_model(
    hidden: int, heads: int, inner: int, layers: int, arguments: argparse.Namespace
) -> Any:
    """Return an encoder with random weights and roughly fitting ranges."""
    from qdqbert.encoders import model as parts

    rng = np.random.default_rng(0)
    matrices: dict[int, Any] = {}
    if arguments.dynamic and "hadamard" in parts.Codes.__dataclass_fields__:
        from qdqbert.quantization.hadamard import hadamard_of

        matrices = {depth: hadamard_of(depth) for depth in (hidden, inner)}

    def linear(rows: int, depth: int, zero_point: int = 128, *, spread: bool = True) -> Any:
        scale = np.float32(1.0 if arguments.dynamic else 0.03)
        return parts.Linear(
            weight=rng.integers(-64, 65, (rows, depth), np.int8),
            weight_scale=rng.uniform(0.02, 0.04, rows).astype(np.float32)
            / np.sqrt(np.float32(depth)),
            bias=(rng.standard_normal(rows) / 10).astype(np.float32),
            codes=parts.Codes(
                scale=float(scale),
                zero_point=zero_point,
                multiplier=np.asarray(1 / scale, np.float32),
                dynamic=arguments.dynamic,
                **({"hadamard": matrices[depth]} if matrices and spread else {}),
            ),
        )

    def norm() -> Any:
        weight, bias = rng.uniform(0.5, 1.5, hidden), rng.standard_normal(hidden) / 10
        return parts.Norm(
            weight=weight.astype(np.float32), bias=bias.astype(np.float32), epsilon=1e-12
        )

    def layer() -> Any:
        query, key, value = (linear(hidden, hidden) for _ in range(3))
        # The input of the output is not spread.
        output = linear(hidden, hidden, spread=False)
        attention = parts.Attention(
            query=query, key=key, value=value, output=output, heads=heads,
            scale=float((hidden // heads) ** -0.5),
        )  # fmt: skip
        return parts.Layer(
            attention=attention,
            attention_residual=parts.Residual(norm=norm()),
            up=linear(inner, hidden),
            activation="gelu",
            down=linear(hidden, inner, zero_point=10),
            residual=parts.Residual(norm=norm()),
        )

    def table(rows: int) -> Any:
        return parts.Table(rows=rng.standard_normal((rows, hidden)).astype(np.float32), scale=None)

    names = ("input_ids", "attention_mask", "token_type_ids")
    return parts.EncoderModel(
        embeddings=parts.Embeddings(
            words=table(VOCABULARY), positions=table(LIMIT), token_types=table(2), norm=norm()
        ),
        layers=tuple(layer() for _ in range(layers)),
        heads=(
            parts.Head(
                poolings=(arguments.pooling,),
                steps=() if arguments.pooling == "none" else ("normalize",),
                outputs=(parts.HeadOutput(name="output"),),
            ),
        ),
        limit=LIMIT,
        input_names=names,
    )


if __name__ == "__main__":
    main()
