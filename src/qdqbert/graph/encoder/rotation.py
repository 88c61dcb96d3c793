"""Read rotary position embeddings of queries and keys."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from qdqbert.encoders.model import Rotary
from qdqbert.graph.edit import constant_array
from qdqbert.graph.encoder.probe import Array, Probe
from qdqbert.graph.encoder.refusal import refuse
from qdqbert.graph.encoder.view import GraphView


def read_rotary(
    view: GraphView,
    value: ir.Value,
    end: ir.Value,
    *,
    columns: NDArray[np.int64],
    factor: float,
    tokens_axis: int,
    limit: int,
) -> Rotary:
    """Return the rotation of queries or keys. Equal rotations are one object.

    Args:
        view: The graph. A new rotation is added to it.
        value: Input of the matmul: `(batch, heads, tokens, width)`, or with the last two axes
            swapped.
        end: Output of the linear layer that it is computed from.
        columns: The outputs of the linear layer in the order of the heads, `(heads, width)`.
        factor: What they are multiplied by, too.
        tokens_axis: Which axis of `value` runs over tokens.
        limit: Longest text in tokens.

    Raises:
        GraphError: They are changed in another way.
    """
    width = columns.shape[1]

    def rotated(x: Array, probe: Probe) -> Array:
        """Compute the heads, given the linear layer's outputs."""
        made = np.moveaxis(view.evaluate(value, {end: x}, probe), tokens_axis, 2)
        return made / np.float32(factor)

    def check(rotary: Rotary, probe: Probe) -> None:
        x = np.random.default_rng(0).standard_normal(view.shape(end, probe), np.float32)
        heads = x.reshape(*x.shape[:2], -1)[..., columns].swapaxes(1, 2)
        if width % 2 or not np.allclose(rotated(x, probe), rotate(heads, rotary), 1e-4, 1e-4):
            raise refuse(value.producer(), "computes heads that are not outputs of a linear layer")

    angles = _inputs_beside(view, value, end)
    if angles not in view.rotations:
        probe = view.long_probe(limit)
        # Ones in the first half of each head, and zeros in the second one.
        first = np.zeros(view.shape(end, probe), np.float32)
        first[..., columns[:, : width // 2]] = 1
        made = np.ascontiguousarray(rotated(first, probe)[0, 0])
        new = Rotary(cos=made[:, : width // 2].copy(), sin=made[:, width // 2 :].copy())
        check(new, probe)
        known = (each for each in view.rotations.values() if _equal(each, new))
        view.rotations[angles] = next(known, new)
    check(view.rotations[angles], view.probe)
    return view.rotations[angles]


def rotate(x: Array, rotary: Rotary) -> Array:
    """Rotate heads `(..., tokens, head size)` of texts that start at the first position."""
    cos, sin = (each[: x.shape[-2]] for each in (rotary.cos, rotary.sin))
    a, b = np.split(x, 2, axis=-1)
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


def _equal(first: Rotary, second: Rotary) -> bool:
    pairs = ((first.cos, second.cos), (first.sin, second.sin))
    return all(np.array_equal(*pair) for pair in pairs)


def _inputs_beside(view: GraphView, value: ir.Value, end: ir.Value) -> frozenset[ir.Value]:
    """Return the values, constants aside, that a value is computed from besides an earlier one."""
    found: set[ir.Value] = set()
    waiting, seen = [value], {value, end}
    while waiting:
        node = waiting.pop().producer()
        new = set() if node is None else {each for each in node.inputs if each is not None} - seen
        seen |= new
        for each in new:
            if view.depends_on(each, end):
                waiting.append(each)
            elif constant_array(each) is None:
                found.add(each)
    return frozenset(found)
