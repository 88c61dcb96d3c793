"""Features of a model that its kernels depend on."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from qdqbert.engines.native.schema import ROUNDINGS


@dataclasses.dataclass(frozen=True, kw_only=True)
class Features:
    """The parts of a model that need kernels of their own. Others are not generated.

    Attributes:
        activation: Name of the activation function of the feed-forward part.
        dynamic: Whether each row of codes gets its own scale while the model runs.
        norms_first: Whether LayerNorms are before the parts of a layer instead of after them.
        gated: Whether the activation is multiplied by a gate.
        adds_twice: Whether states are added again after the LayerNorm that follows an attention.
        normalizes_heads: Whether queries and keys are normalized over the channels of all heads.
        rotary: Whether queries and keys are rotated.
        windowed: Whether some layers attend only to near tokens.
        relative_keys: Whether queries are multiplied by a table of relative positions.
        relative_queries: Whether keys are multiplied by a table of relative positions.
        positions: Whether there is a table of positions.
        drops_words: Whether rows of words are multiplied by a factor of each token.
        rounds_attention: Whether inputs of attention's products are fake-quantized.
        rounds_adds: Whether inputs of residual adds are fake-quantized.
        scores_words: Whether a head takes the largest score of each word of a vocabulary.
    """

    activation: str
    dynamic: bool = False
    norms_first: bool = False
    gated: bool = False
    adds_twice: bool = False
    normalizes_heads: bool = False
    rotary: bool = False
    windowed: bool = False
    relative_keys: bool = False
    relative_queries: bool = False
    positions: bool = True
    drops_words: bool = False
    rounds_attention: bool = False
    rounds_adds: bool = False
    scores_words: bool = False

    @property
    def relative(self) -> bool:
        """Whether scores depend on tables of relative positions."""
        return self.relative_keys or self.relative_queries


def features_of(settings: Mapping[str, Any]) -> Features:
    """Return the features of a model that its kernels depend on."""
    relative = settings["relative"] or {"keys": False, "queries": False}
    return Features(
        activation=settings["activation"],
        dynamic=settings["dynamic"],
        norms_first=settings["norms_first"],
        gated=settings["gated"],
        adds_twice=settings["adds_twice"],
        normalizes_heads=settings["normalizes_heads"],
        rotary=settings["rotations"] > 0,
        windowed=any(layer["window"] is not None for layer in settings["layers"]),
        relative_keys=relative["keys"],
        relative_queries=relative["queries"],
        positions=settings["embeddings"]["has_positions"],
        drops_words=settings["dropped_id"] is not None,
        rounds_attention=_rounds(settings, of_adds=False),
        rounds_adds=_rounds(settings, of_adds=True),
        scores_words=any(map(scores_words, settings["heads_of_model"])),
    )


def scores_words(head: Mapping[str, Any]) -> bool:
    """Return whether a head needs the largest score of each word only if it is positive."""
    kinds = [each.get("name", each["kind"]) for each in head["steps"]]
    count = head["token_steps"]
    return (
        count > 0
        and head["poolings"] == ["max"]
        and kinds[count - 1 : count + 1] == ["linear", "relu"]
    )


def _rounds(settings: Mapping[str, Any], *, of_adds: bool) -> bool:
    """Return whether a layer fake-quantizes inputs of attention, or of residual adds."""
    parts = [part for part, each in ROUNDINGS.items() if each.is_of_add == of_adds]
    return any(layer[part] for layer in settings["layers"] for part in parts)
