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

from qdqbert.graph.imported.file_errors import file_errors
from qdqbert.graph.imported.onnx_file import load_graph, stored_bytes

Codes = NDArray[np.int16]
Scales = Literal["tensor", "channel", "block"]

# Inputs of operators that multiply with codes: the codes of the left factor, those of the right one
# or the weights, their scale and their zero point. `None`: the operator quantizes what it reads.
_INTEGER: Mapping[str, tuple[int | None, int, int | None, int]] = {
    "QLinearMatMul": (0, 3, 4, 5),
    "QGemm": (0, 3, 4, 5),
    "MatMulInteger": (0, 1, None, 3),
    "MatMulIntegerToFloat": (0, 1, 3, 5),
    "DynamicQuantizeMatMul": (None, 1, 2, 3),
    "QAttention": (0, 1, 4, 7),
}
_FLOAT = ("MatMul", "Gemm", "FusedMatMul", "Attention")
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
        is_signed: Whether its codes are signed.
    """

    name: str
    scale: float | None
    zero: int
    is_signed: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class StoredWeight:
    """The weight of a linear layer, or a table.

    Attributes:
        name: Its name, or that of its node if the exporter numbered the weights.
        size: Number of values.
        bits: Bits of a value.
        is_float: Whether it is stored in float.
        is_signed: Whether its codes are signed.
        scales: What has a scale of its own.
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
    """What a graph multiplies with.

    Attributes:
        linears: Weights of the linear layers.
        tables: Tables of embeddings.
        products: Names of the products of two activations: those of attention.
        products_in_int8: Those of them that are products of codes.
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
            if node.op_type in _TABLES:
                for place in _TABLES[node.op_type]:
                    table = _table(node, _input(node, place))
                    if table is not None:
                        tables[table.name] = table
            elif node.op_type == "MatMulNBits":
                linears.append(_packed(node))
            elif node.op_type in (*_FLOAT, *_INTEGER):
                found, is_int8 = _linear(node)
                if found is not None:
                    linears.append(found)
                elif _is_product(node):
                    products.append(str(node.name))
                    in_int8 += [str(node.name)] if is_int8 else []
        return StoredWeights(
            linears=tuple(linears),
            tables=tuple(tables.values()),
            products=tuple(products),
            products_in_int8=tuple(in_int8),
            size_bytes=stored_bytes(model, path),
        )


def _linear(node: ir.Node) -> tuple[StoredWeight | None, bool]:
    """Return the weight of a node, if it is constant, and whether the node multiplies codes."""
    if node.op_type in _FLOAT:
        stored = _trace(_input(node, 1))
        flips = bool(node.attributes.get_int("transB", 0))
        reads_codes = _is_dequantized(_input(node, 0))
        if stored is None:
            return None, reads_codes and _is_dequantized(_input(node, 1))
        return _weight(node, stored, flips=flips, reads_codes=reads_codes), reads_codes
    _, codes, scale, zero = _INTEGER[node.op_type]
    stored = _trace(_input(node, codes))
    if stored is None:
        return None, True
    scales = _scale_after(node) if scale is None else _array(_input(node, scale))
    found = dataclasses.replace(stored, scale=scales, zero=_array(_input(node, zero)), axis=1)
    return _weight(node, found, flips=False, reads_codes=True), True


def _is_product(node: ir.Node) -> bool:
    """Tell whether a node is a product of two matrices that are known only at run time."""
    if node.op_type in ("Attention", "QAttention"):
        return False
    places = (0, 1) if node.op_type in _FLOAT else _INTEGER[node.op_type][:2]
    values = [None if each is None else _input(node, each) for each in places]
    return all(each is not None and _trace(each) is None for each in values)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Stored:
    """A constant, and how its values follow from it.

    Attributes:
        name: Its name.
        tensor: The constant.
        scale: Scales; `None` if there are none, or if they are unknown.
        zero: Zero points; `None` for 0.
        axis: Axis of scales and zero points.
        block: Values that share a scale along the axis; 0 without blocks.
        flips: Whether rows and columns were exchanged after all of this.
        is_rounded: Whether a float constant is rounded to codes when the graph runs.
    """

    name: str
    tensor: Any
    scale: NDArray[Any] | None = None
    zero: NDArray[Any] | None = None
    axis: int = 1
    block: int = 0
    flips: bool = False
    is_rounded: bool = False


def _trace(value: ir.Value | None) -> _Stored | None:
    """Return the constant that a value is computed from; `None` if it depends on the inputs."""
    scale = zero = None
    axis, block, flips, is_rounded = 1, 0, False, False
    for _ in range(_MAX_STEPS):
        tensor = None if value is None else ir.convenience.get_const_tensor(value)
        if value is None or tensor is not None:
            break
        node = value.producer()
        if node is None:
            return None
        if node.op_type in ("DequantizeLinear", "QuantizeLinear"):
            scale, zero = _array(_input(node, 1)), _array(_input(node, 2))
            axis, block = (node.attributes.get_int(each, usual) for each, usual in _OF_SCALES)
            is_rounded = node.op_type == "QuantizeLinear"
        elif node.op_type == "Transpose":
            # A scale that is known already is one for what was transposed.
            flips ^= scale is None
            axis = 1 - axis if scale is not None and axis in (0, 1) else axis
        elif node.op_type not in _VALUE_PRESERVING:
            return None
        value = _input(node, 0)
    else:
        return None
    if tensor is None or value is None or len(tensor.shape) != 2:
        return None
    return _Stored(
        name=str(value.name),
        tensor=tensor,
        scale=scale,
        zero=zero,
        axis=axis % 2,
        block=block,
        flips=flips,
        is_rounded=is_rounded,
    )


# Attributes of DequantizeLinear with their defaults.
_OF_SCALES = (("axis", 1), ("block_size", 0))


def _weight(
    node: ir.Node, stored: _Stored, *, flips: bool, reads_codes: bool, is_table: bool = False
) -> StoredWeight:
    """Describe the constant of a node."""
    kind = ir.DataType(stored.tensor.dtype)
    zero = stored.zero
    is_rounded = stored.is_rounded and stored.scale is not None
    dtype = np.dtype(zero.dtype if zero is not None else np.uint8) if is_rounded else kind.numpy()
    is_float = kind.is_floating_point() and not is_rounded
    scales: Scales = "tensor"
    if stored.block:
        scales = "block"
    elif max(_count(stored.scale), _count(zero)) > 1:
        scales = "channel"
    turned = flips ^ stored.flips

    def load() -> tuple[Codes, Codes]:
        array = stored.tensor.numpy()
        at = np.zeros((), np.int16) if zero is None else zero.astype(np.int16)
        if stored.block:
            at = np.repeat(at, stored.block, stored.axis) if at.ndim == 2 else at
            at = at[: array.shape[0], : array.shape[1]] if at.ndim == 2 else at
        elif at.size > 1:
            at = at.reshape((-1, 1) if stored.axis == 0 else (1, -1))
        else:
            at = at.reshape(())
        if is_rounded:
            assert stored.scale is not None
            step = stored.scale
            step = step.reshape((-1, 1) if stored.axis == 0 else (1, -1)) if step.size > 1 else step
            bounds = np.iinfo(dtype)
            array = np.clip(np.rint(array / step) + at, bounds.min, bounds.max)
        codes = array.astype(np.int16)
        return (codes.T, at.T) if turned else (codes, at)

    return StoredWeight(
        name=_name(node, stored.name),
        size=math.prod(stored.tensor.shape),
        bits=dtype.itemsize * 8 if is_rounded else kind.bitwidth,
        is_float=is_float,
        is_signed=is_float or (dtype.kind != "u" if is_rounded else kind.is_signed()),
        scales=scales,
        reads_codes=reads_codes and not is_float,
        input=_stored_input(node) if reads_codes and not is_float else None,
        load=None if is_float or is_table else load,
    )


def _stored_input(node: ir.Node) -> StoredInput | None:
    """Return how the left factor of a node becomes codes."""
    place = 0 if node.op_type in _FLOAT else _INTEGER[node.op_type][0]
    value = None if place is None else _input(node, place)
    if node.op_type in _FLOAT:
        maker = None if value is None else value.producer()
        value = None if maker is None else _input(maker, 0)
    maker = None if value is None else value.producer()
    read = None if maker is None else _input(maker, 0)
    if maker is None or read is None:
        return None
    if maker.op_type == "DynamicQuantizeLinear":
        return StoredInput(name=str(read.name), scale=None, zero=0, is_signed=False)
    scale, zero = _array(_input(maker, 1)), _array(_input(maker, 2))
    if maker.op_type != "QuantizeLinear" or scale is None or zero is None or zero.size != 1:
        return None
    return StoredInput(
        name=str(read.name),
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
    blocks = -(-rows // block)

    def load() -> tuple[Codes, Codes]:
        codes = _unpacked(_array(_input(node, 1)), bits, columns)[:, :rows]
        zero, middle = _array(_input(node, 3)), 2 ** (bits - 1)
        if zero is None:
            return codes.T, np.array(middle, np.int16)
        each = (
            _unpacked(zero, bits, columns)[:, :blocks]
            if zero.dtype == np.uint8
            else zero.reshape(columns, -1).astype(np.int16)
        )
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
    parts = [flat >> shift & 2**bits - 1 for shift in range(0, 8, bits)]
    return np.stack(parts, axis=-1).reshape(rows, -1).astype(np.int16)


def _table(node: ir.Node, value: ir.Value | None) -> StoredWeight | None:
    """Describe the table of a node that looks up embeddings."""
    stored = _trace(value)
    if stored is None or stored.tensor.shape[0] < _FEWEST_ROWS:
        return None
    return _weight(node, stored, flips=False, reads_codes=False, is_table=True)


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


def _is_dequantized(value: ir.Value | None) -> bool:
    """Tell whether a value was codes, also if its axes were exchanged since."""
    for _ in range(_MAX_STEPS):
        node = None if value is None else value.producer()
        if node is None:
            return False
        if node.op_type == "DequantizeLinear":
            return True
        if node.op_type not in ("Transpose", "Reshape", *_VALUE_PRESERVING):
            return False
        value = _input(node, 0)
    return False


def _name(node: ir.Node, stored: str) -> str:
    """Return the name of a weight, or of its node if the exporter numbered the weights."""
    is_numbered = not stored or "::" in stored or stored.rpartition("_")[2].isdigit()
    name = str(node.name) if is_numbered and node.name else stored
    return _SUFFIX.sub("", name).removesuffix(".weight")


def _input(node: ir.Node, index: int) -> ir.Value | None:
    return node.inputs[index] if index < len(node.inputs) else None


def _array(value: ir.Value | None) -> NDArray[Any] | None:
    tensor = None if value is None else ir.convenience.get_const_tensor(value)
    return None if tensor is None else tensor.numpy()


def _count(array: NDArray[Any] | None) -> int:
    return 0 if array is None else array.size
