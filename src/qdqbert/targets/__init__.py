"""Where an INT8 graph runs: stated facts and a short list of rewrites for each runtime."""

from __future__ import annotations

from qdqbert.errors import UserInputError
from qdqbert.targets.onnxruntime import DYNAMIC, ONNXRUNTIME
from qdqbert.targets.openvino import OPENVINO
from qdqbert.targets.portable import PORTABLE
from qdqbert.targets.qordered import QORDERED
from qdqbert.targets.target import Target
from qdqbert.targets.tensorrt import TENSORRT

TARGETS = {
    target.name: target for target in (PORTABLE, ONNXRUNTIME, DYNAMIC, OPENVINO, TENSORRT, QORDERED)
}


def target_named(name: str) -> Target:
    """The target of that name.

    Raises:
        UserInputError: It is unknown.
    """
    if name not in TARGETS:
        raise UserInputError(f"`--target {name}` is unknown. Known: {', '.join(TARGETS)}.")
    return TARGETS[name]
