r"""Measure memory and time of calibrating an ONNX model of BERT-base's size at 384 tokens.

    python benchmarks/graph_calibration.py [--examples 100] [--rival-examples 4] [--length 384]

Weights and tokens are random, since neither memory nor time depends on them. Each row of the table
is measured in a separate process:

- "bare forward passes" loads the graph and runs it on the examples, one at a time.
- "qdqbert" collects statistics of the 16 observed tensors of each layer once. Each calibrator
  chooses ranges from them, with residual clipping.
- "onnxruntime" uses the calibrators of ONNX Runtime, on as many examples as memory allows.

"load s" is the time to read the graph. For qdqbert, it includes finding the layers. For
onnxruntime, it is part of "passes s". The last column divides "passes s", which includes choosing
ranges, by that of bare forward passes. qdqbert's passes run in PyTorch, the others on ONNX Runtime.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

CALIBRATORS = ("max", "percentile", "mse", "entropy")
RIVALS = {"max": "MinMax", "percentile": "Percentile", "entropy": "Entropy"}
VOCABULARY = 30522


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--examples", type=int, default=100, help="calibration examples")
    parser.add_argument("--rival-examples", type=int, default=4, help="examples of onnxruntime")
    parser.add_argument("--length", type=int, default=384, help="tokens of each example")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--hidden", type=int, default=768)
    parser.add_argument(
        "--one", nargs=2, metavar=("KIND", "GRAPH"), help="measure this process only"
    )
    arguments = parser.parse_args()
    if arguments.one:
        run_one(arguments, *arguments.one)
        return
    with tempfile.TemporaryDirectory() as folder:
        graph = Path(folder) / "model.onnx"
        export(arguments, graph)
        print("| calibration | examples | peak memory, GB | load s | passes s | relative to bare |")
        print("|---|---|---|---|---|---|")
        bare = measure(arguments, "bare", graph, arguments.examples)[0]
        show("bare forward passes", arguments.examples, bare, bare[2])
        for name, row in zip(
            CALIBRATORS, measure(arguments, "ours", graph, arguments.examples), strict=True
        ):
            show(f"qdqbert, {name}", arguments.examples, row, bare[2])
        share = arguments.rival_examples / arguments.examples
        for name in RIVALS:
            row = measure(arguments, name, graph, arguments.rival_examples)[0]
            show(f"onnxruntime, {name}", arguments.rival_examples, row, bare[2] * share)


def show(name: str, examples: int, row: tuple[float, ...], bare: float) -> None:
    peak, load, passes = row
    cells = f"{peak:.2f} | {load:.1f} | {passes:.1f} | {passes / bare:.2f}"
    print(f"| {name} | {examples} | {cells} |", flush=True)


def measure(
    arguments: argparse.Namespace, kind: str, graph: Path, examples: int
) -> list[tuple[float, ...]]:
    """Measure in a new process. Return peak memory in GB, load seconds and pass seconds, by row."""
    command = [sys.executable, __file__, "--one", kind, str(graph), "--examples", str(examples)]
    command += ["--length", str(arguments.length)]
    finished = subprocess.run(command, check=True, capture_output=True, text=True)
    lines = [line.split() for line in finished.stdout.splitlines() if line.startswith("row ")]
    return [tuple(float(number) for number in numbers) for _, *numbers in lines]


def export(arguments: argparse.Namespace, path: Path) -> None:
    """Export a question-answering BERT with random weights, with TorchScript's exporter."""
    code = f"""
import torch, warnings
from transformers import BertConfig, BertForQuestionAnswering
warnings.simplefilter("ignore")
torch.manual_seed(0)
config = BertConfig(
    hidden_size={arguments.hidden}, num_hidden_layers={arguments.layers},
    num_attention_heads={arguments.hidden // 64}, intermediate_size={4 * arguments.hidden},
    attn_implementation="eager", return_dict=False,
)
model = BertForQuestionAnswering(config).eval()
ids = torch.full((2, 8), 5)
names = ["input_ids", "attention_mask", "token_type_ids"]
torch.onnx.export(
    model, (ids, torch.ones_like(ids), torch.zeros_like(ids)), {str(path)!r}, input_names=names,
    output_names=["start_logits", "end_logits"], opset_version=17, dynamo=False,
    dynamic_axes={{name: {{0: "batch", 1: "sequence"}} for name in names}},
)
"""
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def inputs_of(arguments: argparse.Namespace) -> list[dict[str, np.ndarray[Any, Any]]]:
    """Return random inputs of one example each, `(1, length)`."""
    random = np.random.default_rng(0)
    shape = (1, arguments.length)
    return [
        {
            "input_ids": random.integers(1000, VOCABULARY, shape),
            "attention_mask": np.ones(shape, np.int64),
            "token_type_ids": np.zeros(shape, np.int64),
        }
        for _ in range(arguments.examples)
    ]


