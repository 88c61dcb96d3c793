r"""Compare recipes of the target `openvino` with each other and with NNCF, on OpenVINO.

    python benchmarks/openvino_recipes.py MODEL FOLDER [--test FILE] [--calibration FILE]
    python benchmarks/openvino_recipes.py MODEL FOLDER --isa AVX512_CORE_VNNI --rounds 7

MODEL is a checkpoint folder, a hub id, `demo` for the packaged all-MiniLM-L6-v2, or `base` for a
model of BERT-base's size with random weights. FOLDER keeps the graphs, which are made once. With
`--test`, each graph is evaluated on the whole file. With `--rounds`, the graphs take turns, each in
a process of its own: the table has the median milliseconds of each shape, and in parentheses how
many times as fast as the recipe `linear` the graph is, by the median of the rounds' ratios.

`--isa` limits OpenVINO's kernels of oneDNN to an instruction set, and `--precisions` are the float
types between int8 operators. Needs `pip install 'qdqbert[benchmarks]'`.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
from pathlib import Path

import qdqbert
from engines import make_rivals, random_base, worker
from other_quantizers import quantize_nncf, without_value_info
from qdqbert.common.choices import RecipeName
from qdqbert.common.machine import cpu_name, usable_cores
from qdqbert.data.rows.data import Columns
from qdqbert.encoders.checkpoint.demo import demo_checkpoint
from qdqbert.encoders.checkpoint.load import load_checkpoint
from qdqbert.engines.registry import open_runner
from qdqbert.graphs.check import save_graph
from qdqbert.graphs.of_checkpoint import encoder_of
from qdqbert.graphs.writer import make_graph
from rivals import calibration_inputs
from scoring import TestSet

RECIPES: tuple[RecipeName, ...] = ("linear", "linear+qk", "linear+matmul")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--test", help="evaluate the graphs on this file")
    parser.add_argument("--calibration", help="default: built-in texts")
    parser.add_argument("--weights-for", default="any", choices=("any", "vnni"))
    parser.add_argument("--isa", help="oneDNN's name of an instruction set")
    parser.add_argument("--precisions", nargs="+", default=["bf16", "f32"])
    parser.add_argument("--rounds", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=0.3, help="length of a turn")
    parser.add_argument("--shapes", default="1x32,1x128,8x128,1x384")
    parser.add_argument("--threads", type=int, default=usable_cores())
    arguments = parser.parse_args()
    if arguments.isa:
        os.environ["ONEDNN_MAX_CPU_ISA"] = arguments.isa
    arguments.folder.mkdir(parents=True, exist_ok=True)
    test = (
        None if arguments.test is None else TestSet(arguments.model, arguments.test, batch_size=8)
    )
    graphs = make_graphs(arguments, test)
    isa = arguments.isa or "all instruction sets"
    print(f"{cpu_name()}, {arguments.threads} threads, {isa}\n")
    if test is not None:
        show_accuracy(test, graphs, arguments)
    for precision in arguments.precisions if arguments.rounds else ():
        show_speed(graphs, precision, arguments)


def make_graphs(arguments: argparse.Namespace, test: TestSet | None) -> dict[str, Path]:
    """Return the graphs by name, and make those that the folder does not have."""
    folder: Path = arguments.folder
    model = {"demo": str(demo_checkpoint())}.get(arguments.model, arguments.model)
    if model == "base":
        model = str(random_base(folder))
    graphs: dict[str, Path] = {name: folder / name / "model.onnx" for name in RECIPES}
    # The last recipe has all ranges.
    for name in reversed(RECIPES):
        if not graphs[name].exists():
            is_first = name == RECIPES[-1]
            qdqbert.quantize(
                model,
                folder / name,
                calibration_data=arguments.calibration if is_first else None,
                calibration=qdqbert.Calibration(
                    ranges_from=None if is_first else str(folder / RECIPES[-1])
                ),
                targets=("openvino",),
                recipe=name,
                quantizers=qdqbert.Quantizers(weights_for=arguments.weights_for),
                max_length=None if test is None else test.max_length,
                benchmark=False,
                overwrite=True,
            )
    graphs["NNCF TRANSFORMER"] = folder / "nncf.xml"
    if not graphs["NNCF TRANSFORMER"].exists():
        save_graph(make_graph(encoder_of(load_checkpoint(model))), folder / "float.onnx")
        if test is None:
            make_rivals(folder)
        else:
            inputs = calibration_inputs(arguments.calibration, Columns(), test)
            plain = without_value_info(folder / "float.onnx", folder / "plain.onnx")
            quantize_nncf(plain, graphs["NNCF TRANSFORMER"], inputs)
    return graphs


def show_accuracy(test: TestSet, graphs: dict[str, Path], arguments: argparse.Namespace) -> None:
    """Print the scores of all graphs."""
    titles = f"| graph | between | {test.float.titles()} |"
    print(f"float: {test.float.name} {test.float.value:.2f}\n\n{titles}")
    print("|---" * (titles.count("|") - 1) + "|", flush=True)
    for precision in arguments.precisions:
        for name, path in graphs.items():
            runner = open_runner("openvino", path, threads=arguments.threads, precision=precision)
            print(f"| {name} | {precision} | {test.run(runner).cells()} |", flush=True)


def show_speed(graphs: dict[str, Path], precision: str, arguments: argparse.Namespace) -> None:
    """Print the latencies of all graphs, and how they compare with the first one."""
    shapes = arguments.shapes.split(",")
    found: dict[tuple[str, str], list[float]] = {}
    with contextlib.ExitStack() as stack:
        engines = str(Path(__file__).with_name("engines.py"))
        way = {"engine": "openvino", "threads": arguments.threads, "precision": precision}
        workers = {
            name: stack.enter_context(worker({**way, "model": str(path)}, script=engines))
            for name, path in graphs.items()
        }
        for shape in shapes:
            request = {"shape": [int(each) for each in shape.split("x")]}
            for _ in range(arguments.rounds):
                for name, ask in workers.items():
                    time = ask({**request, "seconds": arguments.seconds})
                    found.setdefault((name, shape), []).append(time)
    print(f"\n| graph, {precision} | {' | '.join(shapes)} |\n{'|---' * (len(shapes) + 1)}|")
    for name in graphs:
        cells = []
        for shape in shapes:
            times, first = found[name, shape], found[RECIPES[0], shape]
            ratio = statistics.median(a / b for a, b in zip(first, times, strict=True))
            cells.append(f"{statistics.median(times):.2f} ms ({ratio:.2f})")
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
