"""Record the constants of quantized graphs, and compare two records.

Record the codes, scales, zero points and biases that `quantize` writes, before and after a change
that must not move any number:

    python benchmarks/quantized_constants.py record before.json demo MODEL=DATA ...
    python benchmarks/quantized_constants.py record after.json demo MODEL=DATA ...
    python benchmarks/quantized_constants.py compare before.json after.json

`MODEL` is a checkpoint and `DATA` its calibration data. `demo` is the packaged checkpoint.
`compare` exits with status 1 if a constant differs, is missing or is new.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

import qdqbert
from qdqbert.common.choices import TargetName

TARGETS: tuple[TargetName, ...] = (
    "portable",
    "onnxruntime",
    "onnxruntime-dynamic",
    "openvino",
    "tensorrt",
)


def constants_of(path: Path) -> dict[str, dict[str, Any]]:
    """Describe each constant of a graph by name: type, shape, digest, and value if it is small."""
    model = ir.load(path)
    found = {}
    for name, value in model.graph.initializers.items():
        assert value.const_value is not None
        array = np.ascontiguousarray(value.const_value.numpy())
        found[name] = {
            "dtype": str(array.dtype),
            "shape": list(array.shape),
            "sha256": hashlib.sha256(array.tobytes()).hexdigest(),
            **({"value": array.tolist()} if array.size == 1 else {}),
        }
    return found


def record(models: list[str], targets: tuple[TargetName, ...]) -> dict[str, Any]:
    """Quantize each model for all targets with default recipes, and describe the graphs."""
    graphs: dict[str, Any] = {}
    for model in models:
        name, _, data = model.partition("=")
        label = "demo" if name == "demo" else Path(name).name
        with tempfile.TemporaryDirectory() as scratch:
            output = Path(scratch) / "out"
            qdqbert.quantize(
                None if name == "demo" else name,
                output,
                calibration_data=data or None,
                targets=targets,
                benchmark=False,
            )
            for target in targets:
                folder = output / target if len(targets) > 1 else output
                graphs[f"{label}/{target}"] = constants_of(folder / "model.onnx")
                print(f"{label}/{target}: {len(graphs[f'{label}/{target}'])} constants", flush=True)
    return graphs


def differences(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """List what differs between two records, one line for each constant."""
    lines = []
    for graph in sorted({*before, *after}):
        old, new = before.get(graph, {}), after.get(graph, {})
        for name in sorted({*old, *new}):
            if old.get(name) != new.get(name):
                lines.append(f"{graph}: {name}: {old.get(name)} -> {new.get(name)}")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record")
    recording.add_argument("output", type=Path)
    recording.add_argument("models", nargs="+")
    recording.add_argument("--targets", nargs="+", default=TARGETS)
    comparing = commands.add_parser("compare")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    arguments = parser.parse_args()
    if arguments.command == "record":
        graphs = record(arguments.models, tuple(arguments.targets))
        arguments.output.write_text(json.dumps(graphs, indent=1))
        return
    before, after = (json.loads(path.read_text()) for path in (arguments.before, arguments.after))
    lines = differences(before, after)
    print("\n".join(lines) or f"No difference in {sum(map(len, after.values()))} constants.")
    sys.exit(1 if lines else 0)


if __name__ == "__main__":
    main()
