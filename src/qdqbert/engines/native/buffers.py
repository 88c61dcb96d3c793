"""Buffers of threads and of texts that run together, and the records that kernels read of them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbert.engines.native.kernels.dot import PANEL
from qdqbert.engines.native.kernels.forward import SPARE_ROWS
from qdqbert.engines.native.kernels.norm import NORMED_ROWS
from qdqbert.engines.native.kernels.packing import DEPTH
from qdqbert.engines.native.memory import address, padded, zeros
from qdqbert.engines.native.program import Program
from qdqbert.engines.native.records import JOB, THREAD
from qdqbert.engines.native.schedule import FEW_ROWS, Shares, divide_evenly
from qdqbert.engines.native.texts import Texts

Array = NDArray[Any]

# Panels that tiles of AMX have, at least.
_PAIR = 2
# Columns of a tile of AVX-512, and two tiles of AMX.
_TILE_COLUMNS = 64
# Where a job's record has its texts.
_OF_TEXTS = ("word_factors", "starts", "attended", "texts", "threads", "by_columns", "tokens_read")
_PREFIX, _PREFIX_STATES, _SAVED = (
    JOB.index(name) for name in ("prefix", "prefix_states", "saved_states")
)
_IDS, _POSITIONS, _TYPES = (JOB.index(name) for name in ("ids", "positions", "token_types"))
_FACTORS, _STARTS, _ATTENDED, _TEXTS, _THREADS, _BY_COLUMNS, _TOKENS_READ = (
    JOB.index(name) for name in _OF_TEXTS
)

_PARTS, _PART_COUNT = (THREAD.index(name) for name in ("parts", "part_count"))


def attention_buffers(rows: int, limit: int, size: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a thread's buffers of float32 for attention, by fields of `THREAD`.

    `rows` are `Products.rows_together`, `limit` is the longest text in tokens, and `size` the
    number of channels of a head.
    """
    limit, size = padded(limit, DEPTH), padded(size, DEPTH)
    return {
        "queries": (rows, size),
        "keys": (limit * size,),
        "values": (limit * size,),
        # Tiles of AMX have a line between rows, and read past the last one.
        "scores": (rows + 1, limit + PANEL),
        "inverse": (rows,),
        "sums": (rows, size),
    }


def _of_experts(program: Program) -> dict[str, Array]:
    """Return a thread's buffers for experts, by fields of `THREAD`."""
    if not program.expert_columns:
        return {}
    rows, bytes_of_row = program.block + SPARE_ROWS, program.features.bytes_of_row
    return {
        "expert_codes": zeros((rows, bytes_of_row(program.hidden)), np.uint8),
        "expert_scales": zeros(rows, np.float32),
    }