def run_one(arguments: argparse.Namespace, kind: str, graph: str) -> None:
    """Measure one kind of run in this process, and print its rows."""
    steps = {"bare": run_bare, "ours": run_ours}
    step = steps.get(kind, run_rival)
    step(Path(graph), inputs_of(arguments), kind)


def print_row(load: float, passes: float) -> None:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2
    print(f"row {peak} {load} {passes}", flush=True)


def run_bare(graph: Path, inputs: list[Any], _: str) -> None:
    import onnxruntime

    start = time.perf_counter()
    session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])
    loaded = time.perf_counter()
    for each in inputs:
        session.run(None, each)
    print_row(loaded - start, time.perf_counter() - loaded)


def run_ours(graph: Path, inputs: list[Any], _: str) -> None:
    from qdqbert.calibration.residual_clipping import ResidualErrorObserver, clip_residual_ranges
    from qdqbert.calibration.statistics import CombinedObserver, HistogramObserver, choose_ranges
    from qdqbert.data.tokenizing.encoding import Batch
    from qdqbert.graphs.encoder import read_encoder
    from qdqbert.graphs.imported.canonical_form import to_canonical_form
    from qdqbert.graphs.imported.onnx_file import read_graph
    from qdqbert.pipeline.sited import SitedSource
    from qdqbert.quantization.numerics.ranges import Entropy, Max, Mse, Percentile

    start = time.perf_counter()
    model = to_canonical_form(read_graph(graph))
    outputs = [str(value.name) for value in model.graph.outputs]
    encoder = read_encoder(model, outputs, longest=inputs[0]["input_ids"].shape[1]).encoder
    sited = SitedSource(encoder, ("layer", "table"), output_names=outputs)
    names = [site.name for site in sited.sites if site.kind == "activation"]
    loaded = time.perf_counter()
    histograms, errors = HistogramObserver(names), ResidualErrorObserver(names)
    batches = [Batch(inputs=each, indices=(index,)) for index, each in enumerate(inputs)]
    run = sited.observed_run(batches, lambda: None)
    run(CombinedObserver(histograms, errors), {})
    collected = time.perf_counter() - loaded
    for rule in (Max(), Percentile(99.99), Mse(), Entropy()):
        chosen = time.perf_counter()
        clip_residual_ranges(choose_ranges(histograms.statistics, rule), errors.errors)
        print_row(loaded - start, collected + time.perf_counter() - chosen)


def run_rival(graph: Path, inputs: list[Any], name: str) -> None:
    from onnxruntime.quantization.calibrate import (
        CalibrationDataReader,
        CalibrationMethod,
        create_calibrator,
    )

    class DataReader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self._inputs = iter(inputs)

        def get_next(self) -> Any:
            return next(self._inputs, None)

    start = time.perf_counter()
    calibrator = create_calibrator(
        graph,
        ["MatMul", "Add"],
        augmented_model_path=str(graph.with_name("augmented.onnx")),
        calibrate_method=getattr(CalibrationMethod, RIVALS[name]),
    )
    calibrator.collect_data(DataReader())
    calibrator.compute_data()
    print_row(0.0, time.perf_counter() - start)


if __name__ == "__main__":
    main()
