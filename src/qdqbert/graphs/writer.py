"""Write an `EncoderModel` as an ONNX graph, in float or with Q/DQ pairs.

The operators are those that ONNX Runtime and OpenVINO fuse: LayerNormalization and Gelu whole,
MatMul with a constant right side and an Add for a linear layer. `graphs.qdq` writes what stands at
the sites.

For ONNX Runtime, a residual add is written as `Sum`: its fusion of `Add` and `LayerNormalization`
is slower than the two operators.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import common

from qdqbert.encoders.model import (
    Activation,
    Attention,
    Convolution,
    Embeddings,
    EncoderModel,
    Head,
    Layer,
    Linear,
    Norm,
    Pooling,
    Residual,
    Rotary,
    Step,
)
from qdqbert.encoders.quantize import Choices, Specs
from qdqbert.encoders.sites import modules_of, parent_of
from qdqbert.graphs.edit import apply_passes
from qdqbert.graphs.half_precision import to_half_precision
from qdqbert.graphs.nodes import Array, Nodes
from qdqbert.graphs.qdq import SiteWriter
from qdqbert.graphs.qordered import write_layers
from qdqbert.graphs.tail_nodes import append_tail
from qdqbert.quantization.spec import LOCAL, RESIDUAL, QdqStyle

OPSET = 21
IR_VERSION = 10

_LOWEST = np.float32(np.finfo(np.float32).min)


def write_graph(model: EncoderModel, path: Path) -> None:
    """Write a float model as an ONNX graph, with its weights in a second file.

    Args:
        model: The model, whose tables and linear layers are in float.
        path: The .onnx file. The weights get the suffix `.data`.

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
        self._add = Nodes(
            [ir.val(name, ir.DataType.INT64, axes) for name in model.input_names], OPSET
        )
        self._sums = "Sum" if style.onnxruntime_operators else "Add"
        # Of hidden states.
        self._axes = [None, None] if model.has_choices else ["batch", "sequence"]
        self._sites = SiteWriter(self._add, specs, choices, style)
        self.states = ""
        self._masks: dict[tuple[bool, int | None], str] = {}
        # Names of values that several parts read; see `_read_inputs`.
        self._ids = self._mask = self._types = ""

    def write(self) -> ir.Graph:
        """Return the graph."""
        model, add = self._model, self._add
        self._read_inputs()
        x = embedded = self._embed(model.embeddings)
        if self.style.qordered:
            given = (self._specs, self._choices, x, self._mask, self._axes[0])
            x = write_layers(add, model, *given)
        for index, layer in enumerate(() if self.style.qordered else model.layers):
            x = add.rename(x, layer_input(index))
            x = self._layer(x, layer, is_last=layer is model.layers[-1])
            if index == 0 and model.convolution is not None:
                x = self._convolve(x, embedded, model.convolution)
        self.states = self._optional_norm(x, model.final_norm)
        for head in model.heads:
            add.graph.outputs.extend(self._head(self.states, head))
        return add.graph

    def _read_inputs(self) -> None:
        """Take the inputs as `(texts, seq)`."""
        add, model = self._add, self._model
        inputs = dict(zip(model.input_names, model.input_names, strict=True))
        if model.has_choices:
            length = add("Shape", "input_ids", start=-1)
            flat = add("Concat", _integers(-1), length, axis=0)
            inputs = {name: add("Reshape", name, flat) for name in inputs}
        self._ids, self._mask = inputs["input_ids"], inputs["attention_mask"]
        self._types = inputs.get("token_type_ids", "")

    @functools.cached_property
    def _length(self) -> str:
        """The number of tokens, `(1,)`."""
        return self._add("Shape", self._ids, start=1)

    @functools.cached_property
    def _places(self) -> str:
        """The numbers of the tokens, `(seq,)`."""
        end = self._add("Squeeze", self._length, _integers(0))
        output = ir.DataType.INT64, self._axes[1:]
        return self._add("Range", np.array(0), end, np.array(1), output=output)

    @functools.cached_property
    def _distance(self) -> str:
        """The matrix of j - i, `(seq, seq)`."""
        return self._add("Sub", self._places, self._add("Unsqueeze", self._places, _integers(1)))

    def _embed(self, embeddings: Embeddings) -> str:
        add = self._add
        parts = [self._sites.rows(embeddings.words, self._ids)]
        if embeddings.dropped_id is not None:
            parts = [add("Mul", *parts, self._share(embeddings.dropped_id))]
        if embeddings.token_types is not None:
            parts.append(self._sites.rows(embeddings.token_types, self._types or np.array(0)))
        if embeddings.positions is not None:
            if embeddings.padding_id is None:
                places = self._places
            else:
                is_padding = add("Equal", self._ids, np.array(embeddings.padding_id))
                counted = add("Cast", add("Not", is_padding), to=ir.DataType.INT64)
                places = add("Mul", add("CumSum", counted, np.array(1)), counted)
            if embeddings.first_position:
                places = add("Add", places, np.array(embeddings.first_position))
            parts.append(self._sites.rows(embeddings.positions, places))
        x = self._normed_sum(parts, embeddings.norm)
        return x if embeddings.projection is None else self._linear(x, embeddings.projection)

    def _share(self, dropped_id: int) -> str:
        """Return the number of tokens of each text, divided by the number that is not dropped."""
        add = self._add
        dropped = add("Cast", add("Equal", self._ids, np.array(dropped_id)), to=ir.DataType.INT64)
        others = add("Mul", self._mask, add("Sub", np.array(1), dropped))
        counts = (
            add("Cast", add("ReduceSum", each, _integers(1)), to=ir.DataType.FLOAT)
            for each in (self._mask, others)
        )
        share = add("Div", next(counts), add("Max", next(counts), np.float32(1)))
        return add("Unsqueeze", share, _integers(2))

    def _layer(self, x: str, layer: Layer, *, is_last: bool) -> str:
        add, attention = self._add, layer.attention
        attended = self._attend(self._optional_norm(x, layer.attention_norm), attention)
        path = parent_of(attention.output)
        x = self._add_states(attended, x, layer.attention_residual, path)
        normed = self._optional_norm(x, layer.up_norm)
        wide, *gates = self._read(normed, [layer.up, *filter(None, [layer.gate])])
        site = f"{parent_of(layer.up)}.activation_input_quantizer"
        wide = self._activate(self._sites.activation(site, wide), layer.activation)
        for gate in gates:
            wide = add("Mul", wide, gate)
        (local,) = self._read(wide, [layer.down])
        path = parent_of(layer.down)
        x = self._add_states(local, x, layer.residual, path)
        return self._sites.activation(f"{path}.layernorm_output_quantizer", x) if is_last else x

    def _add_states(self, local: str, states: str, residual: Residual, path: str) -> str:
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

        Args:
            parts: Names of the values.
            norm: The normalization; `None` for none.
            site: Site of the sum.
        """
        x, *others = parts
        for other in others:
            is_last = other is others[-1] and norm is not None and norm.subtracts_mean
            x = self._add(self._sums if is_last else "Add", x, other)
        return self._optional_norm(self._sites.activation(site, x), norm)

    def _convolve(self, x: str, embedded: str, convolution: Convolution) -> str:
        add, weight = self._add, convolution.linear.weight
        hidden = len(weight)
        count = weight.shape[1] // hidden
        kept = add("Cast", add("Unsqueeze", self._mask, _integers(2)), to=ir.DataType.FLOAT)
        channels = add("Transpose", add("Mul", embedded, kept), perm=[0, 2, 1])
        near = np.asarray(weight, np.float32).reshape(hidden, count, hidden).transpose(0, 2, 1)
        inputs, pads = (channels, near, convolution.linear.bias), [count // 2] * 2
        output = ir.DataType.FLOAT, [self._axes[0], hidden, self._axes[1]]
        added = add("Conv", *inputs, pads=pads, output=output)
        added = self._activate(add("Transpose", added, perm=[0, 2, 1]), convolution.activation)
        return self._normed_sum([x, added], convolution.norm)

    def _attend(self, x: str, attention: Attention) -> str:
        merged = self._sites.attention(x, attention, self._mask, self._axes)
        (output,) = self._read(merged or self._merged(x, attention), [attention.output])
        return output

    def _merged(self, x: str, attention: Attention) -> str:
        """Return the merged heads of an attention."""
        add, path = self._add, parent_of(attention.query)
        made = self._read(x, [attention.query, attention.key, attention.value])
        norms = (attention.query_norm, attention.key_norm, None)
        sizes = [len(linear.bias) // attention.heads for linear in _projections(attention)]
        query, key, value = (
            add(
                "Reshape",
                self._optional_norm(each, norm),
                _integers(0, 0, attention.heads, size),
            )
            for each, norm, size in zip(made, norms, sizes, strict=True)
        )
        query, value = (add("Transpose", each, perm=[0, 2, 1, 3]) for each in (query, value))
        if attention.rotary is None:
            turned = add("Transpose", key, perm=[0, 2, 3, 1])
        else:
            query, key = (
                self._rotate(each, attention.rotary)
                for each in (query, add("Transpose", key, perm=[0, 2, 1, 3]))
            )
            turned = add("Transpose", key, perm=[0, 1, 3, 2])
        if attention.scales_keys:
            turned = add("Mul", turned, np.float32(attention.scale))
        value = self._sites.activation(f"{path}.matmul_v_input_quantizer", value)
        scores = self._scores(query, turned, key, attention)
        scores = add("Add", scores, self._additive_mask(attention.causal, attention.window))
        probabilities = add("Softmax", scores, axis=-1)
        probabilities = self._sites.activation(f"{path}.matmul_a_input_quantizer", probabilities)
        contexts = add("MatMul", probabilities, value)
        if self._model.expansion_id is not None and attention.window is not None:
            contexts = add("Mul", contexts, self._attends(attention))
        merged = add("Transpose", contexts, perm=[0, 2, 1, 3])
        return add("Reshape", merged, _integers(0, 0, attention.heads * sizes[2]))

    def _rotate(self, x: str, rotary: Rotary) -> str:
        add = self._add
        first, second = (
            add("Slice", x, _integers(start), _integers(end), _integers(-1))
            for start, end in ((0, rotary.cos.shape[1]), (rotary.cos.shape[1], 2**31))
        )
        output = ir.DataType.FLOAT, [*self._axes[1:], rotary.cos.shape[1]]
        cos, sin = (
            add("Slice", each, _integers(0), self._length, _integers(0), output=output)
            for each in (rotary.cos, rotary.sin)
        )
        turned = add("Sub", add("Mul", first, cos), add("Mul", second, sin))
        other = add("Add", add("Mul", second, cos), add("Mul", first, sin))
        return add("Concat", turned, other, axis=-1)

    def _scores(self, query: str, turned: str, key: str, attention: Attention) -> str:
        """Return the scores.

        Args:
            query: `(batch, heads, seq, size)`.
            turned: Keys, `(batch, heads, size, seq)`.
            key: Keys, `(batch, seq, heads, size)`, where scores have relative positions.
            attention: The attention.
        """
        add, path = self._add, parent_of(attention.query)
        scores = add(
            "MatMul",
            self._sites.activation(f"{path}.matmul_q_input_quantizer", query),
            self._sites.activation(f"{path}.matmul_k_input_quantizer", turned),
        )
        scores = self._sites.activation(f"{path}.softmax_input_quantizer", scores)
        scale = np.float32(attention.scale)
        relative = self._relative_scores(query, key, scores, attention)
        if attention.scales_keys:
            relative = [add("Mul", each, scale) for each in relative]
        for each in relative:
            scores = add("Add", scores, each)
        if not attention.scales_keys:
            scores = add("Mul", scores, scale)
        if attention.position_bias is not None:
            middle = np.array(attention.position_bias.shape[1] // 2)
            index = add("Add", self._distance, middle)
            scores = add("Add", scores, add("Gather", attention.position_bias, index, axis=1))
        return scores

    def _relative_scores(
        self, query: str, key: str, scores: str, attention: Attention
    ) -> list[str]:
        """Return the relative scores, by the distance of query and key."""
        add, relative = self._add, attention.relative
        if relative is None:
            return []
        middle = np.array(len(relative.rows) // 2)
        found = add("Gather", relative.rows.astype(np.int64), add("Add", self._distance, middle))
        # Products with all rows, of which each pair of tokens takes one.
        shape, made = add("Shape", scores), []
        if relative.keys is not None:
            products = add("MatMul", query, relative.keys.transpose(0, 2, 1))
            made.append(add("GatherElements", products, add("Expand", found, shape), axis=3))
        if relative.queries is not None:
            key = add("Transpose", key, perm=[0, 2, 1, 3])
            products = add("MatMul", key, relative.queries.transpose(0, 2, 1))
            rows = add("Expand", add("Transpose", found, perm=[1, 0]), shape)
            picked = add("GatherElements", products, rows, axis=3)
            made.append(add("Transpose", picked, perm=[0, 1, 3, 2]))
        return made

    def _additive_mask(self, causal: bool, window: int | None) -> str:
        """Return the additive mask: 0, or the lowest number for pairs that do not attend."""
        if (causal, window) not in self._masks:
            add = self._add
            masked = add("Unsqueeze", add("Equal", self._mask, np.array(0)), _integers(1, 2))
            if causal:
                masked = add("Or", masked, add("Greater", self._distance, np.array(0)))
            if window is not None:
                distance = add("Abs", self._distance)
                masked = add("Or", masked, add("Greater", distance, np.array(window)))
            self._masks[causal, window] = add("Where", masked, _LOWEST, np.float32(0))
        return self._masks[causal, window]

    def _attends(self, attention: Attention) -> str:
        """Return 1 for tokens that attend to one or more tokens, and 0, `(batch, 1, seq, 1)`.

        Those that expand a query may be far from it. Their context is 0, as in PyTorch.
        """
        add = self._add
        mask = self._additive_mask(attention.causal, attention.window)
        largest = add("ReduceMax", mask, _integers(-1), keepdims=1)
        return add("Cast", add("Equal", largest, np.float32(0)), to=ir.DataType.FLOAT)

    def _read(self, x: str, layers: Sequence[Linear]) -> list[str]:
        """Return the outputs of linear layers of an encoder layer, with their sites."""
        add, outputs = self._add, dict[int, str]()
        for module in modules_of(layers):
            made = self._sites.linear(x, module, self._axes)
            parts = [made]
            if len(module) > 1:
                sizes = _integers(*(len(each.bias) for each in module))
                parts = add.several("Split", made, sizes, count=len(module), axis=-1)
            outputs.update(zip(map(id, module), parts, strict=True))
        return [outputs[id(layer)] for layer in layers]

    def _linear(self, x: str, layer: Linear) -> str:
        add, words = self._add, self._model.embeddings.words
        if layer.weight is words.rows:
            weight = self._sites.decoder(words)
        else:
            array = np.asarray(layer.weight, np.float32).T
            weight = add.constant(array, layer.module and f"{layer.module}.weight")
        return self._biased(add("MatMul", x, weight), layer.bias, layer.module)

    def _biased(self, product: str, bias: Array, path: str) -> str:
        if not bias.any():
            return product
        return self._add("Add", product, self._add.constant(bias, path and f"{path}.bias"))

    def _optional_norm(self, x: str, norm: Norm | None) -> str:
        if norm is None:
            return x
        add = self._add
        if norm.subtracts_mean:
            inputs = (x, norm.weight, norm.bias)
            return add("LayerNormalization", *inputs, axis=-1, epsilon=norm.epsilon)
        mean = add("ReduceMean", add("Pow", x, np.float32(2)), _integers(-1))
        size = add("Sqrt", add("Add", mean, np.float32(norm.epsilon)))
        scaled = add("Mul", add("Div", x, size), norm.weight)
        return add("Add", scaled, norm.bias) if norm.bias.any() else scaled

    def _activate(self, x: str, activation: Activation) -> str:
        match activation:
            case "gelu":
                return self._add("Gelu", x)
            case "gelu_tanh":
                return self._add("Gelu", x, approximate="tanh")
            case "relu":
                return self._add("Relu", x)
            case "silu":
                return self._add("Mul", x, self._add("Sigmoid", x))
            case "tanh":
                return self._add("Tanh", x)

    def _head(self, states: str, head: Head) -> list[ir.Value]:
        """Write a head, and return its outputs."""
        add = self._add
        if "max" in head.poolings:
            # A copy of the first token, which changes no maximum, in the place of padding. Where
            # tokens have a score for each word, a mask would need as much memory again.
            kept = add("Cast", add("Unsqueeze", self._mask, _integers(2)), to=ir.DataType.BOOL)
            first = add("Slice", states, _integers(0), _integers(1), _integers(1))
            states = add("Where", kept, states, first)
        x = self._run_steps(states, head.steps[: head.token_steps])
        x = self._run_steps(self._pool(x, head.poolings), head.steps[head.token_steps :])
        axes: Sequence[str | None] = ["batch", "sequence"] if head.is_of_tokens else ["batch"]
        made = []
        for output in head.outputs:
            found, own = x, [*axes, None]
            if output.column is not None:
                found, own = add("Gather", x, np.array(output.column), axis=-1), [*axes]
            if self._model.has_choices:
                shape = add("Shape", "input_ids", end=2)
                found, own = add("Reshape", found, shape), ["batch", "choices"]
            value = ir.val(output.name, ir.DataType.FLOAT, own)
            add.graph.append(ir.node("Identity", [add.values[found]], outputs=[value]))
            made.append(value)
        return made

    def _run_steps(self, x: str, steps: Sequence[Step]) -> str:
        for step in steps:
            if isinstance(step, Linear):
                x = self._linear(x, step)
            elif isinstance(step, Norm):
                x = self._optional_norm(x, step)
            elif step == "normalize":
                length = self._add("ReduceL2", x, _integers(-1))
                x = self._add("Div", x, self._add("Max", length, np.float32(1e-12)))
            elif step == "log1p":
                x = self._add("Log", self._add("Add", x, np.float32(1)))
            else:
                x = self._activate(x, step)
        return x

    def _pool(self, states: str, poolings: Sequence[Pooling]) -> str:
        pooled = [self._pooled(states, each) for each in poolings]
        return self._add("Concat", *pooled, axis=-1) if len(pooled) > 1 else pooled[0]

    def _pooled(self, states: str, pooling: Pooling) -> str:
        add = self._add
        if pooling == "none":
            return states
        if pooling == "first":
            return add("Gather", states, np.array(0), axis=1)
        if pooling == "max":
            return add("ReduceMax", states, _integers(1), keepdims=0)
        weights = self._mask
        if pooling in ("weightedmean", "last"):
            # Counted from 1.
            position = add("CumSum", self._mask, np.array(1))
            if pooling == "last":
                last = add("ReduceMax", position, _integers(1))
                position = add("Cast", add("Equal", position, last), to=ir.DataType.INT64)
            weights = add("Mul", weights, position)
        weights = add("Cast", add("Unsqueeze", weights, _integers(2)), to=ir.DataType.FLOAT)
        total = add("ReduceSum", add("Mul", states, weights), _integers(1), keepdims=0)
        if pooling in ("sum", "last"):
            return total
        count = add("ReduceSum", weights, _integers(1), keepdims=0)
        # As sentence-transformers does for texts without a token.
        count = add("Max", count, np.float32(1e-9))
        is_root = pooling == "mean_sqrt_len_tokens"
        return add("Div", total, add("Sqrt", count) if is_root else count)


def _projections(attention: Attention) -> tuple[Linear, Linear, Linear]:
    return attention.query, attention.key, attention.value


def _integers(*values: int) -> Array:
    return np.array(values, np.int64)
