"""Compare accuracy, fidelity, size and speed with the quantizers of ONNX Runtime and NNCF.

All quantizers start from the same checkpoint and calibrate on the same texts, which are not in the
test file. Everything is measured in one run: accuracy on the whole test file, and latency of each
graph in a separate process, which take turns.

    python benchmarks/rivals.py MODEL --test TEST.csv [--calibration TRAIN.csv] [--threads 2]
    python benchmarks/rivals.py demo --test stsb-en-test.csv --plot accuracy-speed.svg

MODEL is a checkpoint folder, a hub id, or `demo` for the packaged all-MiniLM-L6-v2. Models that the
native engine does not run are refused. `--plot` draws how close each graph is to float against how
fast it is. `benchmarks/engines.py` compares more shapes and engines. Needs
`pip install 'qdqbert[benchmarks]'`.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

import qdqbert
from other_quantizers import quantize_dynamic, quantize_nncf, without_value_info
from qdqbert.common.choices import EngineName
from qdqbert.data import texts as resources
from qdqbert.data.rows.data import Columns
from qdqbert.encoders.checkpoint.load import load_checkpoint
from qdqbert.encoders.checkpoint.tokenizer import runtime_tokenizer
from qdqbert.encoders.quantize import round_encoder
from qdqbert.encoders.task_kinds import TaskSettings
from qdqbert.engines.native.packed import pack_model
from qdqbert.engines.native.storage import save_packed
from qdqbert.evidence.latency import Candidate, speedup, time_candidates
from qdqbert.graphs.check import save_graph
from qdqbert.graphs.of_checkpoint import encoder_of
from qdqbert.graphs.writer import make_graph
from qdqbert.loading.float_checkpoint.source import limits_pairs
from qdqbert.pipeline.predictions import encode_examples
from qdqbert.tasks.task import Tokenization
from scoring import CALIBRATION_EXAMPLES, TestSet

# isort: split
# After qdqbert, which turns telemetry off.
from onnxruntime import quantization as ort_quantization

# Where a label may be next to its point, in points: near ones first.
_OFFSETS = [
    (x, y)
    for distance in (12, 24, 36, 48)
    for x, y in ((8, 0), (-8, 0), (0, distance), (0, -distance), (8, distance), (8, -distance))
]


class _DataReader(ort_quantization.CalibrationDataReader):  # type: ignore[misc]
    """Yields inputs to the calibrators of ONNX Runtime."""

    def __init__(self, inputs: list[dict[str, Any]]) -> None:
        self._inputs = iter(inputs)

    def get_next(self) -> dict[str, Any] | None:
        return next(self._inputs, None)


def onnxruntime_static(source: Path, target: Path, inputs: list[dict[str, Any]]) -> None:
    """Run `quantize_static` for MatMul: uint8 inputs, int8 weights per channel, MinMax ranges."""
    ort_quantization.quantize_static(
        source,
        target,
        _DataReader(inputs),
        op_types_to_quantize=["MatMul"],
        per_channel=True,
        activation_type=ort_quantization.QuantType.QUInt8,
        weight_type=ort_quantization.QuantType.QInt8,
    )


def onnxruntime_static_defaults(source: Path, target: Path, inputs: list[dict[str, Any]]) -> None:
    """Run `quantize_static` with its defaults."""
    ort_quantization.quantize_static(source, target, _DataReader(inputs))


Rival = Callable[[Path, Path, list[dict[str, Any]]], None]
RIVALS: dict[str, tuple[EngineName, str, Rival]] = {
    "onnxruntime dynamic": ("onnxruntime", "dynamic.onnx", quantize_dynamic),
    "onnxruntime static, MatMul": ("onnxruntime", "static.onnx", onnxruntime_static),
    "onnxruntime static, defaults": (
        "onnxruntime",
        "defaults.onnx",
        onnxruntime_static_defaults,
    ),
    "NNCF TRANSFORMER": ("openvino", "nncf.xml", quantize_nncf),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--test", required=True)
    parser.add_argument("--calibration")
    parser.add_argument("--text-column")
    parser.add_argument("--label-column")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--max-length", type=int)
    parser.add_argument("--rounds", type=int, default=9, help="rounds of latency; 0 skips it")
    parser.add_argument("--shapes", default="1x32,1x128,8x128")
    parser.add_argument("--weights-for", default="any", choices=("any", "vnni"))
    parser.add_argument("--json", help="write the results to this file")
    parser.add_argument("--plot", help="plot fidelity against speed to this .svg file")
    arguments = parser.parse_args()
    columns = Columns(text=arguments.text_column, label=arguments.label_column)
    with tempfile.TemporaryDirectory() as folder:
        rows = measure(arguments, columns, Path(folder))
    show(rows)
    if arguments.plot:
        plot(rows, arguments.shapes.split(",")[-1], Path(arguments.plot))
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(rows, indent=2), encoding="utf-8")


def measure(arguments: argparse.Namespace, columns: Columns, folder: Path) -> list[dict[str, Any]]:
    """Quantize with all tools, and return a row for each graph and engine."""
    test = TestSet(
        arguments.model,
        arguments.test,
        columns=columns,
        max_length=arguments.max_length,
        batch_size=8,
    )
    model, limit = test.model, test.max_length
    ours = qdqbert.quantize(
        model,
        folder / "ours",
        calibration_data=arguments.calibration,
        columns=qdqbert.Columns(
            text=columns.text if arguments.calibration else None,
            label=columns.label if arguments.calibration else None,
        ),
        calibration=qdqbert.Calibration(samples=CALIBRATION_EXAMPLES),
        targets=("onnxruntime", "onnxruntime-dynamic", "openvino", "native", "native-dynamic"),
        max_length=limit,
        quantizers=qdqbert.Quantizers(weights_for=arguments.weights_for),
        benchmark=False,
    )
    encoder = encoder_of(load_checkpoint(model))
    save_graph(make_graph(encoder), folder / "float.onnx")
    save_packed(pack_model(encoder, precision="float"), folder / "native-float.qdqbert")
    save_packed(
        pack_model(round_encoder(encoder, limits_pairs=limits_pairs())), folder / "rounded.qdqbert"
    )
    inputs = calibration_inputs(arguments.calibration, columns, test)
    models: dict[tuple[str, EngineName], Path] = {
        ("float", "onnxruntime"): folder / "float.onnx",
        ("float", "openvino"): folder / "float.onnx",
        ("float", "native"): folder / "native-float.qdqbert",
        ("qdqbert", "onnxruntime"): folder / "ours" / ours.targets[0].model,
        ("qdqbert dynamic", "onnxruntime"): folder / "ours" / ours.targets[1].model,
        ("qdqbert", "openvino"): folder / "ours" / ours.targets[2].model,
        ("qdqbert", "native"): folder / "ours" / ours.targets[3].model,
        ("qdqbert dynamic, no data", "native"): folder / "rounded.qdqbert",
        ("qdqbert dynamic", "native"): folder / "ours" / ours.targets[4].model,
    }
    plain = without_value_info(folder / "float.onnx", folder / "plain.onnx")
    for name, (engine, file, make) in RIVALS.items():
        print(f"{name} ...", flush=True)
        make(plain, folder / file, inputs)
        models[name, engine] = folder / file

    results = []
    for (name, engine), path in models.items():
        print(f"{name} on {engine} ...", flush=True)
        score = test.graph(engine, path)
        size = sum(p.stat().st_size for p in path.parent.glob(f"{path.stem}.*"))
        results.append(
            {
                "name": name,
                "engine": engine,
                score.name: score.value,
                "cosine_mean": score.cosine and score.cosine[0],
                "cosine_min": score.cosine and score.cosine[1],
                "sqnr_db": score.sqnr_db,
                "changed_percent": score.changed,
                "size_ratio": size / (folder / "float.onnx").stat().st_size,
            }
        )
    if arguments.rounds:
        add_latency(results, models, arguments)
    return results


def calibration_inputs(path: str | None, columns: Columns, test: TestSet) -> list[dict[str, Any]]:
    """Return the inputs of one text each, without padding, as the other tools expect them."""
    texts = (
        test.task.read(path, columns=columns, max_examples=CALIBRATION_EXAMPLES).examples
        if path
        else resources.calibration_examples()[:CALIBRATION_EXAMPLES]
    )
    how = Tokenization(
        tokenizer=runtime_tokenizer(test.checkpoint.tokenizer),
        input_names=test.checkpoint.input_names,
        max_length=test.max_length,
        settings=TaskSettings(),
    )
    encoded = encode_examples(test.task.encode, texts, how, batch_size=1)
    return [batch.inputs for batch in encoded.batches[:CALIBRATION_EXAMPLES]]


def add_latency(
    results: list[dict[str, Any]],
    models: dict[tuple[str, EngineName], Path],
    arguments: argparse.Namespace,
) -> None:
    """Add the latency of all graphs, and the speed-up of qdqbert over each on the same engine."""
    candidates = [
        Candidate(name=name, engine=engine, model=path) for (name, engine), path in models.items()
    ]
    shapes = [tuple(map(int, shape.split("x"))) for shape in arguments.shapes.split(",")]
    timings = time_candidates(
        candidates,
        shapes,  # type: ignore[arg-type]
        threads=arguments.threads,
        rounds=arguments.rounds,
    )
    for timing in timings:
        wanted = (timing.engine, timing.batch, timing.sequence)
        same = [t for t in timings if (t.engine, t.batch, t.sequence) == wanted]
        ours = next(t for t in same if t.name == "qdqbert")
        row = next(r for r in results if (r["name"], r["engine"]) == (timing.name, timing.engine))
        shape = f"{timing.batch}x{timing.sequence}"
        row[f"{shape} ms"] = timing.median_ms
        row[f"{shape} speed-up of qdqbert"] = speedup(timing, ours)
        row["precision"] = timing.precision


def show(rows: list[dict[str, Any]]) -> None:
    """Print the rows as a Markdown table."""
    names = [name for name in rows[0] if rows[0][name] is not None]
    print("| " + " | ".join(names) + " |")
    print("|" + "---|" * len(names))
    for row in rows:
        cells = [
            f"{row[n]:.4f}" if "cosine" in n else f"{row[n]:.2f}" if _is_number(row[n]) else row[n]
            for n in names
        ]
        print("| " + " | ".join(cells) + " |", flush=True)


def plot(rows: list[dict[str, Any]], shape: str, path: Path) -> None:
    """Plot SQNR to float against speed, next to the float model on ONNX Runtime.

    Args:
        rows: Results of `measure`.
        shape: Batch and tokens of the latency to plot, such as `8x128`.
        path: The file.
    """
    reference = next(r for r in rows if (r["name"], r["engine"]) == ("float", "onnxruntime"))
    figure = Figure(figsize=(7.5, 4.2), layout="constrained")
    axes = figure.add_subplot()
    points = []
    for row in rows:
        if row["name"] == "float":
            continue
        color = "#1a5fb4" if row["name"].startswith("qdqbert") else "#77767b"
        faster = reference[f"{shape} ms"] / row[f"{shape} ms"]
        axes.scatter(faster, row["sqnr_db"], s=60, color=color, zorder=2)
        label = row["name"] if row["engine"] in row["name"].lower() else _label(row)
        points.append((label, (faster, row["sqnr_db"]), color))
    for engine in ("onnxruntime", "openvino"):
        row = next(r for r in rows if (r["name"], r["engine"]) == ("float", engine))
        faster = reference[f"{shape} ms"] / row[f"{shape} ms"]
        axes.axvline(faster, linestyle=":", color="#c01c28", linewidth=1, zorder=1)
        axes.text(
            faster,
            0.99,
            f" float, {engine}",
            transform=axes.get_xaxis_transform(),
            verticalalignment="top",
            fontsize=8,
            color="#c01c28",
        )
    axes.set(
        xlabel=f"times as fast as float on ONNX Runtime, {shape.replace('x', ' x ')} tokens",
        ylabel="SQNR to float, dB",
    )
    axes.grid(alpha=0.3)
    axes.margins(x=0.28, y=0.15)
    _add_labels(figure, axes, points)
    figure.savefig(path)


def _add_labels(figure: Any, axes: Any, points: list[tuple[str, tuple[float, float], str]]) -> None:
    """Put each label where it covers no point and no other label, as near as it can be."""
    figure.draw_without_rendering()
    taken = [
        Bbox.from_bounds(x - 9, y - 9, 18, 18)
        for x, y in axes.transData.transform([point for _, point, _ in points])
    ]
    for label, point, color in points:
        for x, y in _OFFSETS:
            text = axes.annotate(
                label,
                point,
                (x, y),
                textcoords="offset points",
                horizontalalignment="left" if x > 0 else "center" if x == 0 else "right",
                verticalalignment="center",
                fontsize=8,
                color=color,
            )
            box = text.get_window_extent()
            if not box.count_overlaps(taken):
                taken.append(box)
                break
            text.remove()


def _label(row: dict[str, Any]) -> str:
    return f"{row['name']}, {row['engine']}"


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float, np.floating))


if __name__ == "__main__":
    main()
