"""A convolution of the embeddings, which is added to the states after the first layer."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from qdqbert.engines.native.memory import zeros
from qdqbert.engines.native.program import Program
from qdqbert.engines.native.texts import Rows

# Rows that are computed together. Each has the embeddings of several tokens.
_BLOCK = 128


class Convolution:
    """The convolution of a model. The result of a row does not depend on the other rows.

    Attributes:
        parts: Records of the embeddings, of the first layer, and of the other layers.
    """

    def __init__(self, program: Program) -> None:
        settings = program.settings["convolution"]
        count = len(program.settings["layers"])
        self.parts = (
            program.part(range(0), embeds=True),
            program.part(range(1), embeds=False),
            program.part(range(1, count), embeds=False),
        )
        self._program, self._activation = program, settings["activation"]
        self._tokens, self._width = settings["tokens"], program.settings["hidden"]
        self._linear = program.float_linear("convolution", settings["linear"])
        self._norm = program.norm("convolution_norm", settings["norm"])

    def add_(self, states: Rows, embedded: Rows, starts: NDArray[np.int64]) -> None:
        """Add the convolution of the embeddings to the states, and normalize them.

        Both are `(tokens, hidden)` with padding.
        """
        text = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
        for first in range(0, len(states), _BLOCK):
            rows = np.arange(first, min(first + _BLOCK, len(states)))
            added = self._convolved(embedded, text, rows)
            states[rows[0] : rows[-1] + 1] += added
        self._program.normalize_(self._norm, states)

    def _convolved(self, embedded: Rows, text: NDArray[np.int64], rows: NDArray[np.int64]) -> Rows:
        near = zeros((len(rows), self._tokens, embedded.shape[1]), np.float32)
        for place in range(self._tokens):
            wanted = rows + place - self._tokens // 2
            source = wanted.clip(0, len(text) - 1)
            is_own = (source == wanted) & (text[source] == text[rows])
            near[is_own, place] = embedded[source[is_own]]
        out = self._program.multiplied(self._linear, near, self._width)
        self._program.activate_(self._activation, out, self._width)
        return out
