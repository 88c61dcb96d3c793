"""The process in which one engine is timed: `python -m qdqbert.evidence.worker`.

Reads a JSON object a line and answers with one: first how to load, then what to run. Engines are
timed each in a process of its own, since the threads of one spin while another works.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from qdqbert.engines.runner import open_runner


def answers(requests: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """One answer to each request: `load` first, then any number of `run`."""
    load = next(requests)
    runner = open_runner(
        load["engine"],
        Path(load["model"]),
        threads=load["threads"],
        provider=load.get("provider"),
    )
    yield {"precision": runner.precision}
    for request in requests:
        # Token ids do not change what is computed, so any do; no position is padding.
        rng = np.random.default_rng(0)
        choices = (load["choices"],) if load.get("choices") else ()
        shape = (request["batch"], *choices, request["sequence"])
        known = {
            "input_ids": rng.integers(5, load["vocab_size"], shape),
            "attention_mask": np.ones(shape, np.int64),
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


def main() -> None:
    """Answers stdin on stdout until stdin ends."""
    for answer in answers(json.loads(line) for line in sys.stdin):
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
