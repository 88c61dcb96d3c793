"""Read the parts of an encoder layer with Q/DQ pairs, for the rewrite `fuse_qordered`.

Each method returns the part that it finds, or refuses the layer and names the site or the reason.
"""

from __future__ import annotations

import dataclasses
from typing import NoReturn

import numpy as np
import onnx_ir as ir

from qdqbert.errors import UserInputError
from qdqbert.graph.edit import add_constant, bias_of, constant_array, producer_of
from qdqbert.graph.passes.attention import split_heads

# Site of the output of a layer.
RESULT = "output.layernorm_output_quantizer"

_CHANNEL_MULTIPLE = 4


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pair:
    """A QuantizeLinear and the DequantizeLinear that reads it.

    Attributes:
        quantize: The QuantizeLinear, whose codes a fused node replaces.
        reals: The DequantizeLinear, which always reads the current codes and scale.
    """

    quantize: ir.Node
    reals: ir.Node

    @property
    def codes(self) -> ir.Value | None:
        """The codes, int8."""
        return self.reals.inputs[0]

    @property
    def scale(self) -> ir.Value | None:
        """The scale, `(1,)`, float32. The kernels read it as a scalar."""
        return self.reals.inputs[1]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Linear:
    """A linear layer: a matmul of dequantized codes with a constant int8 weight, and its bias.

    Attributes:
        x: The DequantizeLinear that makes its input.
        weight: Codes of the weight, declared `(in, out)` and stored column by column.
        scale: Scale of the weight, `(1,)` or `(out,)`.
        bias: The bias, `(out,)`, float32.
        total: The result of the matmul with the bias.
        width: Number of output channels.
    """

    x: ir.Node
    weight: ir.Value
    scale: ir.Value | None
    bias: ir.Value | None
    total: ir.Value
    width: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Projection:
    """Query, key or value: a linear layer whose output is split into heads and quantized.

    Attributes:
        linear: The linear layer.
        scale: Scale of its quantized output.
        heads: Number of heads.
    """

    linear: Linear
    scale: ir.Value | None
    heads: int


class LayerReader:
    """Reads the parts of one encoder layer, by the names of its sites.

    Attributes:
        graph: The graph.
        name: Path of the layer.
        reader: Site that quantizes the result of the layer. It belongs to the next layer, or to
            this one if it is the last.
    """

    def __init__(self, graph: ir.Graph, name: str, reader: str) -> None:
        """Read from `graph` the layer at path `name`."""
        self.graph = graph
        self.name = name
        self.reader = reader

    def projection(
        self, value: ir.Value | None, part: str, letter: str, permutation: tuple[int, ...]
    ) -> Projection:
        """Return the projection that makes an input of an attention matmul."""
        path = f"attention.self.{part}"
        reals = self.read(value, f"attention.self.matmul_{letter}_input_quantizer")
        split = split_heads(self.source(reals), permutation)
        if split is None:
            self.refuse(f"splits `{path}` into heads in an unknown way")
        add = self.before(split.source, "Add", f"the bias of `{path}`")
        matmul = self.before(add.inputs[0], "MatMul", f"`{path}`")
        linear = self.linear(matmul, path)
        return Projection(linear=linear, scale=reals.inputs[1], heads=split.heads)

    def linear_after(self, x: Pair, path: str) -> Linear:
        """Return the linear layer that reads a pair."""
        return self.linear(self.after(x, "MatMul", f"{path}._input_quantizer"), path)

    def linear(self, matmul: ir.Node, path: str) -> Linear:
        """Return the linear layer of a matmul."""
        x = self.read(matmul.inputs[0], f"{path}._input_quantizer")
        made = producer_of(matmul.inputs[1], "DequantizeLinear")
        codes = constant_array(made.inputs[0]) if made is not None else None
        if made is None or codes is None:
            self.refuse_float(f"{path}._weight_quantizer")
        rows, columns = codes.shape
        for what, size in (("inputs", rows), ("outputs", columns)):
            if size % _CHANNEL_MULTIPLE:
                self.refuse(
                    f"has {size} {what} in `{path}`; the kernels need a multiple of "
                    f"{_CHANNEL_MULTIPLE}"
                )
        bias, add = bias_of(matmul, columns=columns)
        if add is None:
            self.refuse(f"has no bias at `{path}`")
        return Linear(
            x=x,
            weight=add_constant(
                self.graph,
                f"{self.name}.{path}.weight_columns",
                np.ascontiguousarray(codes.T).reshape(rows, columns),
            ),
            scale=made.inputs[1],
            bias=bias,
            total=add.outputs[0],
            width=columns,
        )

    def written(self, value: ir.Value, site: str) -> Pair:
        """Return the only Q/DQ pair of a value."""
        nodes = [node for node in value.consumers() if node.op_type == "QuantizeLinear"]
        if not nodes:
            # A Clip in front of a pair limits its codes to fewer than 8 bits.
            if any(node.op_type == "Clip" for node in value.consumers()):
                self.refuse_bits(site)
            self.refuse_float(site)
        if len(nodes) > 1:
            self.refuse(f"quantizes at `{site}` with {len(nodes)} ranges; the kernels need one")
        (reals,) = nodes[0].outputs[0].consumers()
        return Pair(quantize=nodes[0], reals=reals)

    def read(self, value: ir.Value | None, site: str) -> ir.Node:
        """Return the DequantizeLinear that makes a value."""
        reals = producer_of(value, "DequantizeLinear")
        if reals is None:
            self.refuse_float(site)
        return reals

    def source(self, reals: ir.Node) -> ir.Value | None:
        """Return the value that was quantized to the codes that `reals` reads."""
        quantize = producer_of(reals.inputs[0], "QuantizeLinear")
        source = quantize.inputs[0] if quantize is not None else None
        if producer_of(source, "Clip") is not None:
            self.refuse_bits((reals.name or "").removesuffix(".dequantize")[len(self.name) + 1 :])
        return source

    def before(self, value: ir.Value | None, op_type: str, what: str) -> ir.Node:
        """Return the node of a type that makes a value."""
        node = producer_of(value, op_type)
        if node is None:
            self.refuse(f"has no {op_type} where {what} is expected")
        return node

    def after(self, pair: Pair, op_type: str, site: str) -> ir.Node:
        """Return the only node of a type that reads a pair."""
        nodes = [node for node in pair.reals.outputs[0].consumers() if node.op_type == op_type]
        if len(nodes) != 1:
            self.refuse_float(site)
        return nodes[0]

    def refuse(self, reason: str) -> NoReturn:
        """Refuse the layer for a reason."""
        raise UserInputError(f"Layer `{self.name}` {reason}.")

    def refuse_float(self, site: str) -> NoReturn:
        """Refuse the layer because a site is in float."""
        raise UserInputError(
            f"Site `{self._full(site)}` is left in float. The int8 CUDA operators need every "
            "output of every layer in int8. Choose `recipe='qordered'`, and disable no quantizers.",
            argument="recipe",
        )

    def refuse_bits(self, site: str) -> NoReturn:
        """Refuse the layer because a site has fewer than 8 bits."""
        raise UserInputError(
            f"Site `{self._full(site)}` has fewer than 8 bits; the kernels write 8.",
            argument="aprec",
        )

    def _full(self, site: str) -> str:
        return self.reader if site == RESULT else f"{self.name}.{site}"
