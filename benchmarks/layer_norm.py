"""Compare Add and Sum before LayerNormalization on ONNX Runtime.

The result is the reason why residual adds are written as Sum for that engine.

    python benchmarks/layer_norm.py [--hidden 384] [--tokens 1024] [--threads 2]
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import qdqbert  # noqa: F401

# isort: split
# After qdqbert, which turns its telemetry off.
import onnxruntime


def graph(op_type: str, hidden: int, layers: int) -> bytes:
    """Return a chain of `LayerNormalization(op(x, y))`."""
    nodes, value = [], "x"
    for index in range(layers):
        nodes += [
            helper.make_node(op_type, [value, "y"], [f"added{index}"]),
            helper.make_node(
                "LayerNormalization", [f"added{index}", "gamma", "beta"], [f"out{index}"]
            ),
        ]
        value = f"out{index}"
    shape: list[str | int | None] = ["tokens", 1, hidden]
    chain = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in ("x", "y")],
        [helper.make_tensor_value_info(value, TensorProto.FLOAT, shape)],
        [
            numpy_helper.from_array(np.ones(hidden, np.float32), "gamma"),
            numpy_helper.from_array(np.zeros(hidden, np.float32), "beta"),
        ],
    )
    opsets = [helper.make_opsetid("", 21)]
    return bytes(helper.make_model(chain, opset_imports=opsets, ir_version=10).SerializeToString())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--hidden", type=int, default=384)
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    rng = np.random.default_rng(0)
    inputs = {
        name: rng.standard_normal((arguments.tokens, 1, arguments.hidden)).astype(np.float32)
        for name in ("x", "y")
    }
    sessions = {}
    for op_type in ("Add", "Sum"):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = arguments.threads
        model = graph(op_type, arguments.hidden, layers=24)
        sessions[op_type] = onnxruntime.InferenceSession(
            model, options, providers=["CPUExecutionProvider"]
        )
    samples: dict[str, list[float]] = {name: [] for name in sessions}
    for _ in range(50):
        for name, session in sessions.items():
            start = time.perf_counter()
            session.run(None, inputs)
            samples[name].append(time.perf_counter() - start)
    ratio = statistics.median(
        add / total for add, total in zip(samples["Add"], samples["Sum"], strict=True)
    )
    print(f"onnxruntime {onnxruntime.__version__}, onnx {onnx.__version__}")
    print(f"Add + LayerNormalization takes {ratio:.1f} x the time of Sum + LayerNormalization")


if __name__ == "__main__":
    main()
