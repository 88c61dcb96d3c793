"""Write what stands at the sites of a graph: Q/DQ pairs and int8 constants.

An activation `x`:

    DequantizeLinear(QuantizeLinear(x))
    DequantizeLinear(QuantizeLinear(x * p))            pre_quant_scale p
    DequantizeLinear(QuantizeLinear(x * p)) * (1 / p)  input of an add
    DequantizeLinear(QuantizeLinear(x + d))            zero point moved into biases, see `_shift_of`
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

For ONNX Runtime, a linear layer is one MatMulIntegerToFloat, and plain attention one QAttention,
which reads the same codes. ONNX Runtime makes the first fusion itself when it loads Q/DQ pairs, but
leaves the bias out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from qdqbert.common.machine import release_memory_after
from qdqbert.encoders.affine import parameters_of, quantize_weight
from qdqbert.encoders.model import Attention, Floats, Linear, Table
from qdqbert.encoders.quantize import Choices, RoundedModule, Specs, range_of, round_module
from qdqbert.encoders.shared_table import STEPS, rest_of
from qdqbert.encoders.sites import parent_of
from qdqbert.graphs.edit import MICROSOFT
from qdqbert.graphs.nodes import Array, Nodes
from qdqbert.graphs.qordered import unusual
from qdqbert.quantization.spec import LOCAL, QdqStyle, TensorSpec, is_residual_input, matmul_sites


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Codes:
    """Codes that are in the graph, by the names of their values.

    Attributes:
        name: Start of the names of nodes.
        axis: Axis of the scale; `None` for a single one.
        shift: What was added to the activation before it was rounded.
    """

    name: str
    codes: str
    scale: str
    zero_point: str
    axis: int | None = None
    shift: float = 0.0


class SiteWriter:
    """Writes what stands at the sites of one graph."""

    def __init__(self, add: Nodes, specs: Specs, choices: Choices, style: QdqStyle) -> None:
        """Write into a graph. Sites without a spec stay in float."""
        self._add, self._specs, self._choices, self._style = add, specs, choices, style
        # Codes, scaled values and tables that later sites may share.
        self._codes: dict[object, _Codes] = {}
        self._values: dict[object, str] = {}

    def activation(self, site: str, x: str) -> str:
        """Write the Q/DQ pair of an activation.

        Raises:
            CalibrationError: The site has no range.
        """
        spec = self._specs.get(site)
        if spec is None:
            return x
        made = self._reals(self._quantized(site, x, spec))
        scale = self._choices.scales.get(site)
        if scale is not None and is_residual_input(site):
            restoring = self._add.constant(1 / scale, f"{site}.restoring_scale")
            made = self._add("Mul", made, restoring, name=f"{site}.restore")
        return made

    def linear(self, x: str, module: Sequence[Linear], axes: Sequence[str | None]) -> str:
        """Write a module that is one or several linear layers, in the order of its outputs.

        Its input `x` has the shape `axes` and the number of inputs.

        Raises:
            CalibrationError: The site of its input has no range.
        """
        path, add = module[0].module, self._add
        given = self._input(x, module[0])
        rounded = round_module(module, self._specs, self._choices)
        bias = rounded.bias if given is None else _with_shift(rounded, given.shift)
        weight = self._weight(path, rounded)
        release_memory_after(rounded.weight.size * np.dtype(np.float32).itemsize)
        biases = [add.constant(bias, f"{path}.bias")] if bias.any() else []
        if self._style.onnxruntime_operators and given and isinstance(weight, _Codes):
            return add(
                "MatMulIntegerToFloat",
                given.codes,
                weight.codes,
                given.scale,
                weight.scale,
                given.zero_point,
                weight.zero_point,
                *biases,
                name=f"{path}.matmul",
                domain=MICROSOFT,
                output=(ir.DataType.FLOAT, [*axes, len(bias)]),
            )
        read = x if given is None else self._reals(given)
        matrix = self._reals(weight) if isinstance(weight, _Codes) else weight
        product = add("MatMul", read, matrix)
        return add("Add", product, *biases) if biases else product

    def attention(
        self, x: str, attention: Attention, mask: str, axes: Sequence[str | None]
    ) -> str | None:
        """Write self-attention from the input of its projections to the merged heads, as one node.

        One int8 matmul makes the three projections, and no head is transposed in memory. The kernel
        adds -10000 at [PAD], and transformers adds float32's lowest number. Both give a probability
        of exactly 0, unless all scores of a row are below -9900. The input `x` has the shape `axes`
        and its width, and the mask of tokens is `(texts, seq)`.

        Returns:
            Name of the result; `None` if the kernel does not compute such attention.

        Raises:
            CalibrationError: The site of an input has no range.
        """
        parts = (attention.query, attention.key, attention.value)
        if not self._style.onnxruntime_operators or not self._fits_kernel(attention):
            return None
        inputs = [self._input(x, part) for part in parts]
        given = inputs[0]
        if given is None or inputs != [given] * 3:
            return None
        add, path = self._add, parent_of(attention.query)
        made = [round_module([part], self._specs, self._choices) for part in parts]
        scales = [np.broadcast_to(_scale(each), each.bias.shape) for each in made]
        width = sum(len(each.bias) for each in made)
        codes = np.concatenate([each.weight for each in made]).T
        return add(
            "QAttention",
            given.codes,
            add.constant(np.ascontiguousarray(codes), f"{path}.qkv_codes"),
            add.constant(np.concatenate([each.bias for each in made]), f"{path}.qkv_bias"),
            given.scale,
            add.constant(np.concatenate(scales), f"{path}.qkv_scale"),
            add("Cast", mask, to=ir.DataType.INT32),
            given.zero_point,
            add.constant(np.zeros(width, np.int8), f"{path}.qkv_zero_point"),
            name=f"{path}.attention",
            domain=MICROSOFT,
            output=(ir.DataType.FLOAT, [*axes, width // 3]),
            num_heads=attention.heads,
        )

    def _fits_kernel(self, attention: Attention) -> bool:
        """Return whether QAttention computes an attention."""
        parts = (attention.query, attention.key, attention.value)
        path = parent_of(attention.query)
        inner = [f"{path}.softmax_input_quantizer"]
        inner += [site.name for site in matmul_sites(path).values()]
        return (
            unusual(attention) is None
            and all(self._specs.get(f"{part.module}._weight_quantizer") for part in parts)
            and not any(map(self._specs.get, inner))
        )

    def rows(self, table: Table, index: str | Array) -> str:
        """Write the lookup of rows of an embedding table."""
        add, site = self._add, _site_of(table)
        codes, scale = self._table(table)
        if scale is None:
            return add("Gather", codes, index)
        found = add("Gather", codes, index, name=f"{site}.gather")
        reals = add("Cast", found, name=f"{site}.cast", to=ir.DataType.FLOAT)
        return add("Mul", reals, scale, name=f"{site}.scale")

    def plain_linear(self, x: str, layer: Linear, words: Table) -> str:
        """Write a linear layer without sites, which may have the weights of the table of words."""
        if layer.weight is words.rows:
            weight = self.decoder(words)
        else:
            array = np.asarray(layer.weight, np.float32).T
            weight = self._add.constant(array, layer.module and f"{layer.module}.weight")
        product = self._add("MatMul", x, weight)
        if not layer.bias.any():
            return product
        bias = self._add.constant(layer.bias, layer.module and f"{layer.module}.bias")
        return self._add("Add", product, bias)

    def decoder(self, table: Table) -> str:
        """Write the matrix `(width, rows)` of a decoder that has the weights of a table."""
        add = self._add
        codes, scale = self._table(table)
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

    def _table(self, table: Table) -> tuple[str, str | None]:
        """Return the names of a table's codes and of their scale; of its floats and `None`."""
        spec, name = self._specs.get(_site_of(table)), f"{table.module}.weight"
        if spec is None:
            assert table.scale is None
            if name not in self._values:
                array = np.asarray(table.rows, np.float32)
                self._values[name] = self._add.constant(array, name)
            return self._values[name], None
        if (name, "codes") not in self._values:
            amax = self._choices.weight_amax.get(_site_of(table))
            made = quantize_weight(np.asarray(table.rows, np.float32), spec, amax)
            self._values[name, "codes"] = self._add.constant(made[0], f"{name}_codes")
            self._values[name, "scale"] = self._add.constant(made[1], f"{name}_scale")
            release_memory_after(made[0].size * np.dtype(np.float32).itemsize)
        return self._values[name, "codes"], self._values[name, "scale"]

    def _input(self, x: str, linear: Linear) -> _Codes | None:
        """Return the codes of the input of a linear layer; `None` in float."""
        site = f"{linear.module}._input_quantizer"
        spec = self._specs.get(site)
        shifts = self._style.absorbs_zero_points
        return None if spec is None else self._quantized(site, x, spec, shifts=shifts)

    def _weight(self, path: str, rounded: RoundedModule) -> _Codes | str:
        """Return the codes of a weight, or the name of its floats, `(in, out)`."""
        if rounded.scale is None:
            return self._add.constant(rounded.weight.T, f"{path}.weight")
        codes = np.ascontiguousarray(rounded.weight.T)
        zeros = np.zeros(rounded.scale.shape, np.int8)
        return _Codes(
            name=f"{path}._weight_quantizer",
            codes=self._add.constant(codes, f"{path}.weight_codes"),
            scale=self._add.constant(rounded.scale, f"{path}.weight_scale"),
            zero_point=self._add.constant(zeros, f"{path}.weight_zero_point"),
            axis=1 if rounded.scale.ndim else None,
        )

    def _reals(self, made: _Codes) -> str:
        """Write the DequantizeLinear of codes, once."""
        inputs, name = (made.codes, made.scale, made.zero_point), f"{made.name}.dequantize"
        if made.axis is None:
            return self._add("DequantizeLinear", *inputs, name=name)
        return self._add("DequantizeLinear", *inputs, name=name, axis=made.axis)

    def _quantized(self, site: str, x: str, spec: TensorSpec, *, shifts: bool = False) -> _Codes:
        """Write the codes of an activation, or return equal ones.

        With `shifts`, the zero point is moved out of the codes; see `_shift_of`.
        """
        scale = self._choices.scales.get(site)
        if scale is not None:
            x = self._scaled(site, x, scale)
        if spec.dynamic:
            return self._dynamic(site, x)
        return self._static(site, x, spec, shifts)

    def _scaled(self, site: str, x: str, scale: Floats) -> str:
        """Multiply a value by a `pre_quant_scale`.

        OpenVINO moves a product of a linear layer's output into the QuantizeLinear, and then takes
        the wrong axis for that of the channels, unless the linear layer has no other reader. It
        moves none past a Clip, which has no limits here and changes nothing.
        """
        key = (x, scale.tobytes())
        if key not in self._values:
            if self._is_linear(x) and not site.endswith(LOCAL):
                x = self._add("Clip", x)
            constant = self._add.constant(scale, f"{site}.pre_quant_scale")
            self._values[key] = self._add("Mul", x, constant, name=f"{site}.rescale")
        return self._values[key]

    def _is_linear(self, x: str) -> bool:
        """Return whether a value is the output of a linear layer."""
        made = self._add.values[x].producer()
        if made is not None and made.op_type == "Add" and made.inputs[0] is not None:
            made = made.inputs[0].producer()
        return made is not None and made.op_type == "MatMul"

    def _static(self, site: str, x: str, spec: TensorSpec, shifts: bool) -> _Codes:
        step, zero = parameters_of(range_of(site, self._choices), spec)
        unsigned = self._style.unsigned_activations or not spec.signed
        offset = 128 if unsigned and spec.signed else 0
        zero_point = np.array(zero + offset, np.uint8 if unsigned else np.int8)
        shift = np.float32(0)
        if shifts:
            bits = 11 if self._style.float16 else 24
            shift, zero_point = _shift_of(spec, step, zero, bits), np.array(0, np.int8)
        key: object = (x, step, zero, repr(zero_point), float(shift), spec.qmin, spec.qmax)
        if self._style.dedicated_pairs:
            key = site
        if key not in self._codes:
            add, scale = self._add, np.array(step, np.float32)
            # QuantizeLinear clips to the limits of its type. Narrower limits need a Clip.
            if spec.qmax - spec.qmin < 255:
                low, high = np.array([spec.qmin - zero, spec.qmax - zero]) * scale
                ends = [
                    add.constant(np.float32(low), f"{site}.low"),
                    add.constant(np.float32(high), f"{site}.high"),
                ]
                x = add("Clip", x, *ends, name=f"{site}.clip")
            if shift:
                x = add("Add", x, add.constant(shift, f"{site}.shift"), name=f"{site}.shifted")
            constants = (
                add.constant(scale, f"{site}.scale"),
                add.constant(zero_point, f"{site}.zero_point"),
            )
            self._codes[key] = _Codes(
                name=site,
                codes=add("QuantizeLinear", x, *constants, name=f"{site}.quantize"),
                scale=constants[0],
                zero_point=constants[1],
                shift=float(shift),
            )
        return self._codes[key]

    def _dynamic(self, site: str, x: str) -> _Codes:
        """Write codes whose scale and zero point are computed while the graph runs."""
        key = (x, "dynamic")
        if key not in self._codes:
            made = self._add.several("DynamicQuantizeLinear", x, count=3, name=f"{site}.quantize")
            codes, scale, zero_point = made
            self._codes[key] = _Codes(name=site, codes=codes, scale=scale, zero_point=zero_point)
        return self._codes[key]


