"""Time a checkpoint in PyTorch: `python -m qdqbert.verbs.quantize.pytorch_worker`.

Answers the requests of `evidence.worker`. The model is what transformers loads, with its own
attention.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from qdqbert.checkpoint.body import GraphBody
from qdqbert.evidence.processes import serve
from qdqbert.evidence.worker import times
from qdqbert.models.loading import load_model
from qdqbert.verbs.inference import TorchRunner


def answers(requests: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield an answer to each request: first one to load, then any number of runs."""
    load = next(requests)
    if load["threads"] is not None:
        torch.set_num_threads(load["threads"])
    checkpoint = load_model(load["model"], task=load["task"], pooling=load["pooling"])
    runner = TorchRunner(GraphBody.of(checkpoint), checkpoint.input_names)
    yield {"precision": runner.precision}
    yield from times(runner, load, requests)


if __name__ == "__main__":
    serve(answers)
