"""Run the inputs of many requests together on one model.

Each core has a thread, which takes the oldest requests, up to about a thousand tokens (on a GPU,
sixteen thousand), tokenizes and runs them, and makes their answers. A request that finds a thread
idle runs at once. So the batches grow with the load, and no timer delays a request.
"""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import itertools
import threading
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from qdqbert.common.errors import UserInputError
from qdqbert.common.forks import repair_in_child
from qdqbert.runtime.batches import Results
from qdqbert.runtime.model import Model
from qdqbert.runtime.prefixes import Prefixes
from qdqbert.runtime.scheduler import EncodedItem, Job, adapter_of, outputs_read

# Characters of a token, about.
_TOKEN_CHARACTERS = 4


class OverloadedError(Exception):
    """The queue is full.

    Attributes:
        retry_after: Seconds until the queue is likely to have room.
    """

    def __init__(self, retry_after: int) -> None:
        super().__init__("The server has too many requests.")
        self.retry_after = retry_after


class _GoneError(Exception):
    """All clients of a batch have gone."""


class TooLongError(UserInputError):
    """An input is longer than the model's limit, and must not be cut."""


class Answered(NamedTuple):
    """The answer to an input.

    Attributes:
        answer: The answer of the job.
        tokens: Number of tokens that ran.
        truncated: Whether a part of the input was cut off.
    """

    answer: Any
    tokens: int
    truncated: bool


class _Input(NamedTuple):
    value: Any
    truncate: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Counted:
    """A job that counts tokens, and refuses inputs that would be cut unless they may be."""

    job: Job[Any, Any]
    max_length: int

    def encode(self, items: Sequence[_Input]) -> list[EncodedItem]:
        encoded = self.job.encode([item.value for item in items])
        return [self._checked(item, each) for item, each in zip(items, encoded, strict=True)]

    def _checked(self, item: _Input, encoded: EncodedItem) -> EncodedItem:
        if item.truncate or not encoded.truncated:
            return encoded
        message = (
            f"An input is longer than {self.max_length} tokens. Send a shorter one, or leave "
            "`truncate` out, so that it is cut."
        )
        return EncodedItem(features=(), error=TooLongError(message, argument="inputs"))

    @property
    def reads(self) -> Collection[str] | None:
        return outputs_read(self.job)

    @property
    def adapter(self) -> str | None:
        return adapter_of(self.job)

    def split(self, results: Results) -> Sequence[Any]:
        return self.job.split(results)

    def answer(self, item: _Input, encoded: EncodedItem, values: Sequence[Any]) -> Answered:
        tokens = sum(each["input_ids"].size for each in encoded.features)
        answer = self.job.answer(item.value, encoded, values)
        return Answered(answer=answer, tokens=tokens, truncated=encoded.truncated)


class _Request(NamedTuple):
    """A request, or a part of a large one."""

    key: Hashable
    job: Callable[[], Job[Any, Any]]
    items: Sequence[_Input]
    characters: int
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[list[Any]]
    # Parts of a request have the same, which nobody else's texts are compared with.
    prefixes: Prefixes


