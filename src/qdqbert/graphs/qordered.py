"""Write encoder layers as ONNX Runtime's int8 CUDA operators, from codes to codes.

A layer whose 12 outputs and 6 weights are quantized (the recipe `qordered`) is 7 nodes:

    QOrderedAttention            merged heads, from the codes of the states
    QOrderedMatMul               linear layer, plus the states
    QOrderedLayerNormalization
    QOrderedMatMul               linear layer
    QOrderedGelu
    QOrderedMatMul               linear layer, plus the states
    QOrderedLayerNormalization   codes of the next states

All layers are written so or none, because a float layer among int8 layers would not show the speed
of either. Activations are in row order. Weights are declared `(in, out)` and stored column by
column. The kernels need one scale for each tensor of activations, a head dimension that is a
multiple of 16, and other channels that are a multiple of 4. Their attention looks exp() up by the
difference of codes and multiplies by the mask, where transformers adds float32's lowest number.
Both give [PAD] a probability of exactly 0.

The attention fails for a number of tokens that is not a multiple of 16. Texts are padded inside the
graph, masked like [PAD], and cut after the last layer. They are padded in float32, because not
every version of ONNX Runtime's CUDA Pad has a kernel for integers.

Source: onnxruntime, `contrib_ops/cuda/quantization/qordered_ops`. ONNX Runtime's own fusions are in
`onnxruntime/transformers/fusion_qordered_*.py`; they expect other forms of scaling and mask.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import NoReturn

import numpy as np
import onnx_ir as ir

from qdqbert.common.errors import UserInputError
from qdqbert.encoders.affine import parameters_of
from qdqbert.encoders.model import Attention, EncoderModel, Floats, Layer, Linear, Residual
from qdqbert.encoders.quantize import Choices, Specs, range_of, round_module
from qdqbert.encoders.sites import linear_layers_of, parent_of
from qdqbert.graphs.edit import MICROSOFT
from qdqbert.graphs.nodes import Array, Nodes
from qdqbert.quantization.spec import LOCAL, RESIDUAL

PADDED = "padded_sequence"
"""Name of the number of tokens with padding to a multiple of 16."""

_COLUMN, _ROW = 0, 1
_HEAD_MULTIPLE, _CHANNEL_MULTIPLE, _TOKEN_MULTIPLE = 16, 4, 16


@dataclasses.dataclass(frozen=True)
class _States:
    """Codes in the graph.

    Attributes:
        step: Their scale.
    """

    codes: str
    step: float
    scale: str


def write_layers(
    add: Nodes,
    model: EncoderModel,
    specs: Specs,
    choices: Choices,
    x: str,
    mask: str,
    texts: str | None,
) -> str:
    """Write the layers of a model in float, and return the name of the last hidden states.

    They are `(texts, seq, width)`, as the states `x` after the embeddings. The mask of tokens is
    `(texts, seq)`. `texts` is the name of their number, if it has one.

    Raises:
        UserInputError: A site is in float, or the kernels do not compute a layer. The message names
            the layer and the reason.
    """
    check_layers(model)
    writers = [_LayerWriter(add, layer, specs, choices, texts) for layer in model.layers]
    length = add("Shape", mask, start=1, end=2)
    # Mod of integers has the sign of its second input.
    missing = add("Mod", add("Neg", length), np.array([_TOKEN_MULTIPLE]))
    kept = _pad(add, add("Cast", mask, to=ir.DataType.FLOAT), missing, [texts, PADDED])
    padded = add("Cast", kept, to=ir.DataType.INT32)
    width = len(model.layers[0].attention.output.bias)
    states = writers[0].quantized(_pad(add, x, missing, [texts, PADDED, width]))
    results = [*(writer.input_site for writer in writers[1:]), None]
    for writer, result in zip(writers, results, strict=True):
        states = writer.write(states, padded, result)
    ends = (np.array([0]), length, np.array([1]))
    codes = add("Slice", states.codes, *ends, output=(ir.DataType.INT8, [texts, "sequence", width]))
    return add("DequantizeLinear", codes, states.scale, np.array(0, np.int8))


def _pad(add: Nodes, x: str, missing: str, shape: list[int | str | None]) -> str:
    """Add zeros at the end of axis 1, which gives a value of some shape."""
    before, after = (np.zeros(len(shape) + count, np.int64) for count in (1, -2))
    pads = add("Concat", before, missing, after, axis=0)
    return add("Pad", x, pads, output=(ir.DataType.FLOAT, shape))


def check_layers(model: EncoderModel) -> None:
    """Refuse a model in float whose layers the kernels do not compute, whatever its ranges are.

    Raises:
        UserInputError: The kernels do not compute a layer. The message names it and the reason.
    """
    for layer in model.layers:
        _check_attention(layer)
        _check_rest(layer)
    if model.convolution is not None:
        _refuse(model.layers[0], "is followed by a convolution, which no kernel computes")


def unusual(attention: Attention) -> str | None:
    """Return why ONNX Runtime's fused operators do not compute an attention; `None` if they do."""
    parts = (attention.query, attention.key, attention.value)
    if len({len(part.bias) for part in parts}) != 1 or len({p.module for p in parts}) != 3:
        return "has query, key and value of different widths, or in one matmul"
    size = len(attention.query.bias) // attention.heads
    if attention.scales_keys or not np.isclose(attention.scale, size**-0.5):
        return f"does not scale its scores by {size}^-0.5, as the kernel does"
    if attention.causal or attention.window is not None:
        return "has a mask that is not computed from the input `attention_mask` alone"
    added = (attention.rotary, attention.relative, attention.position_bias)
    norms = (attention.query_norm, attention.key_norm)
    if any(each is not None for each in (*added, *norms)):
        return "has positions or norms in its attention, which the kernel does not compute"
    return None


