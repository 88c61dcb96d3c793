"""Run the tail of an encoder in PyTorch, on ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from qdqbert.calibration.reference.sited_encoder import RunTail
from qdqbert.encoders.model import EncoderModel
from qdqbert.engines.onnxruntime import load_graph


def open_tail(model: EncoderModel) -> RunTail | None:
    """Return a function that computes the outputs of a model's tail; `None` without a tail.

    Raises:
        CheckpointError: ONNX Runtime cannot load the graph.
    """
    if model.tail is None:
        return None
    run = load_graph(model.tail.graph)

    def computed(inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        made = run({name: value.numpy() for name, value in inputs.items()})
        return {name: torch.from_numpy(value) for name, value in made.items()}

    return computed