class Scratch:
    """Buffers of one thread, and the record that kernels read."""

    def __init__(self, program: Program, thread: int = 0, threads: int = 1) -> None:
        """Allocate buffers for texts of any length that the model takes."""
        settings, limit = program.settings, program.limit
        size, rows = settings["head_size"], program.isa.products.rows_together
        has_floats = program.features.dynamic or program.features.gated
        block = program.block
        rows_of_block, bytes_of_row = block + SPARE_ROWS, program.features.bytes_of_row
        self._buffers: dict[str, Array] = {
            "embedded": zeros((block, padded(settings["embeddings"]["width"])), np.float32),
            "codes": zeros((rows_of_block, bytes_of_row(program.hidden)), np.uint8),
            "inner": zeros(
                (rows_of_block, bytes_of_row(max(program.inner, program.width))), np.uint8
            ),
            "kept": zeros(
                (block if program.features.adds_twice else 0, program.hidden), np.float32
            ),
            "local": zeros(
                (
                    block if program.features.norms_parts or program.expert_columns else 0,
                    program.hidden,
                ),
                np.float32,
            ),
            "row_scales": zeros(rows_of_block, np.float32),
            "inner_float": zeros(
                (program.float_rows if has_floats else 0, program.up_columns), np.float32
            ),
            "spread": zeros((NORMED_ROWS, max(program.hidden, program.inner)), np.float32),
            "normed": zeros((NORMED_ROWS, program.hidden), np.float32),
            **_of_experts(program),
            "query_positions": zeros(
                (rows if program.features.relative_keys else 0, program.relative_columns),
                np.float32,
            ),
            "key_positions": zeros(
                (limit if program.features.relative_queries else 0, program.relative_columns),
                np.float32,
            ),
            **{
                name: zeros(shape, np.float32)
                for name, shape in attention_buffers(rows, limit, size).items()
            },
        }
        up = program.up_columns if program.features.gated else settings["inner"]
        panels = [-(-columns // PANEL) for columns in (settings["hidden"], up)]
        hidden, inner = (divide_evenly(each, threads, _PAIR)[thread] for each in panels)
        # Whole tiles of columns if they are whole heads.
        multiple = _TILE_COLUMNS // size if _TILE_COLUMNS % size == 0 else 1
        self._own_heads = divide_evenly(settings["heads"], threads, multiple)[thread]
        # Hidden states of a thread that computes all rows, and their codes.
        self.states = program.states(FEW_ROWS if thread else 0)
        self._parts = zeros(1, np.int64)
        self.record = THREAD.make(
            parts=self._parts,
            first_hidden=hidden.start,
            own_hidden=len(hidden),
            first_inner=inner.start,
            own_inner=len(inner),
            **self._buffers,
        )

    def take(self, shares: Shares, thread: int) -> None:
        """Set a thread's share of the next forward pass."""
        rows, items, heads = shares.rows[thread], shares.items[thread], self._own_heads
        self.record[:6] = (rows.start, rows.stop, items.start, items.stop, heads.start, heads.stop)
        # The record has its address.
        self._parts = np.array(shares.parts[thread], np.int64)
        self.record[_PARTS], self.record[_PART_COUNT] = (address(self._parts), len(self._parts) - 1)


class Job:
    """Texts that are run together, their buffers, and the record that kernels read.

    The buffers are kept from one call to the next.

    Attributes:
        record: The `JOB` record.
    """

    def __init__(self, program: Program, sleep: int) -> None:
        """Start without buffers; `sleep` is what `team.sleep_address` returns."""
        self._program = program
        self._sleep = sleep
        self._capacity = 0
        self._texts: Texts | None = None
        self._tokens_read: NDArray[np.int64] | None = None
        self._buffers: dict[str, Array] = {}
        self._states: dict[str, Any] = {}
        self.record = np.zeros(JOB.size // 8, np.int64)

    def take(
        self, texts: Texts, shares: Shares, tokens_read: NDArray[np.int64] | None = None
    ) -> None:
        """Set the texts of the next forward pass, and the share of each thread.

        With `tokens_read`, only the last states of these tokens are defined, one of each text.
        """
        if (tokens := int(texts.starts[-1])) > self._capacity:
            self._allocate(tokens)
        self._texts, record = texts, self.record
        first, stride = address(texts.numbers), texts.numbers.strides[0]
        record[_IDS], record[_POSITIONS], record[_TYPES] = first, first + stride, first + 2 * stride
        if texts.word_factors.size:
            record[_FACTORS] = texts.word_factors.ctypes.data
        record[_STARTS], record[_TEXTS] = address(texts.starts), len(texts.starts) - 1
        record[_ATTENDED] = address(texts.attended)
        prefix, saved = texts.prefix, texts.saved
        record[_PREFIX] = 0 if prefix is None else prefix.tokens
        record[_PREFIX_STATES] = 0 if prefix is None else address(prefix.states)
        record[_SAVED] = 0 if saved is None else address(saved)
        record[_THREADS] = len(shares.rows) if shares.is_shared else 1
        record[_BY_COLUMNS] = int(shares.by_columns)
        # The record has its address.
        self._tokens_read = tokens_read
        record[_TOKENS_READ] = 0 if tokens_read is None else address(tokens_read)

    def record_for(self, scratch: Scratch) -> NDArray[np.int64]:
        """Return the record for another thread that computes all rows, with its own states."""
        found = self.record.copy()
        for name, value in scratch.states.items():
            own = value if isinstance(value, int) else value.ctypes.data
            found[JOB.index(name)] = own
        return found

    def sleeps(self) -> int:
        """Return how often threads slept at barriers since the last call of this method."""
        barrier = self._buffers["barrier"]
        found, barrier[2] = int(barrier[2]), 0
        return found

    @property
    def states(self) -> NDArray[np.float32]:
        """The hidden states, `(tokens, hidden)`. The next forward pass overwrites them."""
        assert self._texts is not None
        found: NDArray[np.float32] = self._states["x"][: self._texts.starts[-1]]
        return found

    def _allocate(self, tokens: int) -> None:
        program, rows = self._program, tokens + SPARE_ROWS
        projected = zeros((3, rows, program.width), np.float32)
        context = np.float32 if program.features.contexts_are_floats else np.uint8
        has_floats = program.features.dynamic or program.features.gated
        inner = (
            zeros((FEW_ROWS + SPARE_ROWS, program.up_columns), np.float32)
            if has_floats
            else zeros(
                (FEW_ROWS + SPARE_ROWS, program.features.bytes_of_row(program.inner)), np.uint8
            )
        )
        self._buffers = {
            "queries": projected[0],
            "keys": projected[1],
            "values": projected[2],
            "context": zeros((rows, program.width), context),
            "sums": zeros((2, FEW_ROWS, program.hidden), np.float32),
            "inner": inner,
            "expert_weights": zeros((rows, program.expert_columns), np.float32),
            "expert_rows": zeros(rows if program.expert_columns else 0, np.int64),
            "barrier": zeros(3, np.int64),
        }
        self._states = program.states(tokens)
        self.record = JOB.make(**self._states, **self._buffers, threads=1, sleep=self._sleep)
        self._capacity = tokens
