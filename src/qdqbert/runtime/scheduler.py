"""Run any number of inputs through a graph: in batches of similar length, on all cores, in order.

    items ─► chunks ─► tokenized ahead ─► sorted into batches ─► streams ─► answers in order

While one chunk runs, the next one is tokenized, and the answers of the one before are made. At most
three chunks are in memory, however many items there are.
"""

from __future__ import annotations

import collections
import dataclasses
import os
import threading
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np

from qdqbert.common.errors import UserInputError
from qdqbert.common.forks import repair_in_child
from qdqbert.engines.runner import Runner, SharesPrefixes
from qdqbert.runtime.batches import BatchPlan, Feature, Results, chunks, stack
from qdqbert.runtime.prefixes import Prefixes, SharedPrefix
from qdqbert.runtime.runners import Runners

Item = TypeVar("Item", contravariant=True)
Answer = TypeVar("Answer", covariant=True)
_I = TypeVar("_I")
_A = TypeVar("_A")

# Chunks whose batches the streams have. With a second one, no stream waits for the first to end.
_RUNNING_CHUNKS = 2


class EncodedItem(NamedTuple):
    """Model inputs of one item.

    Attributes:
        features: One model input, or several for an item that is run in windows.
        places: Data of the job about each feature; empty if it needs none.
        truncated: Whether a part of the item was cut off.
        error: Why the item cannot be answered; it then has no features.
    """

    features: tuple[Feature, ...]
    places: Sequence[Any] = ()
    truncated: bool = False
    error: UserInputError | None = None


class Job(Protocol[Item, Answer]):
    """The steps of a task around the graph. Its methods are called from several threads.

    A job can also have `reads`, the names of the outputs that `split` reads, so that an engine need
    not compute the others, and `adapter`, the name of the model's adapter that runs it.
    """

    def encode(self, items: Sequence[Item]) -> list[EncodedItem]:
        """Return the model inputs of each item.

        What is wrong with an item is returned as its `EncodedItem.error`, or raised as
        `UserInputError`. The items are then encoded by halves.
        """

    def split(self, results: Results) -> Sequence[Any]:
        """Return the part of a batch's outputs that is kept, one value for each feature."""

    def answer(self, item: Item, encoded: EncodedItem, values: Sequence[Any], /) -> Answer:
        """Return the answer to an item, from the values of its features."""


def outputs_read(job: Job[Any, Any]) -> Collection[str] | None:
    """Return the names of the outputs that a job reads; `None` for all of them."""
    # A check by a protocol takes 18 us in Python 3.11, as long as to tokenize a text.
    found: Collection[str] | None = getattr(job, "reads", None)
    return found


def adapter_of(job: Job[Any, Any]) -> str | None:
    """Return the name of the adapter that runs a job; `None` for the model without one."""
    found: str | None = getattr(job, "adapter", None)
    return found


@dataclasses.dataclass(frozen=True, kw_only=True)
class Done:
    """The share of a batch in the progress of a call.

    Attributes:
        items: Number of items whose last feature was in the batch, and of items without features.
        tokens: Number of tokens, without padding.
        truncated: Number of these items of which a part was cut off.
    """

    items: int
    tokens: int
    truncated: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Schedule:
    """How many inputs are scheduled; the choices are measured in docs/benchmarks.md.

    Attributes:
        plan: How inputs are grouped into batches.
        window: Number of items that are sorted by length together.
        single_tokens: A call with at most this number of tokens is one batch, on all cores.
        served_tokens: Tokens of requests that a server runs together, about. Larger batches gain
            nothing, and the last one of many requests would wait for all of them.
        is_invariant: Whether results never depend on the batch and the number of threads.
    """

    plan: BatchPlan
    window: int
    single_tokens: int
    served_tokens: int = 1024
    is_invariant: bool = False


