"""`qdqbert build-tensorrt`."""

from __future__ import annotations

from qdqbert.cli._command import Command
from qdqbert.cli._tables import tensorrt_table
from qdqbert.verbs.build_tensorrt import build_tensorrt
from qdqbert.verbs.build_tensorrt.options import BuildTensorRTOptions

COMMAND = Command(
    name="build-tensorrt",
    function=build_tensorrt,
    options=BuildTensorRTOptions,
    positional=("model",),
    render=tensorrt_table,
    example=(
        "qdqbert build-tensorrt ./my-classifier-int8 --batch 1,8 --sequence 32,128 --dry-run "
        "--tensorrt-version 10.13"
    ),
)