class Batcher:
    """Answers requests on one model, in threads of its own."""

    def __init__(
        self,
        model: Model,
        *,
        max_queued: int,
        observe: Callable[[int, int, int], None] = lambda requests, texts, tokens: None,
    ) -> None:
        """Start nothing yet: the first request of a process starts the threads.

        `observe` is called in a thread after each batch, before its requests have their answers,
        with its numbers of requests, inputs and tokens. `close` does not close the model.
        """
        self._model = model
        self._max_queued = max_queued
        # Characters of the texts that a thread takes together.
        self._characters = model.served_tokens * _TOKEN_CHARACTERS
        self._observe = observe
        self._waiting: collections.deque[_Request] = collections.deque()
        self._queued = 0
        self._is_closed = False
        self._changed = threading.Condition()
        self._threads: list[threading.Thread] = []
        repair_in_child(self, Batcher._leave_to_parent)

    def _leave_to_parent(self) -> None:
        """Forget the threads and the requests of the parent, which a fork does not copy."""
        self._changed = threading.Condition()
        self._waiting.clear()
        self._queued = 0
        self._threads = []

    def _start(self) -> None:
        """Start the threads, unless this process has them."""
        if not self._threads:
            self._threads = [
                threading.Thread(target=self._work, name=f"qdqbert-batch-{each}", daemon=True)
                for each in range(self._model.streams)
            ]
            for thread in self._threads:
                thread.start()

    @property
    def queued(self) -> int:
        """Number of inputs that wait."""
        return self._queued

    async def run(
        self,
        key: Hashable,
        job: Callable[[], Job[Any, Any]],
        items: Sequence[Any],
        *,
        truncate: bool = True,
    ) -> list[Answered]:
        """Return the answers to the inputs of a request.

        Args:
            key: Requests with equal keys have equal jobs, and may run together.
            job: Makes the job for the inputs, once for all requests that run together.
            items: The inputs.
            truncate: Whether inputs that are too long are cut.

        Raises:
            OverloadedError: Too many inputs wait already.
            TooLongError: An input would have to be cut.
            UserInputError: An input is not what the task needs.
        """
        loop = asyncio.get_running_loop()
        prefixes = Prefixes()
        # All cores work on a large request.
        requests = [
            _Request(
                key=key,
                job=job,
                items=[_Input(value=each, truncate=truncate) for each in part],
                characters=characters,
                loop=loop,
                future=loop.create_future(),
                prefixes=prefixes,
            )
            for part, characters in _parts(items, self._characters)
        ]
        with self._changed:
            if self._is_closed:
                raise OverloadedError(1)
            # A request of any size is taken by an idle server.
            if self._queued and self._queued + len(items) > self._max_queued:
                raise OverloadedError(1 + self._queued // max(self._max_queued, 1))
            self._start()
            self._waiting.extend(requests)
            self._queued += len(items)
        # Later, so that requests that arrive together find the threads idle and run together.
        loop.call_soon(self._wake)
        if len(requests) == 1:
            # Small requests save the futures that `gather` makes.
            answers = await requests[0].future
        else:
            parts = await asyncio.gather(*(each.future for each in requests))
            answers = [answer for part in parts for answer in part]
        for found in answers:
            if isinstance(found, UserInputError):
                raise found
        return answers

    def _wake(self) -> None:
        """Let threads that are idle take the requests that wait."""
        with self._changed:
            self._changed.notify(len(self._waiting))

    def close(self) -> None:
        """Answer what waits, and end the threads."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._waiting:
                    if self._is_closed:
                        return
                    self._changed.wait()
                taken = self._take()
            # All clients may have gone.
            if taken:
                self._answer(taken)

    def _take(self, longest: int | None = None) -> list[_Request]:
        """Remove the oldest request and others that can run with it, in their order.

        Args:
            longest: Most characters of a request; `None` for no limit.
        """
        taken: list[_Request] = []
        kept: list[_Request] = []
        characters = 0
        while self._waiting and characters < self._characters:
            request = self._waiting.popleft()
            is_long = longest is not None and request.characters > longest
            if is_long or (taken and request.key != taken[0].key):
                kept.append(request)
                continue
            self._queued -= len(request.items)
            # The client may have gone.
            if not request.future.cancelled():
                taken.append(request)
                characters += request.characters
        self._waiting.extendleft(reversed(kept))
        return taken

    def _answer(self, requests: list[_Request], *, is_within: bool = False) -> None:
        items = [item for request in requests for item in request.items]

        def pause() -> None:
            """End a batch whose clients have gone, and let short requests pass long ones."""
            if all(each.future.done() for each in requests):
                raise _GoneError
            if not is_within:
                with self._changed:
                    taken = self._take(self._characters)
                if taken:
                    self._answer(taken, is_within=True)

        # Those of several requests are forgotten with the batch.
        own = requests[0].prefixes
        prefixes = own if all(each.prefixes is own for each in requests) else None
        try:
            job = _Counted(job=requests[0].job(), max_length=self._model.max_length)
            answers = self._model.run_in_stream(job, items, pause=pause, prefixes=prefixes)
        except _GoneError:
            return
        except Exception as error:
            if len(requests) > 1:
                # One of them must not fail the others.
                for request in requests:
                    self._answer([request], is_within=is_within)
                return
            _finish([(requests[0], error)])
            return
        # Whoever has an answer finds it counted.
        tokens = sum(each.tokens for each in answers if isinstance(each, Answered))
        self._observe(len(requests), len(items), tokens)
        rest = iter(answers)
        _finish([(each, list(itertools.islice(rest, len(each.items)))) for each in requests])


def _parts(items: Sequence[Any], most: int) -> Iterator[tuple[list[Any], int]]:
    """Divide the inputs of a request into parts of about `most` characters, with their number."""
    part: list[Any] = []
    characters = 0
    for item in items:
        part.append(item)
        characters += size_of(item)
        if characters >= most:
            yield part, characters
            part, characters = [], 0
    if part:
        yield part, characters


def size_of(value: Any) -> int:
    """Return the number of characters of an input; for token ids, an estimate."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, Mapping):
        return sum(size_of(each) for each in value.values())
    if isinstance(value, Sequence):
        return sum(size_of(each) for each in value)
    return _TOKEN_CHARACTERS


def _finish(results: Sequence[tuple[_Request, list[Any] | Exception]]) -> None:
    """Give requests of one event loop their results, which wakes the loop once."""

    def finish() -> None:
        for request, result in results:
            if request.future.done():
                continue
            if isinstance(result, Exception):
                request.future.set_exception(result)
            else:
                request.future.set_result(result)

    results[0][0].loop.call_soon_threadsafe(finish)
