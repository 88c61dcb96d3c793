"""Requests that run together."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import numpy as np
import pytest

from qdqbert.common.errors import UserInputError
from qdqbert.runtime.scheduler import EncodedItem
from qdqbert.serving.batcher import Batcher, OverloadedError, TooLongError


class Lengths:
    """A job that answers with the length of each text, and fails on some."""

    def encode(self, items: Any) -> list[EncodedItem]:
        if "crash" in items:
            raise RuntimeError("no")
        return [
            EncodedItem(features=(), error=UserInputError("bad text"))
            if item == "bad"
            else EncodedItem(
                features=({"input_ids": np.zeros(min(len(item), 9), np.int32)},),
                truncated=len(item) > 9,
            )
            for item in items
        ]

    def split(self, results: Any) -> Any:
        raise AssertionError

    def answer(self, item: str, encoded: EncodedItem, values: Any) -> int:
        return len(item)


class FakeModel:
    """Runs jobs without a graph, one call at a time, when it may."""

    max_length = 9
    streams = 2
    served_tokens = 1024

    def __init__(self) -> None:
        self.calls: list[list[str]] = []
        self.may_run = threading.Event()
        self.may_run.set()
        self.started = threading.Semaphore(0)

    def run_in_stream(self, job: Any, items: Any, *, pause: Any, prefixes: Any) -> list[Any]:
        self.calls.append([item.value for item in items])
        self.started.release()
        self.may_run.wait()
        pause()
        pairs = zip(items, job.encode(items), strict=True)
        return [encoded.error or job.answer(item, encoded, ()) for item, encoded in pairs]


@pytest.fixture
def model() -> FakeModel:
    return FakeModel()


@pytest.fixture
def batcher(model):
    made = Batcher(model, max_queued=10)
    yield made
    model.may_run.set()
    made.close()


def run(batcher, *texts: str, key: str = "", **options: Any) -> Any:
    return batcher.run(key, Lengths, texts, **options)


async def hold(model, batcher) -> list[asyncio.Task[Any]]:
    """Start a request in each thread of the batcher, which wait for `model.may_run`."""
    model.may_run.clear()
    tasks = []
    for text in ("one", "two"):
        tasks.append(asyncio.ensure_future(run(batcher, text, key=text)))
        assert await asyncio.to_thread(model.started.acquire, timeout=60)
    return tasks


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_requests_that_wait_run_together_and_get_their_own_answers(model, batcher) -> None:
    async def main() -> list[Any]:
        held = await hold(model, batcher)
        waiting = [asyncio.ensure_future(run(batcher, *"abc"[:n])) for n in (1, 2, 3)]
        other = asyncio.ensure_future(run(batcher, "another key", key="other", truncate=True))
        await settle()
        assert batcher.queued == 7
        model.may_run.set()
        found = await asyncio.gather(*waiting, other, *held)
        return [[each.answer for each in answers] for answers in found]

    assert asyncio.run(main()) == [[1], [1, 1], [1, 1, 1], [11], [3], [3]]
    assert model.calls[:2] == [["one"], ["two"]]
    assert sorted(model.calls[2:]) == [["a", "a", "b", "a", "b", "c"], ["another key"]]
    assert batcher.queued == 0


def test_tokens_are_counted(batcher) -> None:
    (found,) = asyncio.run(run(batcher, "four"))
    assert (found.answer, found.tokens) == (4, 4)


def test_inputs_that_would_be_cut_are_refused_unless_they_may_be(batcher) -> None:
    with pytest.raises(TooLongError, match="longer than 9 tokens"):
        asyncio.run(run(batcher, "0123456789", truncate=False))
    (found,) = asyncio.run(run(batcher, "0123456789"))
    assert (found.answer, found.tokens) == (10, 9)


@pytest.mark.parametrize(
    ("text", "error"), [("bad", UserInputError), ("crash", RuntimeError)], ids=["input", "crash"]
)
def test_a_request_that_fails_leaves_others_of_its_batch_alone(model, batcher, text, error) -> None:
    async def main() -> list[Any]:
        held = await hold(model, batcher)
        requests = [run(batcher, "fine"), run(batcher, "well", text), run(batcher, "good")]
        waiting = [asyncio.ensure_future(each) for each in requests]
        await settle()
        model.may_run.set()
        found = await asyncio.gather(*waiting, return_exceptions=True)
        await asyncio.gather(*held)
        return found

    first, second, third = asyncio.run(main())
    assert (first[0].answer, third[0].answer) == (4, 4)
    assert isinstance(second, error)


def test_a_full_queue_refuses_requests_and_says_when_to_come_back(model, batcher) -> None:
    async def main() -> None:
        held = await hold(model, batcher)
        # A request is taken by an empty queue, however large it is.
        large = asyncio.ensure_future(run(batcher, *("x" * 12)))
        await settle()
        with pytest.raises(OverloadedError) as caught:
            await run(batcher, "y")
        assert caught.value.retry_after >= 1
        model.may_run.set()
        await asyncio.gather(large, *held)
        assert len(await run(batcher, "y")) == 1

    asyncio.run(main())


def test_large_requests_run_in_parts(model) -> None:
    # Of about four characters each.
    model.served_tokens = 1
    batcher = Batcher(model, max_queued=10)
    found = asyncio.run(run(batcher, "abc", "de", "fghij", "k"))
    assert [each.answer for each in found] == [3, 2, 5, 1]
    assert sorted(model.calls) == [["abc", "de"], ["fghij"], ["k"]]
    with pytest.raises(UserInputError, match="bad"):
        asyncio.run(run(batcher, "abcd", "bad", "bad", "efgh"))
    batcher.close()


def test_clients_that_have_gone_are_left_out(model, batcher) -> None:
    async def main() -> None:
        held = await hold(model, batcher)
        gone = asyncio.ensure_future(run(batcher, "gone"))
        stays = asyncio.ensure_future(run(batcher, "stays"))
        await settle()
        gone.cancel()
        await settle()
        model.may_run.set()
        await asyncio.gather(stays, *held)

    asyncio.run(main())
    assert ["stays"] in model.calls
    assert batcher.queued == 0


def test_threads_go_on_after_batches_whose_clients_have_all_gone(model, batcher) -> None:
    async def main() -> list[Any]:
        held = await hold(model, batcher)
        for count in range(2):
            gone = asyncio.ensure_future(run(batcher, "gone", key=count))
            await settle()
            gone.cancel()
            await settle()
        model.may_run.set()
        await asyncio.gather(*held)
        return await run(batcher, "comes later")

    assert asyncio.run(main())[0].answer == 11
    assert all(each.is_alive() for each in batcher._threads)


def test_closing_answers_what_waits_and_refuses_what_comes_later(model) -> None:
    batcher = Batcher(model, max_queued=10)

    async def main() -> list[Any]:
        held = await hold(model, batcher)
        waiting = asyncio.ensure_future(run(batcher, "waits"))
        await settle()
        closing = asyncio.ensure_future(asyncio.to_thread(batcher.close))
        model.may_run.set()
        found = await asyncio.gather(waiting, *held)
        await closing
        with pytest.raises(OverloadedError):
            await run(batcher, "late")
        return found

    assert [answers[0].answer for answers in asyncio.run(main())] == [5, 3, 3]


def test_a_batch_is_observed_before_its_requests_have_their_answers() -> None:
    seen: list[tuple[int, int, int]] = []

    def observe(*numbers: int) -> None:
        time.sleep(0.05)
        seen.append(numbers)

    batcher = Batcher(FakeModel(), max_queued=10, observe=observe)
    asyncio.run(run(batcher, "ab", "c", "bad2"))
    assert seen == [(1, 3, 7)]
    batcher.close()
