"""Checks of a finished graph: ONNX's own, and a form of it that shows where it goes wrong."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import onnx
import onnx_ir as ir

from qdqbert.errors import GraphError
from qdqbert.graph.qdq import sites_of
from qdqbert.insert.sited import SitedModel

_EXTERNAL_OVER_BYTES = 1_500_000_000
# Protocol buffers end at 2 GB; larger weights go to a file beside.


def save_graph(model: ir.Model, path: Path, *, temporary: bool = False) -> None:
    """Writes a graph and has onnx check the file.

    Args:
        model: The graph.
        path: The .onnx file.
        temporary: Whether it is only run and thrown away: weights go to a file beside, which takes
            no memory, and nothing is checked.

    Raises:
        GraphError: onnx finds it invalid.
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


def layer_inputs(sited: SitedModel, sited_graph: ir.Model, layers: Sequence[str]) -> list[str]:
    """Names of the values that enter the encoder layers at the given paths, in order.

    They are what the first residual add of each layer adds to. Its first linear may read a
    LayerNorm of that.
    """
    sources = {
        node.attributes["site"].as_string(): node.inputs[0] for node in sites_of(sited_graph)
    }
    names = []
    for layer in layers:
        first = next(
            site
            for site in sited.sites
            if site.name.startswith(f"{layer}.")
            and site.name.endswith(".add_residual_input_quantizer")
        )
        source = sources[first.name]
        assert source is not None
        assert source.name is not None
        names.append(source.name)
    return names


def teacher_forced(model: ir.Model, values: Sequence[str]) -> ir.Model:
    """A graph that is given the listed values instead of using its own, which it returns.

    Rounding turns a difference in the last bit into a whole step now and then, and such steps grow
    from layer to layer until two right implementations look apart. Given the same input, each
    layer can be compared alone, and only real differences are left.

    Args:
        model: A finished graph; not changed.
        values: Names of inner values, each `(batch, seq, hidden)`. Value `v` is taken from a
            new input `v.forced`; what the graph computes for it becomes an output `v`. Both are
            float32, whatever the graph computes in.
    """
    forced = model.clone()
    by_name = {value.name: value for node in forced.graph for value in node.outputs}
    for name in values:
        value = by_name[name]
        given = ir.val(f"{name}.forced", dtype=ir.DataType.FLOAT, shape=value.shape)
        if value.dtype == ir.DataType.FLOAT16:
            _force_half(forced.graph, value, given)
        else:
            value.replace_all_uses_with(given)
            value.dtype = ir.DataType.FLOAT
            forced.graph.outputs.append(value)
        forced.graph.inputs.append(given)
    return forced


def _force_half(graph: ir.Graph, value: ir.Value, given: ir.Value) -> None:
    """Lets a float32 input stand for a float16 value, which becomes a float32 output."""
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
