"""A convolution of the embeddings, which is added to the states after the first layer."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from qdqbert.engines.native.heads import Rows
from qdqbert.engines.native.memory import zeros
from qdqbert.engines.native.program import Program

# Rows that are computed together. Each has the embeddings of several tokens.
_BLOCK = 128


class Convolution:
    """The convolution of a model. The result of a row does not depend on the other rows.

    Attributes:
        parts: Records of the embeddings, of the first layer, and of the other layers.
    """

    def __init__(self, program: Program) -> None:
        """Bind the arrays of the convolution."""
        settings = program.settings["convolution"]
        count = len(program.settings["layers"])
        self.parts = (
            program.part(range(0), embeds=True),
            program.part(range(1), embeds=False),
            program.part(range(1, count), embeds=False),
        )
        self._functions = program.functions
        self._tokens, self._width = settings["tokens"], program.settings["hidden"]
        self._activation = program.functions[f"apply_{settings['activation']}"]
        self._linear = program.float_linear("convolution", settings["linear"])
        self._norm = program.norm("convolution_norm", settings["norm"])

    def add_(self, states: Rows, embedded: Rows, starts: NDArray[np.int64]) -> None:
        """Add the convolution of the embeddings to the states, and normalize them.

        Args:
            states: `(tokens, hidden)` with padding.
            embedded: The embeddings, in the same shape.
            starts: Index of the first token of each text, and of the end.
        """
        text = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
        for first in range(0, len(states), _BLOCK):
            rows = np.arange(first, min(first + _BLOCK, len(states)))
            added = self._convolved(embedded, text, rows)
            states[rows[0] : rows[-1] + 1] += added
        self._functions["layer_norm"](
            self._norm.ctypes.data, states.ctypes.data, states.strides[0], len(states)
        )

    def _convolved(self, embedded: Rows, text: NDArray[np.int64], rows: NDArray[np.int64]) -> Rows:
        near = zeros((len(rows), self._tokens, embedded.shape[1]), np.float32)
        for place in range(self._tokens):
            wanted = rows + place - self._tokens // 2
            source = wanted.clip(0, len(text) - 1)
            is_own = (source == wanted) & (text[source] == text[rows])
            near[is_own, place] = embedded[source[is_own]]
        out = zeros((len(rows), embedded.shape[1]), np.float32)
        self._functions["float_linear"](
            self._linear.ctypes.data,
            near.ctypes.data,
            near.strides[0],
            len(rows),
            out.ctypes.data,
            out.strides[0],
        )
        self._activation(out.ctypes.data, out.size)
        # Functions of zero may differ from zero, and padding has to stay zero.
        out[:, self._width :] = 0
        return out
