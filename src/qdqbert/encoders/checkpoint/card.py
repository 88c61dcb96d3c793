"""The model card of a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml
from huggingface_hub import ModelCard
from transformers.utils.hub import cached_file

from qdqbert.common.file_names import CARD


def read_card_data(name: str) -> Mapping[str, Any]:
    """Return the metadata of a model card; nothing if there is none that can be read."""
    path = cached_file(
        name,
        CARD,
        _raise_exceptions_for_gated_repo=False,
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
    )
    if path is None:
        return {}
    try:
        card = ModelCard.load(path, ignore_metadata_errors=True)
    except (OSError, ValueError, yaml.YAMLError):
        # It is written by hand, and nothing depends on it.
        return {}
    data: Mapping[str, Any] = card.data.to_dict()
    return data
