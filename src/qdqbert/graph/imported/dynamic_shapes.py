"""Make the batch and the sequence of a graph with fixed input shapes dynamic.

Exporters without dynamic axes write the sizes of their example into the graph:

    Reshape(x, [1, 128, 12, 64])        ->  Reshape(x, [0, 0, 12, 64])
    Reshape(x, [12, 128, 64])           ->  Reshape(x, [-1, sequence, 64])
    Expand(mask, [1, 1, 128, 128])      ->  Expand(mask, [1, 1, sequence, 1])
    ConstantOfShape([1, 128])           ->  ConstantOfShape([1, sequence])
    Add(x, positions [1, 128, 768])     ->  Add(x, positions[:, :sequence])

The sizes that come from the inputs are found by computing all shapes twice, once for the sizes of
the file and once for other sizes. The longest input stays the one of the file, since tables of
positions may end there. Whether the result is right is checked by running it (`check_equal`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray
from onnx.reference import ReferenceEvaluator

from qdqbert.engines.runner import Runner
from qdqbert.errors import UserInputError
from qdqbert.graph.edit import add_constant, constant_array, replace
from qdqbert.graph.imported.fixed_shapes import FixedSizes, is_per_token

Dims = tuple[int, ...]
Data = NDArray[Any]

_BROADCASTING = (
    *("Add", "Sub", "Mul", "Div", "Pow", "Mod", "Max", "Min", "Sum", "Mean", "Where"),
    *("And", "Or", "Xor", "Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"),
)
# Indices of a mask have one number or two per token.
_MOST_DATA = 65536
_SHORTEST = 4


def make_shapes_dynamic(model: ir.Model, sizes: FixedSizes) -> None:
    """Make batch and sequence of a graph dynamic, in place.

    Args:
        model: A graph in canonical form, with transformers' names of inputs, each `(batch, seq)`.
        sizes: The sizes of its inputs.

    Raises:
        UserInputError: A node depends on the fixed sizes in a way that is not known.
    """
    if sizes.sequence is not None and sizes.sequence < _SHORTEST:
        raise _depends(sizes, f"it takes {sizes.sequence} tokens")
    if any(value.shape is None or len(value.shape) != 2 for value in model.graph.inputs):
        raise _depends(sizes, "its inputs are not (batch, sequence)")
    rewriter = _Rewriter(model, sizes)
    for node in list(model.graph):
        rewriter.visit(node)
    rewriter.write_shapes()


def check_equal(
    fixed: Runner,
    dynamic: Runner,
    sizes: FixedSizes,
    task: str,
    *,
    vocabulary_size: int | None,
    tolerance: float,
) -> None:
    """Compare a graph that was made dynamic with the original, at the original's shape and others.

    Args:
        fixed: The original, see `FixedShapeRunner`.
        dynamic: The graph that was made dynamic.
        sizes: The sizes of the original's inputs.
        task: transformers' name of its task.
        vocabulary_size: Number of token ids, if it is known.
        tolerance: See `fixed_shapes.tolerance_of`.

    Raises:
        UserInputError: Their outputs differ.
    """
    longest = sizes.sequence or 16
    random = np.random.default_rng(0)
    for rows, tokens in (
        (sizes.batch or 2, longest),
        (3, max(_SHORTEST, longest * 2 // 3)),
        (2, max(_SHORTEST - 1, longest // 3)),
    ):
        # The first ids are special tokens, [PAD] among them.
        ids = random.integers(5, min(vocabulary_size or 100, 1000), (rows, tokens))
        mask = np.ones_like(ids)
        if rows > 1:
            mask[-1, tokens - tokens // 3 :] = 0
        known = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        inputs = {name: known[name] for name in dynamic.input_names}
        try:
            actual = dynamic.run(inputs)
        # Engines' exceptions have no common class.
        except Exception as error:
            raise _depends(sizes, f"it fails for {rows} texts of {tokens} tokens") from error
        expected = fixed.run(inputs)
        for name, wanted in expected.items():
            made = actual[name]
            if is_per_token(name, task) and made.shape == wanted.shape:
                made, wanted = made[mask == 1], wanted[mask == 1]
            limit = tolerance * max(1e-2, float(np.abs(wanted).max()))
            if made.shape != wanted.shape or not np.allclose(made, wanted, rtol=0, atol=limit):
                raise _depends(
                    sizes, f"its output {name!r} changes when {rows} texts have {tokens} tokens"
                )


def _depends(sizes: FixedSizes, reason: str) -> UserInputError:
    return UserInputError(
        f"the inputs have the fixed shape {sizes}, and it cannot be made dynamic: {reason}. Export "
        "the graph with dynamic axes."
    )


class _Rewriter:
    """Computes the shapes of all values for two sizes of the inputs, and rewrites nodes.

    Attributes:
        shapes: Both shapes of each value.
        data: Both contents of small integer values, such as shapes.
        computed: Values that depend on the contents of the inputs.
    """

    def __init__(self, model: ir.Model, sizes: FixedSizes) -> None:
        self.model, self.graph, self.sizes = model, model.graph, sizes
        # The sequence gets shorter, since slices end at the size of the file.
        batch, sequence = sizes.batch or 2, sizes.sequence or 8
        self.batch, self.sequence = (batch, batch + 1), (sequence, sequence - 1)
        self.shapes: dict[ir.Value, tuple[Dims, Dims]] = {}
        self.data: dict[ir.Value, tuple[Data, Data]] = {}
        self.computed = set(model.graph.inputs)
        self._lengths: dict[int, ir.Value] = {}
        for value in model.graph.inputs:
            self.shapes[value] = tuple(zip(self.batch, self.sequence, strict=True))  # type: ignore[assignment]
        for value in model.graph.initializers.values():
            self._add_constant(value)

    def _add_constant(self, value: ir.Value) -> None:
        array = constant_array(value)
        if array is not None:
            self.shapes[value] = (array.shape, array.shape)
            if array.size <= _MOST_DATA and array.dtype.kind in "iub":
                self.data[value] = (array, array)

    def visit(self, node: ir.Node) -> None:
        """Rewrite a node where it contains a fixed size, and compute the shapes of its outputs."""
        before = [self.shapes.get(value) for value in node.inputs if value is not None]
        if any(each is None for each in before):
            raise _depends(self.sizes, f"the shape that node {node.name!r} reads is not known")
        old = self._infer(node, 0)
        if node.op_type in ("Gather", "GatherND"):
            node = self._replace_gather(node, old[0])
        if node.op_type == "Reshape":
            self._rewrite_reshape(node, old[0])
        elif node.op_type in ("Expand", "ConstantOfShape"):
            self._rewrite_target(node)
        elif node.op_type == "GatherElements":
            self._repeat_row(node)
        elif node.op_type in _BROADCASTING:
            self._cut_constants(node)
        new = self._infer(node, 1)
        for value, *pair in zip(node.outputs, old, new, strict=True):
            self.shapes[value] = (pair[0], pair[1])
        if node.op_type != "Shape" and not self.computed.isdisjoint(node.inputs):
            self.computed.update(node.outputs)
        self._compute_data(node)

    def _infer(self, node: ir.Node, world: int) -> list[Dims]:
        """Return the shapes of a node's outputs for one of the two sizes."""
        inputs = [value for value in node.inputs if value is not None]
        types = {
            str(value.name): onnx.helper.make_tensor_type_proto(
                int(value.dtype or ir.DataType.FLOAT), self.shapes[value][world]
            )
            for value in inputs
        }
        data = {
            str(value.name): onnx.numpy_helper.from_array(np.asarray(self.data[value][world]))
            for value in inputs
            if value in self.data
        }
        opset = self.model.opset_imports[""]
        try:
            found = onnx.shape_inference.infer_node_outputs(
                onnx.defs.get_schema(node.op_type, opset, node.domain),
                ir.serde.serialize_node(node),
                types,
                data,
                opset_imports=[onnx.helper.make_opsetid("", opset)],
            )
            shapes = [found[str(value.name)].tensor_type.shape.dim for value in node.outputs]
        # onnx raises several classes, some of them not public.
        except Exception as error:
            raise self._not_rewritten(node) from error
        if any(not dim.HasField("dim_value") for shape in shapes for dim in shape):
            raise self._not_rewritten(node)
        return [tuple(dim.dim_value for dim in shape) for shape in shapes]

    def _not_rewritten(self, node: ir.Node) -> UserInputError:
        return _depends(self.sizes, f"node {node.name!r} ({node.op_type}) depends on it")

    def _compute_data(self, node: ir.Node) -> None:
        """Compute small integer outputs for both sizes, where the inputs are known."""
        output, source = node.outputs[0], node.inputs[0] if node.inputs else None
        if node.op_type == "Shape" and source is not None:
            start = node.attributes.get_int("start", 0)
            end = node.attributes.get_int("end", None)
            shapes = self.shapes[source]
            self.data[output] = tuple(np.array(each[start:end], np.int64) for each in shapes)  # type: ignore[assignment]
            return
        inputs = [value for value in node.inputs if value is not None]
        if len(node.outputs) > 1 or any(value not in self.data for value in inputs):
            return
        if max(math.prod(shape) for shape in self.shapes[output]) > _MOST_DATA:
            return
        proto = ir.serde.serialize_node(node)
        evaluator = ReferenceEvaluator(proto, opsets=dict(self.model.opset_imports))
        made: list[Data] = []
        for world in (0, 1):
            given = {str(value.name): self.data[value][world] for value in inputs}
            (result,) = evaluator.run(None, given)
            made.append(np.asarray(result))
        self.data[output] = (made[0], made[1])

    def _rewrite_reshape(self, node: ir.Node, old: Dims) -> None:
        """Write the shape of a Reshape for any size."""
        source, target = node.inputs[:2]
        assert source is not None
        assert target is not None
        factors = _align(self.shapes[source], old, (self.batch, self.sequence))
        if factors is None:
            return
        new = tuple(self._other_size(*pair) for pair in zip(old, factors, strict=True))
        if target in self.data and _resolved(self.data[target][1], self.shapes[source][1]) == new:
            return
        before, after = self.shapes[source]
        parts: list[int | tuple[int, int, int]] = []
        for axis, (dim, powers) in enumerate(zip(old, factors, strict=True)):
            rest = dim // self.batch[0] ** powers[0] // self.sequence[0] ** powers[1]
            if powers == (0, 0):
                parts.append(dim)
            elif axis < len(before) and (before[axis], after[axis]) == (dim, new[axis]):
                parts.append(0)
            else:
                parts.append((rest, *powers))
        computed = [index for index, part in enumerate(parts) if isinstance(part, tuple)]
        if computed:
            # The one that takes most nodes to compute.
            parts[max(computed, key=lambda index: sum(parts[index]))] = -1  # type: ignore[arg-type]
        node.replace_input_with(1, self._shape_value(node, parts))
        # A 0 copies a size.
        node.attributes["allowzero"] = ir.AttrInt64("allowzero", 0)

    def _replace_gather(self, node: ir.Node, old: Dims) -> ir.Node:
        """Return a Reshape in place of a Gather or GatherND that reads all of its input in order.

        transformers writes masks with such indices, which contain the batch and the sequence.
        """
        source, indices = node.inputs
        assert source is not None
        assert indices is not None
        numbers, shape = constant_array(indices), self.shapes[source][0]
        if numbers is None and indices in self.data:
            numbers = self.data[indices][0]
        if numbers is None or any(attribute.value for attribute in node.attributes.values()):
            return node
        if node.op_type == "Gather":
            numbers, shape = numbers[..., None], shape[:1]
        if numbers.shape[-1] != len(shape):
            return node
        flat = np.ravel_multi_index(tuple(np.moveaxis(numbers, -1, 0)), shape, mode="wrap")
        if not np.array_equal(flat.ravel(), np.arange(math.prod(shape))):
            return node
        reshape = ir.node("Reshape", [source, self._integers(list(old))], name=node.name)
        reshape.outputs[0].type = source.type
        replace(self.graph, node, reshape, old=node.outputs[0])
        return reshape

    def _other_size(self, dim: int, powers: tuple[int, int]) -> int:
        for (old, new), power in zip((self.batch, self.sequence), powers, strict=True):
            dim = dim // old**power * new**power
        return dim

    def _rewrite_target(self, node: ir.Node) -> None:
        """Write the shape that an Expand or a ConstantOfShape makes for any size."""
        index = 1 if node.op_type == "Expand" else 0
        target, source = node.inputs[index], node.inputs[0] if index else None
        if target not in self.data or target is None:
            return
        old, new = self.data[target]
        rank = len(old)
        before, after = self.shapes[source] if source is not None else ((), ())
        before, after = ((1,) * (rank - len(each)) + each for each in (before, after))
        parts: list[int | tuple[int, int, int]] = []
        for axis, (dim, other) in enumerate(zip(old.tolist(), new.tolist(), strict=True)):
            offset = len(before) - rank + axis
            if before[offset] != after[offset]:
                parts.append(1)
            elif dim == self.sequence[0] and before[offset] == 1:
                parts.append((1, 0, 1))
            elif dim == self.batch[0] > 1 and axis == 0 and before[offset] == 1:
                parts.append((1, 1, 0))
            elif dim != other:
                return
            else:
                parts.append(dim)
        if any(isinstance(part, tuple) for part in parts) or parts != old.tolist():
            node.replace_input_with(index, self._shape_value(node, parts))

    def _repeat_row(self, node: ir.Node) -> None:
        """Repeat the one row that a GatherElements reads for each row of its indices."""
        source, indices = node.inputs
        rows = [self._size(value, -2) for value in (source, indices)]
        if source is None or rows != [(1, 1), self.batch] or len(self.shapes[source][0]) != 2:
            return
        shape = self._shape_value(node, [(1, 1, 0), 1])
        repeated = self._insert(node, ir.node("Expand", [source, shape]), "rows", source.dtype)
        node.replace_input_with(0, repeated)

    def _cut_constants(self, node: ir.Node) -> None:
        """Cut values of fixed size where they meet values of the inputs' size."""
        rank = max(len(self.shapes[value][0]) for value in node.inputs if value is not None)
        for axis in range(rank):
            sizes = [self._size(value, axis - rank) for value in node.inputs]
            varying = {pair for pair in sizes if pair[0] != pair[1] and pair[0] > 1}
            if len(varying) != 1:
                continue
            (wanted,) = varying
            for index, (value, pair) in enumerate(zip(node.inputs, sizes, strict=True)):
                if value is None or pair != (wanted[0], wanted[0]):
                    continue
                is_batch = wanted == self.batch
                # Rows differ in values that are computed from the inputs.
                has_rows = is_batch and value in self.computed
                if wanted not in (self.batch, self.sequence) or has_rows:
                    raise self._not_rewritten(node)
                own_axis = axis - rank + len(self.shapes[value][0])
                node.replace_input_with(index, self._cut(node, value, own_axis, is_batch=is_batch))

    def _size(self, value: ir.Value | None, axis: int) -> tuple[int, int]:
        """Return both sizes of a value along an axis, counted from its end."""
        if value is None or len(self.shapes[value][0]) < -axis:
            return (1, 1)
        old, new = self.shapes[value]
        return (old[axis], new[axis])

    def _cut(self, before: ir.Node, value: ir.Value, axis: int, *, is_batch: bool) -> ir.Value:
        """Return the start of a value: one row, or as many tokens as there are."""
        zero, one = (self._integers([number]) for number in (0, 1))
        end = one if is_batch else self._length(1)
        node = ir.node("Slice", [value, zero, end, self._integers([axis])])
        return self._insert(before, node, "cut", value.dtype)

    def _shape_value(
        self, before: ir.Node, parts: Sequence[int | tuple[int, int, int]]
    ) -> ir.Value:
        """Return a shape of numbers and products of a number, the batch and the sequence."""
        if all(isinstance(part, int) for part in parts):
            return self._integers([part for part in parts if isinstance(part, int)])
        pieces = [self._piece(before, part) for part in parts]
        return self._insert(before, ir.node("Concat", pieces, {"axis": 0}), "shape")

    def _piece(self, before: ir.Node, part: int | tuple[int, int, int]) -> ir.Value:
        if isinstance(part, int):
            return self._integers([part])
        number, batch, sequence = part
        factors = [self._length(0)] * batch + [self._length(1)] * sequence
        if number != 1:
            factors.append(self._integers([number]))
        result = factors[0]
        for factor in factors[1:]:
            result = self._insert(before, ir.node("Mul", [result, factor]), "size")
        return result

    def _insert(
        self,
        before: ir.Node,
        node: ir.Node,
        what: str,
        dtype: ir.DataType | None = ir.DataType.INT64,
    ) -> ir.Value:
        node.name = f"{before.name}.{what}_{len(self.shapes)}"
        output = node.outputs[0]
        output.name = f"{node.name}.output"
        output.type = None if dtype is None else ir.TensorType(dtype)
        self.graph.insert_before(before, node)
        self.visit(node)
        return output

    def _integers(self, numbers: list[int]) -> ir.Value:
        name = f"dynamic.{'_'.join(map(str, numbers))}"
        value = add_constant(self.graph, name, np.array(numbers, np.int64))
        self._add_constant(value)
        return value

    def _length(self, axis: int) -> ir.Value:
        """Return the size of the inputs along an axis, `(1,)`."""
        if axis not in self._lengths:
            ids = next(value for value in self.graph.inputs if value.name == "input_ids")
            name = f"dynamic.{('batch', 'sequence')[axis]}"
            node = ir.node("Shape", [ids], {"start": axis, "end": axis + 1}, name=name)
            output = node.outputs[0]
            output.name, output.type = f"{name}.size", ir.TensorType(ir.DataType.INT64)
            self.graph.insert_before(next(iter(self.graph)), node)
            self.visit(node)
            self._lengths[axis] = output
        return self._lengths[axis]

    def write_shapes(self) -> None:
        """Write the shapes into the graph, with names for sizes that are dynamic."""
        names = {self.batch: "batch", self.sequence: "sequence"}
        for value, (old, new) in self.shapes.items():
            if constant_array(value) is None:
                value.shape = ir.Shape(
                    a if a == b else names.get((a, b)) for a, b in zip(old, new, strict=True)
                )


