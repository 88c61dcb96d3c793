"""Checkpoints, float or with quantizers of their own."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from pathlib import Path

from qdqbert.checkpoint.hub import download
from qdqbert.checkpoint.load import Description, check_vocabulary
from qdqbert.encoders.checkpoint import read_encoder
from qdqbert.encoders.config import Config
from qdqbert.encoders.heads import POOLINGS
from qdqbert.encoders.model import EncoderModel
from qdqbert.encoders.sites import sites_of
from qdqbert.encoders.weights import Weights
from qdqbert.engines.runner import Runner
from qdqbert.insert.outputs import check_outputs
from qdqbert.reference.sited_encoder import SitedEncoder
from qdqbert.spec import Site, SiteGroup
from qdqbert.verbs.inference import TorchRunner
from qdqbert.verbs.quantize.source import StoredQuantizers
from qdqbert.verbs.quantize.source.sited import SitedSource


class CheckpointSource:
    """A checkpoint as data; see `ModelSource`."""

    def __init__(
        self,
        found: Description,
        encoder: EncoderModel,
        *,
        stored: StoredQuantizers | None = None,
        notices: Collection[str] = (),
    ) -> None:
        """Keep what was read.

        Args:
            found: The checkpoint, apart from its weights.
            encoder: Its model.
            stored: Its quantizers, if it has some.
            notices: Sentences for the user about its weights.
        """
        self._family, self._encoder, self.stored = found.family, encoder, stored
        self.name, self.task = found.name, str(found.task)
        self.model_type: str | None = found.family.model_type
        self.config, self.tokenizer = found.config, found.tokenizer
        self.head, self.cross_encoder = found.head, found.cross_encoder
        self.max_length = min(found.max_length, encoder.limit)
        self.input_names = found.input_names
        self.output_names = tuple(output.name for head in encoder.heads for output in head.outputs)
        self.notices = (*found.notices, *notices)

    def runner(self) -> Runner:
        """Return the float model, ready to run."""
        return TorchRunner(SitedEncoder(self._encoder, ()), self.input_names)

    def sites(self, groups: Collection[SiteGroup]) -> tuple[Site, ...]:
        """Return the sites of some groups."""
        if "output" in groups:
            check_outputs(self._family)
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


def read_float(found: Description) -> CheckpointSource:
    """Read the weights of a checkpoint without quantizers.

    Args:
        found: The rest of the checkpoint.

    Raises:
        CheckpointError: A part is missing, damaged, or of a kind that is not supported.
        UserInputError: The family has no head for the task.
    """
    notices: list[str] = []
    head = found.head
    encoder = read_encoder(
        Weights(_weights_folder(found)),
        Config(values=found.config.to_dict()),
        found.task,
        pooling=None if head is None else POOLINGS[head.pooling],
        normalize=head is not None and head.normalize,
        notices=notices,
    )
    check_vocabulary(found.name, found.tokenizer, len(encoder.embeddings.words.rows))
    encoder = dataclasses.replace(encoder, input_names=found.input_names)
    return CheckpointSource(found, encoder, notices=notices)


def _weights_folder(found: Description) -> Path:
    """Return the folder of a checkpoint's weights, which are downloaded if they are on the hub."""
    folder = Path(found.name)
    if not folder.is_dir():
        start = f"{found.subfolder}/" if found.subfolder else ""
        files = [f"{start}model*.safetensors", f"{start}model.safetensors.index.json"]
        folder = download(found.name, files)
    return folder / found.subfolder