def _check_attention(layer: Layer) -> None:
    width, heads = len(layer.attention.query.bias), layer.attention.heads
    if (size := width // heads) % _HEAD_MULTIPLE:
        _refuse(
            layer,
            f"has a head dimension of {size} ({width} channels in {heads} heads); "
            f"the kernels need a multiple of {_HEAD_MULTIPLE}",
        )
    if reason := unusual(layer.attention):
        _refuse(layer, reason)


def _check_rest(layer: Layer) -> None:
    sums = (layer.attention_residual, layer.residual)
    before = (layer.attention_norm, layer.up_norm)
    if any(before) or not all(each.norm and each.norm.subtracts_mean for each in sums):
        _refuse(layer, "does not normalize each sum by a LayerNorm, as the kernels do")
    if layer.gate is not None or any(each.again or each.local_norm for each in sums):
        _refuse(layer, "has a gate, a norm before a sum or a second sum, which no kernel computes")
    up = _short(layer, layer.up.module)
    if layer.activation == "gelu_tanh":
        _refuse(layer, "computes GELU by tanh; the kernel computes it by erf")
    if layer.activation != "gelu":
        _refuse(layer, f"reads `{up}` with {layer.activation}; the kernel is GELU")
    for linear, _ in linear_layers_of(layer):
        for what, count in zip(("outputs", "inputs"), linear.weight.shape, strict=True):
            if count % _CHANNEL_MULTIPLE:
                _refuse(
                    layer,
                    f"has {count} {what} in `{_short(layer, linear.module)}`; the kernels need a "
                    f"multiple of {_CHANNEL_MULTIPLE}",
                )


def _refuse(layer: Layer, reason: str) -> NoReturn:
    raise UserInputError(f"Layer `{_name_of(layer)}` {reason}.")


def _name_of(layer: Layer) -> str:
    """Return the name that all linear layers of a layer begin with."""
    modules = [linear.module.split(".") for linear, _ in linear_layers_of(layer)]
    same = itertools.takewhile(lambda each: len(set(each)) == 1, zip(*modules, strict=False))
    return ".".join(each[0] for each in same)


def _short(layer: Layer, path: str) -> str:
    return path.removeprefix(f"{_name_of(layer)}.")


class _LayerWriter:
    """Writes one layer.

    Attributes:
        input_site: Site of the states that it reads.
    """

    def __init__(
        self, add: Nodes, layer: Layer, specs: Specs, choices: Choices, texts: str | None
    ) -> None:
        """Take a layer that was checked."""
        self._add, self._layer, self._specs, self._choices = add, layer, specs, choices
        self._texts = texts
        self.input_site = f"{layer.attention.query.module}._input_quantizer"

    def quantized(self, x: str) -> _States:
        """Write the codes of the states that the layer reads, from their values in float."""
        states = self._at(self.input_site)
        self._add("QuantizeLinear", x, states.scale, np.array(0, np.int8), name=states.codes)
        return states

    def write(self, states: _States, mask: str, result: str | None) -> _States:
        """Write the layer, from the codes of its input and the padded mask, int32.

        `result` is the site of its result in the next layer; `None` for the last layer.
        """
        layer = self._layer
        context = self._attend(states, mask)
        reader = f"{layer.up.module}._input_quantizer"
        output, residual = layer.attention.output, layer.attention_residual
        middle = self._residual(output, context, states, residual, reader)
        site = f"{parent_of(layer.up)}.activation_input_quantizer"
        wide = self._linear(layer.up, middle, site)
        gelu = self._node(
            "QOrderedGelu",
            f"{layer.down.module}._input_quantizer",
            len(layer.up.bias),
            [wide.codes, wide.scale],
            order_X=_ROW,
            order_Y=_ROW,
        )
        last = f"{parent_of(layer.down)}.layernorm_output_quantizer"
        return self._residual(layer.down, gelu, middle, layer.residual, result or last)

    def _attend(self, states: _States, mask: str) -> _States:
        attention = self._layer.attention
        parts = (attention.query, attention.key, attention.value)
        path = parent_of(attention.query)
        for part in parts:
            if self._step(f"{part.module}._input_quantizer") != states.step:
                _refuse(self._layer, "reads its input with several ranges in query, key and value")
        made = [self._weight(part) for part in parts]
        scales = [self._scale(f"{path}.matmul_{letter}_input_quantizer") for letter in "qkv"]
        inner = [f"{path}.softmax_input_quantizer", f"{path}.matmul_a_input_quantizer"]
        result = f"{attention.output.module}._input_quantizer"
        return self._node(
            "QOrderedAttention",
            result,
            len(attention.value.bias),
            [
                states.codes,
                states.scale,
                *scales,
                *(each[0] for each in made),
                *(each[1] for each in made),
                *(each[2] for each in made),
                *map(self._scale, inner),
            ],
            [mask],
            num_heads=attention.heads,
            qkv_hidden_sizes=[len(part.bias) for part in parts],
            order_input=_ROW,
            order_weight=_COLUMN,
            order_output=_ROW,
        )

    def _residual(
        self, linear: Linear, x: _States, states: _States, residual: Residual, result: str
    ) -> _States:
        """Write a linear layer, the residual add and the LayerNormalization."""
        path, norm = parent_of(linear), residual.norm
        assert norm is not None
        if self._specs.get(f"{path}{LOCAL}"):
            _refuse(
                self._layer,
                f"rounds the output of `{_short(self._layer, linear.module)}` before it is added "
                "to the residual; the kernel rounds only the sum. Choose `recipe='qordered'`",
            )
        if self._step(f"{path}{RESIDUAL}") != states.step:
            _refuse(
                self._layer,
                f"adds a residual in `{_short(self._layer, path)}` with another range than its "
                "layers read it",
            )
        total = self._linear(linear, x, f"{path}.layernorm_input_quantizer", states)
        return self._node(
            "QOrderedLayerNormalization",
            result,
            len(norm.weight),
            [
                total.codes,
                total.scale,
                self._add.constant(norm.weight),
                self._add.constant(norm.bias),
            ],
            axis=-1,
            epsilon=norm.epsilon,
            order_X=_ROW,
            order_Y=_ROW,
        )

    def _linear(
        self, linear: Linear, x: _States, result: str, added: _States | None = None
    ) -> _States:
        if self._step(f"{linear.module}._input_quantizer") != x.step:
            _refuse(
                self._layer,
                f"reads the input of `{_short(self._layer, linear.module)}` with another range",
            )
        weight, scale, bias = self._weight(linear)
        return self._node(
            "QOrderedMatMul",
            result,
            len(linear.bias),
            [x.codes, x.scale, weight, scale],
            [bias, *([added.codes, added.scale] if added else [])],
            order_A=_ROW,
            order_B=_COLUMN,
            order_Y=_ROW,
        )

    def _node(
        self,
        operator: str,
        result: str,
        width: int,
        inputs: Sequence[str],
        more: Sequence[str] = (),
        **attributes: int | float | list[int],
    ) -> _States:
        """Write a node that makes the codes of a site, `result`.

        The scale of the site is an input between `inputs` and `more`.
        """
        states = self._at(result)
        self._add(
            operator,
            *inputs,
            states.scale,
            *more,
            name=states.codes,
            domain=MICROSOFT,
            output=(ir.DataType.INT8, [self._texts, PADDED, width]),
            **attributes,
        )
        return states

    def _weight(self, linear: Linear) -> tuple[str, str, str]:
        """Write a weight, and return the names of its codes, its scale and the bias."""
        site, path = f"{linear.module}._weight_quantizer", linear.module
        if self._specs.get(site) is None:
            self._refuse_float(site)
        made = round_module([linear], self._specs, self._choices)
        assert made.scale is not None
        # Of `(in, out)`, column by column.
        columns = np.ascontiguousarray(made.weight).reshape(made.weight.shape[::-1])
        arrays: dict[str, Array | Floats] = {
            "weight_columns": columns,
            "weight_scale": made.scale,
            "bias": made.bias,
        }
        codes, scale, bias = (
            self._add.constant(array, f"{path}.{name}") for name, array in arrays.items()
        )
        return codes, scale, bias

    def _at(self, site: str) -> _States:
        return _States(f"{site}.quantize", self._step(site), self._scale(site))

    def _scale(self, site: str) -> str:
        return self._add.constant(np.array(self._step(site), np.float32), f"{site}.scale")

    def _step(self, site: str) -> float:
        """Return the scale of a site."""
        spec = self._specs.get(site)
        if spec is None:
            self._refuse_float(site)
        if spec.bits != 8:
            raise UserInputError(
                f"Site `{site}` has fewer than 8 bits; the kernels write 8.", argument="aprec"
            )
        return parameters_of(range_of(site, self._choices), spec)[0]

    def _refuse_float(self, site: str) -> NoReturn:
        raise UserInputError(
            f"Site `{site}` is left in float. The int8 CUDA operators need every output of every "
            "layer in int8. Choose `recipe='qordered'`, and disable no quantizers.",
            argument="recipe",
        )
