r"""What is found in graphs of every exporter, and what each target makes of them.

    python benchmarks/ready_graphs.py [--only bert] [--targets portable openvino ...]

Two-layer models with random weights, exported by TorchScript and dynamo at several opsets with
eager and sdpa attention, and fused by onnxruntime's transformer optimizer. Each graph is opened,
calibrated on random tokens with padding and lowered for each target. "differs" is the largest
difference of any output number to the same Q/DQ pairs computed literally by ONNX Runtime, by the
largest output: rounding ties alone make some 1e-3 of it.
"""

from __future__ import annotations

import argparse
import collections
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import nn

from qdqbert.calibration.session import calibrate_passes
from qdqbert.encoding import Batch
from qdqbert.engines.onnxruntime import OnnxRuntimeRunner
from qdqbert.engines.runner import is_installed, open_runner
from qdqbert.errors import QdqBertError
from qdqbert.graph.check import save_graph
from qdqbert.graph.qdq import insert_qdq
from qdqbert.graph.ready.opening import OpenedGraph, open_graph
from qdqbert.graph.ready.watching import WatchedGraph
from qdqbert.numerics.ranges import Max
from qdqbert.targets import TARGETS
from qdqbert.targets.target import lower, make_plan

SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "vocab_size": 100,
    "max_position_embeddings": 64,
}
MINILM = {**SIZES, "num_attention_heads": 2, "intermediate_size": 256}
DISTIL: dict[str, Any] = {"dim": 64, "n_layers": 2, "n_heads": 4, "hidden_dim": 128}
EXPORTS = [
    *((False, opset, "eager") for opset in (11, 13, 14, 17, 20)),
    *((False, opset, "sdpa") for opset in (14, 17, 20)),
    *((True, opset, attention) for opset in (18, 20, 23) for attention in ("eager", "sdpa")),
]
FUSED = [(11, False), (14, False), (17, False), (14, True), (17, True)]
NAMES = ["input_ids", "attention_mask", "token_type_ids"]


def families(attention: str) -> dict[str, tuple[Callable[[], nn.Module], int]]:
    """What makes each model, and how many inputs it has."""

    def made(name: str, **sizes: Any) -> nn.Module:
        config = getattr(transformers, f"{name}Config")(
            attn_implementation=attention, return_dict=False, **sizes
        )
        model: nn.Module = getattr(transformers, f"{name}ForTokenClassification")(config)
        return model.eval()

    return {
        "bert": (lambda: made("Bert", **SIZES), 3),
        "minilm": (lambda: made("Bert", **MINILM), 3),
        "roberta": (lambda: made("Roberta", **SIZES, type_vocab_size=1), 2),
        "distilbert": (
            lambda: made("DistilBert", **DISTIL, vocab_size=100, max_position_embeddings=64),
            2,
        ),
        "electra": (lambda: made("Electra", **SIZES, embedding_size=32), 3),
    }


def main() -> None:
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--only", default="", help="families whose name has this")
    parser.add_argument(
        "--targets", nargs="+", default=["portable", "onnxruntime", "openvino", "tensorrt"]
    )
    arguments = parser.parse_args()
    print("| export | family | layers | sites | " + " | ".join(arguments.targets) + " |")
    print("|---|---|---|---|" + "---|" * len(arguments.targets), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for export, family, path in graphs(Path(folder), arguments.only):
            try:
                row = row_of(path, arguments.targets)
            except QdqBertError as error:
                row = [f"refused: {error}"]
            print(f"| {export} | {family} | {' | '.join(row)} |", flush=True)


def graphs(folder: Path, only: str) -> Iterator[tuple[str, str, Path]]:
    """Every export: its words, its family and its file."""
    for dynamo, opset, attention in EXPORTS:
        for family, (make, inputs) in families(attention).items():
            if only in family:
                exporter = "dynamo" if dynamo else "TorchScript"
                path = folder / f"{family}.onnx"
                write(make(), inputs, path, opset, dynamo)
                yield f"{exporter} {opset}, {attention}", family, path
    for opset, half in FUSED:
        for family, (make, inputs) in families("eager").items():
            if only in family:
                path = folder / f"{family}.onnx"
                write(make(), inputs, path, opset, False)
                fuse(path, 2 if family == "minilm" else 4, half)
                kind = "float16" if half else "float32"
                yield f"TorchScript {opset}, fused, {kind}", family, path


def write(model: nn.Module, inputs: int, path: Path, opset: int, dynamo: bool) -> None:
    torch.manual_seed(0)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.2)
    ids = torch.randint(5, 90, (2, 8))
    mask = torch.ones_like(ids)
    mask[1, -2:] = 0
    example = (ids, mask, torch.zeros_like(ids))[:inputs]
    names = NAMES[:inputs]

    class ByName(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, *values: torch.Tensor) -> Any:
            return self.model(**dict(zip(names, values, strict=True)))

    axes: dict[str, Any] = {"dynamic_axes": {name: {0: "batch", 1: "seq"} for name in names}}
    if dynamo:
        dims = {0: torch.export.Dim("batch"), 1: torch.export.Dim("seq")}
        axes = {"dynamic_shapes": (tuple(dims for _ in names),), "external_data": False}
    torch.onnx.export(
        ByName(),
        example,
        path,
        input_names=names,
        output_names=["logits"],
        opset_version=opset,
        dynamo=dynamo,
        verbose=False,
        **axes,
    )


