"""Check that `torch.onnx.export` of a QDQBERT model gives the same int8 codes as PyTorch.

    python benchmarks/export_agreement.py                    # the packaged all-MiniLM-L6-v2
    python benchmarks/export_agreement.py ./my-bert --opsets 13 18 23

The model is calibrated on built-in sentences and exported by both exporters, with dynamic batch and
sequence. ONNX Runtime then runs the graph without optimizations, and every int8 code of every
activation quantizer is compared with PyTorch's. After each quantizer, PyTorch continues with the
graph's codes. Each difference is therefore counted once, and causes no further differences.
"""

from __future__ import annotations

import argparse
import copy
import tempfile
import warnings
from pathlib import Path

import numpy as np
import onnx
import torch
import transformers
from rich.console import Console
from rich.progress import track
from rich.table import Table

from qdqbert import QDQBertModel, QuantizerOptions, calibrate
from qdqbert.compat.nn import TensorQuantizer
from qdqbert.data import texts as resources
from qdqbert.encoders.checkpoint.demo import demo_checkpoint

# isort: split
# After qdqbert, which turns its telemetry off.
import onnxruntime

transformers.logging.set_verbosity_error()

# Opsets of each exporter. If dynamo cannot convert a graph to an opset below 18, it writes 18.
EXPORTERS = {"dynamo": range(18, 24), "torchscript": range(13, 24)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", nargs="?", help="checkpoint (default: the packaged one)")
    parser.add_argument("--opsets", type=int, nargs="+", default=[13, 17, 18, 20, 21, 23])
    arguments = parser.parse_args()
    source = arguments.model or str(demo_checkpoint())
    tokenizer = transformers.AutoTokenizer.from_pretrained(source)
    texts = [example.text for example in resources.calibration_examples()][:96]
    batches = [
        tokenizer(texts[start : start + 16], padding=True, return_tensors="pt")
        for start in range(0, len(texts), 16)
    ]
    table = Table(title="Codes that differ between ONNX Runtime and PyTorch")
    columns = ("exporter", "opset", "weights", "dtype", "pairs", "codes", "differ", "by")
    for column in columns:
        table.add_column(column)
    combinations = [
        (exporter, opset, per_tensor, dtype)
        for exporter, known in EXPORTERS.items()
        for opset in arguments.opsets
        if opset in known
        for per_tensor in (False, True)
        for dtype in (torch.float32, torch.float16)
    ]
    models = {}
    for per_tensor in (False, True):
        model = QDQBertModel.from_pretrained(source, add_pooling_layer=False, dtype=torch.float32)
        options = QuantizerOptions(quant_per_tensor=per_tensor)
        models[per_tensor] = calibrate(model.eval(), batches[:4], **options.to_dict())
    for exporter, opset, per_tensor, dtype in track(combinations, description="Exporting"):
        model = copy.deepcopy(models[per_tensor]).to(dtype)
        found = compare(model, dict(batches[4]), dict(batches[5]), exporter, opset)
        granularity = "per tensor" if per_tensor else "per channel"
        table.add_row(exporter, str(opset), granularity, str(dtype).removeprefix("torch."), *found)
    Console(width=120).print(table)


def compare(
    model: torch.nn.Module,
    example: dict[str, torch.Tensor],
    inputs: dict[str, torch.Tensor],
    exporter: str,
    opset: int,
) -> tuple[str, str, str, str]:
    """Return table cells: Q/DQ pairs, codes, codes that differ, and the largest difference."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        export(model, example, path, exporter, opset)
        graph = onnx.load(path)
    pairs = sum(node.op_type == "QuantizeLinear" for node in graph.graph.node)
    try:
        expected = codes_of_graph(graph, inputs)
    except onnxruntime.capi.onnxruntime_pybind11_state.NotImplemented as error:
        return str(pairs), "-", f"not run: {str(error)[:40]}", "-"
    total, differ, largest = differences(model, inputs, expected)
    return str(pairs), f"{total:,}", f"{differ:,} ({differ / total:.1e})", f"<= {largest}"


def export(
    model: torch.nn.Module, example: dict[str, torch.Tensor], path: Path, exporter: str, opset: int
) -> None:
    """Export a model with dynamic batch and sequence."""
    names = ["input_ids", "attention_mask", "token_type_ids"]
    values = tuple(example[name] for name in names)
    batch, sequence = torch.export.Dim("batch"), torch.export.Dim("sequence")
    axes = (
        {"dynamic_shapes": {name: {0: batch, 1: sequence} for name in names}}
        if exporter == "dynamo"
        else {"dynamic_axes": {name: {0: "batch", 1: "sequence"} for name in names}}
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            KeywordInputs(model).eval(),
            values,
            str(path),
            input_names=names,
            output_names=["last_hidden_state"],
            opset_version=opset,
            dynamo=exporter == "dynamo",
            verbose=False,
            **axes,
        )


class KeywordInputs(torch.nn.Module):
    """Calls a model with keywords, since TorchScript's exporter passes inputs by position."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        token_type_ids: torch.Tensor,
    ) -> torch.Tensor:
        """Return the last hidden states. All inputs are `(batch, seq)`, int64."""
        states: torch.Tensor = self.model(
            input_ids=input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids
        ).last_hidden_state
        return states


