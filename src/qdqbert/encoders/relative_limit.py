"""How long texts are that an encoder with relative positions only reads: DeBERTa-v2 and v3.

`max_position_embeddings` of such a config is the farthest distance in training, and no limit:
transformers cuts texts where the tokenizer does, if it does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

LONGEST = 4096
"""Longest text in tokens, if nothing limits it."""


def reading(values: Mapping[str, Any], length: int | None) -> dict[str, Any]:
    """Return a config whose model reads texts of a length, if positions do not limit it.

    Distances are put into the same buckets as before.

    Args:
        values: The content of a config.json.
        length: Longest text in tokens; `None` for any, up to `LONGEST`.
    """
    limit = values.get("max_position_embeddings", 512)
    is_relative = values.get("relative_attention") and not values.get("position_biased_input", True)
    wanted = LONGEST if length is None else min(length, LONGEST)
    if (
        values.get("model_type") != "deberta-v2"
        or not is_relative
        or type(limit) is not int
        or wanted <= limit
    ):
        return dict(values)
    distances = values.get("max_relative_positions", -1)
    is_usual = type(distances) is int and distances < 1
    changed = {"max_relative_positions": limit} if is_usual else {}
    return {**values, **changed, "max_position_embeddings": wanted}
