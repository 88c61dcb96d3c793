"""The encoder families of transformers whose sites we know, as one table."""

from __future__ import annotations

import dataclasses
import re

from qdqbert.errors import CheckpointError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Family:
    """Where the parts of a post-LayerNorm encoder stand, relative to the model or to a layer.

    Attributes:
        model_type: transformers' name for it, as in `config.json`.
        layer: Regular expression that ends the path of an encoder layer.
        layer_example: Such a path, for people.
        attention: Path in a layer of the module that calls the attention interface.
        linears: Paths in a layer of linears other than those in `residual_outputs`.
        residual_outputs: Paths in a layer of modules of the form
            `LayerNorm(dropout(dense(x)) + residual)`.
        tables: Names of the embedding tables.
        reserved_positions: How many rows of the position table no token can use.
    """

    model_type: str
    layer: str = r"(^|\.)encoder\.layer\.\d+$"
    layer_example: str = "encoder.layer.0"
    attention: str = "attention.self"
    linears: tuple[str, ...] = (
        "attention.self.query",
        "attention.self.key",
        "attention.self.value",
        "intermediate.dense",
    )
    residual_outputs: tuple[str, ...] = ("attention.output", "output")
    tables: tuple[str, ...] = ("word_embeddings", "position_embeddings", "token_type_embeddings")
    reserved_positions: int = 0

    def is_layer(self, path: str) -> bool:
        """Whether a module's path is that of an encoder layer."""
        return re.search(self.layer, path) is not None

    def is_embedding_table(self, path: str) -> bool:
        """Whether a module's path is that of an embedding table."""
        return path.rpartition(".")[2] in self.tables


# RoBERTa numbers positions from pad_token_id + 1 = 2.
FAMILIES = {
    family.model_type: family
    for family in (
        Family(model_type="bert"),
        Family(model_type="camembert", reserved_positions=2),
        Family(model_type="electra"),
        Family(model_type="roberta", reserved_positions=2),
        Family(model_type="xlm-roberta", reserved_positions=2),
    )
}


def family_of(model_type: str) -> Family:
    """The family of a checkpoint, by the `model_type` of its config.

    Raises:
        CheckpointError: It is none that we know; the message lists those.
    """
    if model_type not in FAMILIES:
        raise CheckpointError(
            f"Checkpoints of type `{model_type}` are not supported. "
            f"Supported families: {', '.join(sorted(FAMILIES))}."
        )
    return FAMILIES[model_type]