@dataclasses.dataclass(kw_only=True)
class _Chunk(Generic[_I]):
    """Some items, their inputs, and their batches once they were submitted."""

    items: Sequence[_I]
    encoded: Sequence[EncodedItem]
    features: list[Feature]
    places: list[Any]
    batches: list[tuple[Sequence[int], Future[Sequence[Any]]]]
    prefix: SharedPrefix | None = None

    @property
    def shared(self) -> int:
        """The number of tokens that all features begin with and that are computed once."""
        return 0 if self.prefix is None else self.prefix.tokens


class Scheduler:
    """Runs jobs on the streams of a graph. Several threads can use it at once."""

    def __init__(
        self,
        runners: Runners,
        schedule: Schedule,
        *,
        limit: int,
        padding: Mapping[str, int],
        takes_empty: bool = False,
    ) -> None:
        """Keep the graph; threads are started when they are needed.

        Args:
            runners: The graph.
            schedule: How inputs are scheduled.
            limit: Longest input in tokens.
            padding: The value that pads each input.
            takes_empty: Whether the graph has a result for a text without tokens.
        """
        self._runners = runners
        self._schedule = schedule
        self._limit = limit
        self._padding = padding
        self._takes_empty = takes_empty
        self._lock = threading.Lock()
        self.window = schedule.window
        self._pools: tuple[ThreadPoolExecutor, ThreadPoolExecutor] | None = None
        self._has_tokenized = False
        repair_in_child(self, Scheduler._leave_to_parent)

    def run(
        self,
        job: Job[_I, _A],
        items: Iterable[_I],
        advance: Callable[[Done], None] = lambda done: None,
        *,
        continues: bool = False,
    ) -> Generator[_A | UserInputError]:
        """Yield the answer to each item or the error about it, in the order of the items.

        An item that is a `UserInputError` is such an error.

        Args:
            job: The task.
            items: Any number of items. They are read as they are needed.
            advance: Called after each batch, in the thread that reads the answers.
            continues: Whether other items came before these, so that few items are not all.
        """
        source = chunks(iter(items), self._schedule.window)
        first = next(source, None)
        if first is None:
            return
        process = os.getpid()
        self._has_tokenized = True
        chunk = self._encode(job, first)
        is_all = not continues and len(first) < self._schedule.window
        if is_all and self._tokens(chunk.features) <= self._schedule.single_tokens:
            yield from self._run_here(job, chunk, advance)
            return
        tokenizing, streams = self._threads()
        prefixes = Prefixes()
        running = collections.deque([self._submit(job, chunk, streams, prefixes)])

        def tokenize_next() -> Future[_Chunk[_I]] | None:
            following = next(source, None)
            return None if following is None else tokenizing.submit(self._encode, job, following)

        try:
            upcoming = tokenize_next()
            while running or upcoming is not None:
                if process != os.getpid():
                    raise UserInputError(
                        "A stream cannot be read in another process than the one that began it. "
                        "Call `stream` after the fork."
                    )
                if upcoming is not None and len(running) < _RUNNING_CHUNKS:
                    running.append(self._submit(job, upcoming.result(), streams, prefixes))
                    upcoming = tokenize_next()
                else:
                    yield from _answers(job, running.popleft(), advance)
        finally:
            for chunk in running:
                for _, future in chunk.batches:
                    future.cancel()

    def run_in_stream(
        self,
        job: Job[_I, _A],
        items: Sequence[_I],
        *,
        pause: Callable[[], None] = lambda: None,
        prefixes: Prefixes | None = None,
    ) -> list[_A | UserInputError]:
        """Return the answer to each item or its error, computed in this thread on one core.

        As many threads as there are streams can call this at once.

        Args:
            job: The task.
            items: The items; all are in memory together. Without any, the graph is loaded only.
            pause: Called between batches. What it raises ends the call.
            prefixes: What texts of the same call begin with, if the items are a part of one.
        """
        self._has_tokenized = True
        runner = self._runners.many
        chunk = self._encode(job, items)
        groups = self._groups(job, runner, chunk, prefixes or Prefixes(), streams=1)
        for number, (indices, length) in enumerate(groups):
            if number:
                pause()
            future: Future[Sequence[Any]] = Future()
            future.set_result(self._run_batch(job, runner, chunk, indices, length))
            chunk.batches.append((indices, future))
        return list(_answers(job, chunk, lambda done: None))

    @property
    def streams(self) -> int:
        """Number of batches that run at once."""
        return self._runners.streams

    @property
    def served_tokens(self) -> int:
        """Tokens of requests that a server runs together, about."""
        return self._schedule.served_tokens

    def close(self) -> None:
        """Stop the threads. They are started again when needed."""
        with self._lock:
            pools, self._pools = self._pools, None
        for pool in pools or ():
            pool.shutdown(wait=True, cancel_futures=True)

    def _leave_to_parent(self) -> None:
        """Start threads again when needed: a fork does not copy them."""
        self._lock = threading.Lock()
        self._pools = None
        if self._has_tokenized:
            # The library waits for its threads for ever. It turns them off by itself, unless this
            # variable tells it not to.
            os.environ["TOKENIZERS_PARALLELISM"] = "false"

    def _threads(self) -> tuple[ThreadPoolExecutor, ThreadPoolExecutor]:
        """Return the thread that tokenizes, which uses all cores, and the threads of streams."""
        with self._lock:
            if self._pools is None:
                self._pools = (
                    ThreadPoolExecutor(1, thread_name_prefix="qdqbert-tokenize"),
                    ThreadPoolExecutor(self._runners.streams, thread_name_prefix="qdqbert-stream"),
                )
            return self._pools

    @staticmethod
    def _tokens(features: Sequence[Feature]) -> int:
        """Return the size of the features as one batch, in tokens."""
        longest = max((_length(feature) for feature in features), default=0)
        return sum(feature["input_ids"].size // _length(feature) for feature in features) * longest

    def _run_here(
        self, job: Job[_I, _A], chunk: _Chunk[_I], advance: Callable[[Done], None]
    ) -> Iterator[_A | UserInputError]:
        """Run all items as one batch on all cores, without another thread."""
        values: Sequence[Any] = ()
        everything = range(len(chunk.features))
        if everything:
            runner = self._runners.single
            chunk.prefix = Prefixes().of(runner, chunk.features, outputs_read(job))
            longest = max(_length(feature) for feature in chunk.features)
            length = self._schedule.plan.rounded(longest, limit=self._limit)
            values = self._run_batch(job, runner, chunk, everything, length)
        future: Future[Sequence[Any]] = Future()
        future.set_result(values)
        chunk.batches = [(everything, future)]
        yield from _answers(job, chunk, advance)

    def _submit(
        self, job: Job[_I, _A], chunk: _Chunk[_I], streams: ThreadPoolExecutor, prefixes: Prefixes
    ) -> _Chunk[_I]:
        """Sort the features of a chunk into batches, and let the streams run them."""
        runner = self._runners.many
        groups = self._groups(job, runner, chunk, prefixes, streams=self._runners.streams)
        for indices, length in groups:
            future = streams.submit(self._run_batch, job, runner, chunk, indices, length)
            chunk.batches.append((indices, future))
        return chunk

    def _encode(self, job: Job[_I, Any], items: Sequence[_I]) -> _Chunk[_I]:
        given = [item for item in items if not isinstance(item, UserInputError)]
        usable = iter(_by_halves(job.encode, given, _refused))
        encoded = [
            _refused(item)
            if isinstance(item, UserInputError)
            else _with_tokens(next(usable), takes_empty=self._takes_empty)
            for item in items
        ]
        return _Chunk(
            items=items,
            encoded=encoded,
            features=[feature for each in encoded for feature in each.features],
            places=[
                place for each in encoded for place in each.places or [None] * len(each.features)
            ],
            batches=[],
        )

    def _groups(
        self,
        job: Job[Any, Any],
        runner: Runner,
        chunk: _Chunk[Any],
        prefixes: Prefixes,
        *,
        streams: int,
    ) -> list[tuple[list[int], int]]:
        """Return the features of each batch of a chunk, and its length in tokens.

        What they begin with is kept with the chunk.
        """
        chunk.prefix = prefixes.of(runner, chunk.features, outputs_read(job))
        shared = chunk.shared
        lengths = [_length(feature) - shared for feature in chunk.features]
        groups = self._schedule.plan.group(lengths, streams=streams, limit=self._limit - shared)
        return [(indices, length + shared) for indices, length in groups]

    def _run_batch(
        self,
        job: Job[Any, Any],
        runner: Runner,
        chunk: _Chunk[Any],
        indices: Sequence[int],
        length: int,
    ) -> Sequence[Any]:
        """Return the value of each feature, or the error of the engine about it."""
        wanted = outputs_read(job)

        def run(some: Sequence[int]) -> Sequence[Any]:
            features = [chunk.features[index] for index in some]
            inputs = stack(features, self._padding, length)
            if chunk.prefix is not None and isinstance(runner, SharesPrefixes):
                outputs = chunk.prefix.run(runner, inputs, wanted)
            else:
                outputs = runner.run(inputs, wanted)
            return job.split(
                Results(
                    outputs=outputs,
                    inputs=inputs,
                    features=features,
                    places=[chunk.places[index] for index in some],
                )
            )

        return _by_halves(run, indices, lambda error: error)


def _length(feature: Feature) -> int:
    return int(feature["input_ids"].shape[-1])


def _answers(
    job: Job[_I, _A], chunk: _Chunk[_I], advance: Callable[[Done], None]
) -> Iterator[_A | UserInputError]:
    """Wait for the batches of a chunk, and yield the answer to each item, or its error."""
    owners = [item for item, each in enumerate(chunk.encoded) for _ in each.features]
    missing = [len(each.features) for each in chunk.encoded]
    values: list[Any] = [None] * len(chunk.features)
    if without := [each for each in chunk.encoded if not each.features]:
        cut = sum(each.truncated for each in without)
        advance(Done(items=len(without), tokens=0, truncated=cut))
    for indices, future in chunk.batches:
        finished = truncated = 0
        for index, value in zip(indices, future.result(), strict=True):
            values[index] = value
            missing[owners[index]] -= 1
            if not missing[owners[index]]:
                finished += 1
                truncated += chunk.encoded[owners[index]].truncated
        tokens = sum(chunk.features[index]["input_ids"].size for index in indices)
        advance(Done(items=finished, tokens=tokens, truncated=truncated))
    start = 0
    for item, each in zip(chunk.items, chunk.encoded, strict=True):
        own = values[start : start + len(each.features)]
        start += len(own)
        failed = [value for value in own if isinstance(value, UserInputError)]
        yield each.error or (failed[0] if failed else job.answer(item, each, own))


def _by_halves(
    function: Callable[[Sequence[_I]], Sequence[_A]],
    items: Sequence[_I],
    refused: Callable[[UserInputError], _A],
) -> Sequence[_A]:
    """Return the results of a function for many items, of which each may be refused.

    Args:
        function: Returns a result for each item. Raises `UserInputError` if one cannot be used.
        items: The items. They are divided if the function refuses them together.
        refused: Returns the result for an item that is refused.
    """
    try:
        return function(items)
    except UserInputError as error:
        if len(items) < 2:
            return [refused(error) for _ in items]
    middle = len(items) // 2
    return [
        result
        for half in (items[:middle], items[middle:])
        for result in _by_halves(function, half, refused)
    ]


def _refused(error: UserInputError) -> EncodedItem:
    return EncodedItem(features=(), error=error)


def _with_tokens(encoded: EncodedItem, *, takes_empty: bool) -> EncodedItem:
    """Refuse an item without tokens, such as an empty text without special tokens.

    Or give it a token that is masked.
    """
    if all(feature["input_ids"].size for feature in encoded.features):
        return encoded
    if not takes_empty:
        return _refused(UserInputError("An input has no tokens. Leave it out."))
    features = tuple(
        each if each["input_ids"].size else {name: np.zeros(1, np.int32) for name in each}
        for each in encoded.features
    )
    return encoded._replace(features=features)
