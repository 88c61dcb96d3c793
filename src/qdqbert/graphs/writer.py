"""Write an `EncoderModel` as an ONNX graph, in float or with Q/DQ pairs.

The operators are those that ONNX Runtime and OpenVINO fuse: LayerNormalization and Gelu whole,
MatMul with a constant right side and an Add for a linear layer. `graphs.qdq` writes what stands at
the sites, `attention_nodes` attention between its linear layers, and `head_nodes` heads.

For ONNX Runtime, a residual add is written as `Sum`: its fusion of `Add` and `LayerNormalization`
is slower than the two operators.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import common

from qdqbert.encoders.model import (
    Attention,
    Convolution,
    Embeddings,
    EncoderModel,
    Layer,
    Linear,
    Norm,
    Residual,
)
from qdqbert.encoders.quantize import Choices, Specs
from qdqbert.encoders.sites import modules_of, parent_of
from qdqbert.graphs.attention_nodes import AttentionWriter
from qdqbert.graphs.edit import apply_passes
from qdqbert.graphs.half_precision import to_half_precision
from qdqbert.graphs.head_nodes import HeadWriter
from qdqbert.graphs.nodes import Nodes
from qdqbert.graphs.operators import activated, integers, normed
from qdqbert.graphs.qdq import SiteWriter
from qdqbert.graphs.qordered import write_layers
from qdqbert.graphs.tail_nodes import append_tail
from qdqbert.graphs.token_nodes import Tokens
from qdqbert.quantization.spec import LOCAL, RESIDUAL, QdqStyle

OPSET = 21
IR_VERSION = 10


def write_graph(model: EncoderModel, path: Path) -> None:
    """Write a float model as an ONNX graph, with its weights in a second file, `.onnx.data`.

    Raises:
        OSError: A file cannot be written.
    """
    ir.save(make_graph(model), path, external_data=f"{path.name}.data")


def make_graph(
    model: EncoderModel,
    specs: Specs | None = None,
    choices: Choices | None = None,
    style: QdqStyle | None = None,
) -> ir.Model:
    """Return the graph of a model, in float or with Q/DQ pairs.

    Inputs are `(batch, seq)`, or `(batch, choices, seq)`, int64. Padding, where the attention mask
    is 0, follows the tokens. Outputs are float32. Outputs for padding have no meaning. Sites that
    read the same value with equal parameters share one Q/DQ pair, unless `style` asks for dedicated
    pairs. A float graph shares the arrays of its model.

    Args:
        model: The model, whose tables and linear layers are in float.
        specs: Specs by name of the site. Sites without one stay in float.
        choices: Ranges of the activations whose specs are not dynamic, and how weights are scaled
            and rounded.
        style: Form of the Q/DQ pairs that the target needs.

    Raises:
        CalibrationError: An activation has a spec and no range.
        UserInputError: The style has operators that do not compute the model.
    """
    writer = _Writer(model, specs or {}, choices or Choices(), style or QdqStyle())
    graph = ir.Model(writer.write(), ir_version=IR_VERSION)
    graph = apply_passes(graph, common.ShapeInferencePass())
    if model.tail is not None:
        append_tail(graph, model.tail, writer.states)
    graph = apply_passes(graph, common.IdentityEliminationPass())
    return to_half_precision(graph) if writer.style.float16 else graph


def layer_input(index: int) -> str:
    """Return the name of the value that enters an encoder layer, `(batch, seq, hidden)`."""
    return f"layer.{index}.input"


class _Writer:
    """Writes one model."""

    def __init__(
        self, model: EncoderModel, specs: Specs, choices: Choices, style: QdqStyle
    ) -> None:
        self._model, self._specs, self._choices, self.style = model, specs, choices, style
        axes = ["batch", *(["choices"] if model.has_choices else []), "sequence"]
        inputs = [ir.val(name, ir.DataType.INT64, axes) for name in model.input_names]
        self._add = add = Nodes(inputs, OPSET)
        self._sums = "Sum" if style.onnxruntime_operators else "Add"
        self._tokens = Tokens(add, model)
        self._sites = SiteWriter(add, specs, choices, style)
        self._heads = HeadWriter(add, self._sites, self._tokens, model)
        self._attention = AttentionWriter(
            add, self._sites, self._tokens, expands=model.expansion_id is not None
        )
        self.states = ""

    def write(self) -> ir.Graph:
        """Return the graph."""
        model, add = self._model, self._add
        x = embedded = self._embed(model.embeddings)
        if self.style.qordered:
            given = (self._specs, self._choices, x, self._tokens.mask, self._tokens.axes[0])
            x = write_layers(add, model, *given)
        for index, layer in enumerate(() if self.style.qordered else model.layers):
            x = add.rename(x, layer_input(index))
            x = self._layer(x, layer, is_last=layer is model.layers[-1])
            if index == 0 and model.convolution is not None:
                x = self._convolve(x, embedded, model.convolution)
        self.states = normed(add, x, model.final_norm)
        for head in model.heads:
            add.graph.outputs.extend(self._heads.write(self.states, head))
        return add.graph

    def _embed(self, embeddings: Embeddings) -> str:
        sites, tokens = self._sites, self._tokens
        parts = [sites.rows(embeddings.words, tokens.ids)]
        if embeddings.factor != 1:
            parts = [self._add("Mul", *parts, np.float32(embeddings.factor))]
        if embeddings.dropped_id is not None:
            parts = [self._add("Mul", *parts, tokens.share(embeddings.dropped_id))]
        if embeddings.token_types is not None:
            parts.append(sites.rows(embeddings.token_types, tokens.types or np.array(0)))
        if embeddings.positions is not None:
            parts.append(sites.rows(embeddings.positions, tokens.positions(embeddings)))
        x = self._normed_sum(parts, embeddings.norm)
        projection = embeddings.projection
        return x if projection is None else sites.plain_linear(x, projection, embeddings.words)

    def _layer(self, x: str, layer: Layer, *, is_last: bool) -> str:
        add, attention = self._add, layer.attention
        attended = self._attend(normed(add, x, layer.attention_norm), attention)
        path = parent_of(attention.output)
        x = self._add_states(attended, x, layer.attention_residual, path)
        inputs = normed(add, x, layer.up_norm)
        wide, *gates = self._read(inputs, [layer.up, *filter(None, [layer.gate])])
        site = f"{parent_of(layer.up)}.activation_input_quantizer"
        wide = activated(add, self._sites.activation(site, wide), layer.activation)
        for gate in gates:
            wide = add("Mul", wide, gate)
        (local,) = self._read(wide, [layer.down])
        path = parent_of(layer.down)
        x = self._add_states(local, x, layer.residual, path)
        return self._sites.activation(f"{path}.layernorm_output_quantizer", x) if is_last else x

    def _add_states(self, local: str, states: str, residual: Residual, path: str) -> str:
        local = normed(self._add, local, residual.local_norm)
        local = self._sites.activation(f"{path}{LOCAL}", local)
        total = [local, self._sites.activation(f"{path}{RESIDUAL}", states)]
        site = f"{path}.layernorm_input_quantizer"
        x = self._normed_sum(total, residual.norm, site)
        return x if residual.again is None else self._normed_sum([x, states], residual.again)

    def _normed_sum(self, parts: Sequence[str], norm: Norm | None, site: str = "") -> str:
        """Return a sum, normalized.

        When it loads a graph, ONNX Runtime fuses Add and LayerNormalization to
        SkipLayerNormalization. That CPU kernel sums in a scalar loop and takes several times as
        long as the two operators (`benchmarks/layer_norm.py`). No fusion matches Sum.
        """
        x, *others = parts
        for other in others:
            is_last = other is others[-1] and norm is not None and norm.subtracts_mean
            x = self._add(self._sums if is_last else "Add", x, other)
        return normed(self._add, self._sites.activation(site, x), norm)

    def _convolve(self, x: str, embedded: str, convolution: Convolution) -> str:
        add, weight = self._add, convolution.linear.weight
        hidden = len(weight)
        count = weight.shape[1] // hidden
        kept = add("Cast", add("Unsqueeze", self._tokens.mask, integers(2)), to=ir.DataType.FLOAT)
        channels = add("Transpose", add("Mul", embedded, kept), perm=[0, 2, 1])
        near = np.asarray(weight, np.float32).reshape(hidden, count, hidden).transpose(0, 2, 1)
        inputs, pads = (channels, near, convolution.linear.bias), [count // 2] * 2
        output = ir.DataType.FLOAT, [self._tokens.axes[0], hidden, self._tokens.axes[1]]
        added = add("Conv", *inputs, pads=pads, output=output)
        turned = add("Transpose", added, perm=[0, 2, 1])
        added = activated(add, turned, convolution.activation)
        return self._normed_sum([x, added], convolution.norm)

    def _attend(self, x: str, attention: Attention) -> str:
        merged = self._sites.attention(x, attention, self._tokens.mask, self._tokens.axes)
        if merged is None:
            made = self._read(x, [attention.query, attention.key, attention.value])
            merged = self._attention.merged(made, attention)
        (output,) = self._read(merged, [attention.output])
        return output

    def _read(self, x: str, layers: Sequence[Linear]) -> list[str]:
        """Return the outputs of linear layers of an encoder layer, with their sites."""
        add, outputs = self._add, dict[int, str]()
        for module in modules_of(layers):
            made = self._sites.linear(x, module, self._tokens.axes)
            parts = [made]
            if len(module) > 1:
                sizes = integers(*(len(each.bias) for each in module))
                parts = add.several("Split", made, sizes, count=len(module), axis=-1)
            outputs.update(zip(map(id, module), parts, strict=True))
        return [outputs[id(layer)] for layer in layers]
