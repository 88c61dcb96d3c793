"""Models that are not local folders: check their names, and download their files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath

from huggingface_hub import (
    constants,
    get_hf_file_metadata,
    hf_hub_url,
    snapshot_download,
    try_to_load_from_cache,
)
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HFValidationError,
    RepositoryNotFoundError,
)

from qdqbert.common.errors import CheckpointError
from qdqbert.common.file_names import CONFIG, MODULES
from qdqbert.encoders.adapters import ADAPTERS
from qdqbert.encoders.checkpoint.gliner import GLINER_CONFIG
from qdqbert.encoders.tensor_files import WEIGHTS, has_weights

_TIMEOUT_SECONDS = 5
# Files of settings, of which each model has one.
_SETTINGS = (CONFIG, MODULES, GLINER_CONFIG)


def no_folder(name: str) -> CheckpointError:
    """Return the error about a path that does not exist, and is no name on the hub."""
    _, scheme, path = name.partition("://")
    if not scheme:
        return CheckpointError(f"Folder {name!r} does not exist. Check the path.")
    parts = [part for part in path.split("/")[1:3] if part]
    example = f", as {'/'.join(parts)!r}" if parts else ""
    return CheckpointError(
        f"{name!r} is a URL. Pass the name of the model on the hub, OWNER/NAME{example}, or a "
        "folder."
    )


def check_hub_model(name: str) -> None:
    """Check that the hub or its local cache has a model. Asks once, without repetitions.

    transformers' loaders repeat failed requests for most of a minute, and log each of them.

    Raises:
        CheckpointError: The name is not possible on the hub, the hub has no such model, or it
            cannot be reached.
    """
    if name.startswith((".", "/", "~")):
        raise no_folder(name)
    try:
        url = hf_hub_url(name, CONFIG)
    except HFValidationError as error:
        if "://" in name:
            raise no_folder(name) from error
        raise CheckpointError(
            f"Folder {name!r} does not exist, and the hub cannot have a model of this "
            "name: its ids are NAME or OWNER/NAME, of letters, digits, '.', '_' and '-'. Check "
            "the path."
        ) from error
    # Not every package saves a config.json.
    if any(isinstance(try_to_load_from_cache(name, each), str) for each in _SETTINGS):
        return
    reason = _reason_for_absence(url)
    if reason is not None:
        raise CheckpointError(
            f"Model {name!r} cannot be found: no such folder exists here, and {reason}. Check "
            "the name, or pass the path of a folder."
        )


def download(name: str, files: Sequence[str], *, commit: str | None = None) -> Path:
    """Download files of a model, unless the hub's local cache has them, and return their folder.

    `files` are globs over their paths. Without a `commit`, it is the newest one.
    """
    try:
        return Path(snapshot_download(name, revision=commit, allow_patterns=list(files)))
    # Errors of connections differ with the HTTP library and have no common class.
    except Exception as error:
        raise CheckpointError(
            f"The hub's model {name!r} cannot be downloaded ({type(error).__name__}). Check the "
            "connection, and that there is space left for the hub's cache."
        ) from error


def download_weights(name: str, folders: Iterable[str], *, commit: str | None = None) -> Path:
    """Download the weights in folders of a model: the files of torch only without safetensors.

    Its adapters are downloaded, too. Returns the folder of the model. `folders` are paths in it,
    and some may have no weights.
    """
    left, path = list(folders), Path()
    for file, shards in WEIGHTS.items():
        names = (shards, f"{file}.index.json", f"{ADAPTERS}/*/adapter_*")
        globs = [str(PurePosixPath(folder, each)) for folder in left for each in names]
        path = download(name, globs, commit=commit)
        # The folder is named after the commit.
        commit = path.name
        left = [each for each in left if not has_weights(path / each)]
        if not left:
            break
    return path


def _reason_for_absence(url: str) -> str | None:
    """Return the reason why the hub does not provide a model; `None` if it does."""
    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE=1 forbids downloads from the hub"
    try:
        get_hf_file_metadata(url, timeout=_TIMEOUT_SECONDS)
    except (EntryNotFoundError, GatedRepoError):
        # The model exists. Its loader reports the missing file.
        return None
    except RepositoryNotFoundError:
        return "the hub has no model of this name that you may read"
    # Errors of connections differ with the HTTP library and have no common class.
    except Exception as error:
        return f"the hub cannot be reached ({type(error).__name__})"
    return None
