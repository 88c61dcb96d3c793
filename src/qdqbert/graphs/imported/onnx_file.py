"""Read a user's .onnx file, which may be damaged in any way, and report the damage."""

from __future__ import annotations

import contextlib
import graphlib
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import onnx
import onnx.inliner
import onnx_ir as ir
from google.protobuf.message import DecodeError, EncodeError
from onnx import version_converter
from onnx_ir.passes import common

from qdqbert.common.errors import QdqBertError, UserInputError, one_line
from qdqbert.common.files import refuse_pointer
from qdqbert.graphs.edit import MICROSOFT, apply_passes
from qdqbert.graphs.writer import OPSET

# BERT's operators differ before this opset, which transformers' exporters started with.
OLDEST_OPSET = 11

# Elements of a large weight. Constants that configure operators have fewer.
_LARGE = 1024
_LARGEST_SIZE = 2.0**26
# First input that determines the size of the result.
_SHAPE_INPUTS = {"Reshape": 1, "Expand": 1, "Tile": 1, "ConstantOfShape": 0, "Range": 0}
_SHAPE_MAKERS = ("Concat", "Cast", "Identity", "Unsqueeze", "Squeeze", "Mul", "Add", "Where")
_HIDDEN_DOMAIN = "qdqbert.later"
_STANDARD = ("", "ai.onnx")
_DOMAINS = (*_STANDARD, MICROSOFT, "ai.onnx.ml")
_QUANTIZED = (
    *("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "FakeQuantize"),
    *("MatMulInteger", "MatMulIntegerToFloat", "DynamicQuantizeMatMul", "ConvInteger"),
    *("QAttention", "QGemm", "QuantizeWithOrder", "MatMulNBits", "MatMulBnb4"),
)
_QUANTIZED_PREFIXES = ("QLinear", "QOrdered", "QEmbed")


@contextlib.contextmanager
def file_errors(path: Path) -> Iterator[None]:
    """Raise every exception as `UserInputError`, one line that names the file."""
    try:
        yield
    except QdqBertError as error:
        text = " ".join(str(error).split())
        names_file = repr(path.name) in text and text == str(error)
        # An error about an option is not about the file.
        is_about_names = error.argument in ("input_names", "output_names")
        if isinstance(error, UserInputError) and (names_file or is_about_names):
            raise
        raise UserInputError(
            f"Graph {path.name!r} cannot be used: {text}", argument=error.argument
        ) from error
    except OSError as error:
        raise UserInputError(f"Graph {path.name!r} cannot be used: {error}.") from error
    # Which library fails, and with which class, depends on the file.
    except Exception as error:
        raise UserInputError(
            f"Graph {path.name!r} cannot be used: it is damaged in a way that no check names "
            f"({type(error).__name__}: {one_line(error)}). Export it again."
        ) from error


def read_graph(path: Path) -> ir.Model:
    """Read a float graph of opset 11 or newer, convert it to opset 21, and inline its functions.

    A newer opset stays. Weights in external files are mapped into memory, not copied.

    Raises:
        UserInputError: The file is not an ONNX file, is damaged, is already quantized, is too old,
            has operators of other domains, or lacks its external data.
    """
    with file_errors(path):
        model = _parse(path)
        _check_operators(model)
        _check_functions(model)
        version = _opset(model)
        _read_external_data(model, path)
        weights = _replace_large_weights_with_inputs(model)
        _check_shapes(model)
        try:
            model = _converted(model, version)
        except (
            onnx.checker.ValidationError,
            onnx.shape_inference.InferenceError,
            RuntimeError,
            ValueError,
            TypeError,
        ) as error:
            first = one_line(str(error).strip().partition("\n")[0]) or type(error).__name__
            raise UserInputError(f"it is invalid: {first}.") from error
        return _from_proto(model, _base(path), weights)


def load_graph(path: Path) -> ir.Model:
    """Read a graph without changes: any opset, any operators, float or quantized.

    Weights in external files are mapped into memory, not copied.

    Raises:
        UserInputError: The file is not an ONNX file, is damaged, or lacks its external data.
    """
    with file_errors(path):
        model = _parse(path)
        for tensor in _tensors(model):
            if tensor.data_location == onnx.TensorProto.EXTERNAL:
                _locate(tensor, path)
        return _from_proto(model, _base(path), {})


def stored_bytes(model: ir.Model, path: Path) -> int:
    """Return the size of a file that `load_graph` read, with its weights in other files."""
    tensors = [each.const_value for each in model.graph.initializers.values()]
    external = sum(each.nbytes for each in tensors if isinstance(each, ir.ExternalTensor))
    return path.stat().st_size + external


def _parse(path: Path) -> onnx.ModelProto:
    if not path.is_file():
        raise UserInputError("there is no such file.")
    refuse_pointer(path)
    try:
        model = onnx.load(path, load_external_data=False)
    except (DecodeError, EncodeError, UnicodeDecodeError, ValueError) as error:
        raise UserInputError(
            "it is not an ONNX file, or only a part of one; export or copy it again."
        ) from error
    if not model.HasField("graph") or not model.graph.node:
        raise UserInputError("it contains no graph; export or copy it again.")
    weights = {each.name for each in model.graph.initializer}
    for each in model.graph.input:
        kind = each.type.tensor_type.elem_type
        if kind == onnx.TensorProto.STRING and each.name not in weights:
            raise UserInputError(
                f"its input {each.name!r} is text, so that the tokenizer is a part of the graph; "
                "pass the graph that reads input_ids, and its tokenizer as `tokenizer`."
            )
    return model


def _nodes(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    """Yield all nodes, also those of functions and of branches."""
    waiting = [*model.graph.node, *(node for each in model.functions for node in each.node)]
    while waiting:
        node = waiting.pop(0)
        yield node
        waiting[:0] = [each for graph in _branches(node) for each in graph.node]


def _branches(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def _tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Yield every tensor in a model, in attributes too. Weights of the graph are first."""
    yield from model.graph.initializer
    for sparse in model.graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    for node in _nodes(model):
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
        for graph in _branches(node):
            yield from graph.initializer


def _check_operators(model: onnx.ModelProto) -> None:
    functions = {(each.domain, each.name) for each in model.functions}
    nodes = list(_nodes(model))
    for node in nodes:
        if node.op_type in _QUANTIZED or node.op_type.startswith(_QUANTIZED_PREFIXES):
            raise UserInputError(
                f"it is already quantized (node {node.name!r}, {node.op_type}); pass the float "
                "graph that it was made from."
            )
    for node in nodes:
        if node.domain not in _DOMAINS and (node.domain, node.op_type) not in functions:
            raise UserInputError(
                f"node {node.name!r} is an operator of the unknown domain {node.domain!r}; "
                f"expected operators of ONNX and {MICROSOFT}."
            )


def _check_functions(model: onnx.ModelProto) -> None:
    """Refuse functions that call themselves, since inlining them would never end."""
    calls = {
        (each.domain, each.name): [(node.domain, node.op_type) for node in each.node]
        for each in model.functions
    }
    try:
        graphlib.TopologicalSorter(calls).prepare()
    except graphlib.CycleError as error:
        raise UserInputError(f"function {error.args[1][0][1]!r} calls itself.") from error


def _opset(model: onnx.ModelProto) -> int:
    versions = [each.version for each in model.opset_import if each.domain in _STANDARD]
    if not versions:
        raise UserInputError("it does not specify its opset.")
    newest = onnx.defs.onnx_opset_version()
    if versions[0] < OLDEST_OPSET:
        raise UserInputError(
            f"its opset {versions[0]} is too old; export it again with opset {OLDEST_OPSET} or "
            "newer."
        )
    if versions[0] > newest:
        raise UserInputError(
            f"its opset {versions[0]} is newer than the installed onnx knows ({newest}); update "
            "onnx or export with an older opset."
        )
    return int(versions[0])


def _read_external_data(model: onnx.ModelProto, path: Path) -> None:
    """Check the size of every weight, and read the small ones that are in other files.

    onnx would look for these files in the working directory.
    """
    weights = len(model.graph.initializer)
    for index, tensor in enumerate(_tensors(model)):
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            if tensor.HasField("raw_data") and len(tensor.raw_data) != _size(tensor):
                raise UserInputError(
                    f"weight {tensor.name!r} has more or fewer values than its shape."
                )
            continue
        file, offset, size = _locate(tensor, path)
        if index < weights and math.prod(tensor.dims) > _LARGE:
            continue
        with file.open("rb") as stream:
            stream.seek(offset)
            tensor.raw_data = stream.read(size)
        tensor.data_location = onnx.TensorProto.DEFAULT
        del tensor.external_data[:]


def _locate(tensor: onnx.TensorProto, path: Path) -> tuple[Path, int, int]:
    """Return the file of a tensor's data, its offset in the file, and its size, in bytes.

    Afterwards, the tensor names the file itself instead of a link, from `_base`.
    """
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location = entries.get("location", "")
    folder, base = path.parent.resolve(), _base(path)
    try:
        file = (folder / location).resolve()
        is_there = file.is_file()
    except (OSError, ValueError) as error:
        raise UserInputError(f"weight {tensor.name!r} has no valid file.") from error
    place = Path(location)
    is_below = not place.is_absolute() and ".." not in place.parts
    is_blob = is_below and base != folder and file.parent == base / "blobs"
    if not location or not (file.is_relative_to(folder) or is_blob):
        raise UserInputError(
            f"the file of weight {tensor.name!r} is outside of the graph's folder."
        )
    if not is_there:
        raise UserInputError(
            f"weight {tensor.name!r} is in the file {location!r}, which is missing; put it next to "
            "the graph."
        )
    refuse_pointer(file)
    size = _size(tensor)
    try:
        offset, length = int(entries.get("offset", 0)), int(entries.get("length", size))
    except ValueError as error:
        raise UserInputError(f"weight {tensor.name!r} has no valid offset in its file.") from error
    if offset < 0 or length < size or offset + size > file.stat().st_size:
        raise UserInputError(f"the file {location!r} is incomplete; copy it again.")
    for entry in tensor.external_data:
        if entry.key == "location":
            entry.value = file.relative_to(base).as_posix()
    return file, offset, size


def _base(path: Path) -> Path:
    """Return the folder, without links, by which weights name their files.

    It is the graph's folder. In huggingface_hub's cache it is the repository's, since
    `models--owner--name/snapshots/revision/` has links to `models--owner--name/blobs/`.
    """
    folder = path.parent.resolve()
    repositories = (each.parent for each in folder.parents if each.name == "snapshots")
    return next((each for each in repositories if each.name.startswith("models--")), folder)


def _size(tensor: onnx.TensorProto) -> int:
    """Return the size of a tensor's data in bytes."""
    if any(size < 0 for size in tensor.dims):
        raise UserInputError(f"weight {tensor.name!r} has a negative size.")
    try:
        bits = ir.DataType(tensor.data_type).bitwidth
    except (ValueError, TypeError) as error:
        raise UserInputError(f"weight {tensor.name!r} has an unknown type.") from error
    return int(-(-math.prod(tensor.dims) * bits // 8))


def _replace_large_weights_with_inputs(model: onnx.ModelProto) -> dict[str, onnx.TensorProto]:
    """Make large weights inputs of the graph, and return the weights by name.

    onnx copies the models that it checks and converts, and its conversion loses the names of
    external files.
    """
    replaced: dict[str, onnx.TensorProto] = {}
    kept = []
    for tensor in model.graph.initializer:
        is_plain = tensor.HasField("raw_data") or tensor.data_location == tensor.EXTERNAL
        if math.prod(tensor.dims) <= _LARGE or not is_plain:
            kept.append(tensor)
        elif tensor.name in replaced:
            raise UserInputError(f"it has two weights named {tensor.name!r}.")
        else:
            replaced[tensor.name] = tensor
    inputs = {value.name for value in model.graph.input}
    for name, tensor in replaced.items():
        if name not in inputs:
            info = onnx.helper.make_tensor_value_info(name, tensor.data_type, tensor.dims)
            model.graph.input.append(info)
    # Copies, since one message of a file keeps all of them in memory.
    copies = [onnx.TensorProto.FromString(each.SerializeToString()) for each in kept]
    del model.graph.initializer[:]
    model.graph.initializer.extend(copies)
    return replaced


def _check_shapes(model: onnx.ModelProto) -> None:
    """Refuse absurdly large shapes, since onnx's shape inference would iterate over them."""
    known = {each.name: each for each in model.graph.initializer}
    makers = {name: node for node in model.graph.node for name in node.output}
    for node in model.graph.node:
        for attribute in node.attribute:
            if node.op_type == "Constant" and attribute.HasField("t"):
                known |= dict.fromkeys(node.output[:1], attribute.t)
    for node in model.graph.node:
        waiting = list(node.input)[_SHAPE_INPUTS.get(node.op_type, 9) :]
        seen = set()
        while waiting:
            name = waiting.pop()
            maker = makers.get(name)
            if maker is not None and maker.op_type in _SHAPE_MAKERS and name not in seen:
                waiting += maker.input
            seen.add(name)
            tensor = known.get(name)
            if tensor is not None and tensor.data_type == onnx.TensorProto.INT64:
                sizes = onnx.numpy_helper.to_array(tensor).astype(float)
                if (abs(sizes) > _LARGEST_SIZE).any():
                    raise UserInputError(f"node {node.name!r} makes an absurdly large shape.")


def _converted(model: onnx.ModelProto, version: int) -> onnx.ModelProto:
    """Check a graph, inline its functions, convert its opset, and infer shapes.

    onnxruntime's optimizer writes LayerNormalization into graphs of any opset, and onnx would
    refuse operators that are newer than the graph's opset. They are in another domain meanwhile.
    """
    later = [
        node
        for node in model.graph.node
        if node.domain in _STANDARD
        and onnx.defs.has(node.op_type)
        and not onnx.defs.has(node.op_type, max_inclusive_version=version)
    ]
    for node in later:
        node.domain = _HIDDEN_DOMAIN
    if later:
        model.opset_import.append(onnx.helper.make_opsetid(_HIDDEN_DOMAIN, 1))
    onnx.checker.check_model(model)
    # The conversion would drop them.
    if model.functions:
        model = onnx.inliner.inline_local_functions(model, convert_version=True)
    if version < OPSET:
        model = version_converter.convert_version(model, OPSET)
    for node in model.graph.node:
        if node.domain == _HIDDEN_DOMAIN:
            node.domain = ""
    for each in list(model.opset_import):
        if each.domain == _HIDDEN_DOMAIN:
            model.opset_import.remove(each)
    return onnx.shape_inference.infer_shapes(model, data_prop=True)


def _from_proto(
    model: onnx.ModelProto, base: Path, weights: Mapping[str, onnx.TensorProto]
) -> ir.Model:
    """Return a graph with its weights, which old exporters list as inputs too."""
    read = ir.from_proto(model)
    ir.external_data.set_base_dir(read.graph, base)
    for value in list(read.graph.inputs):
        if value.name is not None and value.name in weights:
            tensor: Any = ir.serde.deserialize_tensor(weights[value.name])
            if isinstance(tensor, ir.ExternalTensor):
                tensor.base_dir = str(base)
            # An array of its own: one message of a file keeps all of them in memory. Arrays of
            # external files stay mapped, but are written with the graph wherever it goes.
            value.const_value = ir.tensor(tensor.numpy(), name=value.name)
            read.graph.inputs.remove(value)
            read.graph.register_initializer(value)
    return apply_passes(
        read, common.RemoveInitializersFromInputsPass(), common.ClearMetadataAndDocStringPass()
    )
