"""Runs that are interrupted, and how they are resumed."""

from __future__ import annotations

import functools
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import flat
from qdqbert.common.errors import UserInputError
from training_files import (
    QUICK,
    Interrupted,
    assert_same_weights,
    files_left,
    record_of,
    stop_before_batch,
)

# 16 examples make 4 steps an epoch, 8 in all. Checkpoints are written after 3 and 6 steps, the
# second one in the second epoch.
RESUMED: dict[str, dict[str, Any]] = {
    "learned-ranges-accumulated-gradients": {
        "qat_ranges": "learned",
        "batch_size": 2,
        "gradient_accumulation": 2,
    },
    "moving-ranges": {"qat_ranges": "moving"},
}


@pytest.mark.parametrize("changes", RESUMED.values(), ids=RESUMED)
@pytest.mark.usual("learned-*")
def test_a_resumed_run_ends_like_one_without_interruption(
    classifier, tmp_path, out, changes
) -> None:
    options = {**QUICK, "qat": True, "epochs": 2, "eval_steps": 3, **changes}
    run = functools.partial(
        flat.train,
        classifier.checkpoint,
        train_data=classifier.train,
        eval_data=classifier.dev,
        **options,
    )
    whole = run(tmp_path / "whole")
    stop_before_batch(8 * options.get("gradient_accumulation", 1), lambda: run(out))
    assert files_left(out) == ["out-checkpoints"]
    # A run that is killed while it writes a checkpoint leaves such a folder.
    (tmp_path / "out-checkpoints" / "checkpoint-7").mkdir()
    report = run(out, resume=True)
    assert (report.resumed_at, report.steps, whole.resumed_at) == (6, 8, None)
    assert_same_weights(out, tmp_path / "whole")
    assert (report.before, report.after) == (whole.before, whole.after)
    records = [record_of(each) for each in (out, tmp_path / "whole")]
    losses = [[entry.get("loss") for entry in record["history"]] for record in records]
    # The last entry is the duration.
    assert losses[0][:-1] == losses[1][:-1]
    # The stored command repeats the whole run.
    assert "--resume" not in records[0]["command"]
    assert files_left(out) == ["out"]


def copy_of(interrupted: Interrupted, folder: Path) -> Interrupted:
    """Return a copy of an interrupted run with another output."""
    copy = Interrupted(files=interrupted.files, out=folder / "out")
    shutil.copytree(f"{interrupted.out}-checkpoints", f"{copy.out}-checkpoints")
    # The output is one of the settings that must not change.
    settings = Path(f"{copy.out}-checkpoints") / "settings.json"
    content = json.loads(settings.read_text()) | {"output": str(copy.out)}
    settings.write_text(json.dumps(content))
    return copy


def test_a_run_with_data_in_memory_is_resumed(classifier, tmp_path, out) -> None:
    header, *lines = classifier.train.read_text().splitlines()
    names = header.split("\t")
    rows = [dict(zip(names, line.split("\t"), strict=True)) for line in lines]
    options = {**QUICK, "eval_steps": 3}
    run = functools.partial(flat.train, classifier.checkpoint, train_data=rows, **options)
    stop_before_batch(4, lambda: run(out))
    report = run(out, resume=True)
    assert report.resumed_at == 3
    flat.train(classifier.checkpoint, tmp_path / "whole", train_data=classifier.train, **options)
    assert_same_weights(out, tmp_path / "whole")


def test_options_that_do_not_change_the_model_may_change(interrupted, tmp_path) -> None:
    pytest.importorskip("tensorboard")
    report = copy_of(interrupted, tmp_path).run(
        resume=True, keep_checkpoints=True, tensorboard=True
    )
    assert (report.resumed_at, report.steps) == (2, 4)
    assert (tmp_path / "out-checkpoints" / "settings.json").is_file()


def test_overwrite_starts_an_interrupted_run_again(interrupted, tmp_path) -> None:
    report = copy_of(interrupted, tmp_path).run(overwrite=True)
    assert (report.resumed_at, report.steps) == (None, 4)
    assert not (tmp_path / "out-checkpoints").exists()


def test_checkpoints_of_another_run_are_found_before_the_data_is_read(
    interrupted, write_file
) -> None:
    empty = write_file("empty.csv", "text,label\n")
    model, options = interrupted.files.checkpoint, {**QUICK, "train_data": empty}
    with pytest.raises(UserInputError, match="contains checkpoints of a run that was interrupted"):
        flat.train(model, interrupted.out, **options)


def test_resume_without_a_checkpoint_is_refused(classifier, out, write_file) -> None:
    empty = write_file("empty.csv", "text,label\n")
    with pytest.raises(UserInputError, match=r"There is no checkpoint in .*out-checkpoints"):
        flat.train(classifier.checkpoint, out, train_data=empty, resume=True, **QUICK)
    assert files_left(out) == []
