r"""Check import and lowering of ONNX models from every exporter, for each target.

    python benchmarks/onnx_models.py [--only bert] [--targets portable openvino ...]

Two-layer models with random weights, exported by TorchScript and dynamo at several opsets with
eager and sdpa attention, and fused by onnxruntime's transformer optimizer. Each graph is imported,
calibrated once on random tokens with padding, and lowered for each target.

The column "sites" has the number of sites found in BERT, MiniLM, RoBERTa, DistilBERT and ELECTRA. A
target's cell combines all families:

- the number of int8 nodes in the lowered graph
- the largest difference of an output from that of PyTorch with fake quantization, relative to the
  largest output
- the lowest SQNR of a layer, in dB, each layer given the same input
- the number of graphs in which a layer differs by more than rounding ties explain, if any
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import itertools
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import nn

from qdqbert.calibration.calibrate import run_passes
from qdqbert.calibration.calibration import CalibrationResult
from qdqbert.calibration.passes import CalibrationPlan
from qdqbert.common.choices import EngineName
from qdqbert.data.tokenizing.encoding import Batch
from qdqbert.engines.registry import open_runner
from qdqbert.evidence.lowering import Reference, check_lowering
from qdqbert.graphs.check import save_graph
from qdqbert.graphs.imported.imported_model import import_onnx
from qdqbert.graphs.targets import TARGETS
from qdqbert.graphs.targets.files import choices_of
from qdqbert.graphs.targets.lowering import lower
from qdqbert.graphs.targets.target import Plan, make_plan
from qdqbert.pipeline.sited import SitedSource
from qdqbert.quantization.numerics.ranges import Max
from qdqbert.quantization.recipes import WIDE_INPUTS

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
    """Return a function that creates the model, and its number of inputs, for each family."""

    def create(name: str, **sizes: Any) -> nn.Module:
        config = getattr(transformers, f"{name}Config")(
            attn_implementation=attention, return_dict=False, **sizes
        )
        model: nn.Module = getattr(transformers, f"{name}ForTokenClassification")(config)
        return model.eval()

    return {
        "bert": (lambda: create("Bert", **SIZES), 3),
        "minilm": (lambda: create("Bert", **MINILM), 3),
        "roberta": (lambda: create("Roberta", **SIZES, type_vocab_size=1), 2),
        "distilbert": (
            lambda: create("DistilBert", **DISTIL, vocab_size=100, max_position_embeddings=64),
            2,
        ),
        "electra": (lambda: create("Electra", **SIZES, embedding_size=32), 3),
    }


def main() -> None:
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--only", default="", help="only families with this in their name")
    parser.add_argument("--exports", default="", help="only exports with this in their description")
    parser.add_argument(
        "--targets",
        nargs="+",
        default=["portable", "onnxruntime", "onnxruntime-dynamic", "openvino", "tensorrt"],
    )
    arguments = parser.parse_args()
    print("| export | sites | " + " | ".join(arguments.targets) + " |")
    print("|---|---|" + "---|" * len(arguments.targets), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for export, group in itertools.groupby(
            graphs(Path(folder), arguments.only, arguments.exports), key=lambda each: each[0]
        ):
            found = [cells_of(path, arguments.targets) for _, path in group]
            sites = " ".join(str(count) for count, _ in found)
            columns = zip(*(cells for _, cells in found), strict=True)
            print(f"| {export} | {sites} | {' | '.join(map(summary, map(list, columns)))} |")


def graphs(folder: Path, only: str, exports: str) -> Iterator[tuple[str, Path]]:
    """Yield the description and the file of every export, for each family."""
    for dynamo, opset, attention in EXPORTS:
        description = f"{'dynamo' if dynamo else 'TorchScript'} {opset}, {attention}"
        for family, (make, inputs) in families(attention).items():
            if only in family and exports in description:
                path = folder / f"{family}.onnx"
                write(make(), inputs, path, opset, dynamo)
                yield description, path
    for opset, half in FUSED:
        description = f"TorchScript {opset}, fused, {'float16' if half else 'float32'}"
        for family, (make, inputs) in families("eager").items():
            if only in family and exports in description:
                path = folder / f"{family}.onnx"
                write(make(), inputs, path, opset, False)
                fuse(path, 2 if family == "minilm" else 4, half)
                yield description, path


def write(model: nn.Module, inputs: int, path: Path, opset: int, dynamo: bool) -> None:
    """Export a model with random weights."""
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
    """Fuse a graph with ONNX Runtime's transformer optimizer, in place."""
    from onnxruntime.transformers import optimizer

    fused = optimizer.optimize_model(
        str(path), "bert", num_heads=heads, hidden_size=64, opt_level=0
    )
    if half:
        fused.convert_float_to_float16(keep_io_types=True)
    fused.save_model_to_file(str(path))


