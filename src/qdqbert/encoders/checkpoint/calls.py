"""Call transformers quietly, with errors that name the checkpoint."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from transformers.utils import logging as transformers_logging
from transformers.utils.hub import cached_file

from qdqbert.common.errors import CheckpointError
from qdqbert.encoders.checkpoint.sentence_files import FindFile, SentenceFiles


def call(name: str, function: Any, *args: Any, **kwargs: Any) -> Any:
    """Call a function without progress bars and warnings.

    Raises:
        CheckpointError: It fails. The error has one line and names the checkpoint.
    """
    try:
        with _quiet():
            return function(*args, **kwargs)
    except CheckpointError:
        raise
    except (OSError, ValueError, TypeError, KeyError, RuntimeError, SafetensorError) as error:
        reason = str(error).strip().split("\n")[0]
        raise CheckpointError(
            f"Checkpoint {name!r} cannot be loaded: {reason} Expected a local folder with "
            "config.json, weights and a tokenizer, or the id of a hub model that has "
            "them."
        ) from error


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hide progress bars, reports on weights, which are checked here, and repeated requests."""
    hub = logging.getLogger("huggingface_hub")
    hub_level = hub.level
    level, has_bars = (
        transformers_logging.get_verbosity(),
        transformers_logging.is_progress_bar_enabled(),
    )
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    hub.setLevel(logging.ERROR)
    try:
        yield
    finally:
        hub.setLevel(hub_level)
        transformers_logging.set_verbosity(level)
        if has_bars:
            transformers_logging.enable_progress_bar()


def finder_of(name: str) -> FindFile:
    """Return a finder of files, of a folder or of a model of the hub."""
    folder = Path(name)

    def find(path: str) -> Path | None:
        if folder.is_dir():
            return folder / path if (folder / path).is_file() else None
        found = call(name, cached_file, name, path, _raise_exceptions_for_missing_entries=False)
        return None if found is None else Path(found)

    return find


def files_of(name: str) -> SentenceFiles:
    """Return the files of a folder or of a model of the hub."""
    return SentenceFiles.found_by(finder_of(name))
