"""The decoder of a sparse embedder in int8: the largest score of each word in each text.

Its weights are stored with the head, or as the table of word embeddings with 16-bit codes. They
become 8-bit codes with a scale for each word when a model is loaded, so that a file needs one copy.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbert.engines.native.kernels.dot import PANEL, bytes_of_codes
from qdqbert.engines.native.kernels.forward import SPARE_ROWS
from qdqbert.engines.native.memory import zeros
from qdqbert.engines.native.program import Program
from qdqbert.engines.native.records import CODES, WORDS
from qdqbert.engines.native.schedule import divide_evenly, useful_threads
from qdqbert.engines.native.team import Team
from qdqbert.engines.native.texts import Rows

# Bytes of weights that stay in the second-level cache, next to codes and scores.
_TOGETHER = 2**18
# Panels that are multiplied together are a multiple of these, so that tiles of all widths fit.
_PANELS = 6
# Tokens that take the steps before the decoder together.
_BLOCK = 256


@dataclasses.dataclass(frozen=True, kw_only=True)
class Threads:
    """The threads that score words.

    Attributes:
        team: The threads.
        records: A `THREAD` record for each of them.
        is_busy: Whether another process has kept a core of these threads.
    """

    team: Team
    records: Sequence[NDArray[np.int64]]
    is_busy: bool


class Words:
    """A decoder, and how threads run it."""

    def __init__(self, program: Program, name: str, settings: Mapping[str, Any]) -> None:
        """Round the weights of the layer whose arrays have names that start with `name`."""
        self._program = program
        self._depth, self._columns = settings["depth"], settings["columns"]
        self._table = program.weights_by_row(name, settings)
        self._linear = program.words(name, settings, self._table)
        self._ones = np.ones(self._depth, np.float32)
        self._codes = CODES.make(multiplier=self._ones, shift=0.0)
        panels = _TOGETHER // (PANEL * self._depth)
        self._together = max(1, panels // _PANELS) * _PANELS

    def largest(
        self,
        steps: Callable[[Rows], Rows],
        states: Rows,
        starts: NDArray[np.int64],
        threads: Threads,
    ) -> Rows:
        """Return the largest score of each word over the tokens of each text, `(texts, columns)`.

        It is 0 where no score is positive.

        Args:
            steps: Returns what the decoder reads of some hidden states.
            states: Hidden states with padding, `(tokens, hidden)`.
            starts: Index of the first token of each text, and of the end.
            threads: The threads.
        """
        tokens, stride = len(states), bytes_of_codes(self._depth)
        codes = zeros((tokens + SPARE_ROWS, stride), np.uint8)
        scales = zeros(tokens + SPARE_ROWS, np.float32)
        read = zeros((tokens, self._depth), np.float32)
        for first in range(0, tokens, _BLOCK):
            rows = steps(states[first : first + _BLOCK])
            read[first : first + _BLOCK] = rows
            self._program.functions["quantize_tokens"](
                *(self._codes.ctypes.data, rows.ctypes.data, rows.strides[0], self._depth),
                *(len(rows), codes[first:].ctypes.data, stride, scales[first:].ctypes.data),
            )
        found = zeros((len(starts) - 1, self._columns), np.float32)
        table, rest, scale = self._table
        products, records = self._depth * self._columns, threads.records
        count = useful_threads(tokens, products, len(records), is_busy=threads.is_busy)
        panels = divide_evenly(self._columns // PANEL, count, _PANELS)
        buffers = [zeros(self._depth, np.float32) for _ in panels]
        jobs = [
            WORDS.make(
                linear=self._linear,
                first=each.start,
                end=each.stop,
                together=self._together,
                table=table,
                rest=rest,
                scale=scale,
                depth=self._depth,
                row=buffer,
                states=read,
                codes=codes,
                code_stride=stride,
                row_scales=scales,
                starts=starts,
                texts=len(found),
                out=found,
                out_stride=found.strides[0],
            )
            for each, buffer in zip(panels, buffers, strict=True)
        ]
        threads.team.run(jobs, records[:count], function="score_words")
        return found
