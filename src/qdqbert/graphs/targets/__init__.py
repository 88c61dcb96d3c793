"""Runtimes that graphs are written for, one file each.

A target is data: importing this package loads neither torch nor onnx. `lowering` is the code.
"""

from __future__ import annotations

from qdqbert.common.errors import UserInputError
from qdqbert.graphs.targets.float import FLOAT
from qdqbert.graphs.targets.native import NATIVE, NATIVE_DYNAMIC
from qdqbert.graphs.targets.onnxruntime import DYNAMIC, ONNXRUNTIME
from qdqbert.graphs.targets.openvino import OPENVINO
from qdqbert.graphs.targets.portable import PORTABLE
from qdqbert.graphs.targets.qordered import QORDERED
from qdqbert.graphs.targets.target import Target
from qdqbert.graphs.targets.tensorrt import TENSORRT

TARGETS: dict[str, Target] = {
    target.name: target
    for target in (
        *(PORTABLE, ONNXRUNTIME, DYNAMIC, OPENVINO, NATIVE, NATIVE_DYNAMIC),
        *(TENSORRT, QORDERED, FLOAT),
    )
}


def target_named(name: str) -> Target:
    """Return the target with a name.

    Raises:
        UserInputError: No target has that name.
    """
    if name not in TARGETS:
        raise UserInputError(
            f"Target {name!r} is unknown. Known: {', '.join(TARGETS)}.", argument="target"
        )
    return TARGETS[name]
