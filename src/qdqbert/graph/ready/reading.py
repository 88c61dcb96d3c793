"""Reads a user's .onnx file, or says what is wrong with it; nothing in it is trusted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError, EncodeError
from onnx import version_converter
from onnx_ir.passes import common

from qdqbert.errors import UserInputError
from qdqbert.graph.edit import MICROSOFT
from qdqbert.graph.export import OPSET

OLDEST_OPSET = 11
"""Before it, the operators of BERT were others; transformers' exporters started with 11."""

_ASIDE = "qdqbert.later"
_DOMAINS = ("", "ai.onnx", MICROSOFT, "ai.onnx.ml")
_QUANTIZED = (
    *("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "FakeQuantize"),
    *("MatMulInteger", "MatMulIntegerToFloat", "DynamicQuantizeMatMul", "ConvInteger"),
    *("QAttention", "QGemm", "QuantizeWithOrder", "MatMulNBits", "MatMulBnb4"),
)
_QUANTIZED_PREFIXES = ("QLinear", "QOrdered", "QEmbed")


def read_graph(path: Path) -> ir.Model:
    """The float graph in a file, at opset 21 or newer, with functions inlined.

    Weights that lie in files beside it are mapped, not copied.

    Args:
        path: An .onnx file of opset 11 or newer.

    Raises:
        UserInputError: It is no ONNX file, damaged, quantized already, too old, holds operators of
            other domains, or lacks its external data.
    """
    model = _parse(path)
    _check_operators(model, path)
    _check_external_data(model, path)
    version = _opset(model, path)
    try:
        later = _set_later_operators_aside(model, version)
        onnx.checker.check_model(model)
        if version < OPSET:
            model = version_converter.convert_version(model, OPSET)
        if later:
            _put_back(model)
        model = onnx.shape_inference.infer_shapes(model, data_prop=True)
    except (
        onnx.checker.ValidationError,
        onnx.shape_inference.InferenceError,
        RuntimeError,
        ValueError,
        TypeError,
    ) as error:
        raise _unusable(path, f"it is invalid: {_first_line(error)}") from error
    try:
        read = ir.from_proto(model)
        for value in _initializers(read):
            if isinstance(value.const_value, ir.ExternalTensor):
                value.const_value.base_dir = str(path.parent)
        _drop_initializers_from_inputs(read.graph)
        read = common.InlinePass()(read).model
        return _cleared(read)
    except UserInputError:
        raise
    except Exception as error:  # a damaged graph fails in ways that no library lists
        raise _unusable(path, f"it is damaged: {_first_line(error)}") from error


def _parse(path: Path) -> onnx.ModelProto:
    if not path.is_file():
        raise _unusable(path, "there is no such file")
    try:
        model = onnx.load(path, load_external_data=False)
    except (DecodeError, EncodeError, UnicodeDecodeError, ValueError) as error:
        raise _unusable(
            path, "it is no ONNX file, or only a part of one; export or copy it again"
        ) from error
    if not model.HasField("graph") or not model.graph.node:
        raise _unusable(path, "it holds no graph; export or copy it again")
    return model


def _nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _nodes(attribute.g)
            for each in attribute.graphs:
                yield from _nodes(each)


def _check_operators(model: onnx.ModelProto, path: Path) -> None:
    functions = {(each.domain, each.name) for each in model.functions}
    nodes = [*_nodes(model.graph), *(node for each in model.functions for node in each.node)]
    for node in nodes:
        if node.op_type in _QUANTIZED or node.op_type.startswith(_QUANTIZED_PREFIXES):
            raise _unusable(
                path,
                f"it is quantized already (node {node.name!r}, {node.op_type}); pass the float "
                "graph that it was made of",
            )
    for node in nodes:
        known = node.domain in _DOMAINS or (node.domain, node.op_type) in functions
        if not known:
            raise _unusable(
                path,
                f"node {node.name!r} is an operator of another domain, {node.domain!r}; only "
                f"those of ONNX and {MICROSOFT} are known",
            )


def _opset(model: onnx.ModelProto, path: Path) -> int:
    versions = [each.version for each in model.opset_import if each.domain in ("", "ai.onnx")]
    if not versions:
        raise _unusable(path, "it does not say which opset it is of")
    newest = onnx.defs.onnx_opset_version()
    if versions[0] < OLDEST_OPSET:
        raise _unusable(
            path,
            f"its opset {versions[0]} is too old; export it again with opset {OLDEST_OPSET} or "
            "newer",
        )
    if versions[0] > newest:
        raise _unusable(
            path,
            f"its opset {versions[0]} is newer than the installed onnx knows ({newest}); update "
            "onnx or export with an older opset",
        )
    return int(versions[0])


def _check_external_data(model: onnx.ModelProto, path: Path) -> None:
    for tensor in model.graph.initializer:
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            continue
        entries = {entry.key: entry.value for entry in tensor.external_data}
        location = entries.get("location", "")
        beside = path.parent.resolve()
        file = (beside / location).resolve()
        if not location or not file.is_relative_to(beside):
            raise _unusable(path, f"weight {tensor.name!r} lies outside of its folder")
        if not file.is_file():
            raise _unusable(
                path,
                f"weight {tensor.name!r} lies in {location!r}, which is missing; put that file "
                "beside it",
            )
        try:
            end = int(entries.get("offset", 0)) + int(entries.get("length", 0))
        except ValueError as error:
            raise _unusable(path, f"weight {tensor.name!r} has no place in its file") from error
        if end > file.stat().st_size or end < 0:
            raise _unusable(path, f"{location!r} is only a part of what it was; copy it again")


def _set_later_operators_aside(model: onnx.ModelProto, version: int) -> bool:
    """Hides operators that the graph's opset does not have yet, and tells whether there are any.

    onnxruntime's optimizer writes LayerNormalization into graphs of any opset.
    """
    later = [
        node
        for node in model.graph.node
        if node.domain in ("", "ai.onnx")
        and onnx.defs.has(node.op_type)
        and onnx.defs.get_schema(node.op_type).since_version > version
        and not _has_schema(node.op_type, version)
    ]
    for node in later:
        node.domain = _ASIDE
    if later:
        model.opset_import.append(onnx.helper.make_opsetid(_ASIDE, 1))
    return bool(later)


def _has_schema(op_type: str, version: int) -> bool:
    try:
        onnx.defs.get_schema(op_type, version, "")
    except onnx.defs.SchemaError:
        return False
    return True


def _put_back(model: onnx.ModelProto) -> None:
    for node in model.graph.node:
        if node.domain == _ASIDE:
            node.domain = ""
    for each in list(model.opset_import):
        if each.domain == _ASIDE:
            model.opset_import.remove(each)


def _initializers(model: ir.Model) -> list[ir.Value]:
    return list(model.graph.initializers.values())


def _drop_initializers_from_inputs(graph: ir.Graph) -> None:
    """Old exporters list weights as inputs that have a default."""
    for value in list(graph.inputs):
        if value.name in graph.initializers:
            graph.inputs.remove(value)


def _cleared(model: ir.Model) -> ir.Model:
    cleared: ir.Model = common.ClearMetadataAndDocStringPass()(model).model
    return cleared


def _unusable(path: Path, reason: str) -> UserInputError:
    return UserInputError(f"Graph {path.name!r} cannot be quantized: {reason}.")


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__
