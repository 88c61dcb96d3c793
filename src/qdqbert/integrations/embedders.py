"""Open a folder as the embedder of a framework."""

from __future__ import annotations

from typing import Any

from qdqbert.errors import UserInputError
from qdqbert.inference.load import load
from qdqbert.tasks.feature_extraction import Embedder


def open_embedder(path: str, framework: str, **options: Any) -> Embedder:
    """Load a model that must be an embedder.

    Raises:
        UserInputError: It is not an embedder.
        CheckpointError: See `qdqbert.load`.
    """
    model = load(path, **options)
    if not isinstance(model, Embedder):
        model.close()
        raise UserInputError(
            f"`path={str(path)!r}` is a model for {model.task!r}. {framework}'s embeddings need an "
            "embedder.",
            argument="path",
        )
    return model
