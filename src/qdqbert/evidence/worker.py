"""Time one engine in a process of its own: `python -m qdqbert.evidence.worker`.

Each line of input is a JSON object, and each gets a line as its answer. The first request loads an
engine, the others run it. Engines need separate processes, because the threads of one spin while
another works.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from qdqbert.common.input_names import POOLED
from qdqbert.engines.cuda.device import Device, open_on
from qdqbert.engines.registry import count_ids, open_runner
from qdqbert.evidence.processes import serve

# A graph may lack a table of words. BERT models have larger ones.
_ANY_VOCABULARY = 1000


def answers(requests: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield an answer to each request: first one to load, then any number of runs."""
    load = next(requests)
    model = Path(load["model"])
    if load["device"] is None:
        runner = open_runner(
            load["engine"], model, threads=load["threads"], provider=load["provider"]
        )
    else:
        runner = open_on(Device(**load["device"]), model)
    words = count_ids(load["engine"], model) or _ANY_VOCABULARY
    yield {"precision": runner.precision}
    for request in requests:
        # Latency does not depend on the token ids. No position is [PAD].
        rng = np.random.default_rng(0)
        choices = (load["choices"],) if load["choices"] else ()
        shape = (request["batch"], *choices, request["sequence"])
        known = {
            "input_ids": rng.integers(5, words, shape),
            "attention_mask": np.ones(shape, np.int64),
            POOLED: np.ones(shape, np.int64),
            "token_type_ids": np.zeros(shape, np.int64),
        }
        inputs = {name: known[name] for name in runner.input_names}
        times_ms: list[float] = []
        until = time.perf_counter() + request["seconds"]
        runner.run(inputs)
        while len(times_ms) < 3 or time.perf_counter() < until:
            start = time.perf_counter()
            runner.run(inputs)
            times_ms.append((time.perf_counter() - start) * 1e3)
        yield {"times_ms": times_ms}


if __name__ == "__main__":
    serve(answers)
