"""Runs examples through a float checkpoint or a graph, to one row a text."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from qdqbert.encoding import Batch, encode, make_batches
from qdqbert.engines.runner import Runner
from qdqbert.graph.export import GraphBody, to_numpy
from qdqbert.tasks.data import Example
from qdqbert.tasks.task import Rows, Task


@dataclasses.dataclass(frozen=True, kw_only=True)
class EncodedExamples:
    """Examples as batches of model inputs.

    Attributes:
        batches: Length-bucketed.
        texts: How many rows they make.
        truncated: How many texts lost their end.
        tokens: Tokens in all, special ones included and padding not.
    """

    batches: tuple[Batch, ...]
    texts: int
    truncated: int
    tokens: int


def encode_examples(
    task: Task,
    tokenizer: Any,
    examples: Sequence[Example],
    *,
    input_names: Sequence[str],
    max_length: int,
    batch_size: int,
) -> EncodedExamples:
    """Tokenizes and batches examples as their task feeds them."""
    texts, pairs = task.texts(examples)
    encoded = encode(tokenizer, texts, pairs, input_names=input_names, max_length=max_length)
    return EncodedExamples(
        batches=tuple(make_batches(encoded, batch_size=batch_size)),
        texts=len(texts),
        truncated=encoded.truncated,
        tokens=sum(encoded.lengths),
    )


class TorchRunner:
    """Runs a PyTorch model as an engine; see `engines.runner.Runner`."""

    precision = "float32"

    def __init__(self, body: GraphBody, input_names: Sequence[str]) -> None:
        self._body = body
        self.input_names = tuple(input_names)
        self.output_names = body.output_names

    def run(self, inputs: Any) -> dict[str, Any]:
        """One forward pass."""
        with torch.inference_mode():
            outputs = self._body(**{k: torch.from_numpy(v) for k, v in inputs.items()})
        return to_numpy(outputs, self.output_names)


def rows_of(
    task: Task,
    runner: Runner,
    encoded: EncodedExamples,
    advance: Callable[[], None] = lambda: None,
) -> Rows:
    """One row a text, in the order of the texts, `(texts, features)`."""
    rows: dict[int, Rows] = {}
    for batch in encoded.batches:
        inputs = {name: batch.inputs[name] for name in runner.input_names}
        made = task.rows(runner.run(inputs), batch.inputs)
        rows.update(zip(batch.indices, made, strict=True))
        advance()
    return np.stack([rows[index] for index in range(encoded.texts)])