def fuse(path: Path, heads: int, half: bool) -> None:
    from onnxruntime.transformers import optimizer

    fused = optimizer.optimize_model(
        str(path), "bert", num_heads=heads, hidden_size=64, opt_level=0
    )
    if half:
        fused.convert_float_to_float16(keep_io_types=True)
    fused.save_model_to_file(str(path))


def tokens(input_names: tuple[str, ...], count: int) -> list[Batch]:
    random = np.random.default_rng(0)
    batches = []
    for index in range(count):
        ids = random.integers(3, 90, (3, 6 + 2 * index))
        mask = np.ones_like(ids)
        mask[1, 4:] = 0
        given = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        inputs = {name: given[name] for name in input_names}
        batches.append(Batch(inputs=inputs, indices=(3 * index, 3 * index + 1, 3 * index + 2)))
    return batches


def row_of(path: Path, targets: list[str]) -> list[str]:
    with tempfile.TemporaryDirectory() as scratch:
        opened = open_graph(
            path, task="token-classification", input_names={}, scratch=Path(scratch)
        )
        cells = [str(opened.sited.roles["layers"]), str(len(opened.sited.sites))]
        return cells + [cell_of(opened, name, Path(scratch)) for name in targets]


def cell_of(opened: OpenedGraph, name: str, scratch: Path) -> str:
    target = TARGETS[name]
    engines = [engine for engine in target.engines if is_installed(engine)]
    if not engines:
        return "no engine"
    plan = make_plan(target, opened.sited.sites, embeddings="int8")
    batches = tokens(opened.input_names, 4)
    watched = WatchedGraph(opened.sited, scratch / "watched.onnx", sites=plan.activations)
    calibration = calibrate_passes(
        lambda start, observe, scales: watched.run(batches, start, observe, scales),
        sites=[site for site in opened.sited.sites if site.name in plan.activations],
        all_sites=opened.sited.sites,
        weights={key: torch.tensor(value) for key, value in opened.sited.weights.items()},
        calibrator=Max(),
        smoothing=plan.recipe.smoothing,
        clips_sums=plan.recipe.clips_sums,
    )
    scales = {key: value.numpy() for key, value in calibration.scales.items()}
    pairs = insert_qdq(opened.sited.graph, plan.specs, calibration.ranges, scales=scales)
    model = lower(opened.sited.graph, plan, calibration.ranges, scales)
    save_graph(pairs, scratch / "pairs.onnx")
    save_graph(model, scratch / "lowered.onnx")
    literal = OnnxRuntimeRunner(scratch / "pairs.onnx", literal=True)
    runner = open_runner(engines[0], scratch / "lowered.onnx", exact=True, precision="f32")
    counts = collections.Counter(node.op_type for node in model.graph)
    nodes = sum(count for op, count in counts.items() if "quant" in op.lower() or "Integer" in op)
    nodes += counts["QAttention"]
    differences = []
    for batch in batches:
        text = batch.inputs["attention_mask"].astype(bool)
        inputs = {key: batch.inputs[key] for key in runner.input_names}
        expected, made = (each.run(inputs)["logits"][text] for each in (literal, runner))
        differences.append(np.abs(expected - made).max() / np.abs(expected).max())
    return f"{nodes} nodes, differs {max(differences):.0e}"


if __name__ == "__main__":
    main()
