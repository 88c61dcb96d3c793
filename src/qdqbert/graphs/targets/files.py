"""Write the file of a target that has packed weights, and check which models such targets run."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from qdqbert.calibration.calibration import CalibrationResult
from qdqbert.common.errors import GraphError, UserInputError, naming
from qdqbert.common.machine import usable_cores
from qdqbert.encoders.affine import Bools
from qdqbert.encoders.model import EncoderModel
from qdqbert.encoders.quantize import Choices, Specs, quantize_encoder
from qdqbert.engines.native.computed import check_parts
from qdqbert.engines.native.packed import write_model
from qdqbert.graphs.qordered import check_layers
from qdqbert.graphs.targets import TARGETS
from qdqbert.graphs.targets.target import Plan, Target
from qdqbert.quantization.numerics.weight_rounding import rounding_of


def save_encoder(
    model: EncoderModel, plan: Plan, calibration: CalibrationResult, path: Path
) -> None:
    """Write packed weights of the native engine, from a float model, and ranges for its plan.

    Raises:
        CalibrationError: An activation has a spec and no range.
        UserInputError: The engine does not run a part of the model.
    """
    with _refusing():
        made = quantize_encoder(
            model, plan.specs, choices_of(calibration, plan.specs), threads=usable_cores()
        )
        write_model(made, path)


def choices_of(calibration: CalibrationResult, specs: Specs) -> Choices:
    """Return the choices of a calibration, as numpy arrays."""

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


def limits_models(target: Target) -> bool:
    """Return whether a target runs only some models."""
    return target.file == "model.safetensors"


def check_encoder(target: Target, model: EncoderModel) -> None:
    """Refuse a model that a target does not run, before anything is calibrated.

    Raises:
        UserInputError: The target does not run it. The message names the targets that remain.
    """
    if limits_models(target):
        with _refusing():
            check_parts(model)
    if target.style.qordered:
        with naming("targets"):
            check_layers(model)


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
