"""Closed models: running calls end, and later ones are refused."""

from __future__ import annotations

import threading

import pytest

import qdqbert
from qdqbert.common.errors import ModelClosedError

TEXTS = [f"a dog {index} in the rain " * (1 + index % 9) for index in range(120)]


@pytest.fixture
def model(quantized):
    return qdqbert.load(quantized("sentence").directory)


def test_calls_of_a_closed_model_are_refused(model) -> None:
    with model:
        job = model.job()
        stream = model.stream(job, TEXTS * 60)
        next(stream)
    model.close()
    for use in (
        lambda: model.encode("a cat"),
        lambda: model(TEXTS),
        lambda: list(model.stream(job, TEXTS)),
        lambda: next(stream),
        lambda: model.run_in_stream(job, TEXTS),
        lambda: model.forward({"input_ids": [[1]], "attention_mask": [[1]]}),
        lambda: model.precision,
    ):
        with pytest.raises(ModelClosedError, match=r"was closed. Load it again\."):
            use()


@pytest.mark.parametrize("engine", ["native", "onnxruntime", "openvino"])
def test_closing_waits_for_the_calls_of_other_threads(quantized, engine) -> None:
    model = qdqbert.load(quantized("sentence").directory, engine=engine)
    expected = model.encode(TEXTS)
    found: list[object] = []
    has_answered = threading.Event()

    def use() -> None:
        try:
            while True:
                found.append(model.encode(TEXTS).shape)
                has_answered.set()
        except BaseException as error:
            found.append(type(error))

    threads = [threading.Thread(target=use) for _ in range(3)]
    for thread in threads:
        thread.start()
    has_answered.wait(timeout=60)
    model.close()
    for thread in threads:
        thread.join(timeout=60)
    assert set(found) == {expected.shape, ModelClosedError}
    assert found.count(ModelClosedError) == 3


def test_a_model_can_be_closed_within_a_call_of_its_own_thread(model) -> None:
    # As the handler of a signal does.
    answers = model.stream(model.job(), TEXTS * 60, advance=lambda done: model.close())
    with pytest.raises(ModelClosedError):
        list(answers)