def _resolved(target: Data, source: Dims) -> Dims:
    """Return the shape that a Reshape makes, or an impossible one."""
    dims = [source[i] if dim == 0 and i < len(source) else int(dim) for i, dim in enumerate(target)]
    known = math.prod(dim for dim in dims if dim != -1)
    return tuple(math.prod(source) // max(known, 1) if dim == -1 else dim for dim in dims)


def _align(
    source: tuple[Dims, Dims], target: Dims, sizes: tuple[tuple[int, int], tuple[int, int]]
) -> list[tuple[int, int]] | None:
    """Return the powers of batch and sequence in each size that a Reshape makes.

    Args:
        source: The shape that is read, for both sizes.
        target: The shape that is made, for the sizes of the file.
        sizes: Both batches and both sequences.

    Returns:
        `None` if the sizes cannot be assigned.
    """
    found: list[tuple[int, int]] = []
    i = j = 0
    while i < len(source[0]) or j < len(target):
        start, first = i, j
        i, j = min(i + 1, len(source[0])), min(j + 1, len(target))
        while (read := math.prod(source[0][start:i])) != (made := math.prod(target[first:j])):
            if read < made and i < len(source[0]):
                i += 1
            elif made < read and j < len(target):
                j += 1
            else:
                return None
        powers = _assign(target[first:j], math.prod(source[1][start:i]), sizes)
        if powers is None:
            return None
        found += powers
    return found


def _assign(
    dims: Dims, product: int, sizes: tuple[tuple[int, int], tuple[int, int]]
) -> list[tuple[int, int]] | None:
    """Return the powers of batch and sequence in each size that give a product for other sizes."""
    (batch, other_batch), (sequence, other_sequence) = sizes
    options: list[list[tuple[int, int, int, int]]] = []
    for dim in dims:
        # Cost, resulting size, and powers of batch and sequence.
        each = [(0, dim, 0, 0)]
        for i, j in ((1, 0), (0, 1), (1, 1)):
            factor = batch**i * sequence**j
            if dim % factor == 0:
                made = dim // factor * other_batch**i * other_sequence**j
                # Two sizes in two dimensions are likelier than both in one.
                each.append((3 * (i * j) + (1 if dim == factor else 3), made, i, j))
        options.append(each)
    fitting = [
        choice
        for choice in itertools.product(*options)
        if math.prod(option[1] for option in choice) == product
    ]
    if not fitting:
        return None
    # The batch comes first.
    best = min(
        fitting,
        key=lambda choice: (
            sum(option[0] for option in choice),
            [1 - option[2] for option in choice],
        ),
    )
    return [(option[2], option[3]) for option in best]
