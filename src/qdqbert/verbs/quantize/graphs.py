"""Write the graph of each target."""

from __future__ import annotations

import dataclasses
import gc
import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx_ir as ir

from qdqbert.artifact import MODEL, size_bytes
from qdqbert.calibration.calibration import CalibrationResult
from qdqbert.graph.check import save_graph
from qdqbert.graph.edit import constant_array
from qdqbert.machine import release_memory
from qdqbert.progress import Progress
from qdqbert.targets.files import limits_models, save_encoder
from qdqbert.targets.lowering import lower
from qdqbert.targets.target import Plan, measured_plan
from qdqbert.verbs.quantize.source.sited import SitedSource


@dataclasses.dataclass(frozen=True, kw_only=True)
class WrittenGraph:
    """The file of one target.

    Attributes:
        plan: How it was made.
        path: The file.
        name: Path of the file in the output folder.
        size_bytes: Size of the file.
    """

    plan: Plan
    path: Path
    name: str
    size_bytes: int


def write_graphs(
    plans: Sequence[Plan],
    sited: SitedSource,
    calibration: CalibrationResult,
    folder: Path,
    progress: Progress,
) -> list[WrittenGraph]:
    """Lower the float graph for each target, and write the results.

    Args:
        plans: One for each target.
        sited: The float model with its sites.
        calibration: Ranges of all sites that the plans quantize.
        folder: Folder to write to.
        progress: Receives the stages.

    Raises:
        GraphError: A target cannot run its graph.
        UserInputError: A target does not run this model.
    """
    written = []
    for plan in plans:
        # In the folder itself, transformers would read a model.safetensors as the checkpoint.
        is_in_folder = len(plans) == 1 and plan.target.file == MODEL
        name = MODEL if is_in_folder else f"{plan.target.name}/{plan.target.file}"
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        with progress.stage(f"Lowering for {plan.target.name}"):
            if limits_models(plan.target):
                save_encoder(sited.encoder, plan, calibration.for_recipe(plan.recipe), path)
            else:
                save_graph(_lower(plan, sited.graph, calibration), path)
            # Graphs have reference cycles.
            gc.collect()
            release_memory()
        written.append(
            WrittenGraph(
                plan=plan,
                path=path,
                name=name,
                size_bytes=size_bytes(path),
            )
        )
    return written


def with_measurable_graph(
    written: WrittenGraph, graph: ir.Model, calibration: CalibrationResult, scratch: Path
) -> WrittenGraph:
    """Return the graph itself, or one with the same Q/DQ pairs if no engine runs it.

    Args:
        written: The graph of a target.
        graph: Float graph with a node at every site.
        calibration: Ranges of the call.
        scratch: Folder for a graph that is only measured.
    """
    plan = measured_plan(written.plan)
    if plan is written.plan:
        return written
    path = scratch / f"{plan.target.name}.onnx"
    save_graph(_lower(plan, graph, calibration), path)
    return dataclasses.replace(written, plan=plan, path=path)


def digest_parameters(graph: ir.Model) -> str:
    """Return the SHA-256 of the parameters of a float graph, whatever their names are.

    Two models have the same digest if ranges of one fit the other.
    """
    arrays = [constant_array(value) for value in graph.graph.initializers.values()]
    parameters = [array for array in arrays if array is not None and array.dtype == np.float32]
    digests = sorted(
        hashlib.sha256(np.ascontiguousarray(array).data).digest()
        for array in parameters
        if array.size > 1
    )
    return hashlib.sha256(b"".join(digests)).hexdigest()


def _lower(plan: Plan, graph: ir.Model, calibration: CalibrationResult) -> ir.Model:
    chosen = calibration.for_recipe(plan.recipe)
    scales = {site: scale.numpy() for site, scale in chosen.scales.items()}
    return lower(
        graph, plan, chosen.ranges, scales, chosen.weight_amax, chosen.means, chosen.roundings
    )
