"""The second encoder of a checkpoint of gliner: a label becomes the mean of its states."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from qdqbert.encoders.checkpoint.own_layers import tensors_below
from qdqbert.encoders.checkpoint.sentence import SentenceHead
from qdqbert.encoders.weights import Weights


@dataclasses.dataclass(frozen=True, kw_only=True)
class LabelsEncoder(SentenceHead):
    """The settings of an embedder that is in one file with another encoder."""

    body: ClassVar[str] = "token_rep_layer.labels_encoder.model."

    def of_encoder(self, weights: Weights) -> Weights:
        """Return the tensors of this encoder under the names of transformers."""
        return tensors_below(weights, self.body)
