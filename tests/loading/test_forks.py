"""Loaded and used models in processes that are forked from the one that loaded them."""

from __future__ import annotations

import os

import pytest

from python_process import run_python

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no forks")

START = """
import asyncio, os, sys, time
import numpy as np
import qdqbert
from qdqbert.engines.native import schedule
from qdqbert.serving.batcher import Batcher

# Threads share the work of a small model, too.
schedule.PRODUCTS_ALONE = schedule.PRODUCTS_OF_A_SLICE = 0
FEW, MANY = ["a cat"], [f"a dog {i} in the rain " * (1 + i % 9) for i in range(150)]
model = qdqbert.load(sys.argv[1], engine=sys.argv[2], threads=2)

def use():
    return np.concatenate([model.encode(FEW), model.encode(MANY)])

def fork(run):
    child = os.fork()
    if not child:
        run()
        # Unlike `os._exit`, this destroys the objects of the parent.
        sys.exit(0)
    for _ in range(600):
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return status
        time.sleep(0.05)
    os.kill(child, 9)
    return "the child hangs"
"""
USED_IN_BOTH = """
expected = use()
check = lambda: np.testing.assert_allclose(use(), expected, atol=1e-3)
print(fork(check), fork(lambda: fork(check) and sys.exit(1)), fork(lambda: None))
check()
"""
IN_A_BATCHER = """
batcher = Batcher(model, max_queued=100)

def answer():
    found = asyncio.run(batcher.run("key", model.job, MANY))
    return np.stack([each.answer for each in found])

expected = answer()
print(fork(lambda: np.testing.assert_allclose(answer(), expected, atol=1e-3)))
batcher.close()
"""
STREAM = """
stream = model.stream(model.job(), MANY * 60)
next(stream)

def read():
    try:
        list(stream)
    except qdqbert.UserInputError as error:
        assert "in another process" in str(error)
    else:
        sys.exit(1)

print(fork(read), len(list(stream)))
"""


def run(folder, engine, code, **variables) -> str:
    environment = {**os.environ, **variables}
    return run_python("-c", START + code, folder, engine, timeout=240, env=environment)


@pytest.mark.parametrize("engine", ["native", "onnxruntime", "openvino"])
@pytest.mark.usual("native")
@pytest.mark.slow
def test_a_used_model_can_be_used_in_forked_processes(quantized, engine) -> None:
    folder = quantized("sentence").directory
    # With this variable, the library `tokenizers` would wait for its threads in the child.
    assert run(folder, engine, USED_IN_BOTH, TOKENIZERS_PARALLELISM="true") == "0 0 0"


@pytest.mark.slow
def test_a_used_batcher_answers_in_a_forked_process(quantized) -> None:
    assert run(quantized("sentence").directory, "onnxruntime", IN_A_BATCHER) == "0"


@pytest.mark.slow
def test_a_stream_of_the_parent_is_refused_in_the_child(quantized) -> None:
    assert run(quantized("sentence").directory, "onnxruntime", STREAM) == "0 8999"
