"""Time a folder of `quantize` on texts: `python -m qdqbert.pipeline.auto.worker`.

Texts are tokenized already. They run through the batches and streams of `qdqbert.load`.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from qdqbert.evidence.processes import serve
from qdqbert.loading.load import load
from qdqbert.runtime.batches import Feature, Results
from qdqbert.runtime.scheduler import EncodedItem


def write_features(features: Sequence[Feature], path: Path) -> None:
    """Write model inputs, each `(tokens,)` or `(choices, tokens)`, int32, for `answers`."""
    rows = [{name: array.tolist() for name, array in each.items()} for each in features]
    path.write_text(json.dumps(rows))


class Passes:
    """Runs inputs, and leaves out tokenizing and answers, which take the same time everywhere."""

    def encode(self, items: Sequence[Feature]) -> list[EncodedItem]:
        """Return the inputs as they are."""
        return [EncodedItem(features=(each,)) for each in items]

    def split(self, results: Results) -> list[None]:
        """Keep nothing of the outputs."""
        return [None for _ in results.features]

    def answer(self, item: Feature, encoded: EncodedItem, values: Sequence[None]) -> None:
        """Return nothing."""
        del item, encoded, values


def answers(requests: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield an answer to each request: first one to load, then any number of turns.

    Texts are repeated if there are fewer than a request asks for.
    """
    first = next(requests)
    features = [
        {name: np.array(values, dtype=np.int32) for name, values in each.items()}
        for each in json.loads(Path(first["features"]).read_text())
    ]
    job = Passes()
    with load(first["folder"], engine=first["engine"]) as model:
        yield {"precision": model.precision}
        for request in requests:
            single = list(itertools.islice(itertools.cycle(features), request["single"]))
            bulk = list(itertools.islice(itertools.cycle(features), request["bulk"]))
            start = time.perf_counter()
            for each in single:
                list(model.stream(job, [each]))
            middle = time.perf_counter()
            list(model.stream(job, bulk))
            end = time.perf_counter()
            yield {
                "single_ms": (middle - start) * 1e3 / len(single),
                "bulk_ms": (end - middle) * 1e3 / len(bulk),
            }


if __name__ == "__main__":
    serve(answers)
