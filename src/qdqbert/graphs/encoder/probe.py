"""Small inputs for which parts of a graph are computed."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from qdqbert.graphs.encoder.refusal import refuse

Array = NDArray[Any]

INPUTS = ("input_ids", "attention_mask", "token_type_ids")
"""Names of the inputs that an encoder may have."""

# Choices of each example, where inputs have them.
_CHOICES = 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class Probe:
    """Inputs of a graph, and the values that depend on them alone.

    Attributes:
        ids: Token ids, `(texts, tokens)`.
        token_types: Token types, of that shape.
        is_text: Which tokens are not padding, of that shape.
        batch: Shape of the inputs without their last axis.
        arrays: The inputs, and values of the graph that depend on them only.
        shapes: Shapes of values of the graph.
    """

    ids: Array
    token_types: Array
    is_text: NDArray[np.bool_]
    batch: tuple[int, ...]
    arrays: dict[ir.Value, Array]
    shapes: dict[ir.Value, tuple[int, ...]]


def make_probe(
    graph: ir.Graph, *, texts: int, tokens: int, padded: bool = True, ids: Array | None = None
) -> Probe:
    """Return random inputs, with the sizes that the graph fixes where it does.

    Args:
        graph: The graph. Its inputs are `(batch, seq)` or `(batch, choices, seq)`.
        texts: Number of texts. A multiple of 3 if inputs have choices.
        tokens: Tokens of each text.
        padded: Whether texts are padded on the right, all but the first of several.
        ids: Token ids `(texts, tokens)` to use instead of random ones.

    Raises:
        GraphError: The graph has other inputs, or inputs of another rank.
    """
    inputs = graph.inputs
    for value in inputs:
        rank = 0 if value.shape is None else len(value.shape)
        is_known = value.name in INPUTS and rank in (2, 3) and rank == len(inputs[0].shape or ())
        if not is_known or value.dtype is None:
            raise refuse(
                None, f"`{value.name}` is not an input `(batch, seq)` or `(batch, choices, seq)`"
            )
    first = inputs[0].shape
    assert first is not None
    choices = (min(_CHOICES, texts),) if len(first) == 3 else ()
    rows, tokens = (
        dim if isinstance(dim, int) else size
        for dim, size in ((first[0], texts // math.prod(choices)), (first[-1], tokens))
    )
    texts = rows * math.prod(choices)
    generator = np.random.default_rng(0)
    if ids is None:
        ids = generator.integers(5, 90, (texts, tokens))
    # Without a mask, the graph reads every token as text.
    has_padding = padded and any(value.name == "attention_mask" for value in inputs)
    lengths = tokens - (np.arange(texts) + (texts == 1)) % tokens * has_padding
    is_text = np.arange(tokens) < lengths[:, None]
    token_types = generator.integers(0, 2, (texts, tokens))
    given = dict(zip(INPUTS, (ids, is_text, token_types), strict=True))
    shape = (rows, *choices, tokens)
    arrays = {
        value: given[str(value.name)].reshape(shape).astype(value.dtype.numpy())
        for value in inputs
        if value.dtype is not None
    }
    # Sizes of the named dimensions.
    sizes = {
        str(dim): size for each in inputs for dim, size in zip(each.shape or (), shape, strict=True)
    }
    shapes = {}
    for value in (each for node in graph for each in node.outputs):
        dims = None if value.shape is None else [sizes.get(str(dim), dim) for dim in value.shape]
        if dims is not None and all(isinstance(dim, int) for dim in dims):
            shapes[value] = tuple(dims)
    return Probe(
        ids=ids,
        token_types=token_types,
        is_text=is_text,
        batch=shape[:-1],
        arrays=arrays,
        shapes=shapes | dict.fromkeys(inputs, shape),
    )
