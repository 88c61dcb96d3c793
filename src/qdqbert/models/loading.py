"""Loads any checkpoint as what its config says that it is: float, or with quantizers."""

from __future__ import annotations

from collections.abc import Sequence

from qdqbert.checkpoint.load import Checkpoint, load_checkpoint
from qdqbert.models.modeling import register
from qdqbert.models.quantized import class_for


def load_model(
    name: str,
    *,
    task: str | None = None,
    new_head: Sequence[str] | None = None,
    pooling: str | None = None,
) -> Checkpoint:
    """As `load_checkpoint`, for checkpoints with quantizers too."""
    register()
    return load_checkpoint(name, task=task, class_for=class_for, new_head=new_head, pooling=pooling)
