"""ONNX Runtime's int8 CUDA operators: encoder layers that are int8 from end to end.

The kernels are in ONNX Runtime 1.13 and later with the CUDA provider, and need CUDA 11.4 and a GPU
of compute capability 7.5. They take symmetric codes with one scale a tensor of activations, and one
scale a weight or one an output channel. No engine of this package runs them: ONNX Runtime's CPU
wheel loads such a graph and says that it has no kernels.
"""

from __future__ import annotations

from qdqbert.targets.target import Target

QORDERED = Target(
    name="qordered",
    summary="ONNX Runtime's CUDA provider, with its int8 QOrdered operators",
    engines=(),
    recipe="qordered",
    zero_points="nowhere",
    rewrites=("fuse_qordered", "pad_sequences"),
)