def _shift_of(spec: TensorSpec, step: float, zero: int, bits: int) -> np.float32:
    """Return what is added to an activation so that its codes become symmetric.

        q = QuantizeLinear(x, s, z)  ->  q' = QuantizeLinear(x + s (z - m), s, 0)

    The middle m is 128 where codes are unsigned and 0 where they are signed, so that the codes are
    the same except for m. It is z itself where there are so few codes that every q - z is an int8.
    With q' = q - m, s (q - z) W = s q' W - s (z - m) W, and the bias takes back the last part.
    GELU's outputs, which are hardly ever below zero, keep all of their 256 codes this way.

    `step` and `zero` are scale and zero point of the codes. `bits` are the significant bits of the
    shift: as many as the graph's float type has. Then the bias takes back exactly the shift of the
    input.

    Source: the shifts of Outlier Suppression+ (Wei et al. 2023, arXiv:2304.09145).
    """
    middle = 0 if spec.signed else 128
    if spec.qmax - spec.qmin < 255 and spec.qmin - zero >= -128 and spec.qmax - zero <= 127:
        middle = zero
    part, exponent = np.frexp(step * (zero - middle))
    return np.float32(np.ldexp(np.round(part * 2**bits), exponent - bits))


def _with_shift(rounded: RoundedModule, shift: float) -> Floats:
    """Return the bias of a module, less the effect of a shift of its input."""
    if not shift:
        return rounded.bias
    weight = rounded.weight.astype(np.float32)
    if rounded.scale is not None:
        weight = weight * (rounded.scale if rounded.scale.ndim == 0 else rounded.scale[:, None])
    excess = shift * weight.sum(axis=1, dtype=np.float64)
    changed: Floats = rounded.bias - excess.astype(np.float32)
    return changed


def _scale(rounded: RoundedModule) -> Floats:
    assert rounded.scale is not None
    return rounded.scale


def _site_of(table: Table) -> str:
    return f"{table.module}._weight_quantizer"


def _array(value: ir.Value) -> Array:
    assert value.const_value is not None
    return value.const_value.numpy()
