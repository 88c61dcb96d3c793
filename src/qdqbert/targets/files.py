"""Write the file of a target: an ONNX graph, or packed weights. `Target.file` says which."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import onnx_ir as ir

from qdqbert.calibration.calibration import Calibration
from qdqbert.encoders.affine import Bools
from qdqbert.encoders.model import EncoderModel
from qdqbert.encoders.quantize import Choices, Specs, quantize_encoder
from qdqbert.engines.native.computed import check_parts
from qdqbert.engines.native.packed import pack_model
from qdqbert.engines.native.storage import save_packed
from qdqbert.errors import GraphError, UserInputError
from qdqbert.graph.check import save_graph
from qdqbert.graph.encoder import read_encoder
from qdqbert.graph.qdq import float_graph
from qdqbert.machine import usable_cores
from qdqbert.numerics.weight_rounding import rounding_of
from qdqbert.targets import TARGETS
from qdqbert.targets.target import FileName, Plan, Target


def save_onnx_graph(model: ir.Model, path: Path, longest: int) -> None:
    """Write a graph as it is, for texts of any length."""
    del longest
    save_graph(model, path)


def save_packed_graph(model: ir.Model, path: Path, longest: int) -> None:
    """Write a graph with Q/DQ pairs as packed weights of the native engine.

    Args:
        model: The graph.
        path: The file.
        longest: Longest text in tokens, where the graph has no table of positions.

    Raises:
        UserInputError: The engine does not run a part of the graph.
    """
    with _refusing():
        save_packed(pack_model(read_encoder(model, longest=longest)), path)


def save_encoder(model: EncoderModel, plan: Plan, calibration: Calibration, path: Path) -> None:
    """Write a float model as packed weights of the native engine, quantized as a plan says.

    Args:
        model: The model.
        plan: The plan of the target.
        calibration: Ranges for the recipe of the plan.
        path: The file.

    Raises:
        CalibrationError: An activation has a spec and no range.
        UserInputError: The engine does not run a part of the model.
    """
    with _refusing():
        made = quantize_encoder(
            model, plan.specs, choices_of(calibration, plan.specs), threads=usable_cores()
        )
        save_packed(pack_model(made), path)


def choices_of(calibration: Calibration, specs: Specs) -> Choices:
    """Return what a calibration chose, as numpy arrays."""

    def rounds_up(site: str, width: int) -> Bools | None:
        found = rounding_of(calibration.roundings, site, width, specs)
        return None if found is None else found.numpy()

    return Choices(
        ranges=calibration.ranges,
        scales={name: each.numpy() for name, each in calibration.scales.items()},
        weight_amax={name: each.numpy() for name, each in calibration.weight_amax.items()},
        means={name: each.numpy() for name, each in calibration.means.items()},
        rounds_up=rounds_up,
    )


WRITERS: Mapping[FileName, Callable[[ir.Model, Path, int], None]] = {
    "model.onnx": save_onnx_graph,
    "model.safetensors": save_packed_graph,
}


def limits_models(target: Target) -> bool:
    """Return whether a target runs only some models."""
    return target.file == "model.safetensors"


def check_model(target: Target, sited: ir.Model, longest: int) -> None:
    """Refuse a model that a target does not run, before anything is calibrated.

    Args:
        target: The target.
        sited: Float graph with a node at every site; not changed.
        longest: Longest text in tokens.

    Raises:
        UserInputError: The target does not run it. The message names the targets that remain.
    """
    if limits_models(target):
        with _refusing():
            read_encoder(float_graph(sited), longest=longest)


def check_encoder(target: Target, model: EncoderModel) -> None:
    """Refuse a model that a target does not run, before anything is calibrated; see `check_model`.

    Args:
        target: The target.
        model: The model in float.

    Raises:
        UserInputError: The target does not run it. The message names the targets that remain.
    """
    if limits_models(target):
        with _refusing():
            check_parts(model)


@contextlib.contextmanager
def _refusing() -> Iterator[None]:
    """Turn the refusal of a graph into an error of the user."""
    try:
        yield
    except GraphError as error:
        others = ", ".join(name for name, each in TARGETS.items() if not limits_models(each))
        raise UserInputError(
            f"{error} Targets that run all models: {others}.", argument="targets"
        ) from error
