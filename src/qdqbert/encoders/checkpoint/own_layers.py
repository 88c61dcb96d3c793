"""Layers after an encoder that are not part of the graph: a call decides which tokens they read.

Packages save them in one file with the encoder.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from qdqbert.common.errors import CheckpointError
from qdqbert.encoders.checkpoint.layout import Layout
from qdqbert.encoders.checkpoint.sentence_files import FindFile
from qdqbert.encoders.model import Pooling, Step
from qdqbert.encoders.tensor_files import SAFETENSORS, TORCH
from qdqbert.encoders.weights import Weights


@dataclasses.dataclass(frozen=True, kw_only=True)
class OwnLayers(Layout):
    """The settings of an encoder with such layers, whose graph has the states alone."""

    row_poolings: ClassVar[tuple[Pooling, ...]] = ()
    weight_folders: ClassVar[tuple[str, ...]] = ()
    body: ClassVar[str]
    """Prefix of the tensors of the encoder."""

    def steps(self, find: FindFile) -> tuple[Step, ...]:
        """Return the steps in the graph: none."""
        del find
        return ()

    def of_encoder(self, weights: Weights) -> Weights:
        """Return the tensors of the encoder under the names of transformers."""
        names = (name for name in weights if name.startswith(self.body))
        return weights.renamed({name.removeprefix(self.body): name for name in names})


def found_weights(find: FindFile) -> Weights:
    """Return all tensors of a checkpoint.

    Raises:
        CheckpointError: There is no file of them, or it is damaged.
    """
    path = find(SAFETENSORS) or find(TORCH)
    if path is None:
        raise CheckpointError(f"The checkpoint has neither {SAFETENSORS} nor {TORCH}.")
    return Weights(path.parent)
