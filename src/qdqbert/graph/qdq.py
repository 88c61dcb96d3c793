"""Write what stands at the sites of a graph: Q/DQ pairs and int8 constants.

An activation `x`:

    DequantizeLinear(QuantizeLinear(x))
    DequantizeLinear(QuantizeLinear(x * p))            pre_quant_scale p
    DequantizeLinear(QuantizeLinear(x * p)) * (1 / p)  input of an add
    DequantizeLinear(DynamicQuantizeLinear(x))         dynamic quantization
    x                                                  left in float

The weight W of a linear layer, an embedding table T, and a decoder with the weights of a table:

    DequantizeLinear(int8 codes of transposed W)
    Mul(Cast(Gather(int8 codes of T, i)), s)
    Transpose(Mul(Mul(Cast(Add(Mul(Cast(codes), 256), Cast(rest))), 1 / 256), s))

Each weight is stored once, as int8. An embedding table has a scale per hidden channel, so the scale
is multiplied after the lookup of rows. The matrix of a decoder is computed from constants only, so
that runtimes compute it once, when they load the graph. Its sum has integers: OpenVINO would keep a
product of int8 constants with a scale, and compute it in each run.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from qdqbert.encoders.affine import parameters_of, quantize_weight
from qdqbert.encoders.model import Floats, Linear, Table
from qdqbert.encoders.quantize import Choices, Specs, range_of, round_module
from qdqbert.encoders.shared_table import STEPS, rest_of
from qdqbert.graph.nodes import Array, Nodes
from qdqbert.machine import release_memory_after
from qdqbert.spec import QdqStyle, TensorSpec, is_residual_input


class SiteWriter:
    """Writes what stands at the sites of one graph."""

    def __init__(self, add: Nodes, specs: Specs, choices: Choices, style: QdqStyle) -> None:
        """Write into a graph.

        Args:
            add: The graph.
            specs: Specs by name of the site. Sites without one stay in float.
            choices: Ranges, and how weights are scaled and rounded.
            style: Form of the pairs.
        """
        self._add, self._specs, self._choices, self._style = add, specs, choices, style
        # Pairs and scaled values that later sites may share.
        self._made: dict[object, str] = {}

    def activation(self, site: str, x: str) -> str:
        """Write the Q/DQ pair of an activation.

        Args:
            site: Name of the site.
            x: Name of the value.

        Raises:
            CalibrationError: The site has no range.
        """
        spec = self._specs.get(site)
        if spec is None:
            return x
        scale = self._choices.scales.get(site)
        if scale is not None:
            x = self._scaled(site, x, scale)
        made = self._dynamic(site, x) if spec.dynamic else self._pair(site, x, spec)
        if scale is not None and is_residual_input(site):
            restoring = self._add.constant(1 / scale, f"{site}.restoring_scale")
            made = self._add("Mul", made, restoring, name=f"{site}.restore")
        return made

    def weight(self, module: Sequence[Linear]) -> tuple[str, Array]:
        """Write the weight of a module that is one or several linear layers.

        Returns:
            Name of the matrix `(in, out)`, and the bias `(out,)` that belongs to it.
        """
        path = module[0].module
        rounded = round_module(module, self._specs, self._choices)
        release_memory_after(rounded.weight.size * np.dtype(np.float32).itemsize)
        if rounded.scale is None:
            return self._add.constant(rounded.weight.T, f"{path}.weight"), rounded.bias
        scale = rounded.scale
        name = f"{path}.weight"
        constants = [
            self._add.constant(np.ascontiguousarray(rounded.weight.T), f"{name}_codes"),
            self._add.constant(scale, f"{name}_scale"),
            self._add.constant(np.zeros(scale.shape, np.int8), f"{name}_zero_point"),
        ]
        axis = {"axis": 1} if scale.ndim else {}
        pair = f"{path}._weight_quantizer.dequantize"
        return self._add("DequantizeLinear", *constants, name=pair, **axis), rounded.bias

    def rows(self, table: Table, index: str | Array) -> str:
        """Write the lookup of rows of an embedding table."""
        add, site = self._add, _site_of(table)
        codes, scale = self._codes(table)
        if scale is None:
            return add("Gather", codes, index)
        found = add("Gather", codes, index, name=f"{site}.gather")
        reals = add("Cast", found, name=f"{site}.cast", to=ir.DataType.FLOAT)
        return add("Mul", reals, scale, name=f"{site}.scale")

    def decoder(self, table: Table) -> str:
        """Write the matrix `(width, rows)` of a decoder that has the weights of a table."""
        add = self._add
        codes, scale = self._codes(table)
        if scale is None:
            return add("Transpose", codes, perm=[1, 0])
        stored, steps = (_array(add.values[each]) for each in (codes, scale))
        rest = rest_of(np.asarray(table.rows, np.float32), stored, steps)
        added = add("Cast", add.constant(rest, f"{table.module}.weight_rest"), to=ir.DataType.INT32)
        upper = add("Mul", add("Cast", codes, to=ir.DataType.INT32), np.array(STEPS, np.int32))
        whole = add("Cast", add("Add", upper, added), to=ir.DataType.FLOAT)
        return add(
            "Transpose", add("Mul", add("Mul", whole, np.float32(1 / STEPS)), scale), perm=[1, 0]
        )

    def _codes(self, table: Table) -> tuple[str, str | None]:
        """Return the names of a table's codes and of their scale; of its floats and `None`."""
        spec, key = self._specs.get(_site_of(table)), ("table", table.module)
        name = f"{table.module}.weight"
        if spec is None:
            assert table.scale is None
            if key not in self._made:
                self._made[key] = self._add.constant(np.asarray(table.rows, np.float32), name)
            return self._made[key], None
        if key not in self._made:
            codes, scale = quantize_weight(np.asarray(table.rows, np.float32), spec)
            self._made[key] = self._add.constant(codes, f"{name}_codes")
            self._made[key, "scale"] = self._add.constant(scale, f"{name}_scale")
            release_memory_after(table.rows.nbytes)
        return self._made[key], self._made[key, "scale"]

    def _scaled(self, site: str, x: str, scale: Floats) -> str:
        """Multiply a value by a `pre_quant_scale`."""
        key = (x, scale.tobytes())
        if key not in self._made:
            constant = self._add.constant(scale, f"{site}.pre_quant_scale")
            self._made[key] = self._add("Mul", x, constant, name=f"{site}.rescale")
        return self._made[key]

    def _pair(self, site: str, x: str, spec: TensorSpec) -> str:
        """Write a Q/DQ pair, or return an equal one."""
        step, zero = parameters_of(range_of(site, self._choices), spec)
        unsigned = self._style.unsigned_activations or not spec.signed
        offset = 128 if unsigned and spec.signed else 0
        zero_point = np.array(zero + offset, np.uint8 if unsigned else np.int8)
        key: object = (x, step, zero, unsigned, spec.qmin, spec.qmax)
        if self._style.dedicated_pairs:
            key = site
        if key not in self._made:
            add, scale = self._add, np.array(step, np.float32)
            # QuantizeLinear clips to the limits of its type. Narrower limits need a Clip.
            if spec.qmax - spec.qmin < 255:
                low, high = np.array([spec.qmin - zero, spec.qmax - zero]) * scale
                ends = [
                    add.constant(np.float32(low), f"{site}.low"),
                    add.constant(np.float32(high), f"{site}.high"),
                ]
                x = add("Clip", x, *ends, name=f"{site}.clip")
            constants = [
                add.constant(scale, f"{site}.scale"),
                add.constant(zero_point, f"{site}.zero_point"),
            ]
            codes = add("QuantizeLinear", x, *constants, name=f"{site}.quantize")
            reals = add("DequantizeLinear", codes, *constants, name=f"{site}.dequantize")
            self._made[key] = reals
        return self._made[key]

    def _dynamic(self, site: str, x: str) -> str:
        """Write a Q/DQ pair whose scale and zero point are computed while the graph runs."""
        key = (x, "dynamic")
        if key not in self._made:
            codes = self._add.several("DynamicQuantizeLinear", x, count=3, name=f"{site}.quantize")
            self._made[key] = self._add("DequantizeLinear", *codes, name=f"{site}.dequantize")
        return self._made[key]


def _site_of(table: Table) -> str:
    return f"{table.module}._weight_quantizer"


def _array(value: ir.Value) -> Array:
    assert value.const_value is not None
    return value.const_value.numpy()
