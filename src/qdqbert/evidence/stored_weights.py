"""Read how an .onnx file of any tool stores the weights of its linear layers and its tables.

Source: onnxruntime, `docs/ContribOperators.md`; ONNX operators DequantizeLinear, MatMulInteger and
QLinearMatMul.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from qdqbert.graphs.imported.onnx_file import file_errors, load_graph, stored_bytes

Codes = NDArray[np.int16]
Scales = Literal["tensor", "channel", "block"]
_Places = tuple[int | None, int, int | None, int | None]

# Inputs of operators that multiply: the left factor, the right one or the weight, and the scale and
# zero point of its codes; `None` without one.
_FLOAT: Mapping[str, _Places] = dict.fromkeys(
    ("MatMul", "Gemm", "FusedMatMul", "Attention"), (0, 1, None, None)
)
# These multiply with codes. DynamicQuantizeMatMul quantizes what it reads.
_INTEGER: Mapping[str, _Places] = {
    "QLinearMatMul": (0, 3, 4, 5),
    "QGemm": (0, 3, 4, 5),
    "MatMulInteger": (0, 1, None, 3),
    "MatMulIntegerToFloat": (0, 1, 3, 5),
    "DynamicQuantizeMatMul": (None, 1, 2, 3),
    "QAttention": (0, 1, 4, 7),
}
_FACTORS: Mapping[str, _Places] = {**_FLOAT, **_INTEGER}
_ATTENTIONS = ("Attention", "QAttention")
# Input that is the table, by type of node.
_TABLES: Mapping[str, tuple[int, ...]] = {
    "Gather": (0,),
    "GatherBlockQuantized": (0,),
    "EmbedLayerNormalization": (2, 3, 4),
    "QEmbedLayerNormalization": (2, 3, 4),
}
_VALUE_PRESERVING = ("Identity", "Cast")
# Damaged files may have cycles.
_MAX_STEPS = 16
# Rows of the smallest table. Smaller ones select from shapes or from types of tokens.
_FEWEST_ROWS = 16
_SUFFIX = re.compile(r"(_transposed)?(_quantized|_quant|_Q\d+(G\d+)?)?$")


@dataclasses.dataclass(frozen=True, kw_only=True)
class StoredInput:
    """The input of a linear layer, which becomes codes of 8 bits.

    Attributes:
        name: Name of the float value in the graph.
        scale: Its step; `None` if every batch has its own.
        zero: Code of 0.
    """

    name: str
    scale: float | None
    zero: int
    is_signed: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class StoredWeight:
    """The weight of a linear layer, or a table.

    Attributes:
        name: Its name, or the name of its node if the exporter numbered the weights.
        size: Number of values.
        bits: Bits of a value.
        scales: The parts that have a scale of their own.
        reads_codes: Whether its layer multiplies with inputs in 8 bits, too.
        input: How these become codes; `None` if they have no step of their own in the graph.
        load: Reads the codes `(in, out)` and their zero points, which fit this shape by
            broadcasting; `None` if they are unknown, or if it is float.
    """

    name: str
    size: int
    bits: int
    is_float: bool
    is_signed: bool = True
    scales: Scales = "tensor"
    reads_codes: bool = False
    input: StoredInput | None = None
    load: Callable[[], tuple[Codes, Codes]] | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class StoredWeights:
    """The factors of a graph's matrix products.

    Attributes:
        linears: Weights of the linear layers.
        tables: Tables of embeddings.
        products: Names of the products of two activations, as in attention.
        products_in_int8: Names of such products of codes.
        size_bytes: Size of the file, with its weights in other files.
    """

    linears: tuple[StoredWeight, ...]
    tables: tuple[StoredWeight, ...]
    products: tuple[str, ...]
    products_in_int8: tuple[str, ...]
    size_bytes: int

    @property
    def are_quantized(self) -> bool:
        """Whether any weight has codes."""
        return any(not each.is_float for each in (*self.linears, *self.tables))


def read_stored_weights(path: Path) -> StoredWeights:
    """Read the weights of an .onnx file, float or quantized by any tool.

    Raises:
        UserInputError: The file cannot be read.
    """
    with file_errors(path):
        model = load_graph(path)
        linears, tables, products, in_int8 = [], {}, [], []
        for node in model.graph.all_nodes():
            for place in _TABLES.get(node.op_type, ()):
                stored = _trace(_input(node, place))
                if stored is not None and stored.tensor.shape[0] >= _FEWEST_ROWS:
                    table = dataclasses.replace(_weight(node, stored), load=None)
                    tables[table.name] = table
            if node.op_type == "MatMulNBits":
                linears.append(_packed(node))
            elif node.op_type in _FACTORS:
                left, right, _, _ = _FACTORS[node.op_type]
                stored = _trace(_input(node, right))
                if stored is not None:
                    linears.append(_linear(node, stored))
                elif node.op_type not in _ATTENTIONS and _is_computed(node, left):
                    products.append(str(node.name))
                    if _reads_codes(node, left) and _reads_codes(node, right):
                        in_int8.append(str(node.name))
        return StoredWeights(
            linears=tuple(linears),
            tables=tuple(tables.values()),
            products=tuple(products),
            products_in_int8=tuple(in_int8),
            size_bytes=stored_bytes(model, path),
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Stored:
    """A constant, and how its values follow from it.

    Attributes:
        tensor: The constant.
        scale: Scales; `None` if there are none, or if they are unknown.
        zero: Zero points; `None` for 0.
        axis: Axis of scales and zero points.
        block: Values that share a scale along the axis; 0 without blocks.
        flips: Whether rows and columns were exchanged after all of this.
        is_rounded: Whether a float constant is rounded to codes when the graph runs.
    """

    name: str = ""
    tensor: Any = None
    scale: NDArray[Any] | None = None
    zero: NDArray[Any] | None = None
    axis: int = 1
    block: int = 0
    flips: bool = False
    is_rounded: bool = False


def _trace(value: ir.Value | None) -> _Stored | None:
    """Return the matrix that a value is computed from; `None` if it depends on the inputs."""
    found = _Stored()
    for _ in range(_MAX_STEPS):
        tensor = None if value is None else ir.convenience.get_const_tensor(value)
        if value is not None and tensor is not None:
            if len(tensor.shape) != 2:
                return None
            name, axis = str(value.name), found.axis % 2
            return dataclasses.replace(found, name=name, tensor=tensor, axis=axis)
        node = None if value is None else value.producer()
        if node is None:
            return None
        if node.op_type in ("DequantizeLinear", "QuantizeLinear"):
            found = dataclasses.replace(
                found,
                scale=_array(_input(node, 1)),
                zero=_array(_input(node, 2)),
                axis=node.attributes.get_int("axis", 1),
                block=node.attributes.get_int("block_size", 0),
                is_rounded=node.op_type == "QuantizeLinear",
            )
        elif node.op_type == "Transpose" and found.scale is None:
            found = dataclasses.replace(found, flips=not found.flips)
        elif node.op_type == "Transpose":
            # A known scale belongs to the transposed value.
            axis = 1 - found.axis if found.axis in (0, 1) else found.axis
            found = dataclasses.replace(found, axis=axis)
        elif node.op_type not in _VALUE_PRESERVING:
            return None
        value = _input(node, 0)
    return None


def _linear(node: ir.Node, stored: _Stored) -> StoredWeight:
    """Describe the weight of a node that multiplies."""
    left, _, scale, zero = _FACTORS[node.op_type]
    if node.op_type in _INTEGER:
        scales = _scale_after(node) if scale is None else _array(_input(node, scale))
        stored = dataclasses.replace(stored, scale=scales, zero=_array(_input(node, zero)), axis=1)
    elif node.attributes.get_int("transB", 0):
        stored = dataclasses.replace(stored, flips=not stored.flips)
    found = _weight(node, stored)
    if found.is_float or not _reads_codes(node, left):
        return found
    return dataclasses.replace(found, reads_codes=True, input=_stored_input(node))


def _weight(node: ir.Node, stored: _Stored) -> StoredWeight:
    """Describe the constant of a node."""
    scale, zero, kind = stored.scale, stored.zero, ir.DataType(stored.tensor.dtype)
    if stored.is_rounded and scale is not None:
        kind = ir.DataType.from_numpy(np.dtype(np.uint8) if zero is None else zero.dtype)
    scales: Scales = "tensor"
    if stored.block:
        scales = "block"
    elif any(each is not None and each.size > 1 for each in (scale, zero)):
        scales = "channel"

    def along(array: NDArray[Any]) -> NDArray[Any]:
        """Return scales or zero points in a shape that fits the constant by broadcasting."""
        if stored.block and array.ndim == 2:
            rows, columns = stored.tensor.shape
            return np.repeat(array, stored.block, stored.axis)[:rows, :columns]
        shape = () if array.size == 1 else (-1, 1) if stored.axis == 0 else (1, -1)
        return array if stored.block else array.reshape(shape)

    def load() -> tuple[Codes, Codes]:
        array = stored.tensor.numpy()
        at = along(np.zeros((), np.int16) if zero is None else zero.astype(np.int16))
        if stored.is_rounded and scale is not None:
            bounds = np.iinfo(kind.numpy())
            array = np.clip(np.rint(array / along(scale)) + at, bounds.min, bounds.max)
        codes = array.astype(np.int16)
        return (codes.T, at.T) if stored.flips else (codes, at)

    is_float = kind.is_floating_point()
    return StoredWeight(
        name=_name(node, stored.name),
        size=math.prod(stored.tensor.shape),
        bits=kind.bitwidth,
        is_float=is_float,
        is_signed=is_float or kind.is_signed(),
        scales=scales,
        load=None if is_float else load,
    )


def _stored_input(node: ir.Node) -> StoredInput | None:
    """Return how the left factor of a node becomes codes."""
    maker, value = None, _input(node, _FACTORS[node.op_type][0])
    # Operators in float read codes that were dequantized.
    for _ in range(1 if node.op_type in _INTEGER else 2):
        maker = None if value is None else value.producer()
        value = None if maker is None else _input(maker, 0)
    if maker is None or value is None:
        return None
    if maker.op_type == "DynamicQuantizeLinear":
        return StoredInput(name=str(value.name), scale=None, zero=0, is_signed=False)
    scale, zero = _array(_input(maker, 1)), _array(_input(maker, 2))
    if maker.op_type != "QuantizeLinear" or scale is None or zero is None or zero.size != 1:
        return None
    return StoredInput(
        name=str(value.name),
        scale=float(scale.reshape(())),
        zero=int(zero.reshape(())),
        is_signed=zero.dtype.kind == "i",
    )


def _packed(node: ir.Node) -> StoredWeight:
    """Describe the weight of a MatMulNBits: bits of unsigned codes, block by block."""
    rows, columns, bits, block = (
        node.attributes.get_int(each, usual)
        for each, usual in (("K", 0), ("N", 0), ("bits", 4), ("block_size", 32))
    )

    def load() -> tuple[Codes, Codes]:
        codes = _unpacked(_array(_input(node, 1)), bits, columns)[:, :rows]
        zero = _array(_input(node, 3))
        if zero is None:
            return codes.T, np.array(2 ** (bits - 1), np.int16)
        # Zero points of other types are not packed.
        each = _unpacked(zero, bits if zero.dtype == np.uint8 else 8, columns)
        return codes.T, np.repeat(each, block, axis=1)[:, :rows].T

    value = _input(node, 1)
    return StoredWeight(
        name=_name(node, "" if value is None else str(value.name)),
        size=rows * columns,
        bits=bits,
        is_float=False,
        is_signed=False,
        scales="block",
        load=load,
    )


def _unpacked(array: NDArray[Any] | None, bits: int, rows: int) -> Codes:
    """Return codes of 2, 4 or 8 bits, the lowest bits of a byte first, as `(rows, ...)`."""
    assert array is not None
    flat = array.reshape(rows, -1)
    if bits == 8:
        return flat.astype(np.int16)
    parts = [flat >> shift & 2**bits - 1 for shift in range(0, 8, bits)]
    return np.stack(parts, axis=-1).reshape(rows, -1).astype(np.int16)


def _scale_after(node: ir.Node) -> NDArray[Any] | None:
    """Return the scale of the weight of a MatMulInteger, by which later nodes multiply."""
    value: ir.Value | None = node.outputs[0]
    for _ in range(2):
        uses = [] if value is None else [each.node for each in value.uses()]
        value = next((each.outputs[0] for each in uses if each.op_type == "Cast"), value)
        for each in uses:
            other = next((x for x in each.inputs if x is not value), None)
            maker = None if other is None else other.producer()
            if each.op_type == "Mul" and maker is not None and maker.op_type == "Mul":
                return next(filter(lambda x: x is not None, map(_array, maker.inputs)), None)
    return None


def _reads_codes(node: ir.Node, place: int | None) -> bool:
    """Tell whether an input of a node was codes, also if its axes were exchanged since."""
    if node.op_type in _INTEGER:
        return True
    value = _input(node, place)
    for _ in range(_MAX_STEPS):
        maker = None if value is None else value.producer()
        if maker is None or maker.op_type == "DequantizeLinear":
            return maker is not None
        if maker.op_type not in ("Transpose", "Reshape", *_VALUE_PRESERVING):
            return False
        value = _input(maker, 0)
    return False


def _is_computed(node: ir.Node, place: int | None) -> bool:
    value = _input(node, place)
    return value is not None and _trace(value) is None


def _name(node: ir.Node, stored: str) -> str:
    """Return the name of a weight, or of its node if the exporter numbered the weights."""
    is_numbered = not stored or "::" in stored or stored.rpartition("_")[2].isdigit()
    name = str(node.name) if is_numbered and node.name else stored
    return _SUFFIX.sub("", name).removesuffix(".weight")


def _input(node: ir.Node, index: int | None) -> ir.Value | None:
    return node.inputs[index] if index is not None and index < len(node.inputs) else None


def _array(value: ir.Value | None) -> NDArray[Any] | None:
    tensor = None if value is None else ir.convenience.get_const_tensor(value)
    return None if tensor is None else tensor.numpy()
