"""The folder of a run's checkpoints, from which a run that was stopped goes on.

DIR/settings.json     what has to be the same to go on
DIR/checkpoint-STEP   as transformers' Trainer writes it
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from qdqbert.errors import UserInputError

_SETTINGS = "settings.json"
_STATE = "trainer_state.json"  # The Trainer writes its own state last.


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
    """Gives a run its folder, and the checkpoint to go on from if there is one.

    The folder goes once the block ends well. If the block fails, it stays where there is a
    checkpoint in it.

    Args:
        folder: Where checkpoints lie.
        settings: What has to be the same for a run to go on, as JSON can hold it.
        resume: Go on from the last checkpoint.
        overwrite: Start anew although there are checkpoints.
        keep: Leave the folder in any case.
        is_main: Whether this is the one process that makes the folder and removes it.

    Raises:
        UserInputError: There is nothing to go on from, or other settings; there is something that
            must not be replaced; or the folder cannot be made.
    """
    plain: dict[str, Any] = json.loads(json.dumps(settings))
    start = None
    if resume:
        start = _check_resumable(folder, plain)
    elif is_main:
        _check_replaceable(folder, overwrite=overwrite)
        _make(folder, plain)
    try:
        yield start
    except BaseException:
        if is_main and last_checkpoint(folder) is None:
            shutil.rmtree(folder, ignore_errors=True)  # nothing to go on from
        raise
    if is_main and not keep:
        shutil.rmtree(folder, ignore_errors=True)


def last_checkpoint(folder: Path) -> Path | None:
    """The last checkpoint that was written to its end; `None` if there is none."""
    found = [
        path
        for path in folder.glob("checkpoint-*")
        if (path / _STATE).is_file() and path.name.split("-")[1].isdecimal()
    ]
    return max(found, key=step_of, default=None)


def step_of(checkpoint: Path) -> int:
    """How many steps a checkpoint was written after."""
    return int(checkpoint.name.split("-")[1])


def _check_resumable(folder: Path, settings: Mapping[str, Any]) -> Path:
    last, stored = last_checkpoint(folder), folder / _SETTINGS
    if last is None or not stored.is_file():
        raise UserInputError(
            f"`--resume`: there is no checkpoint in {str(folder)!r}. Leave it out to start anew."
        )
    before = json.loads(stored.read_text(encoding="utf-8"))
    changed = [name for name in settings if settings[name] != before.get(name)]
    if changed:
        name = changed[0]
        raise UserInputError(
            f"`--resume`: `{name}` was {before.get(name)!r} when the run began and is "
            f"{settings[name]!r} now. Pass what it was, or start anew with `--overwrite`."
        )
    return last


def _check_replaceable(folder: Path, *, overwrite: bool) -> None:
    if folder.exists() and not (folder / _SETTINGS).is_file():
        raise UserInputError(
            f"{str(folder)!r}, where checkpoints would lie, exists and is no folder of "
            "ours, so it will not be replaced. Pass another `--output`."
        )
    if last_checkpoint(folder) is not None and not overwrite:
        raise UserInputError(
            f"{str(folder)!r} holds checkpoints of a run that did not end. Pass "
            "`--resume` to go on from the last, or `--overwrite` to start anew."
        )


def _make(folder: Path, settings: Mapping[str, Any]) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    try:
        folder.mkdir(parents=True)
        (folder / _SETTINGS).write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        # Half of it would be taken for a folder that is none of ours.
        shutil.rmtree(folder, ignore_errors=True)
        raise UserInputError(
            f"Output {str(folder)!r} cannot be written: {error.strerror}."
        ) from error
