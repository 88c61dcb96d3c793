"""Load a checkpoint, with quantizers if its config describes some."""

from __future__ import annotations

from collections.abc import Sequence

from qdqbert.checkpoint.load import Checkpoint, load_checkpoint
from qdqbert.models.quantized import class_for


def load_model(
    name: str,
    *,
    task: str | None = None,
    new_head: Sequence[str] | None = None,
    pooling: str | None = None,
) -> Checkpoint:
    """Load a checkpoint. See `load_checkpoint`. Quantizers are loaded too."""
    return load_checkpoint(name, task=task, class_for=class_for, new_head=new_head, pooling=pooling)
