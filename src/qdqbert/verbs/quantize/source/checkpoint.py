"""Checkpoints of transformers, in PyTorch."""

from __future__ import annotations

from collections.abc import Collection

from qdqbert.checkpoint.body import GraphBody
from qdqbert.checkpoint.load import Checkpoint
from qdqbert.encoders.sites import sites_of
from qdqbert.engines.runner import Runner
from qdqbert.graph.of_checkpoint import encoder_of
from qdqbert.insert.outputs import check_outputs
from qdqbert.models.configuration import recipe_of
from qdqbert.models.state import stored_calibration, stored_specs
from qdqbert.reference.sited_model import sited_model
from qdqbert.spec import Site, SiteGroup
from qdqbert.verbs.inference import TorchRunner
from qdqbert.verbs.quantize.source import StoredQuantizers
from qdqbert.verbs.quantize.source.sited import SitedSource


class CheckpointSource:
    """A checkpoint in PyTorch; see `ModelSource`."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        """Read the quantizers of the checkpoint, if it has some, and disable them."""
        self._checkpoint = checkpoint
        self._body = GraphBody.of(checkpoint)
        self.name, self.task = checkpoint.name, str(checkpoint.task)
        self.model_type: str | None = checkpoint.family.model_type
        self.config, self.tokenizer = checkpoint.config, checkpoint.tokenizer
        self.head, self.cross_encoder = checkpoint.head, checkpoint.cross_encoder
        self._encoder = encoder_of(checkpoint)
        self.max_length = min(checkpoint.max_length, self._encoder.limit)
        self.input_names, self.output_names = checkpoint.input_names, self._body.output_names
        self.notices: tuple[str, ...] = checkpoint.notices
        self.stored = _take_stored_quantizers_(checkpoint)

    def runner(self) -> Runner:
        """Return the float model, ready to run."""
        return TorchRunner(self._body, self.input_names)

    def sites(self, groups: Collection[SiteGroup]) -> tuple[Site, ...]:
        """Return the sites of some groups."""
        if "output" in groups:
            check_outputs(self._checkpoint.family)
        return sites_of(self._encoder, self._with_stored(groups))

    def with_sites(self, groups: Collection[SiteGroup]) -> SitedSource:
        """Return the model with the sites of some groups."""
        return SitedSource(self._encoder, self._with_stored(groups), output_names=self.output_names)

    def _with_stored(self, groups: Collection[SiteGroup]) -> Collection[SiteGroup]:
        """Return groups of sites, and those of the checkpoint's own quantizers."""
        if self.stored is None:
            return groups
        every = sites_of(self._encoder, ("layer", "table", "output"))
        return {*groups, *(site.group for site in every if site.name in self.stored.specs)}


def _take_stored_quantizers_(checkpoint: Checkpoint) -> StoredQuantizers | None:
    sited = sited_model(checkpoint.model)
    if not sited.quantizers:
        return None
    stored = StoredQuantizers(
        specs=stored_specs(sited),
        calibration=stored_calibration(sited),
        recipe=recipe_of(checkpoint.config),
    )
    for quantizer in sited.quantizers.values():
        quantizer.disable()
    return stored
