"""Choose the GPU or the CPU that runs a model, and say why."""

from __future__ import annotations

import dataclasses
import logging

from qdqbert.common.errors import UserInputError
from qdqbert.engines.cuda.device import Device, find_device
from qdqbert.runtime.artifact import Artifact

_LOGGER = logging.getLogger("qdqbert")
ON_GPU = "native-dynamic"
"""The target in INT8 that GPUs run."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Place:
    """Where a model was asked to run.

    Attributes:
        device: The GPU; `None` for the CPU.
        is_needed: Whether it was asked for by name, not by "auto".
    """

    device: Device | None = None
    is_needed: bool = False

    def leave(self, name: str, reason: str) -> None:
        """Say why a model runs on the CPU."""
        level = logging.WARNING if self.is_needed else logging.INFO
        _LOGGER.log(level, "%s runs on the CPU, not on %s: %s", name, self.device, reason)


def choose_place(device: str | None) -> Place:
    """Return where a model is to run, by its name.

    Raises:
        MissingExtraError: A GPU was asked for by name, and torch or Triton is not installed.
        UserInputError: A GPU was asked for by name, and there is none that runs the kernels.
    """
    if device is None or device == "cpu":
        return Place()
    if device != "auto":
        return Place(device=find_device(device), is_needed=True)
    try:
        return Place(device=find_device(device))
    except UserInputError as error:
        _LOGGER.info("Models run on the CPU: %s", error)
        return Place()


def target_on(place: Place, artifact: Artifact, name: str, target: str | None) -> str | None:
    """Return the target of a folder that a GPU runs; `None` if the model runs on the CPU.

    `name` is the user's for the folder, and `target` what the caller chose.
    """
    if place.device is None:
        return None
    found = [
        each for each in (ON_GPU, "float") if each in artifact.targets and target in (None, each)
    ]
    found = [each for each in found if "native" in artifact.targets[each]["engines"]]
    if not found:
        wanted = target or ", ".join(artifact.targets)
        place.leave(
            name,
            f"GPUs run the target 'native-dynamic', and it has {wanted!r}. Quantize it with "
            "'native-dynamic' among the `targets`, or pass the float checkpoint.",
        )
        return None
    return found[0]
