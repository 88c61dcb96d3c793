"""Quantize a float graph with other tools, to compare with them.

`python -m qdqbert.evidence.rivals NAME SOURCE INPUTS TARGET` does this in a process of its own. The
tools print on stdout, change settings of their process, and keep its memory.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from qdqbert.choices import EngineName
from qdqbert.engines.telemetry import openvino_telemetry_disabled
from qdqbert.errors import QdqBertError

Inputs = Sequence[Mapping[str, NDArray[Any]]]
"""Inputs of the graph by name, one text each, without padding, as the tools expect them."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rival:
    """A tool that makes INT8 graphs.

    Attributes:
        name: Its name.
        engine: Engine that its graphs are made for.
        file: Name of the file that it writes.
        packages: Modules that it needs.
        make: Reads a float graph, and writes an INT8 graph that was calibrated on some inputs.
    """

    name: str
    engine: EngineName
    file: str
    packages: tuple[str, ...]
    make: Callable[[Path, Path, Inputs], None]

    @property
    def is_installed(self) -> bool:
        """Whether its packages are installed."""
        return all(importlib.util.find_spec(each) is not None for each in self.packages)


def quantize_dynamic(source: Path, target: Path, inputs: Inputs) -> None:
    """Run ONNX Runtime's `quantize_dynamic`, with one scale for each channel of a weight."""
    del inputs
    from onnxruntime import quantization

    plain = target.with_name("plain.onnx")
    quantization.quantize_dynamic(without_value_info(source, plain), target, per_channel=True)


def quantize_nncf(source: Path, target: Path, inputs: Inputs) -> None:
    """Run NNCF with its preset for transformers."""
    with openvino_telemetry_disabled():
        import nncf
        import openvino
    quantized = nncf.quantize(
        openvino.Core().read_model(source),
        nncf.Dataset(inputs),
        model_type=nncf.ModelType.TRANSFORMER,
        subset_size=len(inputs),
    )
    openvino.save_model(quantized, target, compress_to_fp16=False)


RIVALS: Mapping[str, Rival] = {
    each.name: each
    for each in (
        Rival(
            name="ONNX Runtime quantize_dynamic",
            engine="onnxruntime",
            file="dynamic.onnx",
            packages=("onnxruntime",),
            make=quantize_dynamic,
        ),
        Rival(
            name="NNCF",
            engine="openvino",
            file="nncf.xml",
            packages=("nncf", "openvino"),
            make=quantize_nncf,
        ),
    )
}
"""The tools, by name."""


def without_value_info(source: Path, target: Path) -> Path:
    """Write a copy of a graph without inferred shapes, and return its path.

    ONNX Runtime's quantizers transpose the weights of Gemm and fail if shapes are recorded.
    """
    model = onnx.load(source)
    del model.graph.value_info[:]
    onnx.save(model, target)
    return target


def run_rival(rival: Rival, source: Path, folder: Path, inputs: Inputs) -> Path:
    """Quantize a graph with another tool in a process of its own, and return the file.

    Args:
        rival: The tool.
        source: The float graph.
        folder: Folder to write to.
        inputs: Inputs to calibrate on.

    Raises:
        QdqBertError: The tool failed. The message has the last line that it wrote.
    """
    target, stored = folder / rival.file, folder / "rival_inputs.npz"
    named: dict[str, Any] = {
        f"{index}/{name}": values
        for index, each in enumerate(inputs)
        for name, values in each.items()
    }
    np.savez(stored, **named)
    words = (rival.name, str(source), str(stored), str(target))
    process = subprocess.run(
        [sys.executable, "-m", "qdqbert.evidence.rivals", *words],
        capture_output=True,
        check=False,
        text=True,
    )
    if process.returncode:
        last_line = (process.stderr.strip() or "it wrote nothing").split("\n")[-1]
        raise QdqBertError(f"{rival.name} could not quantize the model: {last_line}")
    return target


def _read_inputs(path: Path) -> list[dict[str, NDArray[Any]]]:
    inputs: list[dict[str, NDArray[Any]]] = []
    with np.load(path, allow_pickle=False) as stored:
        for key in stored.files:
            index, _, name = key.partition("/")
            if int(index) == len(inputs):
                inputs.append({})
            inputs[int(index)][name] = stored[key]
    return inputs


if __name__ == "__main__":
    _name, _source, _inputs, _target = sys.argv[1:]
    RIVALS[_name].make(Path(_source), Path(_target), _read_inputs(Path(_inputs)))
