"""Where quantizers are inserted into transformers' modules of a family."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from qdqbert.encoders.layers import LayerPaths
from qdqbert.quantization.spec import Source


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayerSites:
    """Paths of the sites of a layer or of its cross-attention, relative to the layer.

    Attributes:
        linear_layers: Paths of all linear layers, by the source of their input.
        attention: Path of the module that computes the attention matmuls.
        residual_outputs: Paths of modules of the form
            `LayerNorm(dropout(dense(x)) + residual)`.
        branches: Paths of modules whose output is added to a residual by the module around them.
        activation: Path of a module of the form `activation(dense(x))`, in families that recipes
            with sites on outputs support.
    """

    linear_layers: Mapping[Source, tuple[str, ...]]
    attention: str
    residual_outputs: tuple[str, ...] = ()
    branches: tuple[str, ...] = ()
    activation: str | None = None

    @classmethod
    def of(cls, paths: LayerPaths, **others: Any) -> LayerSites:
        """Return the sites of a layer without a gate, with `others` of the attributes.

        They are 20: 6 linear layers x (input, weight), 4 inputs of matmuls, 2 residual adds x 2.
        """
        linear_layers: Mapping[Source, tuple[str, ...]] = {
            "norm": (paths.query, paths.key, paths.value, paths.up),
            "attention": (paths.output,),
            "activation": (paths.down,),
        }
        attention = paths.query.rpartition(".")[0]
        return cls(linear_layers=linear_layers, attention=attention, **others)

    @property
    def reads_encoder(self) -> bool:
        """Whether key and value are computed from another model's states: cross-attention."""
        return "encoder" in self.linear_layers


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingSites:
    """The sites of transformers' models of a family.

    Attributes:
        layers: Path of the encoder layers, which are numbered below it.
        layer: The sites of each layer.
        cross_attention: Additional sites of a decoder's layer with cross-attention.
        tables: Names of the embedding tables.
    """

    layer: LayerSites
    layers: str = "encoder.layer"
    cross_attention: LayerSites | None = None
    tables: tuple[str, ...] = ("word_embeddings", "position_embeddings", "token_type_embeddings")

    def is_layer(self, path: str) -> bool:
        """Return whether a path names an encoder layer, in a model with or without a head."""
        return re.search(rf"(^|\.){re.escape(self.layers)}\.\d+$", path) is not None

    def is_embedding_table(self, path: str) -> bool:
        """Return whether a path names an embedding table."""
        return path.rpartition(".")[2] in self.tables
