"""Download quantized models from the hub, which `push` uploaded: only the files that are needed."""

from __future__ import annotations

import re
from pathlib import Path

from qdqbert.artifact import (
    QUANTIZATION,
    Artifact,
    is_artifact,
    open_artifact,
    quantize_command,
)
from qdqbert.errors import CheckpointError
from qdqbert.evidence.checksums import CHECKSUMS

# A model of the hub. Models without an owner are too old to be quantized ones.
_HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w.-]+")


def is_hub_name(path: str | Path) -> bool:
    """Return whether a path is the name of a model of the hub: OWNER/NAME, and no local folder."""
    return _HUB_NAME.fullmatch(str(path)) is not None and not Path(path).exists()


def open_hub_artifact(name: str) -> Artifact:
    """Download everything but the graphs of a quantized model, and read it.

    Files that the hub's local cache has are not downloaded again.

    Args:
        name: Its name on the hub.

    Raises:
        CheckpointError: The hub has no such model, cannot be reached, or the model was not
            quantized by this package.
    """
    from qdqbert.checkpoint.hub import check_hub_model

    check_hub_model(name)
    folder = _download(name, None, ["*.json", CHECKSUMS])
    if not is_artifact(folder):
        raise CheckpointError(
            f"The hub's model {name!r} is not a quantized model: it has no {QUANTIZATION}. Pass "
            f"one that `push` uploaded, or quantize it first: {quantize_command(name)}"
        )
    return open_artifact(folder, requires_graphs=False)


def download_graph(name: str, artifact: Artifact, model: Path) -> None:
    """Download a graph to the folder of its model.

    Args:
        name: Name of the model on the hub.
        artifact: What `open_hub_artifact` returned.
        model: File of the graph, in the folder of the artifact.

    Raises:
        CheckpointError: The hub does not have it, or cannot be reached.
    """
    path = model.relative_to(artifact.directory).as_posix()
    # The folder is named after the commit. Large graphs have their weights in a file of their own.
    _download(name, artifact.directory.name, [path, f"{path}.data"])
    if not model.is_file():
        raise CheckpointError(f"The hub's model {name!r} is incomplete: {path} is missing.")


def _download(name: str, commit: str | None, files: list[str]) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, revision=commit, allow_patterns=files))
    # Errors of connections differ with the HTTP library and have no common class.
    except Exception as error:
        raise CheckpointError(
            f"The hub's model {name!r} cannot be downloaded ({type(error).__name__}). Check the "
            "connection, and that there is space left for the hub's cache."
        ) from error
