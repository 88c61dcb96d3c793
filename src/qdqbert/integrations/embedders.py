"""Open a folder as the embedder of a framework."""

from __future__ import annotations

from typing import Any

from qdqbert.errors import UserInputError
from qdqbert.inference.embedding import Embedder
from qdqbert.inference.load import load


def open_embedder(path: str, framework: str, **options: Any) -> Embedder:
    """Load a folder that must hold an embedder.

    Args:
        path: Folder that `quantize` wrote, or its name on the hub.
        framework: What needs the embedder, for the message.
        options: Options of `qdqbert.load`.

    Raises:
        UserInputError: The folder has no embedder.
        CheckpointError: The folder was not written by `quantize`, or is incomplete.
    """
    model = load(path, **options)
    if not isinstance(model, Embedder):
        model.close()
        raise UserInputError(
            f"`path={str(path)!r}` was quantized for task {model.task!r}. {framework}'s "
            "embeddings need an embedder (task 'feature-extraction').",
            argument="path",
        )
    return model