def codes_of_graph(graph: onnx.ModelProto, inputs: dict[str, torch.Tensor]) -> list[np.ndarray]:
    """Return the int8 codes of every quantized activation, in the order of the graph."""
    constants = {tensor.name for tensor in graph.graph.initializer}
    # float16 weights have a Cast before their QuantizeLinear.
    for node in graph.graph.node:
        if node.op_type in ("Cast", "Transpose") and constants.issuperset(node.input):
            constants.update(node.output)
    # Query, key and value read the same tensor, for which dynamo keeps one Q/DQ pair.
    first: dict[str, str] = {}
    for node in graph.graph.node:
        if node.op_type == "QuantizeLinear" and node.input[0] not in constants:
            first.setdefault(node.input[0], node.output[0])
    names = list(first.values())
    for name in names:
        graph.graph.output.append(
            onnx.helper.make_tensor_value_info(name, onnx.TensorProto.INT8, None)
        )
    options = onnxruntime.SessionOptions()
    # Fused int8 kernels saturate on CPUs without VNNI. The unoptimized graph does not.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(graph.SerializeToString(), options)
    known = {each.name for each in session.get_inputs()}
    codes: list[np.ndarray] = session.run(
        names, {k: v.numpy() for k, v in inputs.items() if k in known}
    )
    return codes


def differences(
    model: torch.nn.Module, inputs: dict[str, torch.Tensor], expected: list[np.ndarray]
) -> tuple[int, int, int]:
    """Return the number of codes, how many differ from `expected`, and the largest difference."""
    seen: list[torch.Tensor] = []
    differ = largest = 0

    def compare_and_replace(
        module: TensorQuantizer, inputs: tuple[torch.Tensor], output: torch.Tensor
    ) -> torch.Tensor:
        nonlocal differ, largest
        assert module.amax is not None
        step = module.amax / 127
        index = next((i for i, each in enumerate(seen) if each is inputs[0]), len(seen))
        codes = torch.from_numpy(expected[index]).float()
        if index == len(seen):
            seen.append(inputs[0])
            distance = (torch.round(output.float() / step) - codes).abs()
            differ += int((distance > 0).sum())
            largest = max(largest, int(distance.max()))
        return (codes * step).to(output.dtype)

    hooks = [
        module.register_forward_hook(compare_and_replace)
        for name, module in model.named_modules()
        if isinstance(module, TensorQuantizer) and not name.endswith("_weight_quantizer")
    ]
    with torch.no_grad():
        model(**inputs)
    for hook in hooks:
        hook.remove()
    assert len(seen) == len(expected), (len(seen), len(expected))
    return sum(codes.size for codes in expected), differ, largest


if __name__ == "__main__":
    main()
