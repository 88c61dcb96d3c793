"""Download settings and graphs from the hub: only the files that are needed."""

from __future__ import annotations

import os
import re
from pathlib import Path

from qdqbert.common.errors import CheckpointError
from qdqbert.common.file_names import SPM
from qdqbert.common.storage import is_url
from qdqbert.evidence.checksums import CHECKSUMS
from qdqbert.runtime.artifact import Artifact

# A model of the hub. Old ones have no owner: bert-base-uncased.
_HUB_NAME = re.compile(r"[\w-][\w.-]*(/[\w.-]+)?")


def is_hub_name(path: str | os.PathLike[str]) -> bool:
    """Return whether a path can only be the name of a model of the hub: OWNER/NAME, or NAME.

    It has the form of one, and nothing of this name is here.
    """
    return _HUB_NAME.fullmatch(str(path)) is not None and not Path(path).exists()


def absolute_name(path: str | os.PathLike[str]) -> str:
    """Return the name of a model for other folders: a path is absolute.

    Names of the hub and URLs, which hold on other machines, too, stay as they are.
    """
    name = str(path)
    return name if is_hub_name(name) or is_url(name) else str(Path(path).absolute())


def download_settings(name: str) -> Path:
    """Download the settings of a model of the hub, and return their folder.

    Files that the hub's local cache has are not downloaded again.
    """
    from qdqbert.encoders.checkpoint.hub import check_hub_model
    from qdqbert.encoders.checkpoint.text_heads import OWN_FILES
    from qdqbert.encoders.checkpoint.token_heads import TOKEN_HEAD_FILES

    check_hub_model(name)
    # Files with weights, most of them small, which any graph of a folder needs.
    weights = (*TOKEN_HEAD_FILES, *OWN_FILES)
    return _download(name, None, ["*.json", "*.jinja", f"*{SPM}", CHECKSUMS, *weights])


def download_graph(name: str, artifact: Artifact, model: Path) -> None:
    """Download a graph to the folder of its model.

    `artifact` is the folder that `download_settings` returned.
    """
    path = model.relative_to(artifact.directory).as_posix()
    # The folder is named after the commit. Large graphs have their weights in a file of their own.
    _download(name, artifact.directory.name, [path, f"{path}.data"])
    if not model.is_file():
        raise CheckpointError(f"The hub's model {name!r} is incomplete: {path} is missing.")


def _download(name: str, commit: str | None, files: list[str]) -> Path:
    # It loads the hub's library, which local folders do not need.
    from qdqbert.encoders.checkpoint.hub import download

    return download(name, files, commit=commit)
