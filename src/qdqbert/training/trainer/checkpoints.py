"""The folder of a run's checkpoints, from which an interrupted run can be resumed.

DIR/settings.json     settings that must not change when the run is resumed
DIR/checkpoint-STEP   as written by transformers' Trainer
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from qdqbert.common.errors import UserInputError
from qdqbert.common.files import write_json
from qdqbert.common.storage import place_of

_SETTINGS = "settings.json"

# The Trainer writes this file last.
_STATE = "trainer_state.json"


def checkpoints_of(output: str) -> Path:
    """Return the folder of the checkpoints of a run that writes `output`.

    It is beside the output; in the current folder if that is a URL.
    """
    place = place_of(output)
    # Without a slash at the end, which would put them into the output.
    return Path(f"{place if isinstance(place, Path) else place.name}-checkpoints")


@contextlib.contextmanager
def checkpoint_folder(
    folder: Path,
    settings: Mapping[str, Any],
    *,
    resume: bool,
    overwrite: bool,
    keep: bool,
    is_main: bool,
) -> Iterator[Path | None]:
    """Create the folder of a run's checkpoints, or find the checkpoint to resume from.

    Yields the checkpoint, `None` for a new run. The folder is removed when the block succeeds. If
    the block fails, the folder is kept if it holds a checkpoint.

    Args:
        folder: Folder of the checkpoints.
        settings: Settings that must not change when the run is resumed, as JSON values.
        resume: Resume from the last checkpoint.
        overwrite: Start again even if there are checkpoints.
        keep: Always keep the folder.
        is_main: Whether this process creates and removes the folder; only one of several does.

    Raises:
        UserInputError: There is no checkpoint to resume from, or the settings differ; the folder
            exists and must not be replaced; or it cannot be created.
    """
    start = None
    if is_main or resume:
        start = check_folder(folder, settings, resume=resume, overwrite=overwrite)
    if is_main and not resume:
        _make(folder, settings)
    try:
        yield start
    except BaseException:
        # Without a checkpoint there is nothing to resume from.
        if is_main and last_checkpoint(folder) is None:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    if is_main and not keep:
        shutil.rmtree(folder, ignore_errors=True)


def check_folder(
    folder: Path, settings: Mapping[str, Any], *, resume: bool, overwrite: bool
) -> Path | None:
    """Return the checkpoint to resume from; `None` for a new run, whose folder can be made."""
    if resume:
        return _check_resumable(folder, json.loads(json.dumps(settings)))
    _check_replaceable(folder, overwrite=overwrite)
    return None


def last_checkpoint(folder: Path) -> Path | None:
    """Return the last complete checkpoint; `None` if there is none."""
    found = [
        path
        for path in folder.glob("checkpoint-*")
        if (path / _STATE).is_file() and path.name.split("-")[1].isdecimal()
    ]
    return max(found, key=step_of, default=None)


def step_of(checkpoint: Path) -> int:
    """Return the step of a checkpoint, by the name of its folder."""
    return int(checkpoint.name.split("-")[1])


def _check_resumable(folder: Path, settings: Mapping[str, Any]) -> Path:
    last, stored = last_checkpoint(folder), folder / _SETTINGS
    if last is None or not stored.is_file():
        raise UserInputError(
            f"There is no checkpoint in {str(folder)!r} to resume from. Leave `resume` out to "
            "start again.",
            argument="resume",
        )
    before = json.loads(stored.read_text(encoding="utf-8"))
    changed = [name for name in settings if settings[name] != before.get(name)]
    if changed:
        name = changed[0]
        raise UserInputError(
            f"The run cannot be resumed, because `{name}` was {before.get(name)!r} when it began "
            f"and is {settings[name]!r} now. Pass the former value, or start again with "
            "`overwrite=True`.",
            argument="resume",
        )
    return last


def _check_replaceable(folder: Path, *, overwrite: bool) -> None:
    if folder.exists() and not (folder / _SETTINGS).is_file():
        raise UserInputError(
            f"{str(folder)!r}, the folder for checkpoints, exists and was not written by qdqbert, "
            "so it is not replaced. Pass another `output`.",
            argument="output",
        )
    if last_checkpoint(folder) is not None and not overwrite:
        raise UserInputError(
            f"{str(folder)!r} contains checkpoints of a run that was interrupted. Pass "
            "`resume=True` to continue from the last one, or `overwrite=True` to start again.",
            argument="output",
        )


def _make(folder: Path, settings: Mapping[str, Any]) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    try:
        folder.mkdir(parents=True)
        write_json(folder / _SETTINGS, settings)
    except OSError as error:
        # A later run would not recognize an incomplete folder, and refuse to replace it.
        shutil.rmtree(folder, ignore_errors=True)
        raise UserInputError(
            f"Output {str(folder)!r} cannot be written: {error.strerror}. Pass another `output`.",
            argument="output",
        ) from error
