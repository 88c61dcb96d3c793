"""Write the graph of a plan."""

from __future__ import annotations

import dataclasses
import gc
from pathlib import Path

from qdqbert.calibration.calibration import CalibrationResult
from qdqbert.common.machine import release_memory
from qdqbert.graphs.check import save_graph
from qdqbert.graphs.targets.files import choices_of, limits_models, save_encoder
from qdqbert.graphs.targets.lowering import lower
from qdqbert.graphs.targets.target import Plan, measured_plan
from qdqbert.pipeline.sited import SitedSource
from qdqbert.runtime.artifact import MODEL, size_bytes


@dataclasses.dataclass(frozen=True, kw_only=True)
class WrittenGraph:
    """The file of one target.

    Attributes:
        name: Path of the file in the output folder.
    """

    plan: Plan
    path: Path
    name: str
    size_bytes: int


def write_graph(
    plan: Plan,
    sited: SitedSource,
    calibration: CalibrationResult,
    folder: Path,
    *,
    is_alone: bool = True,
) -> WrittenGraph:
    """Quantize a model for a target, and write the result.

    Raises:
        GraphError: The target cannot run its graph.
        UserInputError: The target does not run this model.
    """
    target = plan.target
    # In the folder itself, transformers would read a model.safetensors as the checkpoint.
    name = MODEL if is_alone and target.file == MODEL else f"{target.name}/{target.file}"
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    if limits_models(target):
        save_encoder(sited.encoder, plan, calibration.for_recipe(plan.recipe), path)
    else:
        _lower(plan, sited, calibration, path)
    # Graphs have reference cycles.
    gc.collect()
    release_memory()
    return WrittenGraph(plan=plan, path=path, name=name, size_bytes=size_bytes(path))


def with_measurable_graph(
    written: WrittenGraph, sited: SitedSource, calibration: CalibrationResult, scratch: Path
) -> WrittenGraph:
    """Return the graph itself, or one with the same Q/DQ pairs if no engine runs it."""
    plan = measured_plan(written.plan)
    if plan is written.plan:
        return written
    path = scratch / f"{plan.target.name}.onnx"
    _lower(plan, sited, calibration, path)
    return dataclasses.replace(written, plan=plan, path=path)


def _lower(plan: Plan, sited: SitedSource, calibration: CalibrationResult, path: Path) -> None:
    choices = choices_of(calibration.for_recipe(plan.recipe), plan.specs)
    save_graph(lower(sited.encoder, plan, choices), path)
