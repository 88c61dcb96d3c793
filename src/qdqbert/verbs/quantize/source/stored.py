"""Checkpoints that store quantizers, which the models of `qdqbert.models` read."""

from __future__ import annotations

from qdqbert.checkpoint.load import Checkpoint
from qdqbert.graph.of_checkpoint import encoder_of
from qdqbert.models.configuration import recipe_of
from qdqbert.models.loading import load_model
from qdqbert.models.state import stored_calibration, stored_specs
from qdqbert.reference.sited_model import sited_model
from qdqbert.verbs.quantize.source import StoredQuantizers
from qdqbert.verbs.quantize.source.checkpoint import CheckpointSource


def open_stored(name: str, *, task: str | None, pooling: str | None) -> CheckpointSource:
    """Read a checkpoint with its quantizers; see `load_model`."""
    checkpoint = load_model(name, task=task, pooling=pooling)
    return CheckpointSource(checkpoint, encoder_of(checkpoint), stored=_quantizers_of(checkpoint))


def _quantizers_of(checkpoint: Checkpoint) -> StoredQuantizers | None:
    sited = sited_model(checkpoint.model)
    if not sited.quantizers:
        return None
    return StoredQuantizers(
        specs=stored_specs(sited),
        calibration=stored_calibration(sited),
        recipe=recipe_of(checkpoint.config),
    )