def tokens(input_names: tuple[str, ...], count: int) -> list[Batch]:
    """Return batches of three random texts of different lengths, one with padding."""
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


@dataclasses.dataclass(frozen=True)
class Cell:
    """Result of lowering one graph for one target.

    Attributes:
        nodes: Number of int8 nodes.
        difference: Largest difference of an output from the reference, relative to the largest
            output.
        worst_layer_db: Lowest SQNR of a layer, in dB.
        is_exact: Whether rounding ties explain all differences.
    """

    nodes: int
    difference: float
    worst_layer_db: float
    is_exact: bool


def cells_of(path: Path, targets: list[str]) -> tuple[int, list[Cell]]:
    """Return the number of sites, and the cell of each target. The graph is calibrated once."""
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        imported = import_onnx(path, task="token-classification", input_names={}, scratch=scratch)
        encoder = imported.read(longest=SIZES["max_position_embeddings"])
        sited = SitedSource(encoder, ("layer", "table"), output_names=imported.output_names)
        plans = [make_plan(TARGETS[name], sited.sites, embeddings="int8") for name in targets]
        wanted = frozenset().union(*(plan.activations for plan in plans))
        batches = tokens(imported.input_names, 4)
        plan = CalibrationPlan(
            sites=[site for site in sited.sites if site.name in wanted],
            all_sites=sited.sites,
            weights=sited.weights(),
            calibrator=Max(),
            smoothing=WIDE_INPUTS,
            unsmoothed_sites=wanted,
            clips_residuals=True,
        )
        calibration = run_passes(sited.observed_run(batches, lambda: None), plan)
        return len(sited.sites), [
            cell_of(sited, plan, calibration.for_recipe(plan.recipe), batches) for plan in plans
        ]


def cell_of(
    sited: SitedSource, plan: Plan, chosen: CalibrationResult, batches: list[Batch]
) -> Cell:
    """Lower a graph for one target, and compare it with fake quantization."""
    model = lower(sited.encoder, plan, choices_of(chosen, plan.specs))
    counts = collections.Counter(node.op_type for node in model.graph)
    nodes = sum(count for op, count in counts.items() if "quant" in op.lower() or "Integer" in op)
    engine = plan.target.engines[0]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "lowered.onnx"
        save_graph(model, path)
        references = sited.references(plan, chosen, batches)
        check = check_lowering(path, references, engine)
        largest = difference(path, references, engine)
    return Cell(
        nodes=nodes + counts["QAttention"],
        difference=largest,
        worst_layer_db=check.worst_layer_db,
        is_exact=check.is_exact,
    )


def difference(path: Path, references: list[Reference], engine: EngineName) -> float:
    """Return the largest difference of an output, relative to the largest output."""
    runner = open_runner(engine, path, exact=True, precision="f32")
    largest = 0.0
    for each in references:
        text = each.inputs["attention_mask"].astype(bool)
        made = runner.run({key: each.inputs[key] for key in runner.input_names})["logits"][text]
        expected = each.outputs["logits"][text]
        largest = max(largest, float(np.abs(expected - made).max() / np.abs(expected).max()))
    return largest


def summary(cells: list[Cell]) -> str:
    """Return one cell for all families."""
    nodes = "/".join(dict.fromkeys(str(cell.nodes) for cell in cells))
    worst = max(cell.difference for cell in cells)
    least = min(cell.worst_layer_db for cell in cells)
    inexact = sum(not cell.is_exact for cell in cells)
    return f"{nodes}, {worst:.0e}, {least:.0f} dB" + (
        f", {inexact} not explained" if inexact else ""
    )


if __name__ == "__main__":
    main()
