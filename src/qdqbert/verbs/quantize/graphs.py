"""Writes the graph of each target."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import onnx_ir as ir

from qdqbert.artifact import MODEL
from qdqbert.calibration.calibration import Calibration
from qdqbert.calibration.tensorrt_cache import write_calibration_cache
from qdqbert.graph.check import save_graph
from qdqbert.graph.qdq import value_names
from qdqbert.progress import Progress
from qdqbert.targets.lowering import lower
from qdqbert.targets.target import Plan


@dataclasses.dataclass(frozen=True, kw_only=True)
class WrittenGraph:
    """The graph of one target, in memory and on disk.

    Attributes:
        plan: How it was made.
        model: The graph.
        path: The file.
        name: Path of the file in the output folder.
        notices: Messages for the user.
    """

    plan: Plan
    model: ir.Model
    path: Path
    name: str
    notices: tuple[str, ...] = ()


def write_graphs(
    plans: Sequence[Plan],
    graph: ir.Model,
    calibration: Calibration,
    folder: Path,
    progress: Progress,
) -> list[WrittenGraph]:
    """Lower the float graph for each target, and write the results.

    Args:
        plans: One for each target.
        graph: Float graph with a node at every site.
        calibration: Ranges of all sites that the plans quantize.
        folder: Folder to write to.
        progress: Receives the stages.

    Raises:
        GraphError: A target cannot run its graph.
    """
    written = []
    for plan in plans:
        name = MODEL if len(plans) == 1 else f"{plan.target.name}/{MODEL}"
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        with progress.stage(f"Lowering for {plan.target.name}"):
            chosen = calibration.for_recipe(plan.recipe)
            scales = {site: scale.numpy() for site, scale in chosen.scales.items()}
            model = lower(graph, plan, chosen.ranges, scales, chosen.weight_amax)
            save_graph(model, path)
            notices = _write_cache(plan, path, graph, calibration)
        written.append(WrittenGraph(plan=plan, model=model, path=path, name=name, notices=notices))
    return written


def _write_cache(
    plan: Plan, path: Path, graph: ir.Model, calibration: Calibration
) -> tuple[str, ...]:
    """Write the calibration cache that a target reads, or return a notice on why not."""
    if plan.target.calibration_cache is None:
        return ()
    cache = path.with_name(plan.target.calibration_cache)
    unsmoothed = calibration.without_smoothing or calibration
    if unsmoothed.scales:
        return (
            f"{cache.name} is not written: the ranges are those of smoothed inputs, and the float "
            "graph that it describes has no smoothing. Calibrate again to get one.",
        )
    write_calibration_cache(unsmoothed.ranges, value_names(graph), cache)
    return ()
