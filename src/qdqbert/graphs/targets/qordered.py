"""ONNX Runtime's int8 CUDA operators: encoder layers that are int8 from end to end.

The kernels are in ONNX Runtime 1.13 and later with the CUDA provider. They need CUDA 11.4 and a GPU
of compute capability 7.5. They take symmetric codes, with one scale for each tensor of activations,
and one scale for each weight or one for each output channel.

No engine of this package runs the graph. ONNX Runtime's CPU package loads it and reports that it
has no kernels. The Q/DQ pairs that the graph is made from run on any CPU, and are measured there.
"""

from __future__ import annotations

from qdqbert.graphs.targets.target import Target
from qdqbert.quantization.spec import QdqStyle

QORDERED = Target(
    name="qordered",
    summary="ONNX Runtime's CUDA provider, with its int8 QOrdered operators",
    engines=(),
    qdq_engines=("onnxruntime",),
    recipe="qordered",
    required_groups=("output",),
    zero_points="nowhere",
    unsigned=False,
    style=QdqStyle(qordered=True),
)
