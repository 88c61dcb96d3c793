"""Save and check a finished graph, and prepare it for the layer-by-layer check."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import onnx
import onnx_ir as ir

from qdqbert.common.errors import GraphError

# Protocol buffers are limited to 2 GB. Larger weights are saved in a separate file.
_EXTERNAL_OVER_BYTES = 1_500_000_000


def save_graph(model: ir.Model, path: Path, *, temporary: bool = False) -> None:
    """Save a graph, and check the file with `onnx.checker`.

    Weights of more than 1.5 GB are saved in a second file next to `path`, with the suffix `.data`.
    A temporary file is only run and then deleted: its weights are always saved in the second file,
    which needs less memory, and it is not checked.

    Raises:
        GraphError: If `onnx.checker` finds the graph invalid.
    """
    if temporary:
        ir.save(model, path, external_data=f"{path.name}.data")
        return
    weights = sum(
        value.const_value.nbytes
        for value in model.graph.initializers.values()
        if value.const_value is not None
    )
    external = f"{path.name}.data" if weights > _EXTERNAL_OVER_BYTES else None
    ir.save(model, path, external_data=external)
    try:
        onnx.checker.check_model(str(path), full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise GraphError(f"The graph for {path.name!r} is invalid: {error}") from error


def add_teacher_forcing(model: ir.Model, values: Sequence[str]) -> ir.Model:
    """Return a copy of a finished graph that takes the listed values as inputs.

    Rounding sometimes turns a difference in the last bit into a whole quantization step. Such
    differences grow from layer to layer, so that two correct implementations seem to disagree. With
    the same input to each layer, every layer is compared separately and only real differences
    remain.

    The readers of an inner value `v`, `(batch, seq, hidden)`, read a new input `v.forced` instead.
    The value that the graph computes becomes an output `v`. Inputs and outputs are float32, also in
    a float16 graph.
    """
    forced = model.clone()
    by_name = {value.name: value for node in forced.graph for value in node.outputs}
    for name in values:
        value = by_name[name]
        given = ir.val(f"{name}.forced", dtype=ir.DataType.FLOAT, shape=value.shape)
        if value.dtype == ir.DataType.FLOAT16:
            _force_float16(forced.graph, value, given)
        else:
            value.replace_all_uses_with(given)
            value.dtype = ir.DataType.FLOAT
            forced.graph.outputs.append(value)
        forced.graph.inputs.append(given)
    return forced


def _force_float16(graph: ir.Graph, value: ir.Value, given: ir.Value) -> None:
    """Replace a float16 value with a float32 input, and return the value as a float32 output."""
    producer, name = value.producer(), value.name
    assert producer is not None
    as_half = ir.node("Cast", [given], {"to": ir.DataType.FLOAT16}, name=f"{name}.forced.cast")
    half = as_half.outputs[0]
    half.name, half.shape = f"{name}.forced.half", value.shape
    half.type = ir.TensorType(ir.DataType.FLOAT16)
    graph.insert_after(producer, as_half)
    value.replace_all_uses_with(half)
    as_float = ir.node("Cast", [value], {"to": ir.DataType.FLOAT}, name=f"{name}.cast")
    result = as_float.outputs[0]
    graph.insert_after(producer, as_float)
    value.name, result.name = f"{name}.half", name
    result.shape, result.type = value.shape, ir.TensorType(ir.DataType.FLOAT)
    graph.outputs.append(result)
