"""Features of a model that its kernels depend on."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from qdqbert.common.json_files import Fields
from qdqbert.engines.native.functions import ACTIVATIONS
from qdqbert.engines.native.kernels.dot import Count, bytes_of_codes
from qdqbert.engines.native.schema import ROUNDINGS
from qdqbert.quantization.hadamard import Hadamard

# Features that have a setting of their name.
SPREAD = {"spread_states": "hidden", "spread_inner": "inner"}
"""Settings that are matrices, and the settings with the numbers of their channels."""
_STORED = (
    *("floats", "dynamic", "norms_first", "gated", "adds_twice", "norms_parts"),
    *("normalizes_heads", "norms_each_head", "bounds_values"),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Features:
    """The parts of a model that need kernels of their own. Others are not generated.

    Attributes:
        activation: Name of the activation function of the feed-forward part.
        floats: Whether linear layers multiply float32. What is a code elsewhere is a float then.
        dynamic: Whether each row of codes gets its own scale while the model runs.
        spread_states: Matrix that hidden states are multiplied by before they become codes.
        spread_inner: Matrix that the input of the last linear layer is multiplied by.
        norms_first: Whether LayerNorms are before the parts of a layer instead of after them.
        norms_parts: Whether the output of each part is normalized before it is added to the states.
        gated: Whether the activation is multiplied by a gate.
        adds_twice: Whether states are added again after the LayerNorm that follows an attention.
        normalizes_heads: Whether queries and keys are normalized.
        norms_each_head: Whether they are over the channels of each head instead of all heads.
        rotary: Whether queries and keys are rotated.
        is_causal: Whether tokens attend only to themselves and those before them.
        has_windows: Whether some layers attend only to near tokens.
        has_experts: Whether some layers choose experts for each token.
        bounds_values: Whether values are rounded by scales that do not depend on the text.
        relative_keys: Whether queries are multiplied by a table of relative positions.
        relative_queries: Whether keys are multiplied by a table of relative positions.
        positions: Whether there is a table of positions.
        drops_words: Whether rows of words are multiplied by a factor of each token.
        rounds_attention: Whether inputs of attention's products are fake-quantized.
        rounds_adds: Whether inputs of residual adds are fake-quantized.
        scores_words: Whether a head takes the largest score of each word of a vocabulary.
    """

    activation: str
    floats: bool = False
    dynamic: bool = False
    spread_states: Hadamard | None = None
    spread_inner: Hadamard | None = None
    norms_first: bool = False
    norms_parts: bool = False
    gated: bool = False
    adds_twice: bool = False
    normalizes_heads: bool = False
    norms_each_head: bool = False
    rotary: bool = False
    is_causal: bool = False
    has_windows: bool = False
    has_experts: bool = False
    bounds_values: bool = False
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

    @property
    def windowed(self) -> bool:
        """Whether some tokens attend to near tokens only, or only to those before them."""
        return self.has_windows or self.is_causal

    @property
    def shares_prefixes(self) -> bool:
        """Whether a text can go on where another one ends, with the same bits as the whole text.

        No state of a token depends on later tokens, and neither does how values are rounded.
        """
        is_exact = self.floats or self.bounds_values
        return self.is_causal and is_exact and not (self.has_windows or self.relative)

    @property
    def joins_heads(self) -> bool:
        """Whether the queries of a head depend on those of the other heads."""
        return self.normalizes_heads and not self.norms_each_head

    @property
    def contexts_are_floats(self) -> bool:
        """Whether attention writes float32, not codes."""
        return self.floats or self.dynamic

    def bytes_of_row(self, channels: Count) -> Count:
        """Return the bytes from one row of codes to the next."""
        return bytes_of_codes(channels * 4 if self.floats else channels)

    @classmethod
    def read(cls, settings: Fields) -> Features:
        """Read the features of a packed model, whose other settings were checked.

        Raises:
            CheckpointError: A setting is missing or has a wrong value.
        """
        layers, heads = (settings.children(name) for name in ("layers", "heads_of_model"))
        relative = settings.child("relative") if settings.has("relative") else None
        rounded = {
            each.is_of_add
            for layer in layers
            for part, each in ROUNDINGS.items()
            if layer.has(part)
        }
        return cls(
            activation=settings.choice("activation", tuple(ACTIVATIONS)),
            **{name: settings.truth(name) for name in _STORED},
            spread_states=_matrix(settings, "spread_states"),
            spread_inner=_matrix(settings, "spread_inner"),
            rotary=settings.integer("rotations", 0) > 0,
            is_causal=settings.truth("causal"),
            has_windows=any(layer.has("window") for layer in layers),
            has_experts=any(layer.has("experts") for layer in layers),
            relative_keys=relative is not None and relative.truth("keys"),
            relative_queries=relative is not None and relative.truth("queries"),
            positions=settings.child("embeddings").truth("has_positions"),
            drops_words=settings.has("dropped_id"),
            rounds_attention=False in rounded,
            rounds_adds=True in rounded,
            scores_words=not settings.truth("floats")
            and any(scores_words(head.values) for head in heads),
        )


def _matrix(settings: Fields, name: str) -> Hadamard | None:
    if not settings.has(name):
        return None
    found = settings.child(name)
    return Hadamard(members=found.integer("members"), block=found.integer("block"))


def scores_words(head: Mapping[str, Any]) -> bool:
    """Return whether a head needs the largest score of each word only if it is positive."""
    kinds = [each.get("name", each["kind"]) for each in head["steps"]]
    count = head["token_steps"]
    return (
        count > 0
        and head["poolings"] == ["max"]
        and kinds[count - 1 : count + 1] == ["linear", "relu"]
    )
