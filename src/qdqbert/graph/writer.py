"""Write an `EncoderModel` as an ONNX graph.

The operators are those that ONNX Runtime and OpenVINO fuse: LayerNormalization and Gelu whole,
MatMul with a constant right side and an Add for a linear layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

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
    Residual,
    Rotary,
    Step,
    Table,
)

Array = NDArray[Any]

OPSET = 21
_IR_VERSION = 10

# Arrays from this size are in the file next to the graph, which engines map into memory.
_EXTERNAL_BYTES = 1024
_ALIGNMENT = 4096
_LOWEST = np.float32(np.finfo(np.float32).min)


def write_graph(model: EncoderModel, path: Path) -> None:
    """Write a float model as an ONNX graph, with its weights in a second file.

    Inputs are `(batch, seq)`, or `(batch, choices, seq)`, int64. Padding, where the attention mask
    is 0, follows the tokens. Outputs are float32; those of padding have no meaning.

    Args:
        model: The model, whose tables and linear layers are in float.
        path: The .onnx file. The weights get the suffix `.data`.

    Raises:
        OSError: A file cannot be written.
    """
    weights = path.with_name(f"{path.name}.data")
    with weights.open("wb") as file:
        writer = _Writer(model, file, weights.name)
        graph = writer.write()
    made = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=_IR_VERSION
    )
    path.write_bytes(made.SerializeToString())


class _Nodes:
    """The nodes and constants of a graph."""

    def __init__(self, file: BinaryIO, location: str) -> None:
        """Start without nodes.

        Args:
            file: Where large constants are written.
            location: Name of this file.
        """
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[TensorProto] = []
        self._file, self._location = file, location
        self._small: dict[tuple[str, tuple[int, ...], bytes], str] = {}

    def __call__(self, operator: str, *inputs: str | Array | np.float32, **attributes: Any) -> str:
        """Add a node, and return the name of its output. Arrays are constants."""
        names = [each if isinstance(each, str) else self.constant(each) for each in inputs]
        output = f"{operator.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, names, [output], **attributes))
        return output

    def constant(self, array: Array | np.float32) -> str:
        """Add an array, and return its name. Small ones that are equal are one."""
        array = np.asarray(array, order="C")
        if array.nbytes >= _EXTERNAL_BYTES:
            return self._external(array)
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self._small:
            self._small[key] = self._named(onnx.numpy_helper.from_array(array))
        return self._small[key]

    def _external(self, array: Array) -> str:
        start = -(-self._file.tell() // _ALIGNMENT) * _ALIGNMENT
        self._file.write(bytes(start - self._file.tell()))
        self._file.write(array.data)
        tensor = TensorProto(
            dims=array.shape,
            data_type=helper.np_dtype_to_tensor_dtype(array.dtype),
            data_location=TensorProto.EXTERNAL,
        )
        places = {"location": self._location, "offset": start, "length": array.nbytes}
        for name, value in places.items():
            tensor.external_data.add(key=name, value=str(value))
        return self._named(tensor)

    def _named(self, tensor: TensorProto) -> str:
        tensor.name = f"constant_{len(self.initializers)}"
        self.initializers.append(tensor)
        return tensor.name


class _Writer:
    """Writes one model."""

    def __init__(self, model: EncoderModel, file: BinaryIO, location: str) -> None:
        self._model = model
        self._add = _Nodes(file, location)
        self._masks: dict[tuple[bool, int | None], str] = {}
        # Names of values that several parts read; see `_read_inputs` and `_embed`.
        self._ids = self._mask = self._types = self._words = ""
        self._seq = self._places = self._distance = ""

    def write(self) -> onnx.GraphProto:
        """Return the graph."""
        model, add = self._model, self._add
        self._read_inputs()
        x = embedded = self._embed(model.embeddings)
        for index, layer in enumerate(model.layers):
            x = self._layer(x, layer)
            if index == 0 and model.convolution is not None:
                x = self._convolve(x, embedded, model.convolution)
        x = self._optional_norm(x, model.final_norm)
        outputs = [each for head in model.heads for each in self._head(x, head)]
        axes = ["batch", "choices", "seq"] if model.has_choices else ["batch", "seq"]
        return helper.make_graph(
            add.nodes,
            "qdqbert",
            [helper.make_tensor_value_info(n, TensorProto.INT64, axes) for n in model.input_names],
            outputs,
            add.initializers,
        )

    def _read_inputs(self) -> None:
        """Take the inputs as `(texts, seq)`, and what attention needs of them."""
        add, model = self._add, self._model
        inputs = dict(zip(model.input_names, model.input_names, strict=True))
        if model.has_choices:
            length = add("Shape", "input_ids", start=-1)
            flat = add("Concat", _integers(-1), length, axis=0)
            inputs = {name: add("Reshape", name, flat) for name in inputs}
        self._ids, self._mask = inputs["input_ids"], inputs["attention_mask"]
        self._types = inputs.get("token_type_ids", "")
        self._seq = add("Shape", self._ids, start=1)
        zero, one = np.array(0), np.array(1)
        places = add("Range", zero, add("Squeeze", self._seq, _integers(0)), one)
        rows = add("Unsqueeze", places, _integers(1))
        # `[i, j]` is j - i.
        self._distance = add("Sub", places, rows)
        self._places = places

    def _embed(self, embeddings: Embeddings) -> str:
        add = self._add
        self._words = add.constant(_floats(embeddings.words))
        x = add("Gather", self._words, self._ids)
        if embeddings.dropped_id is not None:
            x = add("Mul", x, self._share(embeddings.dropped_id))
        if embeddings.positions is not None:
            places = self._places
            if embeddings.padding_id is not None:
                is_padding = add("Equal", self._ids, np.array(embeddings.padding_id))
                counted = add("Cast", add("Not", is_padding), to=TensorProto.INT64)
                places = add("Mul", add("CumSum", counted, np.array(1)), counted)
            x = add("Add", x, add("Gather", _floats(embeddings.positions), places))
        if embeddings.token_types is not None:
            table = _floats(embeddings.token_types)
            x = add("Add", x, add("Gather", table, self._types) if self._types else table[0])
        x = self._optional_norm(x, embeddings.norm)
        return x if embeddings.projection is None else self._linear(x, embeddings.projection)

    def _share(self, dropped_id: int) -> str:
        """Return the number of tokens of each text over that of tokens that are not dropped."""
        add = self._add
        dropped = add("Cast", add("Equal", self._ids, np.array(dropped_id)), to=TensorProto.INT64)
        others = add("Mul", self._mask, add("Sub", np.array(1), dropped))
        counts = (
            add("Cast", add("ReduceSum", each, _integers(1)), to=TensorProto.FLOAT)
            for each in (self._mask, others)
        )
        share = add("Div", next(counts), add("Max", next(counts), np.float32(1)))
        return add("Unsqueeze", share, _integers(2))

    def _layer(self, x: str, layer: Layer) -> str:
        add = self._add
        attended = self._attend(self._optional_norm(x, layer.attention_norm), layer.attention)
        x = self._add_states(attended, x, layer.attention_residual)
        normed = self._optional_norm(x, layer.up_norm)
        wide = self._activate(self._linear(normed, layer.up), layer.activation)
        if layer.gate is not None:
            wide = add("Mul", wide, self._linear(normed, layer.gate))
        return self._add_states(self._linear(wide, layer.down), x, layer.residual)

    def _add_states(self, local: str, states: str, residual: Residual) -> str:
        x = self._optional_norm(self._add("Add", local, states), residual.norm)
        if residual.again is None:
            return x
        return self._optional_norm(self._add("Add", x, states), residual.again)

    def _convolve(self, x: str, embedded: str, convolution: Convolution) -> str:
        add, weight = self._add, convolution.linear.weight
        hidden = len(weight)
        count = weight.shape[1] // hidden
        kept = add("Cast", add("Unsqueeze", self._mask, _integers(2)), to=TensorProto.FLOAT)
        channels = add("Transpose", add("Mul", embedded, kept), perm=[0, 2, 1])
        near = np.asarray(weight, np.float32).reshape(hidden, count, hidden).transpose(0, 2, 1)
        added = add("Conv", channels, near, convolution.linear.bias, pads=[count // 2] * 2)
        added = self._activate(add("Transpose", added, perm=[0, 2, 1]), convolution.activation)
        return self._optional_norm(add("Add", x, added), convolution.norm)

    def _attend(self, x: str, attention: Attention) -> str:
        add = self._add
        query, key, value = (
            self._in_heads(self._optional_norm(self._linear(x, each), norm), attention.heads)
            for each, norm in (
                (attention.query, attention.query_norm),
                (attention.key, attention.key_norm),
                (attention.value, None),
            )
        )
        if attention.rotary is not None:
            query, key = (self._rotate(each, attention.rotary) for each in (query, key))
        scores = self._scores(query, key, attention)
        scores = add("Add", scores, self._additive_mask(attention.causal, attention.window))
        context = add("MatMul", add("Softmax", scores, axis=-1), value)
        joined = add("Reshape", add("Transpose", context, perm=[0, 2, 1, 3]), _integers(0, 0, -1))
        return self._linear(joined, attention.output)

    def _in_heads(self, x: str, heads: int) -> str:
        """Return `(batch, heads, seq, size)` of `(batch, seq, heads * size)`."""
        divided = self._add("Reshape", x, _integers(0, 0, heads, -1))
        return self._add("Transpose", divided, perm=[0, 2, 1, 3])

    def _rotate(self, x: str, rotary: Rotary) -> str:
        add = self._add
        first, second = (
            add("Slice", x, _integers(start), _integers(end), _integers(-1))
            for start, end in ((0, rotary.cos.shape[1]), (rotary.cos.shape[1], 2**31))
        )
        cos, sin = (
            add("Slice", each, _integers(0), self._seq, _integers(0))
            for each in (rotary.cos, rotary.sin)
        )
        turned = add("Sub", add("Mul", first, cos), add("Mul", second, sin))
        other = add("Add", add("Mul", second, cos), add("Mul", first, sin))
        return add("Concat", turned, other, axis=-1)

    def _scores(self, query: str, key: str, attention: Attention) -> str:
        add = self._add
        scores = add("MatMul", query, _turned(add, key))
        if (relative := attention.relative) is not None:
            middle = np.array(len(relative.rows) // 2)
            found = add(
                "Gather", relative.rows.astype(np.int64), add("Add", self._distance, middle)
            )
            # Products with all rows, of which each pair of tokens takes one.
            shape = add("Shape", scores)
            if relative.keys is not None:
                products = add("MatMul", query, relative.keys.transpose(0, 2, 1))
                picked = add("GatherElements", products, add("Expand", found, shape), axis=3)
                scores = add("Add", scores, picked)
            if relative.queries is not None:
                products = add("MatMul", key, relative.queries.transpose(0, 2, 1))
                rows = add("Expand", add("Transpose", found, perm=[1, 0]), shape)
                picked = add("GatherElements", products, rows, axis=3)
                scores = add("Add", scores, _turned(add, picked))
        scores = add("Mul", scores, np.float32(attention.scale))
        if attention.position_bias is not None:
            middle = np.array(attention.position_bias.shape[1] // 2)
            index = add("Add", self._distance, middle)
            scores = add("Add", scores, add("Gather", attention.position_bias, index, axis=1))
        return scores

    def _additive_mask(self, causal: bool, window: int | None) -> str:
        """Return what is added to scores: 0, or the lowest number for pairs that do not attend."""
        if (causal, window) not in self._masks:
            add = self._add
            kept = add("Cast", self._mask, to=TensorProto.BOOL)
            kept = add("Unsqueeze", kept, _integers(1, 2))
            if causal:
                kept = add("And", kept, add("LessOrEqual", self._distance, np.array(0)))
            if window is not None:
                distance = add("Abs", self._distance)
                kept = add("And", kept, add("LessOrEqual", distance, np.array(window)))
            made = add("Where", kept, np.float32(0), _LOWEST)
            self._masks[causal, window] = made
        return self._masks[causal, window]

    def _linear(self, x: str, layer: Linear) -> str:
        add, weight = self._add, layer.weight
        if layer.weight is self._model.embeddings.words.rows:
            product = add("MatMul", x, add("Transpose", self._words, perm=[1, 0]))
        else:
            product = add("MatMul", x, np.asarray(weight, np.float32).T)
        return add("Add", product, layer.bias) if layer.bias.any() else product

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

    def _head(self, states: str, head: Head) -> list[onnx.ValueInfoProto]:
        """Write a head, and return its outputs."""
        add = self._add
        x = self._run_steps(states, head.steps[: head.token_steps])
        x = self._run_steps(self._pool(x, head), head.steps[head.token_steps :])
        axes: Sequence[str | None] = ["batch", "seq"] if head.pooling == "none" else ["batch"]
        made = []
        for output in head.outputs:
            found, own = x, [*axes, None]
            if output.column is not None:
                found, own = add("Gather", x, np.array(output.column), axis=-1), [*axes]
            if self._model.has_choices:
                shape = add("Shape", "input_ids", end=2)
                found, own = add("Reshape", found, shape), ["batch", "choices"]
            add.nodes.append(helper.make_node("Identity", [found], [output.name]))
            made.append(helper.make_tensor_value_info(output.name, TensorProto.FLOAT, own))
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
            else:
                x = self._activate(x, step)
        return x

    def _pool(self, states: str, head: Head) -> str:
        add = self._add
        if head.pooling == "none":
            return states
        if head.pooling == "first":
            return add("Gather", states, np.array(0), axis=1)
        kept = add("Unsqueeze", self._mask, _integers(2))
        if head.pooling == "max":
            text = add("Where", add("Cast", kept, to=TensorProto.BOOL), states, _LOWEST)
            return add("ReduceMax", text, _integers(1), keepdims=0)
        weights = add("Cast", kept, to=TensorProto.FLOAT)
        total = add("ReduceSum", add("Mul", states, weights), _integers(1), keepdims=0)
        count = add("ReduceSum", weights, _integers(1), keepdims=0)
        return add("Div", total, add("Sqrt", count) if head.pooling != "mean" else count)


def _turned(add: _Nodes, x: str) -> str:
    """Return `x` with its last two axes exchanged."""
    return add("Transpose", x, perm=[0, 1, 3, 2])


def _floats(table: Table) -> Array:
    assert table.scale is None
    return np.asarray(table.rows, np.float32)


def _integers(*values: int) -> Array:
    return np.array(values, np.int64)
