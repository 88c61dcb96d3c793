"""Checkpoints that store quantizers, which the models of `qdqbert.models` read."""

from __future__ import annotations

from qdqbert.checkpoint.load import Checkpoint, Description, load_described
from qdqbert.graph.of_checkpoint import encoder_of
from qdqbert.models.configuration import recipe_of
from qdqbert.models.quantized import class_for
from qdqbert.models.state import stored_calibration, stored_specs
from qdqbert.reference.sited_model import sited_model
from qdqbert.verbs.quantize.source import StoredQuantizers
from qdqbert.verbs.quantize.source.checkpoint import CheckpointSource


def read_stored(found: Description) -> CheckpointSource:
    """Read the weights and the quantizers of a checkpoint; see `load_described`."""
    checkpoint = load_described(found, class_for=class_for)
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
