"""Scheduling, with a runner that computes on numpy arrays."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from qdqbert.common.errors import UserInputError
from qdqbert.runtime.batches import BatchPlan
from qdqbert.runtime.runners import Runners
from qdqbert.runtime.scheduler import EncodedItem, Schedule, Scheduler

SCHEDULE = Schedule(plan=BatchPlan(tokens=64, multiple=4), window=16, single_tokens=32)
PADDING = {"input_ids": 0}


class SumRunner:
    """Returns the sum of the ids of each row, and records what it ran."""

    input_names = ("input_ids",)
    output_names = ("sums",)
    precision = "float32"

    def __init__(self, threads: int, streams: int) -> None:
        self.threads, self.streams = threads, streams
        self.shapes: list[tuple[int, ...]] = []
        self.used: set[str] = set()
        self.wanted: list[Any] = []

    def run(self, inputs, wanted):
        self.wanted.append(wanted)
        self.shapes.append(inputs["input_ids"].shape)
        self.used.add(threading.current_thread().name)
        return {"sums": inputs["input_ids"].sum(axis=1)}


class SumJob:
    """An item is a list of lists of ids, each a feature. Its answer is their sum.

    "odd" is an item that cannot be answered.
    """

    def encode(self, items):
        return [
            EncodedItem(features=(), error=UserInputError("odd"))
            if item == "odd"
            else EncodedItem(
                features=tuple({"input_ids": np.array(ids, np.int32)} for ids in item),
                truncated=len(item) > 2,
            )
            for item in items
        ]

    def split(self, results):
        return list(results.outputs["sums"])

    def answer(self, item, encoded, values):
        assert len(values) == len(encoded.features)
        return int(sum(values))


@pytest.fixture
def opened():
    return []


@pytest.fixture
def scheduler(opened):
    def open_runner(threads, streams):
        opened.append(SumRunner(threads, streams))
        return opened[-1]

    made = Scheduler(
        Runners(open_runner, threads=2, streams=2), SCHEDULE, limit=32, padding=PADDING
    )
    yield made
    made.close()


def make_items(count, *, most=3):
    rng = np.random.default_rng(0)
    return [
        [list(rng.integers(1, 9, rng.integers(1, 32))) for _ in range(rng.integers(0, most + 1))]
        for _ in range(count)
    ]


def total(item) -> int:
    return int(sum(map(sum, item)))


@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 100])
def test_answers_come_in_the_order_of_the_items(scheduler, count) -> None:
    items = make_items(count)
    assert list(scheduler.run(SumJob(), items)) == [total(item) for item in items]


def test_a_few_tokens_run_as_one_batch_on_all_cores_in_the_callers_thread(
    scheduler, opened
) -> None:
    assert list(scheduler.run(SumJob(), [[[1, 2]], [[3] * 6]])) == [3, 18]
    [runner] = opened
    assert (runner.threads, runner.streams) == (2, 1)
    assert runner.shapes == [(2, 8)]
    assert runner.used == {threading.current_thread().name}


def test_many_tokens_run_in_streams(scheduler, opened) -> None:
    items = make_items(64)
    list(scheduler.run(SumJob(), items))
    [runner] = opened
    assert (runner.threads, runner.streams) == (1, 2)
    assert all(rows * length <= 64 or rows == 1 for rows, length in runner.shapes)
    assert all(name.startswith("qdqbert-stream") for name in runner.used)


def test_items_are_read_three_chunks_ahead_at_most(scheduler) -> None:
    read = 0

    def items():
        nonlocal read
        for item in make_items(1000):
            read += 1
            yield item

    answers = scheduler.run(SumJob(), items())
    assert read == 0
    for taken, _ in enumerate(answers, start=1):
        assert read <= taken + 3 * SCHEDULE.window


def test_progress_counts_items_tokens_and_truncated_items(scheduler) -> None:
    items = make_items(50, most=4)
    done = []
    list(scheduler.run(SumJob(), items, done.append))
    assert not all(items)
    assert sum(each.items for each in done) == len(items)
    assert sum(each.tokens for each in done) == sum(len(ids) for item in items for ids in item)
    assert sum(each.truncated for each in done) == sum(len(item) > 2 for item in items)


@pytest.mark.parametrize("count", [1, 100])
def test_an_engine_is_told_which_outputs_a_job_reads(scheduler, count) -> None:
    class OneOutput(SumJob):
        reads = ("sums",)

    runners = scheduler._runners.single, scheduler._runners.many
    for job, wanted in ((SumJob(), None), (OneOutput(), ("sums",))):
        for each in runners:
            each.wanted.clear()
        items = make_items(count)
        assert list(scheduler.run(job, items)) == [total(item) for item in items]
        assert {each for runner in runners for each in runner.wanted} == {wanted}


def test_an_error_of_a_batch_reaches_the_caller(scheduler, monkeypatch) -> None:
    def fail(self, inputs, wanted):
        raise ValueError("bad shape")

    monkeypatch.setattr(SumRunner, "run", fail)
    with pytest.raises(ValueError, match="bad shape"):
        list(scheduler.run(SumJob(), make_items(100)))


def test_an_error_of_the_items_reaches_the_caller(scheduler) -> None:
    def items():
        yield from make_items(40)
        raise OSError("vanished")

    with pytest.raises(OSError, match="vanished"):
        list(scheduler.run(SumJob(), items()))


@pytest.mark.parametrize("count", [1, 3, 100])
def test_errors_come_in_the_place_of_answers(scheduler, count) -> None:
    items = make_items(count)
    items[::3] = ["odd"] * len(items[::3])
    items[1::5] = [UserInputError("odd")] * len(items[1::5])
    done = []
    found = list(scheduler.run(SumJob(), items, done.append))
    assert len(found) == sum(each.items for each in done) == count
    for item, answer in zip(items, found, strict=True):
        if isinstance(item, list):
            assert answer == total(item)
        else:
            assert str(answer) == "odd"


@pytest.mark.parametrize("count", [1, 3, 100])
def test_an_error_of_the_engine_belongs_to_the_input_that_causes_it(
    scheduler, monkeypatch, count
) -> None:
    run = SumRunner.run

    def refuse(self, inputs, wanted):
        if (inputs["input_ids"] == 99).any():
            raise UserInputError("99 is no token")
        return run(self, inputs, wanted)

    monkeypatch.setattr(SumRunner, "run", refuse)
    items = make_items(count)
    items[::7] = [[[1, 99], [2]]] * len(items[::7])
    for found in (
        list(scheduler.run(SumJob(), items)),
        scheduler.run_in_stream(SumJob(), items),
    ):
        for index, (item, answer) in enumerate(zip(items, found, strict=True)):
            assert str(answer) == "99 is no token" if index % 7 == 0 else answer == total(item)


def test_an_error_of_encoding_belongs_to_the_input_that_causes_it(scheduler) -> None:
    class StrictJob(SumJob):
        def encode(self, items):
            if "wrong" in items:
                raise UserInputError("wrong")
            return super().encode(items)

    items = make_items(100)
    items[5] = items[70] = "wrong"
    found = list(scheduler.run(StrictJob(), items))
    assert [index for index, each in enumerate(found) if str(each) == "wrong"] == [5, 70]


def test_an_input_without_tokens_is_refused(scheduler) -> None:
    found = list(scheduler.run(SumJob(), [[[]], [[1, 2]]]))
    assert "no tokens" in str(found[0])
    assert found[1] == 3


@pytest.mark.parametrize("count", [0, 1, 20])
def test_a_thread_can_run_a_stream_by_itself(scheduler, opened, count) -> None:
    items = [*make_items(count), "odd"]
    *found, error = scheduler.run_in_stream(SumJob(), items)
    assert found == [total(item) for item in items[:-1]]
    assert isinstance(error, UserInputError)
    [runner] = opened
    assert (runner.threads, runner.streams) == (1, scheduler.streams)
    assert all(rows * length <= 64 or rows == 1 for rows, length in runner.shapes)
    assert runner.used <= {threading.current_thread().name}


def test_calls_from_several_threads_do_not_mix(scheduler) -> None:
    items = [make_items(60 + index) for index in range(4)]
    found: dict[int, list[int]] = {}

    def call(index: int) -> None:
        found[index] = list(scheduler.run(SumJob(), items[index]))

    threads = [threading.Thread(target=call, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {index: [total(item) for item in each] for index, each in enumerate(items)}


def test_answers_that_nobody_reads_are_given_up(scheduler) -> None:
    answers = scheduler.run(SumJob(), make_items(1000))
    next(answers)
    answers.close()
    assert list(scheduler.run(SumJob(), [[[4]]])) == [4]


def test_a_closed_scheduler_starts_again(scheduler) -> None:
    items = make_items(40)
    list(scheduler.run(SumJob(), items))
    scheduler.close()
    assert list(scheduler.run(SumJob(), items)) == [total(item) for item in items]
