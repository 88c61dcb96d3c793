"""Run a packed model on the native engine; see `qdqbert.engines.runner.Runner`."""

from __future__ import annotations

import contextlib
import dataclasses
import queue
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbert.common.input_names import POOLED
from qdqbert.common.machine import usable_cores
from qdqbert.encoders.model import TAIL_STATES
from qdqbert.engines.index_limits import check_ids
from qdqbert.engines.native.buffers import Job, Scratch
from qdqbert.engines.native.convolution import Convolution
from qdqbert.engines.native.heads import Heads
from qdqbert.engines.native.instruction_sets import choose_set
from qdqbert.engines.native.memory import address
from qdqbert.engines.native.program import Program
from qdqbert.engines.native.schedule import CALLS_ALONE, MANY_SLEEPS, divide, useful_threads
from qdqbert.engines.native.storage import Packed, load_packed
from qdqbert.engines.native.tail import TailRunner
from qdqbert.engines.native.team import Team
from qdqbert.engines.native.texts import Prefix, Rows, Texts
from qdqbert.engines.native.words import Threads
from qdqbert.engines.runner import Outputs
from qdqbert.engines.token_inputs import (
    Integers,
    TokenInputs,
    attended_tokens,
    check_lengths,
    read_inputs,
    word_factors,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Batch:
    """Inputs without padding.

    Attributes:
        texts: The texts.
        mask: `(texts, seq)`, 0 where a token has no states, which is padding.
        shape: Shape of the inputs.
        pooled: `(tokens,)`, whether poolings read a token; `None` if they read all.
    """

    texts: Texts
    mask: Integers
    shape: tuple[int, ...]
    pooled: NDArray[np.bool_] | None = None


class Stream:
    """The resources of one forward pass at a time: threads and their buffers."""

    def __init__(self, program: Program, threads: int) -> None:
        # Forward passes left that threads do not share if one of them is enough.
        self.calls_alone = 0
        self.team = Team(program.functions, program.model, threads)
        self.job = Job(program, self.team.sleep)
        self.scratch = [Scratch(program, each, threads) for each in range(threads)]


class NativeRunner:
    """A packed model with its kernels.

    The result for a text has the same bits whatever texts are in the batch, in whatever order, and
    for any number of threads.
    """

    precision = "f32"

    def __init__(
        self,
        model: Path | Packed,
        *,
        threads: int | None = None,
        streams: int = 1,
        kernel: str | None = None,
    ) -> None:
        """Map a file into memory, and compile its kernels or load them from the cache.

        Raises:
            CheckpointError: The file is damaged or has another format.
            UserInputError: This CPU does not have the kernel.
        """
        packed = load_packed(model) if isinstance(model, Path) else model
        self._program = Program(packed, choose_set(kernel))
        self._heads = Heads(self._program)
        has_convolution = self._program.settings["convolution"] is not None
        self._convolution = Convolution(self._program) if has_convolution else None
        self.kernel = self._program.isa.name
        self.input_names = tuple(self._program.settings["input_names"])
        names = self._heads.output_names
        self._tail: TailRunner | None = None
        if self._program.settings.get("tail") is not None:
            self._tail = TailRunner(self._program, threads or usable_cores())
            names = (*(name for name in names if name != TAIL_STATES), *self._tail.output_names)
        self.output_names = names
        self._free: queue.SimpleQueue[Stream] = queue.SimpleQueue()
        for _ in range(streams):
            self._free.put(Stream(self._program, threads or usable_cores()))

    def run(
        self, inputs: Mapping[str, NDArray[Any]], wanted: Collection[str] | None = None
    ) -> Outputs:
        """Return the outputs of one forward pass by name, as float32.

        Raises:
            UserInputError: An input is missing or has a wrong dtype or shape, a token id is outside
                of the vocabulary, or a text is empty or longer than the model takes.
        """
        return self.run_after(None, inputs, wanted)

    def run_after(
        self,
        prefix: Prefix | None,
        inputs: Mapping[str, NDArray[Any]],
        wanted: Collection[str] | None = None,
    ) -> Outputs:
        """Return the outputs of texts that go on after a prefix, whose tokens `inputs` lack.

        Not before `shares_prefixes` says so. Otherwise as `run`.
        """
        batch, names = self._batch(inputs, prefix), self._names(wanted)
        tokens_read = None
        if batch.pooled is None:
            tokens_read = self._heads.tokens_read(names, batch.texts.starts)
        with self._stream() as stream:
            self._forward(stream, batch.texts, tokens_read)
            return self._outputs(stream, batch, inputs, names, tokens_read)

    def shares_prefixes(self, wanted: Collection[str] | None = None) -> bool:
        """Return whether texts can go on after a prefix, for the outputs `wanted`.

        They get the bits of whole texts. No token depends on later ones, and outputs are of the
        last token alone.
        """
        settings = self._program.settings
        is_plain = not (settings["has_choices"] or settings["embeddings"]["has_types"])
        has_ids = any(settings[each] is not None for each in ("padding_id", "dropped_id"))
        return (
            self._program.features.shares_prefixes
            and is_plain
            and not has_ids
            and settings["expansion_id"] is None
            and self._convolution is None
            and self._tail is None
            and self._heads.read_last_only(self._names(wanted))
        )

    def read_prefix(self, ids: NDArray[np.int32]) -> Prefix:
        """Return what layers know of the token ids `(tokens,)` that texts begin with.

        Raises:
            UserInputError: A token id is outside of the vocabulary, or there are too many.
        """
        settings, tokens = self._program.settings, len(ids)
        shape = (len(settings["layers"]), 2, settings["heads"], tokens, settings["head_size"])
        states = np.empty(shape, np.float32)
        row = np.asarray(ids, np.int64)[None]
        batch = self._batch({"input_ids": row, "attention_mask": np.ones_like(row)})
        with self._stream() as stream:
            saving = dataclasses.replace(batch.texts, saved=states)
            # Of the last layer, nothing but keys and values is needed.
            self._forward(stream, saving, saving.starts[1:] - 1)
        return Prefix(tokens=tokens, states=states)

    def _names(self, wanted: Collection[str] | None) -> tuple[str, ...]:
        """Return the names of the outputs of heads that are computed."""
        names = self._heads.output_names
        if wanted is None or self._tail is not None:
            return names
        return tuple(each for each in names if each in wanted)

    def _batch(self, inputs: Mapping[str, NDArray[Any]], prefix: Prefix | None = None) -> Batch:
        found = read_inputs(inputs, self._program.settings)
        pooled = found.arrays.get(POOLED)
        return Batch(
            texts=self._texts(found, prefix),
            mask=found.kept,
            shape=found.shape,
            pooled=None if pooled is None else pooled[found.kept != 0] != 0,
        )

    def _outputs(
        self,
        stream: Stream,
        batch: Batch,
        inputs: Mapping[str, NDArray[Any]],
        wanted: Collection[str],
        tokens_read: NDArray[np.int64] | None,
    ) -> Outputs:
        """Return outputs of the heads and of the tail, in the shape of the inputs."""
        outputs = {}
        states, starts = stream.job.states, batch.texts.starts
        threads = Threads(
            team=stream.team,
            records=[each.record for each in stream.scratch],
            is_busy=stream.calls_alone > 0,
        )
        found = self._heads.run(
            states, starts, wanted, threads, tokens_read=tokens_read, pooled=batch.pooled
        )
        for name, (is_token, rows) in found.items():
            whole = self._with_padding(rows, batch.mask) if is_token else rows
            outputs[name] = whole.reshape(batch.shape[:-1] + whole.shape[1:])
        return outputs if self._tail is None else self._tail.add_outputs(inputs, outputs)

    def _forward(self, stream: Stream, texts: Texts, tokens_read: NDArray[np.int64] | None) -> None:
        heads = self._program.settings["heads"]
        # Without all heads, a thread cannot normalize over them, and columns are of whole models.
        features = self._program.features
        has_columns = not (features.joins_heads or features.has_experts or self._convolution)
        tokens = int(texts.starts[-1])
        is_busy = stream.calls_alone > 0
        stream.calls_alone -= is_busy
        products, threads = self._program.products, stream.team.threads
        threads = useful_threads(tokens, products, threads, is_busy=is_busy)
        part_rows = self._program.part_rows
        shares = divide(texts.starts, heads, threads, has_columns=has_columns, part_rows=part_rows)
        # Each part of a model with a convolution would take its last layer for the model's.
        if shares.by_columns or self._convolution:
            tokens_read = None
        stream.job.take(texts, shares, tokens_read)
        used = stream.scratch[: len(shares.rows)]
        for thread, scratch in enumerate(used):
            scratch.take(shares, thread)
        jobs = [stream.job.record] * len(used)
        if shares.by_columns:
            jobs[1:] = [stream.job.record_for(each) for each in used[1:]]
        records = [each.record for each in used]
        if (convolution := self._convolution) is None:
            stream.team.run(jobs, records)
            if len(used) > 1 and stream.job.sleeps() >= MANY_SLEEPS:
                stream.calls_alone = CALLS_ALONE
            return
        embeds, first, rest = convolution.parts
        stream.team.run(jobs, records, model=embeds)
        embedded = stream.job.states.copy()
        stream.team.run(jobs, records, model=first)
        convolution.add_(stream.job.states, embedded, texts.starts)
        stream.team.run(jobs, records, model=rest)

    def _texts(self, found: TokenInputs, prefix: Prefix | None) -> Texts:
        """Return the tokens that are kept, without padding, which follow those of a prefix."""
        inputs, kept = found.arrays, found.kept
        settings, ids = self._program.settings, inputs["input_ids"]
        has_types = settings["embeddings"]["has_types"] and "token_type_ids" in inputs
        # Positions start at the first token of a text, whatever is before it. RoBERTa gives all
        # padding tokens row 0, those inside a text too, and does not count them.
        counts_all = settings["padding_id"] is None
        numbers = np.empty((3, ids.size), np.int32)
        # The starts of the texts and their end, and the ends of the ranges of ids and types.
        bounds = np.empty(len(ids) + 5, np.int64)
        starts, ends = bounds[:-4], bounds[-4:]
        out, stride, place = address(numbers), numbers.strides[0], address(bounds)
        self._program.functions["remove_padding"](
            ids.ctypes.data,
            kept.ctypes.data,
            inputs["token_type_ids"].ctypes.data if has_types else 0,
            *ids.shape,
            -1 if counts_all else settings["padding_id"],
            0 if counts_all else 1,
            *(out, out + stride, out + 2 * stride, place, place + starts.nbytes),
        )
        lengths = starts[1:] - starts[:-1]
        before = 0 if prefix is None else prefix.tokens
        check_lengths(lengths + before, settings["limit"])
        numbers[1] += before
        limits = {"input_ids": self._program.vocabulary, "token_type_ids": self._program.type_count}
        extremes = ends.tolist()
        for name, low, high in zip(limits, extremes[::2], extremes[1::2], strict=True):
            if low < 0 or high >= limits[name]:
                check_ids({name: inputs[name][kept != 0]}, limits)
        factors = np.zeros(0, np.float32)
        if settings["dropped_id"] is not None:
            factors = word_factors(numbers[0], starts, settings["dropped_id"])
        return Texts(
            numbers=numbers,
            word_factors=factors,
            starts=starts,
            attended=attended_tokens(found, lengths),
            prefix=prefix,
        )

    def _with_padding(self, rows: Rows, mask: Integers) -> Rows:
        """Return rows of tokens as `(batch, seq, ...)`, with zeros at padding."""
        found = np.empty((*mask.shape, *rows.shape[1:]), np.float32)
        # Channels of a row follow each other.
        assert rows.strides[1:] in ((), (rows.itemsize,))
        self._program.functions["restore_padding"](
            mask.ctypes.data,
            mask.size,
            rows.ctypes.data,
            rows.strides[0],
            found.size // mask.size,
            found.ctypes.data,
        )
        return found

    @contextlib.contextmanager
    def _stream(self) -> Iterator[Stream]:
        """Wait for a free stream."""
        stream = self._free.get()
        try:
            yield stream
        finally:
            self._free.put(stream)
