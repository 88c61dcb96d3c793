"""What a graph computes of its inputs: places of tokens, their distances, and masks."""

from __future__ import annotations

import functools

import numpy as np
import onnx_ir as ir

from qdqbert.encoders.model import Attention, Embeddings, EncoderModel
from qdqbert.graphs.nodes import Nodes
from qdqbert.graphs.operators import integers

_LOWEST = np.float32(np.finfo(np.float32).min)


class Tokens:
    """The inputs of a graph as `(texts, seq)`, and values that depend on nothing else.

    Each is written when it is read for the first time.

    Attributes:
        ids: Name of the token ids.
        mask: Name of the attention mask.
        types: Name of the token types; empty if they are no input.
        axes: Names of both axes, where they have one.
    """

    def __init__(self, add: Nodes, model: EncoderModel) -> None:
        self._add = add
        inputs = dict(zip(model.input_names, model.input_names, strict=True))
        if model.has_choices:
            length = add("Shape", "input_ids", start=-1)
            flat = add("Concat", integers(-1), length, axis=0)
            inputs = {name: add("Reshape", name, flat) for name in inputs}
        self.ids, self.mask = inputs["input_ids"], inputs["attention_mask"]
        self.types = inputs.get("token_type_ids", "")
        self.axes: list[str | None]
        self.axes = [None, None] if model.has_choices else ["batch", "sequence"]
        if model.filled_id is not None:
            self._fill(model.filled_id, model.limit)

    def _fill(self, token: int, limit: int) -> None:
        """Put a token where the mask is 0, and after it up to a length, and attend to it."""
        add = self._add
        room = add("Sub", integers(limit), self.length)
        del self.length
        kept = add("Where", add("Equal", self.mask, np.array(0)), np.array(token), self.ids)
        pads = add("Concat", integers(0, 0, 0), room, axis=0)
        output = ir.DataType.INT64, [self.axes[0], limit]
        self.ids = add("Pad", kept, pads, np.array(token), output=output)
        self.mask = add("Expand", np.array(1), add("Shape", self.ids), output=output)
        self.axes = [self.axes[0], None]

    @functools.cached_property
    def length(self) -> str:
        """The number of tokens, `(1,)`."""
        return self._add("Shape", self.ids, start=1)

    @functools.cached_property
    def places(self) -> str:
        """The numbers of the tokens, `(seq,)`."""
        end = self._add("Squeeze", self.length, integers(0))
        output = ir.DataType.INT64, self.axes[1:]
        return self._add("Range", np.array(0), end, np.array(1), output=output)

    @functools.cached_property
    def distance(self) -> str:
        """The matrix of j - i, `(seq, seq)`."""
        return self._add("Sub", self.places, self._add("Unsqueeze", self.places, integers(1)))

    def positions(self, embeddings: Embeddings) -> str:
        """Return the rows of the table of positions that tokens read."""
        add = self._add
        if embeddings.padding_id is None:
            places = self.places
        else:
            is_padding = add("Equal", self.ids, np.array(embeddings.padding_id))
            counted = add("Cast", add("Not", is_padding), to=ir.DataType.INT64)
            places = add("Mul", add("CumSum", counted, np.array(1)), counted)
        if embeddings.first_position:
            places = add("Add", places, np.array(embeddings.first_position))
        return places

    def share(self, dropped_id: int) -> str:
        """Return the number of tokens of each text, divided by the number that is not dropped."""
        add = self._add
        dropped = add("Cast", add("Equal", self.ids, np.array(dropped_id)), to=ir.DataType.INT64)
        others = add("Mul", self.mask, add("Sub", np.array(1), dropped))
        counts = (
            add("Cast", add("ReduceSum", each, integers(1)), to=ir.DataType.FLOAT)
            for each in (self.mask, others)
        )
        share = add("Div", next(counts), add("Max", next(counts), np.float32(1)))
        return add("Unsqueeze", share, integers(2))

    def additive_mask(self, attention: Attention) -> str:
        """Return the additive mask: 0, or the lowest number for pairs that do not attend."""
        add, window = self._add, attention.window
        masked = add("Unsqueeze", add("Equal", self.mask, np.array(0)), integers(1, 2))
        if attention.causal:
            masked = add("Or", masked, add("Greater", self.distance, np.array(0)))
        if window is not None:
            distance = add("Abs", self.distance)
            masked = add("Or", masked, add("Greater", distance, np.array(window)))
        return add("Where", masked, _LOWEST, np.float32(0))

    def attends(self, attention: Attention) -> str:
        """Return 1 for tokens that attend to one or more tokens, and 0, `(batch, 1, seq, 1)`.

        Those that expand a query may be far from it. Their context is 0, as in PyTorch.
        """
        add = self._add
        largest = add("ReduceMax", self.additive_mask(attention), integers(-1), keepdims=1)
        return add("Cast", add("Equal", largest, np.float32(0)), to=ir.DataType.FLOAT)
