from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qdqbert.common.errors import UserInputError
from qdqbert.training.trainer.checkpoints import checkpoint_folder, last_checkpoint, step_of

SETTINGS = {"learning_rate": 0.001, "seed": 0, "qat": False, "epochs": 1.0, "words": ("a", "b")}


def write_checkpoint(folder: Path, step: str, *, complete: bool = True) -> Path:
    path = folder / f"checkpoint-{step}"
    path.mkdir(parents=True)
    if complete:
        (path / "trainer_state.json").write_text(json.dumps({}))
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "out-checkpoints"


@pytest.fixture
def opened(folder: Path) -> Callable[..., Any]:
    """Open the folder as a new run does, with changes."""

    def make(settings: dict[str, Any] | None = None, **changes: Any) -> Any:
        flags = {"resume": False, "overwrite": False, "keep": False, "is_main": True, **changes}
        return checkpoint_folder(folder, {**SETTINGS, **(settings or {})}, **flags)

    return make


class StopError(Exception):
    """Stops a run."""


def stop_in(run: Any, do: Callable[[], Any]) -> None:
    """Do something in a run, then stop it."""

    def stop() -> None:
        with run:
            do()
            raise StopError

    with pytest.raises(StopError):
        stop()


@pytest.fixture
def stopped(folder: Path, opened) -> Path:
    """The folder of a run that was stopped after two checkpoints."""
    stop_in(opened(), lambda: [write_checkpoint(folder, step) for step in ("2", "4")])
    return folder


def test_the_last_checkpoint_is_the_complete_one_with_most_steps(tmp_path) -> None:
    assert last_checkpoint(tmp_path) is None
    assert last_checkpoint(tmp_path / "missing") is None
    for step in ("9", "100", "best"):
        write_checkpoint(tmp_path, step)
    write_checkpoint(tmp_path, "200", complete=False)
    last = last_checkpoint(tmp_path)
    assert last == tmp_path / "checkpoint-100"
    assert step_of(last) == 100


@pytest.mark.parametrize("keep", [False, True])
def test_the_folder_exists_during_a_run_and_is_kept_on_request(folder, opened, keep) -> None:
    with opened(keep=keep) as start:
        assert start is None
        write_checkpoint(folder, "1")
    assert folder.exists() == keep


def test_a_run_that_fails_before_a_checkpoint_leaves_nothing(folder, opened) -> None:
    stop_in(opened(keep=True), lambda: write_checkpoint(folder, "1", complete=False))
    assert not folder.exists()


def test_only_the_main_process_creates_and_removes_the_folder(folder, opened) -> None:
    with opened(is_main=False):
        assert not folder.exists()
        folder.mkdir()
    stop_in(opened(is_main=False), lambda: None)
    assert folder.is_dir()


@pytest.mark.parametrize("is_main", [True, False], ids=["main", "other"])
def test_a_stopped_run_resumes_from_its_last_checkpoint_in_each_process(
    stopped, opened, is_main
) -> None:
    with opened(resume=True, is_main=is_main) as start:
        assert start == stopped / "checkpoint-4"
        assert (stopped / "checkpoint-2").is_dir()
    assert stopped.exists() != is_main


def test_a_stopped_run_is_not_replaced_or_resumed_unless_requested(stopped, opened) -> None:
    message = r"contains checkpoints of a run that was interrupted. Pass `resume=True` to continue"
    with pytest.raises(UserInputError, match=message), opened():
        pytest.fail("The run continued.")
    assert last_checkpoint(stopped) == stopped / "checkpoint-4"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"learning_rate": 0.01}, "`learning_rate` was 0.001 when it began and is 0.01 now"),
        ({"qat": True}, "`qat` was False when it began and is True now"),
        ({"new": 1}, "`new` was None when it began and is 1 now"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_run_is_resumed_with_equal_settings_only(stopped, opened, changes, message) -> None:
    with pytest.raises(UserInputError, match=message), opened(changes, resume=True):
        pytest.fail("The run continued.")
    assert last_checkpoint(stopped) == stopped / "checkpoint-4"


def test_without_a_checkpoint_there_is_nothing_to_resume(folder, opened) -> None:
    message = r"There is no checkpoint in .*out-checkpoints' to resume from"
    with pytest.raises(UserInputError, match=message), opened(resume=True):
        pytest.fail("The run continued.")
    assert not folder.exists()


def test_a_run_without_a_complete_checkpoint_starts_again(stopped, opened) -> None:
    for step in ("2", "4"):
        (stopped / f"checkpoint-{step}" / "trainer_state.json").unlink()
    message = "There is no checkpoint in"
    with pytest.raises(UserInputError, match=message), opened(resume=True):
        pytest.fail("The run continued.")
    with opened() as start:
        assert start is None
        assert not (stopped / "checkpoint-4").exists()


def test_overwrite_starts_a_stopped_run_again(stopped, opened) -> None:
    with opened(overwrite=True) as start:
        assert start is None
        assert [path.name for path in stopped.iterdir()] == ["settings.json"]
    assert not stopped.exists()


def test_a_folder_of_other_files_is_never_replaced(folder, opened) -> None:
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    message = "was not written by qdqbert, so it is not replaced"
    with pytest.raises(UserInputError, match=message), opened(overwrite=True):
        pytest.fail("The run continued.")
    assert (folder / "notes.txt").read_text() == "mine"


def test_a_folder_that_cannot_be_created_is_reported(folder, opened) -> None:
    folder.parent.joinpath("file").write_text("")
    at = folder.parent / "file" / "out-checkpoints"
    flags = {"resume": False, "overwrite": False, "keep": False, "is_main": True}
    with (
        pytest.raises(UserInputError, match=r"out-checkpoints' cannot be written: Not a directory"),
        checkpoint_folder(at, SETTINGS, **flags),
    ):
        pytest.fail("The run continued.")


def test_an_incomplete_folder_is_removed(folder, opened, monkeypatch) -> None:
    def fail(*args: Any, **kwargs: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("qdqbert.common.files.new_file", fail)
        message = "cannot be written: No space left on device"
        with pytest.raises(UserInputError, match=message), opened():
            pytest.fail("The run continued.")
    assert not folder.exists()
